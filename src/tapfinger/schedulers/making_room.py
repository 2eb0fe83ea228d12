"""Running tasks step aside for a short one that would otherwise wait long: they go on at a smaller size meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tapfinger.core.contract import ClusterView, Phase, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.model import Resources
from tapfinger.profiles.options import Option, Options

#: Waiting tasks that are looked at in one slot: the shortest ones.
_LOOKED_AT = 8

#: Tasks end with whole slots: every change costs half of one on average.
_ROUNDING = 0.5

#: Progress assumed at most, of a task that does not report it and still runs.
_ALMOST_DONE = 0.99


class Step(NamedTuple):
    """One task steps aside."""

    task: int
    size: Resources
    freed: Resources
    #: Slots it loses while the other runs.
    loss: float


class Room(NamedTuple):
    """A task to start, and who steps aside for it."""

    placement: Placement
    steps: tuple[Step, ...]
    #: Slots lost by all of them together.
    loss: float


class MakingRoom:
    """Finds waiting tasks for which it pays that others step aside."""

    def reset(self, context: SchedulerContext) -> None:
        """Learn what changes cost."""
        self._cost = context.switching_cost
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Take other profiles from now on."""
        self._options = Options(context)
        #: The size with the least cost, of each type.
        self._thrifty = {name: min(o, key=lambda option: option.cost) for name, o in self._options.of.items()}
        self._smaller: dict[tuple[str, Resources], Option | None] = {}

    def find(self, snapshot: Snapshot) -> list[Room]:
        """Where to make room, and for whom. ``snapshot``: when nothing more starts by itself.

        Each cluster makes room for one task at a time, and only for those that fit nowhere: whoever could start has
        been left waiting for a reason.
        """
        found: list[Room] = []
        used: set[int] = set()
        shortest = sorted(snapshot.queue, key=lambda t: (self._thrifty[t.type.name].slots, t.arrival))[:_LOOKED_AT]
        for task in shortest:
            wanted = self._thrifty[task.type.name]
            up = [c for n in task.eligible if (c := snapshot.clusters[n]).up and wanted.allocation.fits(c.capacity)]
            if not up or any(task.type.minimum.fits(cluster.free) for cluster in up):
                continue
            rooms = [self._room(task, wanted, c) for c in up if c.index not in used and c.starts_left != 0]
            best = min((room for room in rooms if room is not None), key=lambda room: room.loss, default=None)
            if best is None:
                continue
            # If it waits, it may get a faster size.
            ideal = self._options.ideal(task.type.name, task.eligible)
            sooner = min(self._wait(wanted.allocation, cluster) for cluster in up) + ideal - wanted.slots
            if sooner > best.loss:
                used.add(best.placement.cluster)
                found.append(best)
        return found

    def _wait(self, wanted: Resources, cluster: ClusterView) -> float:
        """Slots until so much is free by itself."""
        room = cluster.free
        if wanted.fits(room):
            return 0.0
        ends = sorted(((self._left(task), task.id, task) for task in cluster.running), key=lambda end: end[:2])
        for left, _, task in ends:
            room = room + (task.allocation or task.type.minimum)
            if wanted.fits(room):
                return left
        return float("inf")

    def _left(self, task: TaskView) -> float:
        size = task.allocation or task.type.minimum
        return float(task.type.profile.slots(size, progress_of(task, size)))

    def _room(self, task: TaskView, wanted: Option, cluster: ClusterView) -> Room | None:
        """Those step aside first who free most for what they lose; None where all of them are not enough."""
        could = [step for other in cluster.running if (step := self._step(other, wanted.slots)) is not None]
        could.sort(key=lambda step: step.loss / self._options.free_share(step.freed))
        free = cluster.free
        for count, step in enumerate(could, start=1):
            free = free + step.freed
            if wanted.allocation.fits(free):
                steps = _needed(could[:count], wanted.allocation, free)
                loss = sum(s.loss for s in steps) + _ROUNDING * (1 + len(steps))
                return Room(Placement(task.id, cluster.index, wanted.allocation), steps, loss)
        return None

    def _step(self, task: TaskView, slots: float) -> Step | None:
        """What a running task could do for one that takes ``slots``."""
        held = task.allocation
        # One that is only just starting cannot be resized.
        smaller = self._size(task, held) if held is not None and task.phase is Phase.RUNNING else None
        if held is None or smaller is None:
            return None
        profile = task.type.profile
        slowed = max(0.0, 1.0 - profile.rate(smaller.allocation) / profile.rate(held))
        loss = slowed * min(slots, self._left(task)) + 2.0 * self._cost
        return Step(task.id, smaller.allocation, held - smaller.allocation, loss)

    def _size(self, task: TaskView, held: Resources) -> Option | None:
        """The cheapest size that takes less of everything."""
        key = task.type.name, held
        if key not in self._smaller:
            fitting = [o for o in self._options.of[task.type.name] if o.allocation.fits(held) and o.allocation != held]
            self._smaller[key] = min(fitting, key=lambda o: (o.cost, o.slots), default=None)
        return self._smaller[key]


def progress_of(task: TaskView, held: Resources) -> float:
    """As reported; otherwise as if the task had always held this."""
    return (
        task.progress if task.progress is not None else min(_ALMOST_DONE, task.elapsed * task.type.profile.rate(held))
    )


def _needed(steps: Sequence[Step], wanted: Resources, free: Resources) -> tuple[Step, ...]:
    """Without those who turn out not to be needed."""
    kept = list(steps)
    for step in steps:
        if wanted.fits(free - step.freed):
            free = free - step.freed
            kept.remove(step)
    return tuple(kept)
