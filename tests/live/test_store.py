"""The store on real files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError
from tapfinger.live import store as store_module
from tapfinger.live.store import Store, Token
from tapfinger.live.tasks import Happening, TaskRecord, TaskSpec

SPEC = TaskSpec(("train.py", "--x", "ü\n"), "small", {"cpu": 2.0}, {}, ("c0",), {"A": "b"}, "/tmp", 2, 60.0, "keep")
RECORD = TaskRecord(7, SPEC, "me", 1000.5)
RUNNING = replace(RECORD, phase=Phase.RUNNING, attempt=2, cluster="c0", agent="a", allocation=(2, 0), started=1001.0)
DONE = replace(RUNNING, phase=Phase.FINISHED, ended=1002.0, code=0, output=10)


def test_what_is_saved_is_there_after_reopening(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store.db")
    line = Happening(1000.5, "submitted", 7)
    store.save([RECORD, replace(RECORD, id=8)], [line])
    store.save([RUNNING], [])
    store.close()
    again = Store(tmp_path / "new" / "store.db")
    assert again.unended() == [RUNNING, replace(RECORD, id=8)]
    assert again.task(7) == RUNNING
    assert again.task(9) is None
    assert again.next_id() == 9
    assert again.history(0, 10) == [(1, line)]
    again.save([DONE], [])
    assert [r.id for r in again.unended()] == [8]
    assert again.counts() == {"finished": 1, "queued": 1}


def test_tasks_are_listed_from_the_newest_on_in_pages(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.save([replace(RECORD, id=i) for i in range(1, 6)], [])
    store.save([replace(DONE, id=2)], [])
    assert [r.id for r in store.tasks([], 2, None)] == [5, 4]
    assert [r.id for r in store.tasks([], 2, 4)] == [3, 2]
    assert [r.id for r in store.tasks([Phase.FINISHED, Phase.LOST], 10, None)] == [2]


def test_a_batch_is_saved_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    keyed = replace(RECORD, spec=replace(SPEC, key="k"))
    store.save([keyed], [])
    with pytest.raises(sqlite3.IntegrityError):
        store.save([replace(RECORD, id=20), replace(keyed, id=21)], [Happening(1.0, "submitted", 20)])
    assert store.next_id() == 8
    assert store.history(0, 10) == []
    assert store.by_key("me", "k") == keyed
    assert store.by_key("you", "k") is None
    store.save([replace(keyed, id=22, owner="you")], [])


def test_epochs_rise(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert [Store(path).new_epoch() for _ in range(3)] == [1, 2, 3]


def test_tokens_are_replaced_by_name_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
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


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("not a database, but a long enough text to be taken for one" * 20)
    with pytest.raises(ConfigError, match=r"store\.db cannot be used as a store"):
        Store(path)


def test_a_store_of_a_newer_version_is_refused_and_an_older_one_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    Store(path).save([RECORD], [])
    more = (*store_module.MIGRATIONS, "ALTER TABLE tasks ADD COLUMN colour TEXT")
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "MIGRATIONS", more)
        assert Store(path).unended() == [RECORD]
    with pytest.raises(ConfigError, match=f"has schema {len(more)}, this version of TapFinger knows {len(more) - 1}"):
        Store(path)


WRITER = """
import sys
from pathlib import Path
from tapfinger.live.store import Store
from tapfinger.live.tasks import TaskRecord, TaskSpec
store = Store(Path(sys.argv[1]))
for n in range(1, 1_000_000):
    store.save([TaskRecord(n, TaskSpec(("x",), "small"), "me", 1.0)], [])
    print(n, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(50)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [int(line) for line in writer.stdout.read().split("\n") if line]
    saved = {record.id for record in Store(path).unended()}
    assert set(told) <= saved
    assert len(saved) <= len(told) + 1
