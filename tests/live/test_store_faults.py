"""A store that fails: a clear message, no traceback, nothing acknowledged lost, and one command as the way back."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG, RealSite, python
from live.test_store import DONE, RECORD
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, CoordinatorError, StoreFailed, TapfingerError
from tapfinger.live.config import LiveConfig, build_site, load_site
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.protocol.events import AgentJoined, Submitted
from tapfinger.live.protocol.records import MAX_CLUSTERS, MAX_TEXT, TaskSpec
from tapfinger.live.service.taking_over import Kept, make_machine, take_epoch
from tapfinger.live.store import sqlite
from tapfinger.live.store.copies import EPOCHS, copy_store, put_back
from tapfinger.live.store.store import SKIPPED, Store, Token
from tapfinger.registry import create


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A store with a little of everything, all of it in its main file."""
    path = tmp_path / "good" / "store.db"
    store = Store(path)
    store.lead("")
    spec = replace(RECORD.spec, type="demo", minimum={}, clusters=())
    store.save([replace(RECORD, id=n, spec=spec) for n in range(1, 40)], [Submitted(1.0, n) for n in range(1, 40)])
    store.save([replace(DONE, id=n) for n in range(40, 80)], [AgentJoined(1.0, cluster="left", agent="a")])
    store.save([], [], {"drained": ["left"], "origin": 5.0, "lease": 60.0, "links": {}})
    store.add_token(Token("h", "ann", "viewer", None, 1.0))
    store.close()
    assert not path.with_name("store.db-wal").exists()
    return path


def restore_everything(path: Path, directory: Path) -> None:
    """What a coordinator reads when it starts."""
    config_file = directory / "site.toml"
    config_file.write_text(CONFIG)
    scenario, config = load_site(config_file)
    store = Store(path)
    try:
        epoch = take_epoch(store, directory, "")
        schedulers = create("scheduler", "fifo", {}), create("scheduler", "min", {})
        make_machine(store, build_site(scenario), config, schedulers, epoch or 1, 1000.0)
        store.counts()
        store.learned()
        list(store.tasks([Phase.FINISHED], 100))
        store.history(0, 100)
        store.tokens()
    finally:
        store.close()


def test_a_good_store_is_read(good: Path, tmp_path: Path) -> None:
    restore_everything(good, tmp_path)


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


def overwritten(at: float, length: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        first = int(at * len(data))
        junk = bytes((7 * n + first) % 251 for n in range(length))
        return data[:first] + junk + data[first + length :]

    return change


DAMAGES = [
    *(cut(n / 40) for n in range(1, 40)),
    *(overwritten(n / 60, length) for n in range(60) for length in (3, 40, 4096, 20_000)),
    lambda data: data[:4096] + b"\0" * (len(data) - 4096),
    lambda data: b"\0" * len(data),
    lambda _data: b"not a database at all, and long enough to be taken for one" * 100,
]


def test_whatever_is_wrong_with_a_file_is_said(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    said: list[tuple[Path, TapfingerError]] = []
    for number, damage in enumerate(DAMAGES):
        path = tmp_path / f"{number}" / "store.db"
        path.parent.mkdir()
        path.write_bytes(damage(data))
        try:
            restore_everything(path, path.parent)
        except TapfingerError as error:
            said.append((path, error))
    assert len(said) > 50
    for path, error in said:
        assert "\n" not in str(error)
        assert str(path) in str(error) or not isinstance(error, StoreFailed)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE tasks",
        "DROP TABLE totals",
        "DROP TABLE history",
        "DELETE FROM migrations",
        "UPDATE tasks SET spec = '{' WHERE id = 3",
        "UPDATE tasks SET spec = '{}' WHERE id = 3",
        "UPDATE tasks SET spec = json_set(spec, '$.argv', 'train.py') WHERE id = 3",
        "UPDATE tasks SET spec = json_set(spec, '$.argv', json_array()) WHERE id = 3",
        "UPDATE tasks SET spec = json_set(spec, '$.retries', -1) WHERE id = 3",
        "UPDATE tasks SET spec = json_set(spec, '$.env', json_object('a b', 'c')) WHERE id = 3",
        "UPDATE tasks SET phase = 'asleep' WHERE id = 3",
        "UPDATE tasks SET attempt = 'many', phase = 'running' WHERE id = 3",
        "UPDATE tasks SET submitted = 'yesterday' WHERE id = 3",
        "UPDATE tasks SET started = 'never', phase = 'running' WHERE id = 3",
        "UPDATE meta SET value = '7' WHERE name = 'drained'",
        "UPDATE meta SET value = 'x' WHERE name = 'epoch'",
        "UPDATE meta SET value = '[]' WHERE name = 'origin'",
        "UPDATE meta SET value = '\"long\"' WHERE name = 'lease'",
    ],
)
def test_content_that_makes_no_sense_is_said(good: Path, tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(good, isolation_level=None)) as database:
        database.execute(statement)
    with pytest.raises(StoreFailed, match=r"is damaged .* tapfinger restore COPY --state"):
        restore_everything(good, tmp_path)


