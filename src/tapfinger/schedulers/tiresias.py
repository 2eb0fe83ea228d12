"""Tiresias (Gu et al., NSDI 2019): two queues by attained GPU service, first in first out inside each.

It knows nothing about speeds: a task that has used more GPU time than the median task needs yields to all tasks that
have not, and is paused when its cluster cannot hold both.
"""

from __future__ import annotations

from collections.abc import Iterable

from tapfinger.core.contract import (
    ClusterView,
    Decision,
    Placement,
    Resize,
    SchedulerContext,
    Snapshot,
    TaskView,
)
from tapfinger.core.feasibility import resizable
from tapfinger.core.model import Noise, Resources, TaskType
from tapfinger.core.spans import Rooms
from tapfinger.errors import ConfigError
from tapfinger.profiles.durations import mean_slots
from tapfinger.schedulers.free_capacity import FreeCapacity


def median_service(task_types: Iterable[TaskType], noise: Noise, accelerator: int) -> float:
    """Median over tasks of the service (slots x GPUs) that a task needs at its minimum allocation.

    The lower median: the least service that suffices for half of the tasks. Of two equally frequent
    types it is the smaller one's need, so that the threshold tells them apart.
    """
    needs = sorted((float(mean_slots(t.profile, noise)[0]) * t.minimum[accelerator], t.weight) for t in task_types)
    half = sum(weight for _, weight in needs) / 2.0
    enough = 0.0
    for need, weight in needs:
        enough += weight
        if enough >= half:
            return need
    return needs[-1][0]


class Tiresias:
    """Two-level feedback queue with pauses."""

    one_shot = True

    def __init__(self, elastic: bool = False, preemptive: bool = True, threshold: float | None = None) -> None:
        """``elastic``: grow running tasks up to their maximum with what is left; else all stay at the minimum.

        ``preemptive``: False never pauses or resizes. ``threshold``: GPU service (GPUs x slots) above
        which a task moves to the second queue; the median of the profiles if left out.
        """
        if elastic and not preemptive:
            raise ConfigError(
                "tiresias: elastic = true needs preemptive = true, since growing is a change of allocation"
            )
        if threshold is not None and not threshold >= 0:
            raise ConfigError(f"tiresias: threshold = {threshold!r} must be a number, zero or more (GPUs x slots)")
        self._elastic = elastic
        self._preemptive = preemptive
        self._given_threshold = threshold

    def reset(self, context: SchedulerContext) -> None:
        """Forget all start slots."""
        self._started: dict[int, int] = {}
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Set the threshold."""
        self._types = context.task_types
        self._accelerator = context.resources.accelerator
        self._threshold = (
            self._given_threshold
            if self._given_threshold is not None
            else median_service(context.task_types, context.noise, self._accelerator)
        )

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve the first queue, then waiting tasks (part of it), then the second queue; grow tasks if elastic."""
        rooms = Rooms(snapshot.clusters)
        plans = {c.index: _Plan(c, *self._queues(c), rooms) for c in snapshot.clusters if c.up}
        free = FreeCapacity(snapshot, self._types, rooms)
        yielding = {index: plan.yielding for index, plan in plans.items()}
        for task in snapshot.queue:
            if free.closed:
                break
            index = free.roomiest(task, task.type.minimum, yielding)
            if index is not None:
                free.take(task, index, task.type.minimum)
                plans[index].admit(task)
        placements: list[Placement] = []
        resizes: list[Resize] = []
        for plan in plans.values():
            plan.fit_second_queue()
            if self._elastic:
                plan.grow()
            placements += plan.placements()
            resizes += plan.resizes()
        self._remember(snapshot, placements)
        return Decision(tuple(placements), tuple(resizes))

    def _queues(self, cluster: ClusterView) -> tuple[list[TaskView], list[TaskView]]:
        """Resizable tasks of the cluster in the first and in the second queue, each in order of start."""
        if not self._preemptive:
            return [], []
        # A task that is only just starting cannot be resized: it keeps what it has.
        tasks = [t for t in (*cluster.running, *cluster.paused) if resizable(t)]
        tasks.sort(key=lambda t: (self._started.get(t.id, t.arrival), t.id))
        queues: tuple[list[TaskView], list[TaskView]] = ([], [])
        for task in tasks:
            attained = task.service[self._accelerator] if task.service else 0
            queues[attained > self._threshold].append(task)
        return queues

    def _remember(self, snapshot: Snapshot, placements: Iterable[Placement]) -> None:
        """Keep the start slots of tasks on clusters, and forget all others."""
        present = {task.id for task in snapshot.on_clusters()}
        self._started = {task: slot for task, slot in self._started.items() if task in present}
        self._started.update((p.task, snapshot.slot) for p in placements)


class _Plan:
    """Allocations on one cluster in this slot, in order of precedence."""

    def __init__(self, cluster: ClusterView, first: list[TaskView], second: list[TaskView], rooms: Rooms) -> None:
        """Take everything back, then give the first queue its minima."""
        self._index = cluster.index
        self._tasks = [*first, *second]
        self._second = second
        self._granted: list[tuple[TaskView, Resources]] = []
        self._rooms = rooms
        self._none = cluster.capacity - cluster.capacity
        for task in self._tasks:
            if task.allocation is not None:
                rooms.resize(self._index, task, task.allocation, self._none)
        for task in first:
            if task.type.minimum.fits(rooms[self._index]):
                self._grant(task)
        #: Sum of the minima of the second queue, running or paused.
        self.yielding = self._none
        for task in second:
            self.yielding = self.yielding + task.type.minimum

    def admit(self, task: TaskView) -> None:
        """A waiting task starts here with its minimum, which was taken already."""
        self._granted.append((task, task.type.minimum))

    def _grant(self, task: TaskView) -> None:
        self._rooms.resize(self._index, task, self._none, task.type.minimum)
        self._granted.append((task, task.type.minimum))

    def fit_second_queue(self) -> None:
        """Grant their minimum to tasks that still fit; the others are paused."""
        for task in self._second:
            if task.type.minimum.fits(self._rooms[self._index]):
                self._grant(task)

    def grow(self) -> None:
        """Grow granted tasks in the same order, each up to its maximum, with what is left."""
        for position, (task, allocation) in enumerate(self._granted):
            grown = task.type.maximum.at_most(allocation + self._rooms[self._index])
            self._rooms.resize(self._index, task, allocation, grown)
            self._granted[position] = (task, grown)

    def placements(self) -> list[Placement]:
        """Granted tasks that waited."""
        return [Placement(t.id, self._index, allocation) for t, allocation in self._granted if t.cluster is None]

    def resizes(self) -> list[Resize]:
        """Changes of allocation, including pauses; unchanged allocations cost nothing and are left out."""
        granted = {task.id: allocation for task, allocation in self._granted}
        wanted = ((task, granted.get(task.id, self._none)) for task in self._tasks)
        return [
            Resize(task.id, allocation)
            for task, allocation in wanted
            if allocation != task.allocation or (not allocation.none and self._rooms.moved(task))
        ]


def elastic(threshold: float | None = None) -> Tiresias:
    """Tiresias that grows running tasks up to their maximum with what is left."""
    return Tiresias(elastic=True, threshold=threshold)


def nonpreemptive() -> Tiresias:
    """Tiresias that never pauses: waiting tasks have attained no service, so this is FIFO at the minimum."""
    return Tiresias(preemptive=False)
