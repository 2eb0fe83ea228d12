"""Data sets: where they lie, what has been brought where, and from when on a task has its data.

A place is a whole cluster; the last place is the submitters'. A link from place to place brings one data set after the
other, each at the link's full bandwidth, so that the slot in which a data set has arrived is known when it is asked
for, and those who ask later delay nobody. What has been brought stays in the cluster's cache; what no task there uses
is removed, the least recently used first, when the cache is over its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class DataLayout:
    """What does not change: the data sets, the places where they lie for good, the links, the caches."""

    names: tuple[str, ...]
    #: (data sets,) size in GB.
    gb: tuple[float, ...]
    #: (places, data sets) whether the data set lies there for good.
    lies: tuple[tuple[bool, ...], ...]
    #: (places, clusters) slots that the link from a place to a whole cluster takes for one GB.
    slots_per_gb: tuple[tuple[float, ...], ...]
    #: (clusters,) size of the cache of each whole cluster, in GB.
    cache_gb: tuple[float, ...]
    #: For every cluster of the site (every node, where there are nodes), its place.
    place_of: tuple[int, ...]

    @property
    def submitters(self) -> int:
        """The place of the submitters."""
        return len(self.lies) - 1


@dataclass(frozen=True)
class Staging:
    """Which data sets are where, at one moment. Frozen: what asks for data gets a new one."""

    layout: DataLayout
    #: (places, data sets) slot from which on the data set is there; infinite where it is not and was not asked for.
    ready: tuple[tuple[float, ...], ...]
    #: Slot until which a link is taken, by its two places; links that were never used are left out.
    busy: Mapping[tuple[int, int], float] = field(default_factory=dict)
    #: (clusters, data sets) the last slot in which the data set was asked for or its last task ended; -1 before.
    used: tuple[tuple[int, ...], ...] = ()
    #: (clusters, data sets) tasks there that use the data set.
    users: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def begin(layout: DataLayout) -> Staging:
        """Nothing has been brought anywhere yet."""
        ready = tuple(tuple(0.0 if lies else math.inf for lies in row) for row in layout.lies)
        clusters, sets = len(layout.lies) - 1, len(layout.names)
        return Staging(layout, ready, {}, ((-1,) * sets,) * clusters, ((0,) * sets,) * clusters)

    # ------------------------------------------------------------------ questions

    def wait(self, data: Sequence[int], cluster: int, slot: int) -> int:
        """Slots that a task which needs these data sets would wait for them if it were placed there now."""
        return self._wait(data, self.layout.place_of[cluster], slot) if data else 0

    def waits(self, data: Sequence[int], slot: int) -> list[int]:
        """The same for every whole cluster."""
        return [self._wait(data, place, slot) if data else 0 for place in range(len(self.users))]

    def _wait(self, data: Sequence[int], place: int, slot: int) -> int:
        row = self.ready[place]
        for d in data:
            if row[d] > slot:
                break
        else:
            return 0
        _, _, until = self._brought(data, place, slot)
        return begins(until) - slot

    def missing_gb(self, data: Sequence[int], cluster: int) -> float:
        """GB that would have to be brought there: of data sets that are neither there nor on their way."""
        row = self.ready[self.layout.place_of[cluster]]
        return sum(self.layout.gb[d] for d in data if math.isinf(row[d]))

    def cached_gb(self, place: int) -> float:
        """GB in the cache of a whole cluster, and on their way to it."""
        row, lies, total = self.ready[place], self.layout.lies[place], 0.0
        for gb, at, here in zip(self.layout.gb, row, lies, strict=True):
            if at < math.inf and not here:
                total += gb  # not by ``sum``, which rounds differently from Python 3.12 on: the kernels must agree
        return total

    def _brought(
        self, data: Sequence[int], place: int, slot: int
    ) -> tuple[tuple[float, ...], dict[tuple[int, int], float], float]:
        """The place's row of ``ready`` and the links once these data sets are asked for, and when all are there."""
        row, until = list(self.ready[place]), float(slot)
        taken: dict[tuple[int, int], float] = {}
        for d in data:
            if row[d] == math.inf:
                source, row[d] = self._quickest(d, place, slot, taken)
                taken[source, place] = row[d]
            until = max(until, row[d])
        return tuple(row), taken, until

    def _quickest(self, data: int, place: int, slot: int, taken: Mapping[tuple[int, int], float]) -> tuple[int, float]:
        """The place from which the data set would be here soonest, and when; ties to the lowest index."""
        best, soonest = -1, math.inf
        for source, row in enumerate(self.ready):
            if row[data] <= slot and source != place:
                link = (source, place)
                free = max(float(slot), taken.get(link, self.busy.get(link, 0.0)))
                at = free + self.layout.gb[data] * self.layout.slots_per_gb[source][place]
                if at < soonest:
                    best, soonest = source, at
        return best, soonest

    # ------------------------------------------------------------------- changes

    def ask(self, data: Sequence[int], cluster: int, slot: int) -> tuple[Staging, int]:
        """A task is placed that needs these data sets; also the slot from which on it has them."""
        if not data:
            return self, slot
        place = self.layout.place_of[cluster]
        row, taken, until = self._brought(data, place, slot)
        used, users = list(self.used[place]), list(self.users[place])
        for d in data:
            used[d], users[d] = slot, users[d] + 1
        busy = {**self.busy, **taken} if taken else self.busy
        later = replace(
            self,
            ready=_with(self.ready, place, row),
            busy=busy,
            used=_with(self.used, place, tuple(used)),
            users=_with(self.users, place, tuple(users)),
        )
        return later._trimmed(place), begins(until)

    def found(self, data: Sequence[int], cluster: int, slot: int) -> Staging:
        """The cluster turns out to have these data sets: a task that needs them runs there."""
        place = self.layout.place_of[cluster]
        row = tuple(min(at, slot) if d in data else at for d, at in enumerate(self.ready[place]))
        return replace(self, ready=_with(self.ready, place, row))

    def release(self, data: Sequence[int], cluster: int, slot: int) -> Staging:
        """A task that needed these data sets is no longer there."""
        if not data:
            return self
        place = self.layout.place_of[cluster]
        used, users = list(self.used[place]), list(self.users[place])
        for d in data:
            used[d], users[d] = slot, users[d] - 1
        later = replace(self, used=_with(self.used, place, tuple(used)), users=_with(self.users, place, tuple(users)))
        return later._trimmed(place)

    def _trimmed(self, place: int) -> Staging:
        """Without what the cache is too small for; what tasks use stays."""
        over = self.cached_gb(place) - self.layout.cache_gb[place]
        if over <= 0.0:
            return self
        row = list(self.ready[place])
        while over > 0.0:
            idle = [
                d
                for d, at in enumerate(row)
                if at < math.inf and not self.layout.lies[place][d] and not self.users[place][d]
            ]
            if not idle:
                break
            oldest = min(idle, key=lambda d: self.used[place][d])
            row[oldest] = math.inf
            over -= self.layout.gb[oldest]
        return replace(self, ready=_with(self.ready, place, tuple(row)))


def begins(until: float) -> int:
    """The first slot that begins when something which ends at ``until`` has ended."""
    return math.ceil(until - 1e-9)


def _with(rows: tuple[Row, ...], index: int, row: Row) -> tuple[Row, ...]:
    return (*rows[:index], row, *rows[index + 1 :])
