"""When a task is tried again after attempts that ended without success: after rests that grow, and not for ever.

One rule for losses and failures. An attempt that ends without success before it has run for ``LONG`` is a setback; one
that ran longer has shown that the task can run, so counting begins anew. A resting task still waits, but schedulers do
not see it: it takes neither resources nor a place in the queue from others. An attempt takes no time at worst; then a
task makes nine attempts in its first hour, and four in each further one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Set as AbstractSet

from tapfinger.live.protocol.messages import Outcome
from tapfinger.live.protocol.records import LostAttempt, TaskRecord

#: Seconds that an attempt must have run for its end to be no setback.
LONG = 600.0
#: Seconds of rest after the first setback in a row, the second and so on; the last is for all further ones.
RESTS = (1.0, 4.0, 16.0, 64.0, 256.0, 900.0)
#: Losses in a row after which a task ends, by default.
MAX_LOSSES = 10


def count(record: TaskRecord, outcome: Outcome, now: float, ran_short: bool = False) -> None:
    """Count an attempt that ended without success. ``ran_short``: it gets more of a resource, and has not failed."""
    lost = outcome.result != "failed"
    record.losses += lost
    record.failures += not lost and not ran_short
    long = record.started is not None and now - record.started >= LONG
    record.setbacks = 0 if long else record.setbacks + 1
    record.lost_in_a_row = record.lost_in_a_row + 1 if lost and not long else 0


def uncount_loss(record: TaskRecord) -> None:
    """Take back the loss that was counted last: the attempt had not been lost."""
    record.losses -= 1
    record.setbacks = max(0, record.setbacks - 1)
    record.lost_in_a_row = max(0, record.lost_in_a_row - 1)


def final_reason(record: TaskRecord, outcome: Outcome, max_losses: int) -> str | None:
    """Why the task ends with this counted attempt; None if it is tried again."""
    if outcome.result == "failed":
        return None if record.failures <= record.spec.retries else outcome.reason
    if not record.spec.requeue_lost:
        return outcome.reason
    if record.lost_in_a_row < max_losses:
        return None
    return f"it was lost {record.lost_in_a_row} times in a row; the last time: {outcome.reason or outcome.result}"


def rest(setbacks: int) -> float:
    """Seconds of rest after this many setbacks in a row."""
    return RESTS[min(setbacks, len(RESTS)) - 1] if setbacks else 0.0


def requeue(record: TaskRecord, outcome: Outcome, now: float) -> None:
    """Note that the task waits again: from when on, and whose late result would still count."""
    pause = rest(record.setbacks)
    record.not_before = now + pause if pause else 0.0
    if outcome.result != "failed" and record.cluster is not None:
        record.lost = LostAttempt(record.cluster, record.agent, record.allocation or (), record.started)


def restored(record: TaskRecord, now: float) -> None:
    """Correct a rest that was noted by another clock, which may have been ahead."""
    record.not_before = min(record.not_before, now + rest(record.setbacks))


class Resting:
    """The tasks that rest, and when each is due."""

    def __init__(self) -> None:
        """Start empty."""
        self._until: dict[int, float] = {}
        #: The same by time; tasks that no longer rest are left in it until they come up.
        self._order: list[tuple[float, int]] = []

    def __contains__(self, task: int) -> bool:
        """Whether a task rests."""
        return task in self._until

    @property
    def tasks(self) -> AbstractSet[int]:
        """Ids of the tasks that rest."""
        return self._until.keys()

    def add(self, task: int, until: float) -> None:
        """Let a task rest."""
        self._until[task] = until
        heapq.heappush(self._order, (until, task))

    def discard(self, task: int) -> bool:
        """End a rest early; False if the task does not rest."""
        return self._until.pop(task, None) is not None

    def end(self, now: float) -> list[int]:
        """End the rests that are over by now; returns their tasks."""
        over = []
        while self.next <= now:
            over.append(heapq.heappop(self._order)[1])
            del self._until[over[-1]]
        return over

    @property
    def next(self) -> float:
        """When the next rest is over; infinite if no task rests."""
        while self._order and self._until.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else math.inf
