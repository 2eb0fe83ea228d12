"""Retention: how long ended tasks, their events and their output are kept, and how they go in small steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.store.logs import Logs
from tapfinger.live.store.pruning import EndedTask
from tapfinger.live.store.store import OLDER, Store

#: Seconds in a day, and bytes in a gigabyte.
DAY, GB = 86_400.0, 1e9
#: Tasks and events that are removed in one transaction, and pages of a file that are given back: some milliseconds.
TASKS, EVENTS, PAGES = 50, 200, 64
#: Seconds between two looks at events of no task.
EVENTS_EVERY = 600.0
#: Seconds since its end after which no more output of a task is expected.
LATE = 60.0
#: Share of the limit down to which output is removed once it is exceeded: not for each new piece again.
ENOUGH = 0.9
#: Most attempts of unknown tasks that are remembered from one measurement to the next.
STRAYS = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept."""

    #: Days since its end that a task is kept.
    days: float
    #: Most ended tasks.
    tasks: int
    #: Most bytes of output.
    output: float
    #: Most characters of ended tasks' specifications.
    length: float = math.inf


class Retention:
    """Removes what is beyond the limits. All of it happens in one thread, which nobody waits for."""

    def __init__(self, store: Store, files: Logs | None, limits: Limits, clock: Callable[[], float]) -> None:
        """``files``: output in files; None if the store has it. ``clock``: seconds since the epoch."""
        self._store = store
        self._files = files
        self._limits = limits
        self._clock = clock
        #: Bytes of output in files when they were last measured, and bytes that were written by then.
        self._measured: tuple[int, int] | None = None
        #: End and id of the last task whose output was removed; whether output is being removed now.
        self._cursor, self._removing = (0.0, 0), False
        #: Output of tasks that the store does not know, the oldest last: when it was written, and of which attempt.
        self._strays: list[tuple[float, AttemptId]] = []
        #: When events of no task are looked at next: to find the oldest, many are counted.
        self._events_at = 0.0

    @property
    def output(self) -> float:
        """Bytes of output, measured and added since."""
        if self._files is None:
            return self._store.output_bytes
        if self._measured is None:
            return 0.0
        size, written = self._measured
        return size + self._files.written - written

    def step(self, before: float | None = None) -> bool:
        """Remove a little. Returns whether there may be more. ``before``: also tasks that ended before this time."""
        return self._tasks(before) or self._events(before) or self._output() or self._store.shrink(PAGES)

    def count(self, before: float) -> int:
        """Number of tasks that would go."""
        return self._store.count_before(before)

    def measure(self, rest: Callable[[float], object] = time.sleep) -> None:
        """Measure output in files, and look for that of tasks which the store does not know.

        That may be as valuable as any other: perhaps it is the wrong store, and somebody puts the right one back. So it
        goes when it is as old as an ended task may become. ``rest`` is called now and then, since there may be a
        million of them.
        """
        if self._files is not None:
            written = self._files.written
            self._strays = []
            self._measured = (self._files.measure(rest, self._unknown, self._note_stray), written)
            self._strays.sort(reverse=True)
        self._cursor = (0.0, 0)  # output may have come late

    def _unknown(self, tasks: Collection[int]) -> set[int]:
        """Those of these tasks that are not in the store: others may be in use in an older copy of it."""
        # The next number first: tasks that are submitted meanwhile are not below it.
        following = self._store.next_id()
        return {task for task in tasks if task < following} - self._store.owners(tasks).keys()

    def _note_stray(self, ident: AttemptId) -> bool:
        """Note output of an unknown task, unless it is so old that it goes at once. Returns whether it does."""
        at = 0.0 if self._files is None else self._files.written_at(ident)
        if at < self._clock() - self._limits.days * DAY and not self._is_older():
            return True
        if len(self._strays) < STRAYS:
            self._strays.append((at, ident))
        return False

    def _is_older(self) -> bool:
        """Whether the store is known to be an older copy, and what it does not know of may be alive."""
        return self._store.meta(OLDER) is not None

    def _tasks(self, before: float | None) -> bool:
        limit = max(self._clock() - self._limits.days * DAY, before or 0.0)
        beyond = max(0, self._store.kept - self._limits.tasks)
        found = self._store.oldest(TASKS)
        beyond = max(beyond, self._too_long(found))
        gone = [task for n, task in enumerate(found) if n < beyond or task.ended < limit]
        if not gone:
            return False
        if self._files is not None:
            # Before the rows: what a crash leaves behind is then found again.
            self._forget(sum(self._files.remove(task.id, task.attempts) for task in gone))
        self._store.remove_tasks([task.id for task in gone])
        return True

    def _too_long(self, tasks: list[EndedTask]) -> int:
        """How many of these tasks go, one after another, for the rest to be short enough."""
        beyond = self._store.kept_length - self._limits.length
        if beyond <= 0:
            return 0
        lengths = self._store.lengths([task.id for task in tasks])
        for done, task in enumerate(tasks):
            if beyond <= 0:
                return done
            beyond -= lengths.get(task.id, 0)
        return len(tasks)

    def _events(self, before: float | None) -> bool:
        now = self._clock()
        if before is None and now < self._events_at:
            return False
        limit = max(now - self._limits.days * DAY, before or 0.0)
        if self._store.remove_site_events(limit, self._limits.tasks, EVENTS) == EVENTS:
            return True
        self._events_at = now + EVENTS_EVERY
        return False

    def _output(self) -> bool:
        """Remove the output of tasks that ended first; that of attempts that run is never touched."""
        beyond = self.output - self._limits.output * (ENOUGH if self._removing else 1.0)
        self._removing = beyond > 0
        # What an older copy does not know of counts as well: the output of tasks that it knows must not go for that.
        if not self._removing or self._is_older():
            return False
        if self._files is not None and self._strays:
            self._remove_strays(self._files)
            return True
        # Of those that have just ended, the last output may still be on its way.
        settled = self._clock() - LATE
        found = [task for task in self._store.oldest(TASKS, self._cursor) if task.ended < settled]
        beyond = self.output - self._limits.output * ENOUGH
        if self._files is None:
            done = self._store.remove_output([task.id for task in found], beyond)
        else:
            done = self._remove_files(self._files, found, beyond)
        # What was looked at has no output any more. What is left may be of tasks that run: all are looked at again only
        # after the next measurement.
        if done:
            self._cursor = found[done - 1].ended, found[done - 1].id
        return done > 0

    def _remove_strays(self, files: Logs) -> None:
        """Remove some output of unknown tasks, the oldest first, until there is little enough."""
        unknown = self._unknown({ident[0] for _, ident in self._strays[-TASKS:]})
        for _ in range(min(TASKS, len(self._strays))):
            if self.output <= self._limits.output * ENOUGH:
                return
            _, ident = self._strays.pop()
            if ident[0] in unknown:
                self._forget(files.kept(ident))
                files.discard(ident)

    def _remove_files(self, files: Logs, tasks: list[EndedTask], size: float) -> int:
        """Remove output of these tasks, one after another until ``size`` bytes are gone. Returns how many."""
        for done, task in enumerate(tasks):
            if size <= 0:
                return done
            removed = files.remove(task.id, task.attempts)
            self._forget(removed)
            size -= removed
        return len(tasks)

    def _forget(self, size: int) -> None:
        if self._measured is not None:
            self._measured = (self._measured[0] - size, self._measured[1])
