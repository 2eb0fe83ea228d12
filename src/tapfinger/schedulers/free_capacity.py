"""Room left on each cluster while a central scheduler plans a slot, to choose where the next task goes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Snapshot, TaskView
from tapfinger.core.estimates import duration, staging_pays
from tapfinger.core.model import Resources, TaskType
from tapfinger.core.spans import Rooms

#: Number of eligible clusters from which arrays are quicker than a loop.
MANY = 24


class FreeCapacity:
    """Free resources that planning has left on each cluster; a cluster that can start nothing more is closed."""

    def __init__(
        self,
        snapshot: Snapshot,
        task_types: Iterable[TaskType],
        rooms: Rooms | None = None,
        starts: int | None = None,
    ) -> None:
        """``rooms``: what is free, for schedulers that take resources back from running tasks; starts take from it.

        ``starts``: the scheduler's own limit on starts per cluster, in addition to the limit of the mode.
        """
        self._minima = {t.minimum for t in task_types}
        limits = ((c.index, [n for n in (c.starts_left, starts) if n is not None]) for c in snapshot.clusters)
        self._starts = {index: min(limit) if limit else None for index, limit in limits}
        self._rooms = Rooms(snapshot.clusters) if rooms is None else rooms
        self.left = {c.index: self._rooms[c.index] for c in snapshot.clusters if c.up}
        self._hardware = [c.hardware for c in snapshot.clusters]
        self._data, self._slot = snapshot.data, snapshot.slot
        #: By name of a type: how many times as fast its minimum is on each cluster as on the usual hardware.
        self._pace: dict[str, list[float]] = {}
        #: Clusters that can start something more.
        self.open: set[int] = set()
        for index in self.left:
            self.open.add(index)
            self._close_if_full(index)
        #: (N, R) the same as ``left``, and (N,) whether a cluster is open; made when they are first needed.
        self._arrays: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None = None
        self._yielding: tuple[dict[int, Resources], npt.NDArray[np.int64]] | None = None

    @property
    def unlike(self) -> bool:
        """Whether clusters differ in hardware."""
        return len(set(self._hardware)) > 1

    @property
    def closed(self) -> bool:
        """Whether no cluster can start anything more."""
        return not self.open

    def fits(self, task: TaskView, index: int, allocation: Resources) -> bool:
        """Whether the task may start on this cluster with this allocation, and its data will be there in time."""
        return (
            index in self.open
            and index in task.eligible
            and allocation.fits(self.left[index])
            and self._in_time(task, index, self._wait(task, index))
        )

    def _wait(self, task: TaskView, index: int) -> int:
        """Slots until the task would have its data on this cluster."""
        return 0 if self._data is None else self._data.wait(task.type.data, index, self._slot)

    def _in_time(self, task: TaskView, index: int, wait: int) -> bool:
        """Whether to wait for data there, and not for a cluster that would have it sooner."""
        if not wait:
            return True
        later = wait - min(self._wait(task, n) for n in task.eligible)
        shortest = duration(task.type.on(self._hardware[index]), task.type.minimum)
        return staging_pays(later, shortest, self._slot - task.arrival)

    def roomiest(
        self, task: TaskView, allocation: Resources, yielding: dict[int, Resources] | None = None
    ) -> int | None:
        """The cluster with the most room, in minima of the task, among those where it fits; ties to the lowest index.

        Where hardware differs, room counts by how fast the task is at its minimum there; where data must be brought
        first, by how much longer the task would be there.

        ``yielding``: on each cluster, what tasks that could be paused need. This counts as used in the comparison, so
        that nothing is paused while another cluster has room.
        """
        if len(task.eligible) >= MANY and not (self._data is not None and task.type.data):
            return self._roomiest_of_many(task, allocation, yielding)
        best, most, pace = None, -math.inf, self.paces(task.type)
        for index in task.eligible:
            if self.fits(task, index, allocation):
                room = self.left[index] - yielding[index] if yielding else self.left[index]
                copies = min(amount / need for amount, need in zip(room, task.type.minimum, strict=True) if need)
                copies *= pace[index]
                if wait := self._wait(task, index):
                    copies /= 1.0 + wait / duration(task.type.on(self._hardware[index]), task.type.minimum)
                if copies > most:
                    best, most = index, copies
        return best

    def _roomiest_of_many(
        self, task: TaskView, allocation: Resources, yielding: dict[int, Resources] | None
    ) -> int | None:
        """The same as ``roomiest``, for all clusters at once."""
        left, may = self._as_arrays(len(allocation))
        eligible = np.asarray(task.eligible)
        fits = may[eligible] & (left[eligible] >= np.asarray(allocation)).all(axis=1)
        found = eligible[fits]  # (F,)
        if not len(found):
            return None
        room = left[found]
        if yielding:
            if self._yielding is None or self._yielding[0] is not yielding:
                held = np.zeros_like(left)
                for index, amounts in yielding.items():
                    held[index] = amounts
                self._yielding = yielding, held
            room = room - self._yielding[1][found]
        needs = np.asarray(task.type.minimum)
        copies = (room[:, needs > 0] / needs[needs > 0]).min(axis=1) * np.asarray(self.paces(task.type))[found]
        return int(found[np.argmax(copies)])

    def paces(self, task_type: TaskType) -> list[float]:
        """For each cluster, how many times as fast the type's minimum is there as on the usual hardware."""
        if task_type.name not in self._pace:
            usual = task_type.profile.rate(task_type.minimum)
            kinds = {kind: task_type.on(kind).profile.rate(task_type.minimum) / usual for kind in set(self._hardware)}
            self._pace[task_type.name] = [kinds[kind] for kind in self._hardware]
        return self._pace[task_type.name]

    def _as_arrays(self, resources: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        if self._arrays is None:
            left = np.zeros((len(self._starts), resources), dtype=np.int64)
            may = np.zeros(len(self._starts), dtype=np.bool_)
            for index, amounts in self.left.items():
                left[index], may[index] = amounts, index in self.open
            self._arrays = left, may
        return self._arrays

    def take(self, task: TaskView, index: int, allocation: Resources) -> None:
        """Reserve this allocation for a start of the task; close the cluster if it can start nothing more."""
        if self._data is not None:
            self._data, _ = self._data.ask(task.type.data, index, self._slot)
        self._rooms.start(index, task, allocation)
        starts = self._starts[index]
        if starts is not None:
            self._starts[index] = starts - 1
        for n in self._rooms.sharing(index):
            if n in self.left:
                self.left[n] = self._rooms[n]
                self._close_if_full(n)
                if self._arrays is not None:
                    self._arrays[0][n], self._arrays[1][n] = self.left[n], n in self.open

    def close(self, indices: Iterable[int]) -> None:
        """Allow no further starts on these clusters."""
        shut = list(indices)
        self.open.difference_update(shut)
        if self._arrays is not None:
            self._arrays[1][shut] = False

    def _close_if_full(self, index: int) -> None:
        if self._starts[index] == 0 or not any(minimum.fits(self.left[index]) for minimum in self._minima):
            self.open.discard(index)