def test_limits_of_submissions_do_not_hold_for_what_is_stored(good: Path, tmp_path: Path) -> None:
    """A version that had no such limits may have accepted it."""
    spec = TaskSpec(
        ("x" * (MAX_TEXT + 1),) * 3,
        "demo",
        clusters=("left",) * (MAX_CLUSTERS + 1),
        env={"V" * 250: "1"} | {f"V{n}": "" for n in range(1000)},
        cwd="/" + "d" * 5000,
        retries=5000,
        key="k" * 300,
        name="n" * 300,
    )
    store = Store(good)
    store.save([replace(RECORD, id=100, spec=spec), replace(DONE, id=101, spec=replace(spec, key="l" * 300))], [])
    store.close()
    restore_everything(good, tmp_path)
    store = Store(good)
    found = [store.task(ident) for ident in (100, 101)]
    assert [record and replace(record.spec, key=None) for record in found] == [replace(spec, key=None)] * 2
    store.close()


def test_a_fault_of_the_program_is_not_taken_for_one_of_the_store(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_self: Coordinator, _records: object, _now: float) -> None:
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(Coordinator, "_restore", broken)
    with pytest.raises(
        StoreFailed, match=r"a fault of the program .* ValueError: nobody foresaw this.*keep it"
    ) as told:
        restore_everything(good, tmp_path)
    assert str(good) in str(told.value)
    assert "is damaged" not in str(told.value)
    assert "Traceback" in caplog.text
    monkeypatch.undo()
    restore_everything(good, tmp_path)


