"""Fluid: in every slot the best plan for the present backlog, as if resources and time were a fluid.

``fluid_worth.py`` states the principle: how much of a cluster each of its tasks is worth. Here waiting tasks are spread
over clusters by what they add to the sum of completion times, plans in units become real sizes, running tasks are
resized, and what is left over goes where it gains most.
"""

from __future__ import annotations

import heapq
import math
from operator import attrgetter

import numpy as np

from tapfinger.core.contract import ClusterView, Decision, Placement, Resize, SchedulerContext, Snapshot, TaskView
from tapfinger.core.estimates import progress_of, share_left, work
from tapfinger.core.feasibility import may_start, resizable
from tapfinger.core.model import Resources
from tapfinger.core.spans import Rooms
from tapfinger.errors import ConfigError
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.fluid_amounts import SPARE, PlanTask, RealPlan
from tapfinger.schedulers.fluid_sizes import FluidSizes, IntArray
from tapfinger.schedulers.fluid_worth import FluidWorth

#: Most waiting tasks that a plan looks at, and how many more for each cluster: the shortest ones.
MOST_TASKS, MORE_PER_CLUSTER = 60, 2

_ORDER = attrgetter("length", "view.arrival", "view.id")


class Fluid:
    """Replans every cluster in every slot; knows the speed profiles."""

    one_shot = True

    def __init__(self, resize: bool = True) -> None:
        """``resize``: running tasks are resized; otherwise a task keeps the size it was started with."""
        if not isinstance(resize, bool):
            raise ConfigError(f"fluid: resize = {resize!r} must be true or false")
        self._resize = resize

    def reset(self, context: SchedulerContext) -> None:
        """Make the tables; nothing is remembered from slot to slot."""
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Use the profiles of this context from now on."""
        self._site = SiteTables(context)
        self._cost = context.switching_cost
        self._sizes = FluidSizes(self._site)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Spread the waiting tasks over clusters, plan each cluster, and start what has room elsewhere."""
        if not snapshot.queue and not self._resize:
            return Decision()
        rooms = [self._room(cluster) for cluster in snapshot.clusters]
        held = [self._held(task, cluster) for cluster in snapshot.clusters for task in _on(cluster)]
        most = MOST_TASKS + MORE_PER_CLUSTER * len(rooms)
        waiting = self._shortest(snapshot, most)
        beyond = (len(snapshot.queue) - len(waiting)) / len(rooms)
        units = np.array([self._sizes.room(room, n) for n, room in enumerate(rooms)])
        worth = FluidWorth(units, self._sizes.most, beyond)
        plans = self._spread(snapshot, worth, held, waiting)
        placements: list[Placement] = []
        resizes: list[Resize] = []
        for cluster in snapshot.clusters:
            if cluster.up:
                plan = RealPlan(self._site, cluster, plans[cluster.index], rooms[cluster.index], self._resize)
                plan.take(int(units[cluster.index]))
                plan.hand_out()
                placements += plan.placements()
                resizes += plan.resizes()
                rooms[cluster.index] = plan.room
        placements += self._elsewhere(snapshot, waiting, placements, rooms)
        if snapshot.spans:
            placements = _that_fit(snapshot, placements, resizes)
        return Decision(tuple(placements), tuple(resizes))

    # ------------------------------------------------------------------ tasks

    def _room(self, cluster: ClusterView) -> Resources:
        """What all tasks of the cluster hold together, and what is free."""
        room = cluster.free
        for task in _on(cluster):
            room = room + (task.allocation or room - room)
        return room

    def _held(self, task: TaskView, cluster: ClusterView) -> PlanTask:
        """A task on a cluster; one that cannot be resized now keeps its size."""
        n, now = cluster.index, task.allocation or task.type.minimum
        done, offset = progress_of(task), task.type.profile.shape_offset
        left = share_left(done) if offset is None else max(share_left(1.0), work(offset, done) / work(offset))
        slots = math.inf if now.none else self._site.slots(task.type, now, n)
        # Noise may need one slot more: a task that is all but done does not shrink.
        left = min(1.0, max(left, 1.0 / slots))
        made = PlanTask(task, left, left * self._length(task, self._site.sizes.ideal_on(task.type.name, n)), n)
        sizes = self._sizes.of(task.type.name, n)
        # What a task on a span holds of each node is not planned, so it keeps its size.
        made.open = self._resize and cluster.up and resizable(task) and sizes is not None and not cluster.nodes
        made.must = not now.none
        if made.open and sizes is not None:
            # A change costs part of a slot, spread over the work that is left.
            change = np.array([self._cost / left if size != now else 0.0 for size in sizes.allocations])
            made.sizes, made.slots, made.units = list(sizes.allocations), sizes.slots + change, sizes.units
        if made.must:
            made.sizes.append(now)
            made.slots = np.append(made.slots, slots + task.staging / left)
            made.units = np.append(made.units, self._sizes.units_of(now, n))
        # Nothing ends within less than a slot.
        made.slots = np.maximum(made.slots, 1.0 / left)
        return made

    def _shortest(self, snapshot: Snapshot, most: int) -> list[PlanTask]:
        """The shortest waiting tasks, in order."""
        lengths: dict[tuple[str, tuple[int, ...]], float] = {}
        ranked: list[tuple[float, int, int, TaskView]] = []
        for task in snapshot.queue:
            kind = task.type.name, task.eligible
            if kind not in lengths:
                lengths[kind] = self._length(task, self._site.sizes.usual_ideal(*kind))
            ranked.append((lengths[kind], task.arrival, task.id, task))
        return [PlanTask(task, 1.0, length) for length, _, _, task in heapq.nsmallest(most, ranked)]

    def _length(self, task: TaskView, ideal: float) -> float:
        # A size that is kept delays the others by its slots x its share.
        return ideal if self._resize else self._site.sizes.cheapest[task.type.name].cost

    # ---------------------------------------------------------------- clusters

    def _spread(
        self, snapshot: Snapshot, worth: FluidWorth, held: list[PlanTask], waiting: list[PlanTask]
    ) -> list[list[PlanTask]]:
        """The tasks of each cluster, longest first, with waiting tasks where they add least; sets worth and choice."""
        count = len(snapshot.clusters)
        plans: list[list[PlanTask]] = [[] for _ in range(count)]
        for task in sorted(held, key=_ORDER, reverse=True):
            if task.cluster is not None and len(task.slots):
                plans[task.cluster].append(task)
                _add(worth, task, task.cluster)
        there = np.zeros(count, dtype=np.int64)
        lengths = np.zeros((count, len(held) + len(waiting) + 1))
        for n, tasks in enumerate(plans):
            there[n] = len(tasks)
            lengths[n, : len(tasks)] = [task.length for task in tasks]
        planned = np.zeros(count)
        one_start = np.array([cluster.starts_left is not None for cluster in snapshot.clusters])
        open_to: dict[tuple[int, ...], IntArray] = {}
        for task in waiting:
            view = task.view
            if view.eligible not in open_to:
                up = [n for n in view.eligible if snapshot.clusters[n].up]
                open_to[view.eligible] = np.array(up, dtype=np.int64)
            at = open_to[view.eligible]
            if not len(at):
                continue
            slots, units = self._sizes.everywhere(view.type.name)
            # Data must come first, and in single-task mode the tasks that start there before.
            waits = np.where(one_start[at], planned[at], 0.0)
            staging = snapshot.staging_of(view)
            if staging:
                waits += np.array([staging[n] for n in at.tolist()])
            shorter = np.minimum(lengths[at, : int(there.max()) + 1], task.length).sum(axis=1)
            overlap = (shorter / task.length + worth.beyond) / np.maximum(worth.tasks[at], 1e-9)
            costs = worth.costs(at, slots[at] + waits[:, None], units[at], overlap)
            best = int(costs.argmin())
            sizes = self._sizes.of(view.type.name, int(at[best]))
            if not math.isfinite(costs[best]) or sizes is None:
                continue
            n = task.cluster = int(at[best])
            task.sizes, task.units = sizes.allocations, sizes.units
            task.slots = sizes.slots + staging.get(n, 0)
            task.worth = float(costs[best])
            task.choice = worth.add(n, task.worth, task.slots, task.units, must=False)
            plans[n].append(task)
            lengths[n, there[n]] = task.length
            there[n] += 1
            planned[n] += 1.0
        for n in np.flatnonzero(planned).tolist():
            worth.clear(n)
            plans[n].sort(key=_ORDER, reverse=True)
            for task in plans[n]:
                if self._resize:
                    _add(worth, task, n)
                elif task.held is None:
                    # It keeps the size that it gets, for which the longer ones that wait must do without.
                    best = worth.best(n, task.slots, task.units)
                    _add(worth, task, n)
                    task.choice = np.full_like(task.choice, best)
        return plans

    def _elsewhere(
        self, snapshot: Snapshot, waiting: list[PlanTask], placements: list[Placement], rooms: list[Resources]
    ) -> list[Placement]:
        """Start tasks that were planned for a full cluster on others with room to spare, shortest first."""
        started = {placement.task for placement in placements}
        starts = [0] * len(rooms)
        for placement in placements:
            starts[placement.cluster] += 1
        found: list[Placement] = []
        for task in waiting:
            if task.view.id in started or task.cluster is None:
                continue
            staging = snapshot.staging_of(task.view)
            best: tuple[float, int, Resources] | None = None
            for n in task.view.eligible:
                cluster = snapshot.clusters[n]
                full = cluster.starts_left is not None and starts[n] >= cluster.starts_left
                if full or not may_start(cluster) or not task.view.type.minimum.fits(rooms[n]):
                    continue
                sizes = self._site.sizes.at[cluster.hardware][task.view.type.name]
                size = next((size for size in sizes if size.allocation.fits(rooms[n])), None)
                if size is not None and (best is None or size.slots + staging.get(n, 0) < best[0]):
                    best = size.slots + staging.get(n, 0), n, size.allocation
            if best is not None and best[0] <= SPARE * task.worth:
                _, n, size_ = best
                rooms[n] = rooms[n] - size_
                starts[n] += 1
                found.append(Placement(task.view.id, n, size_))
        return found


def _on(cluster: ClusterView) -> tuple[TaskView, ...]:
    return (*cluster.running, *cluster.paused)


def _that_fit(snapshot: Snapshot, placements: list[Placement], resizes: list[Resize]) -> list[Placement]:
    """The placements without those on spans whose nodes are full: plans of nodes and of their span do not know it."""
    rooms = Rooms(snapshot.clusters)
    sizes = {resize.task: resize.allocation for resize in resizes}
    for cluster in snapshot.clusters:
        for task in _on(cluster):
            if task.id in sizes and task.allocation is not None:
                rooms.resize(cluster.index, task, task.allocation, sizes[task.id])
    kept: list[Placement] = []
    for placement in sorted(placements, key=lambda p: p.cluster in snapshot.spans):
        if placement.allocation.fits(rooms[placement.cluster]):
            rooms.take(placement.cluster, placement.allocation)
            kept.append(placement)
    return kept


def _add(worth: FluidWorth, task: PlanTask, cluster: int) -> None:
    task.worth = worth.worth(cluster, task.slots, task.units)
    task.choice = worth.add(cluster, task.worth, task.slots, task.units, task.must)
