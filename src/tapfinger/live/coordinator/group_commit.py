"""Group commit: while one transaction is written to disk, all further changes are collected for the next one.

A hundred submissions that arrive together wait for two commits, not for a hundred.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from tapfinger.errors import StoreFailed
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
    #: Whether there must be a transaction although there may be nothing to save: it shows that this coordinator leads.
    fenced: bool = False

    def __bool__(self) -> bool:
        """Whether there must be a transaction."""
        data = self.records or self.history or self.meta or self.output or self.learned or self.secrets
        return bool(data) or self.fenced


#: Changes of one transaction, each with what is called when it is on disk.
Group = list[tuple[Change, Callable[[], None]]]


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
        any(change.fenced for change in changes),
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
        #: Put by who is to be told that all is saved. Another coordinator may lead: then the store says no.
        self._acknowledged = Change(fenced=store.shared)
        self._took = took
        self._failed = failed
        self._error: BaseException | None = None
        self._queue: Group = []
        self._waiting: set[asyncio.Future[None]] = set()
        #: Whether a commit is under way, or will be in the loop's next turn.
        self._busy = False
        #: Who is told of the commit that is under way, and of the next one.
        self._writing: list[Told] = []
        self._listening: list[Told] = []
        #: What the thread does next; None for its end. Lighter than an executor, whose futures take many locks.
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._gate, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._work, name="commits", daemon=True)
        self._thread.start()

    def put(self, change: Change, then: Callable[[], None]) -> None:
        """Save a change; ``then`` is called when this change and all earlier ones are on disk."""
        if self._error is not None:
            raise self._error
        if not self._busy and not change:
            then()
            return
        self._queue.append((change, then))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._begin)

    async def flush(self) -> None:
        """Wait until every change so far is on disk; raises if a save has failed.

        In a shared store it also raises if this coordinator leads no longer, even if there is nothing to save.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            self.put(self._acknowledged, lambda: _settle(done))
            await done
        finally:
            self._waiting.discard(done)

    def on_disk(self, told: Told) -> None:
        """Call ``told`` when every change so far is on disk, or with the error as of ``flush``.

        It is called from the thread that saves, before any ``then``: an answer to a person on another loop need not
        wait until this loop has a turn. If ``stop`` comes while a save is under way, it may be told both.
        """
        self._listening.append(told)
        try:
            self.put(self._acknowledged, lambda: None)
        except BaseException as error:
            self._listening.remove(told)
            told(error)
            return
        if not self._busy:  # nothing is left to save
            self._listening.remove(told)
            told(None)

    def _begin(self) -> None:
        """Have all that is queued saved, and go on afterwards."""
        if self._error is not None:
            return
        if not self._queue:
            self._busy = False
            return
        group, self._queue = self._queue, []
        self._writing, self._listening = self._listening, []
        change = together([change for change, _ in group])
        loop = asyncio.get_running_loop()

        def done(error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._saved, group, error)

        if not change and not self._writing:
            loop.call_soon(self._saved, group, None)
        elif not self._order(partial(self._save, change, done)):
            self._give_up(StoreFailed("nothing more is saved: this coordinator has ended"))

    def _order(self, work: Callable[[], None]) -> bool:
        """Have the thread do something; False if it has ended, or will."""
        with self._gate:
            if not self._closed:
                self._orders.put(work)
            return not self._closed

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            order()

    def _save(self, change: Change, done: Callable[[BaseException | None], object]) -> None:
        error: BaseException | None = None
        try:
            if change:
                began = time.perf_counter()
                self._store.save(
                    change.records, change.history, change.meta, change.output, change.learned, change.secrets
                )
                self._took(time.perf_counter() - began)
            told, self._writing = self._writing, []
            for tell in told:
                tell(None)
        except BaseException as raised:
            error = raised
        done(error)

    def _saved(self, group: Group, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise error
            for _, then in group:
                then()
        except BaseException as raised:
            self._give_up(raised)
            return
        self._begin()

    def _give_up(self, error: BaseException) -> None:
        self.stop(error)
        self._failed(error)

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
        """Wait for the commit that is under way, if there is one; may be called again."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._orders.put(None)
        self._thread.join()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
