"""Running tasks shrink, and go on at a smaller size, for a short task that would otherwise wait long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tapfinger.core.contract import ClusterView, Placement, Snapshot, TaskView
from tapfinger.core.estimates import slots_left
from tapfinger.core.feasibility import largest_allocation, may_start, resizable
from tapfinger.core.model import Resources
from tapfinger.profiles.efficient_sizes import EfficientSize
from tapfinger.profiles.site_tables import SiteTables

#: Maximum number of waiting tasks considered in one slot: the shortest ones.
_CONSIDERED = 8

#: Mean number of slots that a change costs because tasks end only at the end of a slot.
ROUNDING = 0.5


class Step(NamedTuple):
    """One running task that shrinks."""

    task: int
    size: Resources
    freed: Resources
    #: Slots that the task loses while the other one runs.
    loss: float


class Room(NamedTuple):
    """A task to start, and the running tasks that shrink for it."""

    placement: Placement
    steps: tuple[Step, ...]
    #: Slots lost by all shrinking tasks together.
    loss: float


class MakingRoom:
    """Finds waiting tasks for which it pays to shrink running ones."""

    def __init__(self, site: SiteTables) -> None:
        """Ready for a run."""
        self._cost = site.context.switching_cost
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._options = site.sizes
        self._smaller: dict[tuple[str, str, Resources], EfficientSize | None] = {}

    def find(self, snapshot: Snapshot) -> list[Room]:
        """Where to make room, and for which tasks. ``snapshot``: after all starts that need no room made.

        Each cluster makes room for one task at a time, and only for tasks that fit nowhere: a task that could start was
        left waiting for a reason.
        """
        found: list[Room] = []
        used: set[int] = set()
        shortest = sorted(snapshot.queue, key=lambda t: (self._options.cheapest[t.type.name].slots, t.arrival))[
            :_CONSIDERED
        ]
        for task in shortest:
            wanted = self._options.cheapest[task.type.name]
            up = [c for n in task.eligible if (c := snapshot.clusters[n]).up and wanted.allocation.fits(c.capacity)]
            if not up or any(largest_allocation(task.type, cluster.free) for cluster in up):
                continue
            rooms = [self._room(task, wanted, c) for c in up if c.index not in used and may_start(c)]
            best = min((room for room in rooms if room is not None), key=lambda room: room.loss, default=None)
            if best is None:
                continue
            # A task that waits may get a faster size.
            ideal = self._options.ideal(task.type.name, task.eligible)
            sooner = min(self._wait(wanted.allocation, cluster, snapshot) for cluster in up) + ideal - wanted.slots
            if sooner > best.loss:
                used.update(snapshot.sharing({best.placement.cluster}))
                found.append(best)
        return found

    def _wait(self, wanted: Resources, cluster: ClusterView, snapshot: Snapshot) -> float:
        """Slots until ``wanted`` is free without making room."""
        room = cluster.free
        if wanted.fits(room):
            return 0.0
        running = [*cluster.running, *(task for n in cluster.nodes for task in snapshot.clusters[n].running)]
        ends = sorted(((slots_left(task), task.id, task) for task in running), key=lambda end: end[:2])
        for left, _, task in ends:
            room = room + (task.allocation or task.type.minimum)
            if wanted.fits(room):
                return left
        return float("inf")

    def _room(self, task: TaskView, wanted: EfficientSize, cluster: ClusterView) -> Room | None:
        """Shrink the tasks that free the most for what they lose; None if all of them together do not free enough."""
        could = [step for other in cluster.running if (step := self._step(other, wanted.slots)) is not None]
        could.sort(key=lambda step: step.loss / self._options.free_share(step.freed))
        free = cluster.free
        for count, step in enumerate(could, start=1):
            free = free + step.freed
            if wanted.allocation.fits(free):
                steps = _needed(could[:count], wanted.allocation, free)
                loss = sum(s.loss for s in steps) + ROUNDING * (1 + len(steps))
                return Room(Placement(task.id, cluster.index, wanted.allocation), steps, loss)
        return None

    def _step(self, task: TaskView, slots: float) -> Step | None:
        """How a running task could shrink for one that takes ``slots``; None if it cannot."""
        held = task.allocation
        # A task that is only just starting cannot be resized.
        smaller = self._size(task, held) if held is not None and resizable(task) else None
        if held is None or smaller is None:
            return None
        profile = task.type.profile
        slowed = max(0.0, 1.0 - profile.rate(smaller.allocation) / profile.rate(held))
        loss = slowed * min(slots, slots_left(task)) + 2.0 * self._cost
        return Step(task.id, smaller.allocation, held - smaller.allocation, loss)

    def _size(self, task: TaskView, held: Resources) -> EfficientSize | None:
        """The cheapest size that takes less than ``held`` and no more of any resource; None if there is none."""
        key = task.type.name, task.type.hardware, held
        if key not in self._smaller:
            sizes = self._options.at[task.type.hardware][task.type.name]
            fitting = [o for o in sizes if o.allocation.fits(held) and o.allocation != held]
            self._smaller[key] = min(fitting, key=lambda o: (o.cost, o.slots), default=None)
        return self._smaller[key]


def _needed(steps: Sequence[Step], wanted: Resources, free: Resources) -> tuple[Step, ...]:
    """The steps without those that turn out not to be needed."""
    kept = list(steps)
    for step in steps:
        if wanted.fits(free - step.freed):
            free = free - step.freed
            kept.remove(step)
    return tuple(kept)
