"""Ended tasks, their events and their output go by age, number and bytes; nothing else changes by it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from live.services import services
from live.sites import RealSite, python
from live.test_store import DONE, RECORD, Opener, Where, opened, where  # noqa: F401
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.core.model import ResourceTypes
from tapfinger.errors import CoordinatorError, NotFound, StoreUnavailable
from tapfinger.live.insight.overview import Overview
from tapfinger.live.protocol.events import AgentJoined, AttemptRefused, ClosedFinished, Submitted
from tapfinger.live.service import retention_loop
from tapfinger.live.service.retention_loop import RetentionLoop
from tapfinger.live.service.service import Service
from tapfinger.live.store import migrations, totals
from tapfinger.live.store import retention as retention_module
from tapfinger.live.store.logs import Logs
from tapfinger.live.store.retention import DAY, Limits, Retention
from tapfinger.live.store.store import OLDER, Piece, Store

NOW = 1000 * DAY
PLENTY = Limits(1000.0, 1000, 1e12, 1e12)


def end(store: Store, *ids: int, days: float = 1.0) -> None:
    """Tasks that ended so many days ago, each with three events."""
    at = NOW - days * DAY
    records = [replace(DONE, id=n, submitted=at, started=at, ended=at, attempt=1) for n in ids]
    store.save(records, [Submitted(at, n) for n in ids])
    store.save([], [event for n in ids for event in (Submitted(at, n), ClosedFinished(at, n, 1))])


def pruned(store: Store, limits: Limits, files: Logs | None = None, before: float | None = None) -> None:
    """Remove all that is beyond the limits."""
    keeper = Retention(store, files, limits, lambda: NOW)
    keeper.measure(lambda _: None)
    while keeper.step(before):
        pass


def ids(store: Store) -> list[int]:
    return sorted(record.id for record in store.tasks([], 1000, None))


def test_by_age_and_by_number_the_first_to_end_go_first(opened: Opener) -> None:  # noqa: F811
    store = opened()
    store.save([replace(RECORD, id=1)], [Submitted(0.0, 1)])
    end(store, 2, 3, days=100)
    end(store, 6, 5, 4, days=50)
    end(store, 7, days=1)
    pruned(store, PLENTY)
    assert ids(store) == [1, 2, 3, 4, 5, 6, 7]
    pruned(store, replace(PLENTY, days=60.0))
    assert ids(store) == [1, 4, 5, 6, 7], "of those that have not ended, however old, none goes"
    pruned(store, replace(PLENTY, tasks=2))
    assert (ids(store), store.kept) == ([1, 6, 7], 2)
    assert {event.task for _, event in store.history(0, 1000)} == {1, 6, 7}
    pruned(store, PLENTY, before=NOW)
    assert (ids(store), store.kept) == ([1], 0)


def test_what_ended_tasks_brought_with_them_is_bounded(opened: Opener) -> None:  # noqa: F811
    store = opened()
    for n in range(1, 8):
        spec = replace(DONE.spec, env={"A": "ü\n" * (1000 if n == 2 else 10)})
        store.save([replace(RECORD, id=n, spec=spec)], [])
        if n > 1:
            store.save([replace(DONE, id=n, spec=spec, ended=NOW - (20 - n) * DAY)], [])
            store.save([replace(DONE, id=n, spec=spec, ended=NOW - (20 - n) * DAY)], [])
    lengths = store.lengths(ids(store))
    assert lengths[2] > 3000
    del lengths[1]
    assert store.kept_length == sum(lengths.values()), "each once, and those that have not ended not at all"
    pruned(store, replace(PLENTY, length=sum(lengths.values()) - 1))
    assert ids(store) == [1, 3, 4, 5, 6, 7]
    pruned(store, replace(PLENTY, length=2.5 * lengths[3]))
    assert (ids(store), store.kept_length) == ([1, 6, 7], 2 * lengths[3])
    pruned(store, replace(PLENTY, tasks=1))
    assert (ids(store), opened().kept_length) == ([1, 7], lengths[3])


def test_what_ended_tasks_of_an_older_store_brought_is_counted_once(
    opened: Opener,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:12])
        store = opened()
        with store._db.transaction() as work:  # what this version writes, and that one did not know
            work.define("ALTER TABLE tasks ADD COLUMN least TEXT")
        end(store, 1, 2)
        store.save([replace(RECORD, id=3)], [])
        with store._db.transaction() as work:
            work.execute("DELETE FROM totals WHERE name = ?", (totals.LENGTH,))
            work.define("ALTER TABLE tasks DROP COLUMN least")
    store = opened()
    assert store.kept_length == sum(store.lengths([1, 2]).values()) > 0


def test_of_a_task_of_another_version_is_counted_what_its_row_has(opened: Opener) -> None:  # noqa: F811
    store = opened()
    store.save([replace(RECORD, id=1)], [])
    with store._db.transaction() as work:  # a version that did not know of some fields
        ((text,),) = work.query("SELECT spec FROM tasks")
        fields = {name: value for name, value in json.loads(text).items() if name not in ("name", "secrets")}
        work.execute("UPDATE tasks SET spec = ?", (json.dumps(fields),))
    end(store, 1, 2)
    assert store.kept_length == sum(store.lengths([1, 2]).values())
    store.remove_tasks([1, 2])
    assert store.kept_length == 0


def test_numbers_are_never_given_out_again_and_counts_stay(opened: Opener) -> None:  # noqa: F811
    store = opened()
    end(store, *range(1, 200), days=10)
    last, counts = store.last_line(), store.counts()
    pruned(store, replace(PLENTY, days=5.0))
    assert (ids(store), store.history(0, 1000)) == ([], [])
    assert (store.next_id(), store.last_line(), store.counts()) == (200, last, counts)
    again = opened()
    assert (again.next_id(), again.last_line(), again.counts()) == (200, last, counts)
    again.save([replace(RECORD, id=200)], [Submitted(1.0, 200)])
    assert again.counts() == {**counts, "queued": 1}
    assert again.history(0, 10)[0][0] == last + 1
    assert again.line_before(5) == 0
    again.save([replace(DONE, id=200)], [])
    again.save([replace(DONE, id=200)], [])
    assert (again.counts(), again.kept) == ({"finished": 200}, 1), "saved twice, and counted once"


def test_only_ended_tasks_can_be_removed(opened: Opener) -> None:  # noqa: F811
    store = opened()
    store.save([replace(RECORD, id=1)], [Submitted(0.0, 1)])
    store.remove_tasks([1, 2])
    assert (ids(store), len(store.history(0, 10))) == ([1], 1)


def test_an_event_that_comes_after_its_task_is_gone_goes_with_the_next_tasks(opened: Opener) -> None:  # noqa: F811
    store = opened()
    end(store, 1, 2, 3, days=10)
    store.remove_tasks([1])
    store.save([], [AttemptRefused(NOW, 1, 1, "left", "finished")])
    assert {event.task for _, event in store.history(0, 100)} == {1, 2, 3}
    last = store.last_line()
    store.remove_tasks([2])
    assert {event.task for _, event in store.history(0, 100)} == {3}
    assert store.last_line() == last


def test_a_key_of_a_task_that_is_gone_makes_a_new_task(opened: Opener) -> None:  # noqa: F811
    store = opened()
    keyed = replace(DONE, id=1, ended=NOW - 9 * DAY, spec=replace(DONE.spec, key="k"))
    store.save([keyed], [])
    assert store.by_keys("me", ["k"]) == {"k": keyed}
    pruned(store, replace(PLENTY, days=5.0))
    assert store.by_keys("me", ["k"]) == {}
    store.save([replace(keyed, id=2)], [])


def test_events_of_the_site_go_by_age_and_number(
    opened: Opener,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_module, "EVENTS", 7)
    store = opened()
    store.save([], [AgentJoined(NOW - (30 - n) * DAY, cluster="left", agent="a") for n in range(30)])
    pruned(store, replace(PLENTY, days=20.5))
    assert len(store.history(0, 100)) == 20
    pruned(store, replace(PLENTY, tasks=5))
    assert [event.at for _, event in store.history(0, 100)] == [NOW - n * DAY for n in (5, 4, 3, 2, 1)]
    assert store.last_line() == 30


def test_output_in_the_store_is_counted_and_the_oldest_goes(opened: Opener) -> None:  # noqa: F811
    store = opened()
    store.save([replace(RECORD, id=1)], [])
    for n in range(1, 9):
        if n > 1:
            end(store, n, days=20 - n)
        store.save([], [], None, [Piece((n, 1), start, b"x" * 100, 300) for start in range(0, 1000, 100)])
    kept = [store._db.query("SELECT sum(length(data)) FROM output WHERE task = ?", (n,))[0][0] for n in range(1, 9)]
    assert store.output_bytes == sum(kept)
    each = store.output_bytes // 8
    pruned(store, replace(PLENTY, output=4.5 * each))
    assert store.output_bytes == 4 * each
    assert [store.output_size((n, 1)) > 0 for n in range(1, 9)] == [True, *[False] * 4, *[True] * 3]
    pruned(store, replace(PLENTY, output=0.1))
    assert store.output_bytes == each, "that of a task that has not ended stays"
    assert ids(store) == list(range(1, 9))


def test_output_in_files_is_bounded(tmp_path: Path, opened: Opener) -> None:  # noqa: F811
    store, files = opened(), Logs(tmp_path / "logs", 400)
    store.save([replace(RECORD, id=1)], [])
    for n in range(1, 7):
        if n > 1:
            end(store, n, days=20 - n)
        for start in range(0, 1000, 100):
            files.add((n, 1), start, b"x" * 100)
    whole = files.measure(lambda _: None)
    pruned(store, replace(PLENTY, output=0.5 * whole), files)
    assert 0.25 * whole < files.measure(lambda _: None) <= 0.5 * whole
    assert [files.size((n, 1)) for n in (1, 2, 6)] == [1000, 0, 1000]
    pruned(store, replace(PLENTY, tasks=1), files)
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"1.1", "1.1.tail", "6.1", "6.1.tail"}


#: Attempts with output of which a store knows nothing; of the last one, it may give out the number yet.
STRAYS = {700: 5.0, 701: 200.0, 702: 4.0, 703: 3.0, 5_000_000: 300.0}


def with_strays(store: Store, files: Logs, older: str) -> int:
    """Fill a store with tasks 1 to 3, and files with their output and that of ``STRAYS``, written so many days ago.

    Returns the bytes of each.
    """
    store.save([replace(RECORD, id=1)], [])
    end(store, 2, 3, days=30)
    store.lead("", older="a restored copy")
    store.set_meta(OLDER, older or None)
    for n in (1, 2, 3, *STRAYS):
        for start in range(0, 1000, 100):
            files.add((n, 1), start, b"x" * 100)
        for path in (tail := files._directory / f"{n}.1.tail", tail.with_suffix(""), *tail.iterdir()):
            os.utime(path, (0.0, NOW - STRAYS.get(n, 30.0) * DAY))
    (files._directory / "a note").write_text("of someone else")
    return files.measure(lambda _: None) // (3 + len(STRAYS))


def kept(files: Logs) -> set[int]:
    """Tasks with output."""
    return {task for task in (1, 2, 3, *STRAYS) if files.size((task, 1))}


def test_output_of_tasks_that_the_store_does_not_know_is_kept_like_that_of_others(
    tmp_path: Path,
    opened: Opener,  # noqa: F811
) -> None:
    """Somebody may put the right store back."""
    store, files = opened(), Logs(tmp_path / "logs", 400)
    with_strays(store, files, older="")
    os.utime(tmp_path / "logs" / "700.1", (0.0, NOW - 200.0 * DAY))  # but not its last bytes
    pruned(store, replace(PLENTY, days=100.0), files)
    assert kept(files) == {1, 2, 3, *STRAYS} - {701}
    assert (tmp_path / "logs" / "a note").exists()


def test_of_too_much_output_that_of_unknown_tasks_goes_first(tmp_path: Path, opened: Opener) -> None:  # noqa: F811
    store, files = opened(), Logs(tmp_path / "logs", 400)
    each = with_strays(store, files, older="")
    pruned(store, replace(PLENTY, output=6.5 * each), files)
    assert kept(files) == {1, 2, 3, 703, 5_000_000}, "the last is above all numbers that were given out"
    pruned(store, replace(PLENTY, output=3.5 * each), files)
    assert kept(files) == {1, 3, 5_000_000}


def test_nothing_goes_for_output_that_an_older_copy_does_not_know(tmp_path: Path, opened: Opener) -> None:  # noqa: F811
    store, files = opened(), Logs(tmp_path / "logs", 400)
    each = with_strays(store, files, older="a restored copy")
    keeper = Retention(store, files, replace(PLENTY, days=100.0, output=5.5 * each), lambda: NOW)
    keeper.measure(lambda _: None)
    while keeper.step():
        pass
    assert kept(files) == {1, 2, 3, *STRAYS}
    store.set_meta(OLDER, None)  # every agent was heard
    while keeper.step():
        pass
    assert kept(files) == {1, 2, 3, 5_000_000}, "without another measurement"


def test_ended_tasks_are_not_walked_again_while_running_ones_have_too_much(
    tmp_path: Path,
    opened: Opener,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, files, now = opened(), Logs(tmp_path / "logs", 10**6), NOW
    store.save([replace(RECORD, id=1)], [])
    end(store, *range(2, 200), days=3)
    files.add((1, 1), 0, b"x" * 10_000)
    files.add((5, 1), 0, b"x" * 100)
    keeper = Retention(store, files, replace(PLENTY, output=5000.0), lambda: now)
    removed: list[int] = []
    real = files.remove
    monkeypatch.setattr(files, "remove", lambda task, attempts: (removed.append(task), real(task, attempts))[1])

    def looked_at() -> list[int]:
        removed.clear()
        while keeper.step():
            pass
        return removed

    keeper.measure(lambda _: None)
    assert looked_at() == list(range(2, 200))
    assert files.size((5, 1)) == 0
    files.add((1, 1), 10_000, b"x" * 100)
    assert looked_at() == []
    now += 100.0
    end(store, 200, 201, days=0.0)
    files.add((200, 1), 0, b"x" * 100)
    assert looked_at() == [200, 201], "only those that have ended since"
    files.add((5, 1), 0, b"x" * 100)
    keeper.measure(lambda _: None)
    assert looked_at() == list(range(2, 202)), "what came late is found in the end"
    assert files.size((5, 1)) == 0


def test_the_last_output_of_a_task_is_waited_for(tmp_path: Path, opened: Opener) -> None:  # noqa: F811
    store, files, now = opened(), Logs(tmp_path / "logs", 10**6), NOW
    end(store, 1, days=0.0)
    files.add((1, 1), 0, b"x" * 100)
    keeper = Retention(store, files, replace(PLENTY, output=50.0), lambda: now)
    keeper.measure(lambda _: None)
    assert not keeper.step()
    files.add((1, 1), 100, b"x" * 100)
    now += retention_module.LATE + 1.0
    assert keeper.step()
    assert files.size((1, 1)) == 0


def test_output_without_a_beginning_can_be_removed(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 1000)
    logs.add((1, 2), 100, b"x" * 10, skipped=100)
    assert logs.remove(1, 2) == 10
    assert not list((tmp_path / "logs").iterdir())


def test_output_that_comes_between_two_measurements_counts(tmp_path: Path, opened: Opener) -> None:  # noqa: F811
    store, files = opened(), Logs(tmp_path / "logs", 10**6)
    end(store, 1, 2, days=3)
    keeper = Retention(store, files, replace(PLENTY, output=1500.0), lambda: NOW)
    keeper.measure(lambda _: None)
    for n in (1, 2):
        files.add((n, 1), 0, b"x" * 1000)
    while keeper.step():
        pass
    assert files.measure(lambda _: None) <= 1500


def test_a_file_shrinks_and_an_old_one_is_made_to(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(path)
    end(store, *range(1, 3000), days=10)
    store.close()
    full = path.stat().st_size
    old = sqlite3.connect(path, isolation_level=None)  # as an older version has made it
    old.execute("PRAGMA journal_mode = DELETE")
    old.execute("PRAGMA auto_vacuum = NONE")
    old.execute("VACUUM")
    old.close()
    store = Store(path)
    assert store._db.query("PRAGMA auto_vacuum") == [(2,)]
    assert ids(store)[:3] == [2000, 2001, 2002]
    pruned(store, replace(PLENTY, days=5.0))
    store.save([], [], {"a": 1})
    store.close()
    assert path.stat().st_size < full / 10


def test_no_step_waits_for_all_and_reads_cost_what_they_show(opened: Opener) -> None:  # noqa: F811
    """By the plans of the database: no statement that people cause reads a whole table."""
    store = opened()
    end(store, *range(1, 500), days=10)
    store.save([replace(RECORD, id=n) for n in range(500, 520)], [])
    asked: list[str] = []
    real = store._db.query

    def query(statement: str, values: object = ()) -> object:
        asked.extend(str(row[-1]) for row in real(f"EXPLAIN QUERY PLAN {statement}", values))
        return real(statement, values)

    store._db.query = query  # type: ignore[method-assign, assignment]
    list(store.tasks([Phase.FAILED, Phase.FINISHED], 10, 400))
    list(store.tasks([], 10, None))
    store.task(5)
    store.unended()
    store.next_id()
    store.last_line()
    store.history(100, 10)
    store.history(0, 10, 5)
    store.oldest(10)
    store.count_before(5.0)
    store.by_keys("me", ["a", "b"])
    store.has_keys("me", ["a", "b"])
    scans = [plan for plan in asked if plan.startswith("SCAN") and "INDEX" not in plan]
    assert scans == ["SCAN tasks"] * scans.count("SCAN tasks"), asked
    # In order of the key and with a limit: `tasks([], ...)` reads what it returns. Sorting would read everything.
    assert scans.count("SCAN tasks") <= 1
    assert not [plan for plan in asked if "TEMP B-TREE" in plan]


def test_to_remove_tasks_costs_the_same_however_many_others_there_are(tmp_path: Path) -> None:
    def work(others: int) -> int:
        store = Store(tmp_path / f"{others}.db")
        end(store, *range(1, 11 + others), days=10)
        instructions = [0]

        def count() -> None:
            instructions[0] += 1

        store._db._writer.set_progress_handler(count, 10)  # type: ignore[attr-defined]
        store.remove_tasks(list(range(1, 11)))
        store.close()
        return instructions[0]

    assert work(3000) < 2 * work(50)


def test_the_overview_stays_right(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    store = opened()
    end(store, *range(1, 20), days=10)
    seen = Overview(store, ResourceTypes(("cpu", "gpu"), (1.0, 1.0)))
    seen.catch_up()
    before = seen.since(0)["counts"]
    pruned(store, replace(PLENTY, days=5.0))
    other = Overview(store, ResourceTypes(("cpu", "gpu"), (1.0, 1.0)))
    for overview in (seen, other):
        overview.catch_up()
        assert overview.since(0)["counts"] == before
    assert other.seq <= store.last_line()


# -------------------------------------------------------------------- coordinators


def test_a_coordinator_prunes_by_itself_and_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_loop, "FIRST", 0.01)
    monkeypatch.setattr(retention_loop, "EVERY", 0.01)

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def lead(service: Service) -> None:
        now = service.now()
        old = [replace(DONE, id=n, ended=now - 100 * DAY) for n in range(1, 300)]
        service.store.save([*old, replace(DONE, id=300, ended=now - 10 * DAY)], [])
        running = asyncio.create_task(service.run())
        await until(lambda: ids(service.store) == [300])
        assert service.ended_before(20.0)[1] == 0
        before, count = service.ended_before(5.0)
        assert (count, ids(service.store)) == (1, [300])
        service.retention.ask(before)
        await until(lambda: not ids(service.store))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with services(tmp_path) as make:
        asyncio.run(lead(make()))


@pytest.mark.parametrize("fails", [True, False])
def test_what_somebody_wants_removed_is_not_forgotten_by_a_coordinator_that_starts_over(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(retention_loop, "FIRST", 0.01)
    monkeypatch.setattr(retention_loop, "EVERY", 0.01)
    asked: list[float | None] = []

    class Steps(Retention):
        def __init__(self) -> None:
            pass

        def measure(self, rest: Callable[[float], object] = time.sleep) -> None:
            pass

        def step(self, before: float | None = None) -> bool:
            asked.append(before)
            if fails and len(asked) == 1:
                raise StoreUnavailable("it starts over")
            return len(asked) == 1

    looks: list[int] = []  # of the loop, by the number of steps so far

    def leads() -> bool:
        """Not after the first step, until the loop looks again."""
        if threading.current_thread() is threading.main_thread():
            looks.append(len(asked))
        return len(asked) != 1 or 1 in looks

    async def story() -> None:
        pruning = RetentionLoop(Steps(), leads)
        pruning.ask(5.0)
        running = asyncio.create_task(pruning.run(lambda _: None))
        async with asyncio.timeout(PATIENCE):
            while len(asked) < 3:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        pruning.close()

    asyncio.run(story())
    assert asked[:3] == [5.0, 5.0, None]


def test_people_prune_and_see_what_is_left(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        done = client.submit(*(python("print('x' * 100)") for _ in range(3)))
        for ident in done:
            assert client.wait(ident, PATIENCE).phase is Phase.FINISHED
        wait_for(lambda: b"".join(client.logs(done[-1])))
        (waiting,) = client.submit(python("import time; time.sleep(600)"))
        counts = client.counts()["finished"]
        assert client.prune(0.0, dry_run=True) == 3
        assert client.prune(0.0) == 3
        wait_for(lambda: [info.id for info in client.list()] == [waiting])
        with pytest.raises(NotFound, match=f"there is no task {done[0]}"):
            client.show(done[0])
        assert client.counts()["finished"] == counts
        assert not {event["task"] for event in client.events(limit=1000)} & set(done)
        assert len(client.events(last=2)) == 2
        assert not [path for path in (site.state / "logs").iterdir() if int(path.name.split(".")[0]) in done]
        assert list(client.history()) == []
        viewer = type(client)(site.url, client.new_token("eve", "viewer"))
        with pytest.raises(CoordinatorError, match="may not operate"):
            viewer.prune(0.0)
        viewer.close()
        site.kill("coordinator")
        assert site.serve().submit(python("pass")) == [waiting + 1]
    finally:
        site.close()


def test_a_commit_is_not_held_up_by_pruning(tmp_path: Path) -> None:
    """By work: what one step changes does not grow with what there is to remove."""
    changed: list[int] = []
    for count in (500, 2000):
        store = Store(tmp_path / f"{count}.db")
        end(store, *range(1, count), days=10)
        before = store._db._writer.total_changes  # type: ignore[attr-defined]
        Retention(store, None, replace(PLENTY, days=5.0), time.time).step()
        changed.append(store._db._writer.total_changes - before)  # type: ignore[attr-defined]
        store.close()
    assert changed[0] == changed[1] < 10 * retention_module.TASKS
