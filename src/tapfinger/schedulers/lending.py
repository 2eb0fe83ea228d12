"""Spare resources are lent to running tasks, and taken back as soon as a task needs them to start.

Starts are planned as if nothing were lent: each task holds its own allocation, the one it was started with, and
everything else is free. So lending takes nothing away from these plans. When nothing more fits, running tasks may also
shrink for a waiting one (``making_room.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tapfinger.core.contract import (
    ClusterView,
    Decision,
    Resize,
    Snapshot,
    TaskView,
    book,
)
from tapfinger.core.estimates import progress_of
from tapfinger.core.feasibility import resizable
from tapfinger.core.model import Resources
from tapfinger.core.spans import Rooms
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.making_room import MakingRoom


class Lending:
    """Lends and takes back resources; remembers the own allocation of each task that holds another one."""

    def __init__(self, site: SiteTables) -> None:
        """Start with nothing lent."""
        self._cost = site.context.switching_cost
        #: Own allocations of tasks that hold another one now, by task id.
        self._own: dict[int, Resources] = {}
        #: Own allocations of shrunk tasks before they shrank.
        self._before: dict[int, Resources] = {}
        self._making_room = MakingRoom(site)
        #: The last snapshot, and the same snapshot as if nothing were lent.
        self._seen: tuple[Snapshot, Snapshot] | None = None
        self._done = -1
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._options = site.sizes
        self._making_room.learn(site)
        self._fastest: dict[tuple[str, str, Resources], Resources | None] = {}

    def finished(self, snapshot: Snapshot) -> bool:
        """Whether this slot's spare resources have been lent; after that nothing more is decided."""
        return self._done == snapshot.slot

    def returned(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as if nothing were lent; shrunk tasks have their old size again where there is room."""
        if not self._own:
            return snapshot
        if self._seen is None or self._seen[0] is not snapshot:
            if self._before:
                self._step_back(snapshot)
            self._seen = snapshot, snapshot.with_sizes(self._own)
        return self._seen[1]

    def _step_back(self, snapshot: Snapshot) -> None:
        rooms = self._rooms(snapshot)
        for cluster in snapshot.clusters:
            for task in cluster.running:
                before = self._before.get(task.id)
                if before is None:
                    continue
                own = self._own.get(task.id, task.allocation or task.type.minimum)
                if before.fits(rooms[cluster.index] + own):
                    rooms.resize(cluster.index, task, own, before)
                    self._own[task.id] = before
                    del self._before[task.id]

    def _rooms(self, snapshot: Snapshot) -> Rooms:
        """What is free if nothing is lent."""
        rooms = Rooms(snapshot.clusters)
        for cluster in snapshot.clusters:
            for task in cluster.running:
                own = self._own.get(task.id)
                if own is not None and task.allocation is not None and own != task.allocation:
                    rooms.resize(cluster.index, task, task.allocation, own)
        return rooms

    def lend(
        self, snapshot: Snapshot, decision: Decision, last: bool = True, reserved: Collection[int] = ()
    ) -> Decision:
        """Add to a decision on ``returned(snapshot)`` the resizes that take back what it needs.

        ``last``: nothing more starts in this slot after this decision, so the resizes also lend what is spare.
        ``reserved``: clusters on which no room is made, because they wait for a task.
        """
        if last and snapshot.queue:
            decision = self._make_room(snapshot, decision, reserved)
        rooms = self._rooms(snapshot)
        book(rooms, decision.placements)
        starting = {n for placement in decision.placements for n in rooms.sharing(placement.cluster)}
        resizes: list[Resize] = []
        for cluster in snapshot.clusters:
            if cluster.up and cluster.running and (last or cluster.index in starting):
                resizes += self._share_out(cluster, rooms, last)
        if last:
            self._done = snapshot.slot
            running = {task.id for task in snapshot.running()}
            self._own = {task: own for task, own in self._own.items() if task in running}
            self._before = {task: own for task, own in self._before.items() if task in running}
        return replace(decision, resizes=(*decision.resizes, *resizes)) if resizes else decision

    def _make_room(self, snapshot: Snapshot, decision: Decision, reserved: Collection[int]) -> Decision:
        after = self.returned(snapshot).after(decision.placements)
        found = self._making_room.find(after.closed(after.sharing(reserved)))
        if not found:
            return decision
        held = {task.id: task.allocation for task in snapshot.running()}
        for step in (step for room in found for step in room.steps):
            now = held[step.task]
            if now is not None:
                self._before.setdefault(step.task, self._own.get(step.task, now))
                self._own[step.task] = step.size
        return replace(decision, placements=(*decision.placements, *(room.placement for room in found)))

    def _share_out(self, cluster: ClusterView, rooms: Rooms, last: bool) -> list[Resize]:
        """Resizes on one cluster."""
        # A task that is only just starting cannot be resized.
        tasks = {task.id: task for task in cluster.running if resizable(task)}
        now = {task.id: task.allocation for task in tasks.values() if task.allocation is not None}
        plan = {ident: self._own.get(ident, held) for ident, held in now.items()}
        if self._cost or not last:
            for ident, held in now.items():  # tasks keep what they were lent as long as there is room
                if held != plan[ident] and held.fits(rooms[cluster.index] + plan[ident]):
                    rooms.resize(cluster.index, tasks[ident], plan[ident], held)
                    plan[ident] = held
        if last:
            self._give(cluster.index, tasks, now, plan, rooms)
        changes = []
        for ident, size in plan.items():
            if size != now[ident] or rooms.moved(tasks[ident]):
                self._own.setdefault(ident, now[ident])
                changes.append(Resize(ident, size))
        return changes

    def _give(
        self,
        cluster: int,
        tasks: dict[int, TaskView],
        now: dict[int, Resources],
        plan: dict[int, Resources],
        rooms: Rooms,
    ) -> None:
        """Lend to the task that saves the most slots, and repeat with the others; updates ``plan`` and ``rooms``."""
        left = dict(tasks)
        while left:
            best: tuple[float, int, Resources] | None = None
            for ident, task in list(left.items()):
                size = self._size(task, rooms[cluster] + plan[ident])
                saved = self._saved(task, plan[ident], size, now[ident]) if size is not None else 0.0
                if size is None or saved <= 0.0:
                    del left[ident]  # even less will be free later
                elif best is None or saved > best[0]:
                    best = saved, ident, size
            if best is None:
                return
            _, ident, size = best
            rooms.resize(cluster, tasks[ident], plan[ident], size)
            plan[ident] = size
            del left[ident]

    def _size(self, task: TaskView, room: Resources) -> Resources | None:
        """The fastest size that fits."""
        key = task.type.name, task.type.hardware, room
        if key not in self._fastest:
            sizes = self._options.at[task.type.hardware][task.type.name]
            fitting = (o.allocation for o in sizes if o.allocation.fits(room))
            self._fastest[key] = next(fitting, None)
        return self._fastest[key]

    def _saved(self, task: TaskView, held: Resources, size: Resources, now: Resources) -> float:
        """Slots by which the task ends sooner, less what the change itself costs."""
        if size == held:
            return 0.0
        profile, done = task.type.profile, progress_of(task, now)
        return profile.slots(held, done) - profile.slots(size, done) - (self._cost if size != now else 0.0)
