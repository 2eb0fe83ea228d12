"""The plan of one cluster in real amounts: sizes that fit, and what is left over handed out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tapfinger.core.contract import ClusterView, Placement, Resize, TaskView
from tapfinger.core.model import Resources
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.fluid_sizes import FloatArray, IntArray

#: A task starts on a cluster with room to spare, instead of where it was planned, if it would end there within this
#: many times what it adds to the sum of completion times where it was planned. A smaller size than planned may take
#: this many times as long.
SPARE = 2.0


@dataclass(slots=True, eq=False)
class PlanTask:
    """One task while a slot is planned."""

    view: TaskView
    #: Share of its work that is left.
    left: float
    #: Shorter ones first: remaining slots at its fastest, or what its cheapest size costs if sizes are kept.
    length: float
    #: Where it runs, or is planned; None while it has no place.
    cluster: int | None = None
    #: Whether its size can be chosen now, and whether it keeps at least its minimum.
    open: bool = True
    must: bool = False
    #: Sizes that it may get, their (sizes,) mean slots from start to end, and (sizes,) units.
    sizes: list[Resources] = field(default_factory=list)
    slots: FloatArray = field(default_factory=lambda: np.empty(0))
    units: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    #: Slots of the sum of completion times that its whole work stands for.
    worth: float = 0.0
    #: (units,) position of its best size for any number of units; -1 for none.
    choice: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def held(self) -> Resources | None:
        """What it holds; None while it waits."""
        return self.view.allocation


class RealPlan:
    """The plan of one cluster in real amounts."""

    def __init__(
        self, site: SiteTables, cluster: ClusterView, tasks: list[PlanTask], room: Resources, resize: bool
    ) -> None:
        """Give every running task the least that it keeps. ``tasks``: longest first."""
        self._site, self._cluster, self._tasks, self._resize = site, cluster, tasks, resize
        #: What is left.
        self.room = room
        self._given: dict[int, Resources] = {}
        for task in tasks:
            if task.must and task.held is not None:
                least = task.view.type.minimum if task.open else task.held
                self._given[task.view.id] = least
                self.room = self.room - least
        #: Whether even that exceeds what the cluster has, as when a capacity was lowered: then nothing changes.
        self._short = min(self.room) < 0

    def take(self, units: int) -> None:
        """Give tasks their sizes of the plan, the shortest first, or smaller ones where the amounts do not fit."""
        if self._short:
            return
        starts = self._cluster.starts_left
        for task in reversed(self._tasks):
            place = int(task.choice[units])
            if place < 0:
                continue
            size: Resources | None = None
            if int(task.units[place]) <= units:
                units -= int(task.units[place]) if self._resize else 0
                waits = task.held is None
                if not task.open or (waits and starts is not None and starts <= 0):
                    continue
                size = self._within(task, place)
            if size is not None:
                self._give(task, size)
                if task.held is None and starts is not None:
                    starts -= 1

    def _within(self, task: PlanTask, place: int) -> Resources | None:
        """The planned size if it fits, else the fastest smaller one; None if that is far slower for a waiting task."""
        have = self.room + self._given.get(task.view.id, self.room - self.room)
        if task.sizes[place].fits(have):
            return task.sizes[place]
        smaller = [at for at, size in enumerate(task.sizes) if task.units[at] <= task.units[place] and size.fits(have)]
        if not smaller:
            return None
        best = min(smaller, key=lambda at: float(task.slots[at]))
        too_slow = task.held is None and task.slots[best] > SPARE * task.slots[place]
        return None if too_slow else task.sizes[best]

    def _give(self, task: PlanTask, size: Resources) -> None:
        before = self._given.get(task.view.id)
        self.room = self.room - size if before is None else self.room + before - size
        self._given[task.view.id] = size

    def hand_out(self) -> None:
        """Give what is left to the task that gains most by its fastest size, and repeat with the others."""
        if self._short:
            return
        left = [task for task in self._tasks if task.open and task.view.id in self._given]
        while left and any(self.room):
            best: tuple[float, PlanTask, Resources] | None = None
            for task in list(left):
                given = self._given[task.view.id]
                size = self._fastest(task, self.room + given)
                gain = 0.0
                if size is not None and size != given:
                    now = self._slots(task, given)
                    gain = task.worth / self._slots(task, size) - task.worth / now
                if size is None or gain <= 1e-9:
                    left.remove(task)  # even less will be left later
                elif best is None or gain > best[0]:
                    best = gain, task, size
            if best is None:
                return
            self._give(best[1], best[2])
            left.remove(best[1])

    def _slots(self, task: PlanTask, size: Resources) -> float:
        """Slots that the task's whole work would take at this size from now on, a change counted."""
        slots = self._site.slots(task.view.type, size, self._cluster.index)
        if task.held is not None and not task.held.none and size != task.held:
            slots += self._site.context.switching_cost / task.left
        return max(slots, 1.0 / task.left)

    def _fastest(self, task: PlanTask, room: Resources) -> Resources | None:
        sizes = self._site.sizes.at[self._cluster.hardware][task.view.type.name]
        return next((size.allocation for size in sizes if size.allocation.fits(room)), None)

    def placements(self) -> list[Placement]:
        """Waiting tasks that start here."""
        starts = [task for task in self._tasks if task.held is None and task.view.id in self._given]
        return [Placement(task.view.id, self._cluster.index, self._given[task.view.id]) for task in starts]

    def resizes(self) -> list[Resize]:
        """Running and paused tasks that get another size."""
        if self._short:
            return []
        changes = []
        for task in self._tasks:
            size = self._given.get(task.view.id)
            if task.open and task.held is not None and size is not None and size != task.held:
                changes.append(Resize(task.view.id, size))
        return changes
