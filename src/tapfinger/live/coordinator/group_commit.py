"""Group commit: while one transaction is written to disk, all further changes are collected for the next one.

A hundred submissions that arrive together wait for two commits, not for a hundred.
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
from tapfinger.live.store.secrets import TaskSecret
from tapfinger.live.store.store import Piece, Store

#: Called when changes are on disk, or with the error if they could not be saved.
Told = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Change:
    """Data that must be saved together."""

    records: Sequence[TaskRecord] = ()
    history: Sequence[LiveEvent] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    output: Sequence[Piece] = ()
    learned: Sequence[Learned] = ()
    secrets: Sequence[TaskSecret] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to save."""
        return bool(self.records or self.history or self.meta or self.output or self.learned or self.secrets)


def together(changes: Sequence[Change]) -> Change:
    """Merge several changes into one; of each task, only its last record is kept."""
    records = {record.id: record for change in changes for record in change.records}
    return Change(
        tuple(records.values()),
        [line for change in changes for line in change.history],
        {name: value for change in changes for name, value in change.meta.items()},
        [piece for change in changes for piece in change.output],
        [row for change in changes for row in change.learned],
        [secret for change in changes for secret in change.secrets],
    )


class Commits:
    """Saves changes in the order in which they were made, in a thread. Must be used from one event loop.

    Once a save has failed, nothing more is saved: later changes build on data that is not on disk.
    """

    def __init__(
        self, store: Store, failed: Callable[[BaseException], None], took: Callable[[float], None] = lambda _: None
    ) -> None:
        """``failed`` is called once, with the error; ``took`` after each commit, with its duration in seconds."""
        self._store = store
        self._took = took
        self._failed = failed
        self._error: BaseException | None = None
        self._queue: list[tuple[Change, Callable[[], None]]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        #: Who is told of the commit that is under way, and of the next one.
        self._writing: list[Told] = []
        self._listening: list[Told] = []
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "commits")

    def put(self, change: Change, then: Callable[[], None]) -> None:
        """Save a change; ``then`` is called when this change and all earlier ones are on disk."""
        if self._error is not None:
            raise self._error
        if self._worker is None and not change:
            then()
            return
        self._queue.append((change, then))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def flush(self) -> None:
        """Wait until every change so far is on disk; raises if a save has failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            self.put(Change(), lambda: _settle(done))
            await done
        finally:
            self._waiting.discard(done)

    def on_disk(self, told: Told) -> None:
        """Call ``told`` when every change so far is on disk, or with the error of a save that has failed.

        It is called from the thread that saves, before any ``then``: an answer to a person on another loop need not
        wait until this loop has a turn. If ``stop`` comes while a save is under way, it may be told both.
        """
        self._listening.append(told)
        try:
            self.put(Change(), lambda: None)
        except BaseException as error:
            self._listening.remove(told)
            told(error)
            return
        if self._worker is None:  # nothing is left to save
            self._listening.remove(told)
            told(None)

    def _save(self, change: Change) -> None:
        if change:
            began = time.perf_counter()
            self._store.save(change.records, change.history, change.meta, change.output, change.learned, change.secrets)
            self._took(time.perf_counter() - began)
        told, self._writing = self._writing, []
        for tell in told:
            tell(None)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            group, self._queue = self._queue, []
            self._writing, self._listening = self._listening, []
            change = together([change for change, _ in group])
            try:
                if change or self._writing:
                    await loop.run_in_executor(self._thread, self._save, change)
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
        """Save nothing more; pending ``flush`` calls raise this error."""
        self._error = self._error or error
        self._queue = []
        told, self._writing, self._listening = [*self._writing, *self._listening], [], []
        for tell in told:
            tell(self._error)
        for done in self._waiting:
            if not done.done():
                done.set_exception(self._error)

    def close(self) -> None:
        """Wait for the commit that is under way, if there is one."""
        self._thread.shutdown(wait=True)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