def test_a_locked_file_is_said(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    with closing(sqlite3.connect(good, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFailed, match="is locked by another program"):
            restore_everything(good, tmp_path)
        other.execute("ROLLBACK")
    restore_everything(good, tmp_path)


@pytest.mark.parametrize(
    ("what", "how"),
    [*((what, how) for what in ("store.db", "store.db-wal") for how in ("removed", "replaced")), ("store.db", "cut")],
)
def test_nothing_is_acknowledged_that_nobody_would_find(good: Path, what: str, how: str) -> None:
    store = Store(good)
    store.save([], [], {"a": 1})
    path = good.with_name(what)
    if how == "cut":
        os.truncate(path, 4096)
    else:
        data = path.read_bytes()
        path.unlink()
        if how == "replaced":
            path.write_bytes(data)
    with pytest.raises(StoreFailed):
        store.save([], [], {"b": 2})
    store.close()


def test_a_file_that_was_to_shrink_when_its_coordinator_was_killed_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    path, killed = tmp_path / "store.db", tmp_path / "killed.db"
    store = Store(path)
    store.save([], [], {"long": "x" * 1_000_000})
    store.save([], [], {"long": ""})
    store.close()
    full = path.stat().st_size
    store = Store(path)
    while store.shrink(64):
        pass
    for suffix in ("", "-wal"):  # as a kill leaves them
        shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
    store.close()
    assert killed.stat().st_size == full
    store = Store(killed)
    store.save([], [], {"a": 1})
    with closing(sqlite3.connect(killed)) as other:  # as SQLite does by itself when the log is long
        other.execute("PRAGMA wal_checkpoint")
    assert killed.stat().st_size < full / 2
    store.save([], [], {"a": 2})
    assert store.meta("a") == 2
    store.close()


def test_a_file_that_became_small_at_the_start_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:  # as an older version has made it
        old.execute("PRAGMA journal_mode = WAL")
        old.execute("CREATE TABLE junk (long TEXT)")
        old.execute("INSERT INTO junk VALUES (?)", ("x" * 1_000_000,))
        old.execute("DELETE FROM junk")
    full = path.stat().st_size
    store = Store(path)
    assert store._db.query("PRAGMA auto_vacuum") == [(2,)]
    store.save([], [], {"a": 1})
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint")
    assert path.stat().st_size < full / 2
    store.save([], [], {"a": 2})
    store.close()


# ----------------------------------------------------------------------- copies


def test_a_copy_is_made_while_others_write_and_put_back(good: Path, tmp_path: Path) -> None:
    store = Store(good)
    store.lead("")
    store.save([replace(RECORD, id=90)], [])
    copy = tmp_path / "copy.db"
    assert copy_store(good, copy) == copy.stat().st_size
    assert copy.stat().st_mode & 0o777 == 0o600
    store.save([replace(RECORD, id=91)], [])
    store.close()
    with pytest.raises(ConfigError, match="exists; choose another name"):
        copy_store(good, copy)
    aside = put_back(copy, good)
    assert aside is not None
    before, now = Store(aside), Store(good)
    assert (before.next_id(), now.next_id()) == (92, 91 + SKIPPED)
    assert now.epoch > before.epoch + EPOCHS
    assert (now.counts(), now.kept) == ({"queued": 40, "finished": 40}, 40)
    assert now._db.query("PRAGMA auto_vacuum") == [(2,)]
    before.close()
    now.close()


class Cut(BaseException):
    """The machine has gone down."""


def test_a_restore_that_is_cut_short_anywhere_leaves_one_whole_store(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each change of a file: the next start has the earlier store or the new one, and nothing is lost."""
    copy = tmp_path / "copy.db"
    copy_store(good, copy)
    begun = Store(good)
    begun.lead("")
    begun.save([replace(RECORD, id=90)], [])  # in the log beside the file: its coordinator was killed
    seen: list[str] = []
    for nth in itertools.count():
        site = tmp_path / f"site-{nth}"
        site.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{good}{suffix}", site / f"store.db{suffix}")
        left = [nth]

        def cutting(change: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def changed(*given: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Cut
                return change(*given, **more)

            return changed

        with monkeypatch.context() as patched:
            for name in ("rename", "replace", "unlink"):
                patched.setattr(Path, name, cutting(getattr(Path, name)))
            try:
                put_back(copy, site / "store.db")
            except Cut:
                pass
            else:
                break
        kept = Kept(site, LiveConfig())
        new = kept.store.next_id() > SKIPPED
        asides = [path for path in site.glob("store.db.before-*") if not path.name.endswith(("-wal", "-shm"))]
        earlier = Store(asides[0]) if new else kept.store
        assert (earlier.next_id(), len(asides)) == (91, int(new)), f"cut before change {nth}"
        assert not [path.name for path in site.iterdir() if "new" in path.name or "restoring" in path.name]
        seen.append("new" if new else "earlier")
        if new:
            earlier.close()
        kept.close()
    begun.close()
    assert seen == sorted(seen), "first the earlier one, then the new one"
    assert seen.count("new") >= 4


def test_putting_back_twice_within_a_second_keeps_both_earlier_stores(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    copy_store(good, copy)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    asides = [put_back(copy, good) for _ in range(3)]
    assert [path.name.partition(".before-")[2] for path in asides if path is not None] == ["now", "now-2", "now-3"]


def test_a_copy_is_not_written_to_a_file_of_somebody_else(good: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (tmp_path / f".copy.db.{os.getpid()}").symlink_to(theirs)
    theirs.touch()
    with pytest.raises(TapfingerError):
        copy_store(good, tmp_path / "copy.db")
    assert theirs.read_bytes() == b""


def test_a_copy_that_is_none_is_refused_and_the_store_stays(good: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    bad.write_bytes(good.read_bytes()[:9000])
    with pytest.raises(StoreFailed, match=r"bad\.db is damaged"):
        put_back(bad, good)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(StoreFailed, match="no such table: migrations"):
        put_back(tmp_path / "other.db", good)
    with pytest.raises(ConfigError, match="there is no store"):
        put_back(tmp_path / "none.db", good)
    restore_everything(good, tmp_path)


def test_an_older_copy_gives_out_no_number_twice(good: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where someone has put it back by hand."""
    copy = tmp_path / "copy.db"
    copy_store(good, copy)
    for _ in range(3):
        store = Store(good)
        epoch = take_epoch(store, tmp_path, "")
        store.close()
    assert epoch == 4
    assert caplog.text == ""
    copy.replace(good)
    store = Store(good)
    assert take_epoch(store, tmp_path, "") == 5, "agents have heard of 4"
    assert "is older than what this coordinator had before" in caplog.text
    assert store.next_id() == 80 + SKIPPED
    store.close()


# -------------------------------------------------------------- real processes


def serve(state: Path, *prefix: str, config: str = CONFIG) -> subprocess.CompletedProcess[str]:
    """A coordinator that is expected to end by itself."""
    file = state.parent / "site.toml"
    if not file.exists():
        file.write_text(config)
    command = [*prefix, sys.executable, "-m", "tapfinger", "serve", "--state", str(state), "--port", "0"]
    return subprocess.run(
        [*command, "--config", str(file)], capture_output=True, text=True, timeout=240, check=False, cwd="/"
    )


def assert_clear(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert word in last


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root may mount a small disk here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Take all room of a disk but some bytes."""
    stats = os.statvfs(place)
    ballast = place / "ballast"
    with suppress(OSError), ballast.open("wb") as file:
        file.write(b"x" * max(0, stats.f_bavail * stats.f_frsize - leave))
    return ballast


@pytest.mark.parametrize("leave", [0, 8_192, 40_000, 120_000])
def test_a_disk_that_is_full_at_the_start(small_disk: Path, leave: int) -> None:
    state = small_disk / "state"
    state.mkdir()
    (small_disk / "site.toml").write_text(CONFIG)
    fill(small_disk, leave)
    assert_clear(serve(state), "start again")


def test_a_disk_that_fills_up_ends_the_coordinator_and_loses_nothing(small_disk: Path) -> None:
    site = RealSite(small_disk)
    try:
        client = site.serve()
        (first,) = client.submit(python("pass", key="first"))
        ballast = fill(small_disk, 100_000)
        kept = [first]
        with suppress(CoordinatorError):
            for n in range(1000):
                kept += client.submit(python("x" * 2000, key=f"k{n}"))
        assert len(kept) < 1000
        assert site.processes["coordinator"].wait(240) == 2
        log = (site.state / "coordinator.log").read_text()
        assert "Traceback" not in log
        ballast.unlink()
        client = site.serve()
        for ident in kept:
            assert client.show(ident).id == ident
        assert client.submit(python("pass", key="first")) == [first]
    finally:
        site.close()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """As another user, since root may write everything."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    state = tmp_path / "state"
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == 0 and not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o011)
    (tmp_path / "site.toml").write_text(CONFIG)
    probe = subprocess.run([*other, sys.executable, "-c", "import tapfinger"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("nobody may not read this installation")
    state.mkdir()
    Store(state / "store.db").close()
    state.chmod(0o755)
    assert_clear(serve(state, *other), str(state), "cannot be used")
    for name in ("lock", "store.db"):
        (state / name).touch()
        (state / name).chmod(0o666)
    assert_clear(serve(state, *other), str(state), "start again")
    state.chmod(0o777)
    (state / "store.db").chmod(0o444)
    assert_clear(serve(state, *other), "store.db", "start again")


def test_a_damaged_store_is_told_and_restored_with_one_command(good: Path, tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.serve()
        (task,) = client.submit(python("pass"))
        copy = tmp_path / "copy.db"
        run = [sys.executable, "-m", "tapfinger"]
        subprocess.run([*run, "backup", str(copy), "--state", str(site.state)], check=True, capture_output=True)
        refused = subprocess.run(
            [*run, "restore", str(copy), "--state", str(site.state)], check=False, capture_output=True, text=True
        )
        assert "in use by another coordinator" in refused.stderr
        site.kill("coordinator", signal.SIGKILL)
        store = site.state / "store.db"
        for suffix in ("-wal", "-shm"):
            store.with_name(f"store.db{suffix}").unlink(missing_ok=True)
        store.write_bytes(b"garbage" * 5000)
        assert_clear(serve(site.state), "store.db is damaged", "tapfinger restore COPY")
        subprocess.run([*run, "restore", str(copy), "--state", str(site.state)], check=True, capture_output=True)
        client = site.serve()
        assert client.show(task).phase is Phase.QUEUED
        assert client.submit(python("pass"))[0] > task + 1000
    finally:
        site.close()


def test_a_store_that_is_removed_under_a_coordinator_ends_it(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.serve()
        (site.state / "store.db").unlink()
        with pytest.raises(CoordinatorError):
            client.submit(python("pass"))
        assert site.processes["coordinator"].wait(240) == 2
        lines = (site.state / "coordinator.log").read_text().strip().splitlines()
        assert "Traceback" not in "\n".join(lines)
        assert lines[-1].startswith("error: ")
        assert "is gone" in lines[-1]
        assert wait_for(lambda: not (site.state / "coordinator.json").exists())
    finally:
        site.close()
