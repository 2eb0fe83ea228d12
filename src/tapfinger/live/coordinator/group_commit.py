"""Group commit: while one transaction is on its way to the disk, all that happens is collected for the next.

So a hundred submissions that arrive together wait for two commits, not for a hundred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.store.store import Piece, Store


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be saved together."""

    records: Sequence[TaskRecord] = ()
    history: Sequence[LiveEvent] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    output: Sequence[Piece] = ()
    learned: Sequence[Learned] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to save."""
        return bool(self.records or self.history or self.meta or self.output or self.learned)


def together(changes: Sequence[Change]) -> Change:
    """Several changes as one; of a task only what became of it in the end."""
    records = {record.id: record for change in changes for record in change.records}
    return Change(
        tuple(records.values()),
        [line for change in changes for line in change.history],
        {name: value for change in changes for name, value in change.meta.items()},
        [piece for change in changes for piece in change.output],
        [row for change in changes for row in change.learned],
    )


class Commits:
    """Saves changes in the order in which they were made, in a thread; used from one event loop.

    Once saving has failed, nothing more is saved: what came later was made of what is not on disk.
    """

    def __init__(
        self, store: Store, failed: Callable[[BaseException], None], took: Callable[[float], None] = lambda _: None
    ) -> None:
        """``failed`` is told why, once; ``took`` how many seconds each commit lasted."""
        self._store = store
        self._took = took
        self._failed = failed
        self._error: BaseException | None = None
        self._queue: list[tuple[Change, Callable[[], None]]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "commits")

    def put(self, change: Change, then: Callable[[], None]) -> None:
        """Save a change; ``then`` is called when it and all before it are on disk."""
        if self._error is not None:
            raise self._error
        if self._worker is None and not change:
            then()
            return
        self._queue.append((change, then))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def flush(self) -> None:
        """Wait until all that was put so far is on disk; raises if that has failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            self.put(Change(), lambda: _settle(done))
            await done
        finally:
            self._waiting.discard(done)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            group, self._queue = self._queue, []
            change = together([change for change, _ in group])
            try:
                if change:
                    began = time.perf_counter()
                    await loop.run_in_executor(
                        self._thread,
                        self._store.save,
                        change.records,
                        change.history,
                        change.meta,
                        change.output,
                        change.learned,
                    )
                    self._took(time.perf_counter() - began)
                for _, then in group:
                    then()
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.stop(error)
                self._failed(error)
                return
        self._worker = None

    def stop(self, error: BaseException) -> None:
        """Save nothing more; whoever waits gets this error."""
        self._error = self._error or error
        self._queue = []
        for done in self._waiting:
            if not done.done():
                done.set_exception(self._error)

    def close(self) -> None:
        """Wait for the commit that is under way, if one is."""
        self._thread.shutdown(wait=True)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
