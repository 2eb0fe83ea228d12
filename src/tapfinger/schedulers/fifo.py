"""FIFO: the oldest task first, on the eligible cluster with the most room, at a size that never changes."""

from __future__ import annotations

from collections.abc import Iterable

from tapfinger.core.contract import Decision, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.feasibility import ever_fits
from tapfinger.errors import ConfigError
from tapfinger.profiles.durations import efficient_sizes
from tapfinger.schedulers.free_capacity import FreeCapacity

#: min: the minimum. best: the size with the shortest mean duration among those that fit.
SIZES = ("min", "best")


class Fifo:
    """First in, first out."""

    one_shot = True

    def __init__(self, size: str = "min", backfill: bool = False) -> None:
        """``size``: min, or best (the size that ends soonest among those that fit).

        ``backfill``: whether a younger task may start on a cluster where an older one waits because its minimum does
        not fit.
        """
        if size not in SIZES:
            raise ConfigError(f"size = {size!r} must be one of {', '.join(SIZES)}")
        self._best = size == "best"
        self._backfill = backfill

    def reset(self, context: SchedulerContext) -> None:
        """Make the tables of ``learn``; nothing else is remembered."""
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Look up the sizes to use, fastest first; the minimum is always the last resort."""
        self._types = context.task_types
        self._sizes = {
            t.name: [s.allocation for s in efficient_sizes(t, context.noise)] if self._best else [t.minimum]
            for t in context.task_types
        }
        # A task does not wait for clusters that could not hold it even if they were empty.
        self._holds = {
            t.name: {n for n, cluster in enumerate(context.clusters) if ever_fits(t.minimum, cluster.capacity)}
            for t in context.task_types
        }

    def decide(self, snapshot: Snapshot) -> Decision:
        """Walk the waiting tasks in order; each starts at the fastest size that fits, where there is the most room."""
        free = FreeCapacity(snapshot, self._types)
        placements: list[Placement] = []
        for task in self._ordered(snapshot.queue):
            if free.closed:
                break
            placement = self._start(task, free)
            if placement is not None:
                placements.append(placement)
            elif not self._backfill:
                could = self._holds[task.type.name].intersection(task.eligible)
                # A live cluster may have less than the context says: nobody waits for what it does not have.
                free.close(n for n in could if ever_fits(task.type.minimum, snapshot.clusters[n].capacity))
        return Decision(tuple(placements))

    def _start(self, task: TaskView, free: FreeCapacity) -> Placement | None:
        for size in self._sizes[task.type.name]:
            index = free.roomiest(task, size)
            if index is not None:
                free.take(task, index, size)
                return Placement(task.id, index, size)
        return None

    def _ordered(self, queue: tuple[TaskView, ...]) -> Iterable[TaskView]:
        """The order in which waiting tasks are served."""
        return queue
