"""The store on real files; tests/engines/test_postgres_store.py runs most of this on a PostgreSQL too."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, StoreFailed
from tapfinger.live.protocol.events import Submitted, Warned
from tapfinger.live.protocol.records import LostAttempt, TaskRecord, TaskSpec
from tapfinger.live.store import migrations
from tapfinger.live.store.secrets import TaskSecret
from tapfinger.live.store.store import READ, Piece, Store, Token

SPEC = TaskSpec(("train.py", "--x", "ü\n"), "small", {"cpu": 2.0}, {}, ("c0",), {"A": "b"}, "/tmp", 2, 60.0, "keep")
RECORD = TaskRecord(7, SPEC, "me", 1000.5)
RUNNING = replace(RECORD, phase=Phase.RUNNING, attempt=2, cluster="c0", agent="a", allocation=(2, 0), started=1001.0)
RUNNING = replace(RUNNING, progress=1 / 3, metrics={"loss": 1 / 7}, warnings=("odd", "ü"))
RUNNING = replace(RUNNING, least={"memory": 0.1})
DONE = replace(RUNNING, phase=Phase.FINISHED, ended=1002.0, code=0, output=10, incomplete=True)


Where = Path | str
Opener = Callable[[], Store]


@pytest.fixture
def where(tmp_path: Path) -> Where:
    """Where a new store can be."""
    return tmp_path / "new" / "store.db"


@pytest.fixture
def integrity_error() -> type[Exception]:
    """What the database raises for a key that exists already."""
    return sqlite3.IntegrityError


@pytest.fixture
def opened(where: Where) -> Iterator[Opener]:
    """Opens the store again and again, and leads; whoever had it open has closed it."""
    stores: list[Store] = []

    def make() -> Store:
        for before in stores:
            before.close()
        stores.append(Store(where))
        assert stores[-1].lead("http://here") is not None
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_what_is_saved_is_there_after_reopening(opened: Opener) -> None:
    store = opened()
    line = Warned(1000.123456789, 7, text="a \N{SNOWMAN}")
    store.save([RECORD, replace(RECORD, id=8)], [line])
    store.save([RUNNING], [], {"drained": ["c0"]})
    lost = LostAttempt("c0", "a", (2, 0), None)
    resting = replace(RECORD, id=8, setbacks=2, lost_in_a_row=1, not_before=1007.5, lost=lost, warned=3)
    store.save([resting], [])
    again = opened()
    assert again.unended() == [RUNNING, resting]
    assert again.task(7) == RUNNING
    assert again.task(9) is None
    assert again.next_id() == 9
    assert again.history(0, 10) == [(1, line)]
    assert again.last_line() == 1
    assert again.meta("drained") == ["c0"]
    again.set_meta("drained", [])
    assert (again.meta("drained"), again.meta("nothing", 5)) == ([], 5)
    again.save([replace(DONE, cancelled=True)], [])
    assert [r.id for r in again.unended()] == [8]
    assert again.task(7) == replace(DONE, cancelled=True)
    assert again.counts() == {"finished": 1, "queued": 1}


def test_tasks_are_listed_from_the_newest_on_in_pages(opened: Opener) -> None:
    store = opened()
    store.save([replace(RECORD, id=i) for i in range(1, 6)], [])
    store.save([replace(DONE, id=2)], [])
    assert [r.id for r in store.tasks([], 2, None)] == [5, 4]
    assert [r.id for r in store.tasks([], 2, 4)] == [3, 2]
    assert [r.id for r in store.tasks([Phase.FINISHED, Phase.LOST], 10, None)] == [2]


def test_long_lists_are_read_a_few_at_a_time(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.save([replace(DONE if i % 3 else RECORD, id=i) for i in range(1, 101)], [])
    asked: list[int] = []
    real = store._db.query

    def query(statement: str, values: Any = ()) -> Any:
        rows = real(statement, values)
        asked.append(len(rows) if "spec" in statement else 0)
        return rows

    monkeypatch.setattr(store._db, "query", query)
    found = store.tasks([Phase.FINISHED, Phase.FAILED, Phase.QUEUED], 1000)
    assert [next(found).id for _ in range(5)] == [100, 99, 98, 97, 96]
    assert sum(asked) == READ
    assert [record.id for record in found] == list(range(95, 0, -1))
    assert max(asked) == READ
    assert len([*store.tasks([Phase.QUEUED], 25)]) == 25


def test_a_batch_is_saved_as_a_whole_or_not_at_all(opened: Opener, integrity_error: type[Exception]) -> None:
    store = opened()
    keyed = replace(RECORD, spec=replace(SPEC, key="k"))
    store.save([keyed], [])
    with pytest.raises(integrity_error):
        store.save([replace(RECORD, id=20), replace(keyed, id=21)], [Submitted(1.0, 20)])
    assert store.next_id() == 8
    assert store.history(0, 10) == []
    assert store.by_keys("me", [*map(str, range(1000)), "k"]) == {"k": keyed}
    assert store.by_keys("you", ["k"]) == {}
    store.save([replace(keyed, id=22, owner="you")], [])


def test_epochs_rise(where: Where) -> None:
    epochs = []
    for _ in range(3):
        store = Store(where)
        epochs.append(store.lead(""))
        store.close()
    assert epochs == [1, 2, 3]


def test_tokens_are_replaced_by_name_and_removed(opened: Opener) -> None:
    store = opened()
    store.add_token(Token("h1", "ann", "viewer", None, 1.0))
    store.add_token(Token("h2", "ann", "agent", "c0", 2.0))
    assert store.token("h1") is None
    assert store.tokens() == [Token("h2", "ann", "agent", "c0", 2.0)]
    store.add_token(Token("h3", "bob", "viewer", None, 2.0, 5.0))
    bob = store.token("h3")
    assert bob is not None
    assert [bob.expired(now) for now in (4.9, 5.0)] == [False, True]
    assert store.remove_token("ann")
    assert not store.remove_token("ann")


def test_a_name_is_left_if_it_has_tasks_and_no_token(opened: Opener) -> None:
    store = opened()
    assert not store.is_left("me")
    store.save([RECORD], [])
    assert store.is_left("me")
    assert not store.is_left("you")
    store.add_token(Token("h1", "me", "submitter", None, 1.0, 2.0))
    assert not store.is_left("me"), "also if it has expired"
    store.remove_token("me")
    assert store.is_left("me")


def test_only_secrets_that_a_task_names_are_read(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read for each of hundreds of tasks in one message, on the loop with the leases."""
    store = opened()
    for n in range(3):
        store.secrets.keep("me", f"KEY{n}", "long", 1, 1.0)
    query, read = store.secrets._db.query, list[Any]()

    def watched(*given: Any) -> list[Any]:
        rows = query(*given)
        read.extend(rows)
        return rows

    monkeypatch.setattr(store.secrets._db, "query", watched)
    assert store.secrets.values("me", ("KEY1",), 7) == {"KEY1": "long"}
    assert read == [("KEY1", "long")]


