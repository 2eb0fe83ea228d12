"""Estimates when waiting tasks will start, by playing the queue forward with the profiles. It is not a promise.

Assumptions: The oldest task goes first, but a task that fits does not wait for one that does not. Each task gets the
size of the last task of its type, or what is free if that is less. Tasks take as long as current beliefs say, after
their data has come, and tasks that report progress continue at their pace. No other tasks arrive, and clusters that
take no tasks now never will.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tapfinger.core.contract import Snapshot, TaskView
from tapfinger.core.estimates import left_at_pace
from tapfinger.core.feasibility import largest_allocation, may_start
from tapfinger.core.model import Resources, TaskType
from tapfinger.live.insight.recent_sizes import RecentSizes

#: Most tasks, from the front of the queue, that are played forward.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds until each of the first tasks of the queue starts; a missing task has no estimate."""

    starts: dict[int, float]
    #: Number of tasks that were played forward, and the latest start among them.
    played: int
    until: float
    #: Index of the cluster on which each of them starts.
    clusters: dict[int, int] = field(default_factory=dict)

    def of(self, task: int, position: int) -> tuple[float | None, str]:
        """Seconds until a task starts, and how that was estimated."""
        if task in self.starts:
            return self.starts[task], "the queue played forward with the sizes and durations of recent tasks"
        if position >= self.played and self.starts:
            return self.until * (position + 1) / self.played, f"at the rate at which the first {self.played} will start"
        return None, "none of its clusters takes tasks now, or nothing there is known to end"


@dataclass(slots=True)
class _Kind:
    """Waiting tasks of one type and the same eligible clusters, by position in the queue."""

    view: TaskView
    waiting: deque[tuple[int, int]]


def forecast(snapshot: Snapshot, recent_sizes: RecentSizes, most: int = MOST) -> Forecast:
    """Play the first tasks of the queue forward."""
    play = _ForecastPlay(snapshot, recent_sizes, most)
    play.run()
    played = min(most, len(snapshot.queue))
    return Forecast(play.starts, played, max(play.starts.values(), default=0.0), play.clusters)


class _ForecastPlay:
    def __init__(self, snapshot: Snapshot, recent_sizes: RecentSizes, most: int) -> None:
        self._recent_sizes = recent_sizes
        self._data, self._slot = snapshot.data, snapshot.slot
        self._free = {c.index: c.free for c in snapshot.clusters if may_start(c)}
        self._hardware = [c.hardware for c in snapshot.clusters]
        self._ends: list[tuple[float, int, Resources]] = []
        self.starts: dict[int, float] = {}
        self.clusters: dict[int, int] = {}
        kinds: dict[tuple[str, tuple[int, ...]], _Kind] = {}
        for position, view in enumerate(snapshot.queue[:most]):
            kind = kinds.setdefault((view.type.name, view.eligible), _Kind(view, deque()))
            kind.waiting.append((position, view.id))
        self._kinds = list(kinds.values())
        for cluster in snapshot.clusters:
            if cluster.index in self._free:
                for task in cluster.running:
                    self._ends.append((self._left(task), cluster.index, task.allocation or task.type.minimum))
        heapq.heapify(self._ends)

    def _left(self, task: TaskView) -> float:
        """Seconds that a task on a cluster still takes; if it reports progress, at its pace so far."""
        slot = self._recent_sizes.slot_seconds
        whole = self._recent_sizes.seconds(task.type, task.allocation or task.type.minimum)
        return task.staging * slot + left_at_pace(task.elapsed * slot, whole, task.progress, least=slot)

    def run(self) -> None:
        """Play until every task has started, or no more tasks end."""
        self._start(0.0, self._free)
        while self._kinds and self._ends:
            now = self._ends[0][0]
            freed = set()
            while self._ends and self._ends[0][0] <= now:
                _, cluster, size = heapq.heappop(self._ends)
                self._free[cluster] = self._free[cluster] + size
                freed.add(cluster)
            self._start(now, freed)

    def _start(self, now: float, clusters: Iterable[int]) -> None:
        """Start all tasks that fit on these clusters, oldest first."""
        for kind in sorted(self._kinds, key=lambda k: k.waiting[0]):
            for cluster in clusters:
                while kind.waiting and cluster in kind.view.eligible and self._place(kind, cluster, now):
                    pass
        self._kinds = [kind for kind in self._kinds if kind.waiting]

    def _place(self, kind: _Kind, cluster: int, now: float) -> bool:
        task_type = kind.view.type
        room = largest_allocation(task_type, self._free[cluster])
        if room is None:
            return False
        last = self._recent_sizes.sizes.get(task_type.name)
        size = room if last is None else room.at_most(last)
        self._free[cluster] = self._free[cluster] - size
        seconds = self._recent_sizes.seconds(task_type.on(self._hardware[cluster]), size)
        heapq.heappush(self._ends, (self._begins(task_type, cluster, now) + seconds, cluster, size))
        _, ident = kind.waiting.popleft()
        self.starts[ident], self.clusters[ident] = now, cluster
        return True

    def _begins(self, task_type: TaskType, cluster: int, now: float) -> float:
        """When a task that is started now has its data, which later tasks find there."""
        if self._data is None or not task_type.data:
            return now
        slot_seconds = self._recent_sizes.slot_seconds
        slot = self._slot + int(now / slot_seconds)
        self._data, until = self._data.ask(task_type.data, cluster, slot)
        return now + (until - slot) * slot_seconds
