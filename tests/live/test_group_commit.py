"""Group commit: what shares a transaction, what waits for it, and what becomes of the rest when one fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.services import services
from waiting import PATIENCE

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, NotLeading, StoreFailed, TooMany
from tapfinger.live.coordinator.group_commit import Change, Commits
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.events import Submitted
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Store

RECORD = TaskRecord(1, TaskSpec(("x",), "demo"), "me", 1.0)


class SlowStore:
    """Notes what is saved; each save waits until it is let go."""

    shared = False

    def __init__(self) -> None:
        self.saved: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def save(self, records: Any, *_: object) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.saved.append([record.id for record in records])


def change(ident: int) -> Change:
    return Change([replace(RECORD, id=ident)], [Submitted(1.0, ident)])


def test_what_comes_while_a_commit_is_under_way_shares_the_next() -> None:
    store, told = SlowStore(), []

    async def play() -> None:
        commits = Commits(store, told.append)  # type: ignore[arg-type]
        commits.put(Change(), lambda: told.append("nothing to save: at once"))
        commits.put(change(1), lambda: told.append(1))
        await asyncio.to_thread(store.begun.wait)
        for ident in (2, 3, 2):
            commits.put(change(ident), lambda ident=ident: told.append(ident))
        commits.put(Change(), lambda: told.append("after all before it"))
        assert told == ["nothing to save: at once"]
        store.go.set()
        await commits.flush()
        await commits.flush()
        commits.close()

    asyncio.run(play())
    assert store.saved == [[1], [2, 3]]
    assert told == ["nothing to save: at once", 1, 2, 3, 2, "after all before it"]


def test_after_a_failure_nothing_is_saved_and_nobody_is_told() -> None:
    store, told = SlowStore(), []
    store.error = OSError("disk full")

    async def play() -> None:
        commits = Commits(store, lambda error: told.append(str(error)))  # type: ignore[arg-type]
        commits.put(change(1), lambda: told.append(1))
        waiting = asyncio.create_task(commits.flush())
        await asyncio.to_thread(store.begun.wait)
        commits.put(change(2), lambda: told.append(2))
        store.go.set()
        with pytest.raises(OSError, match="disk full"):
            await waiting
        with pytest.raises(OSError, match="disk full"):
            commits.put(change(3), lambda: told.append(3))
        with pytest.raises(OSError, match="disk full"):
            await commits.flush()
        commits.close()

    asyncio.run(play())
    assert (store.saved, told) == ([], ["disk full"])


def test_who_waits_for_the_disk_is_told_by_the_thread_that_saves() -> None:
    store, told = SlowStore(), []

    def note(what: str) -> Callable[[BaseException | None], None]:
        return lambda error: told.append((what, error, threading.current_thread() is threading.main_thread()))

    async def play() -> None:
        commits = Commits(store, lambda _: None)  # type: ignore[arg-type]
        commits.on_disk(note("nothing to save"))
        commits.put(change(1), lambda: None)
        commits.on_disk(note("first"))
        await asyncio.to_thread(store.begun.wait)
        commits.on_disk(note("behind it, without a change of its own"))
        commits.put(change(2), lambda: None)
        commits.on_disk(note("second"))
        assert told == [("nothing to save", None, True)]
        store.go.set()
        await commits.flush()
        commits.close()

    asyncio.run(play())
    assert store.saved == [[1], [2]]
    names = ["first", "behind it, without a change of its own", "second"]
    assert told[1:] == [(name, None, False) for name in names]


def test_in_a_shared_store_nobody_is_told_without_a_transaction() -> None:
    store, told = SlowStore(), []
    store.shared = True
    store.go.set()

    async def play() -> None:
        commits = Commits(store, lambda _: None)  # type: ignore[arg-type]
        commits.put(Change(), lambda: told.append("no answer waits for this"))
        assert (told, store.saved) == (["no answer waits for this"], [])
        await commits.flush()
        assert store.saved == [[]]
        commits.put(change(1), lambda: None)
        await commits.flush()
        assert store.saved == [[], [1]], "together with a change, in its transaction"
        store.error = NotLeading("http://other")
        commits.on_disk(lambda error: told.append(error))
        with pytest.raises(NotLeading, match="http://other"):
            await commits.flush()
        commits.close()

    asyncio.run(play())
    assert told[1:] == [store.error]


def test_who_waits_for_the_disk_is_told_of_a_failure() -> None:
    store, told = SlowStore(), []
    store.error = OSError("disk full")

    async def play() -> None:
        commits = Commits(store, lambda _: None)  # type: ignore[arg-type]
        commits.put(change(1), lambda: None)
        commits.on_disk(lambda error: told.append(error))
        await asyncio.to_thread(store.begun.wait)
        commits.on_disk(lambda error: told.append(error))
        store.go.set()
        with pytest.raises(OSError, match="disk full"):
            await commits.flush()
        commits.on_disk(lambda error: told.append(error))
        commits.close()

    asyncio.run(play())
    assert told == [store.error] * 3


# ------------------------------------------------------------------------- services


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as service:
        yield service


def test_submissions_at_the_same_time_share_a_commit_and_their_keys(
    make: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    spec = make_spec(argv=["x"], type="demo", key="k")
    saves: list[int] = []
    save = Store.save

    def counted(store: Store, records: Any, *more: Any) -> None:
        saves.append(len(records))
        save(store, records, *more)

    monkeypatch.setattr(Store, "save", counted)

    async def play() -> list[Any]:
        others = [service.submit([make_spec(argv=[name], type="demo")], "me") for name in "abc"]
        same = [service.submit([spec], "me") for _ in range(3)]
        wrong = service.submit([replace(spec, argv=("other",))], "me")
        many = service.submit([replace(spec, key=None)] * 2, "me")
        return await asyncio.gather(*others, *same, wrong, many, return_exceptions=True)

    *taken, wrong, many = asyncio.run(play())
    assert taken == [[1], [2], [3], [4], [4], [4]]
    assert (isinstance(wrong, ConfigError), isinstance(many, TooMany)) == (True, True)
    assert saves == [4]
    assert [record.id for record in service.store.unended()] == [1, 2, 3, 4]


def test_a_cancel_just_before_its_task_is_taken_is_not_lost(make: Callable[..., Service]) -> None:
    service = make()

    async def play() -> Any:
        specs = [make_spec(argv=[name], type="demo") for name in "ab"]
        first, second = (service.submit([spec], "me") for spec in specs)
        _, cancelled, _ = await asyncio.gather(first, service.cancel(2), second)
        return cancelled

    assert asyncio.run(play()).phase is Phase.CANCELLED
    assert [record.id for record in service.store.unended()] == [1]


def test_closing_again_leaves_nothing_behind() -> None:
    commits = Commits(SlowStore(), lambda _: None)  # type: ignore[arg-type]
    for _ in range(3):  # one that stands by does it with every look
        commits.close()
    assert commits._orders.empty()


def test_nothing_is_taken_after_the_end() -> None:
    failed: list[BaseException] = []

    async def play() -> None:
        commits = Commits(SlowStore(), failed.append)  # type: ignore[arg-type]
        commits.close()
        with pytest.raises(StoreFailed, match="has ended"):
            await asyncio.wait_for(asyncio.gather(commits.flush(), _put(commits)), PATIENCE)

    async def _put(commits: Commits) -> None:
        commits.put(change(1), lambda: None)
        await commits.flush()

    asyncio.run(play())
    assert len(failed) == 1