def test_secrets_are_for_one_owner_or_one_task_and_end_with_them(opened: Opener) -> None:
    store = opened()
    store.add_token(Token("h1", "me", "submitter", None, 1.0))
    store.secrets.keep("me", "KEY", "first", 5, 1.0)
    store.secrets.keep("me", "KEY", "ü", 9, 2.0)
    store.secrets.keep("you", "KEY", "yours", 1, 2.0)
    record = replace(RECORD, spec=replace(SPEC, secrets=("KEY", "OWN")))
    store.save([record], [], secrets=[TaskSecret("me", "OWN", 7, 3.0, "own")])
    store = opened()
    assert store.secrets.values("me", ("KEY", "OWN"), 7) == {"KEY": "ü", "OWN": "own"}
    assert store.secrets.values("me", ("KEY", "OWN"), 4) == {"KEY": None, "OWN": None}, "it is older than the secret"
    assert store.secrets.values("you", ("KEY",), 7) == {"KEY": "yours"}
    assert [(one.name, one.at) for one in store.secrets.kept("me")] == [("KEY", 2.0)]
    assert store.owners([7, 8]) == {7: "me"}
    store.save([replace(record, phase=Phase.CANCELLED, ended=4.0)], [])
    assert (store.secrets.given("me"), len(store.secrets.kept("me"))) == ((0, 0), 1)
    assert store.remove_token("me")
    assert (store.secrets.kept("me"), len(store.secrets.kept("you"))) == ([], 1)
    assert store.secrets.remove("you", "KEY")
    assert not store.secrets.remove("you", "KEY")


