"""Room left on each cluster while a central scheduler plans a slot, to choose where the next task goes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tapfinger.core.contract import Snapshot, TaskView
from tapfinger.core.model import Resources, TaskType


class FreeCapacity:
    """Free resources that planning has left on each cluster; a cluster that can start nothing more is closed."""

    def __init__(
        self,
        snapshot: Snapshot,
        task_types: Iterable[TaskType],
        room: dict[int, Resources] | None = None,
        starts: int | None = None,
    ) -> None:
        """``room`` overrides the free resources, for schedulers that take resources back from running tasks.

        ``starts``: the scheduler's own limit on starts per cluster, in addition to the limit of the mode.
        """
        self._minima = {t.minimum for t in task_types}
        limits = ((c.index, [n for n in (c.starts_left, starts) if n is not None]) for c in snapshot.clusters)
        self._starts = {index: min(limit) if limit else None for index, limit in limits}
        self.left = {c.index: room[c.index] if room else c.free for c in snapshot.clusters if c.up}
        self._open: set[int] = set()
        for index in self.left:
            self._open.add(index)
            self._close_if_full(index)

    @property
    def closed(self) -> bool:
        """Whether no cluster can start anything more."""
        return not self._open

    def fits(self, task: TaskView, index: int, allocation: Resources) -> bool:
        """Whether the task may start on this cluster with this allocation."""
        return index in self._open and index in task.eligible and allocation.fits(self.left[index])

    def roomiest(
        self, task: TaskView, allocation: Resources, yielding: dict[int, Resources] | None = None
    ) -> int | None:
        """The cluster with the most room, in minima of the task, among those where it fits; ties to the lowest index.

        ``yielding``: on each cluster, what tasks that could be paused need. This counts as used in the comparison, so
        that nothing is paused while another cluster has room.
        """
        best, most = None, -math.inf
        for index in task.eligible:
            if self.fits(task, index, allocation):
                room = self.left[index] - yielding[index] if yielding else self.left[index]
                copies = min(amount / need for amount, need in zip(room, task.type.minimum, strict=True) if need)
                if copies > most:
                    best, most = index, copies
        return best

    def take(self, index: int, allocation: Resources) -> None:
        """Reserve this allocation for a start; close the cluster if it can start nothing more."""
        self.left[index] = self.left[index] - allocation
        starts = self._starts[index]
        if starts is not None:
            self._starts[index] = starts - 1
        self._close_if_full(index)

    def close(self, indices: Iterable[int]) -> None:
        """Allow no further starts on these clusters."""
        self._open.difference_update(indices)

    def _close_if_full(self, index: int) -> None:
        if self._starts[index] == 0 or not any(minimum.fits(self.left[index]) for minimum in self._minima):
            self._open.discard(index)