def test_output_comes_in_pieces_in_whatever_order_and_however_often(opened: Opener) -> None:
    store = opened()

    def add(offset: int, data: bytes, skipped: int = 0) -> int:
        store.save([], [], None, [Piece((1, 2), offset, data, 10, skipped)])
        return store.output_size((1, 2))

    assert [add(0, b""), add(3, b"late"), add(0, b"one\0"), add(0, b"one"), add(2, b"e\0\xfft")] == [0, 0, 4, 4, 6]
    assert store.output((1, 2), 0, 100) == (0, b"one\0\xfft")
    assert store.output((1, 2), 2, 3) == (2, b"e\0\xff")
    assert store.output((1, 2), 6, 100) == (6, b"")
    assert store.output((1, 1), 0, 100) == (0, b"")
    assert store.output_size((1, 1)) == 0


def test_of_a_long_output_the_middle_is_left_out(opened: Opener) -> None:
    store = opened()
    for start in range(0, 30, 3):
        store.save([], [], None, [Piece((1, 1), start, b"%03d" % start, 12)])
    assert store.output_size((1, 1)) == 30
    assert store.output((1, 1), 0, 100) == (0, b"000003")
    assert store.output((1, 1), 6, 100) == (24, b"024027")  # and where it goes on
    # The agent has left out something itself: what it has no more is not waited for.
    store.save([], [], None, [Piece((1, 1), 40, b"end", 12, 10)])
    assert store.output_size((1, 1)) == 43
    assert store.output((1, 1), 30, 100) == (40, b"end")
    store.save([], [], None, [Piece((1, 1), 60, b"lost", 12, 5)])  # more is missing than was left out: it comes again
    assert store.output_size((1, 1)) == 43


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("not a database, but a long enough text to be taken for one" * 20)
    with pytest.raises(StoreFailed, match=r"store\.db is damaged and cannot be used as a store"):
        Store(path)


def test_a_store_of_a_newer_version_is_refused_and_an_older_one_brought_up_to_date(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().save([RECORD], [])
    more = (*migrations.MIGRATIONS, "CREATE TABLE colours (id INTEGER PRIMARY KEY AUTOINCREMENT, depth REAL);")
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", more)
        assert opened().unended() == [RECORD]
    with pytest.raises(ConfigError, match=f"has schema {len(more)}, this version of TapFinger knows {len(more) - 1}"):
        opened()


WRITER = """
import sys
from pathlib import Path
from tapfinger.live.store.store import Store
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
store = Store(sys.argv[1] if sys.argv[1].startswith("postgresql:") else Path(sys.argv[1]))
store.lead("")
for n in range(1, 1_000_000):
    store.save([TaskRecord(n, TaskSpec(("x",), "small"), "me", 1.0)], [])
    print(n, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(where: Where) -> None:
    command = [sys.executable, "-c", WRITER, str(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(50)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [int(line) for line in writer.stdout.read().split("\n") if line]
    store = Store(where)
    saved = {record.id for record in store.unended()}
    store.close()
    assert set(told) <= saved
    assert len(saved) <= len(told) + 1


def test_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """What tasks were given is in it, and directories are made by all sorts of people."""
    before = os.umask(0o022)
    try:
        opened = Store(tmp_path / "store.db")
        opened.save([RECORD], [])
        rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        opened.close()
    finally:
        os.umask(before)
    assert rights == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
