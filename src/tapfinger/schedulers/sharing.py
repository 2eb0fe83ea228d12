"""Tasks share their cluster where small sizes are much more efficient than fast ones and resizing is free.

Every slot has two passes. In the first, the network sees running tasks at the sizes that it gave them. In the second it
sees them at their minimum, and starts what still waits. So every task that has room starts, and while there is enough
room it starts on the same cluster as without sharing.

Sizes then depend on which tasks run on a cluster. Resources go to the largest gain in the logarithm of remaining slots,
which is fair, with more weight for tasks that end sooner, as in the optimal policy for tasks with one concave speed-up
(heSRPT, Berg et al. 2020).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tapfinger.core.changes import TaskTracker
from tapfinger.core.contract import Decision, Placement, Proposal, Resize, Snapshot, TaskView
from tapfinger.core.estimates import advanced, share_left
from tapfinger.core.feasibility import resizable
from tapfinger.core.model import Resources, TaskType
from tapfinger.core.spans import Rooms
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.making_room import ROUNDING

#: Sharing pays if the fastest sizes cost at least this many times what the cheapest do.
LEAST_SLACK = 1.25

#: Exponent of a task's weight: its rank by remaining time (1 for the longest) to this power.
_SOONER = 0.5

#: Weight of late tasks; other tasks have 1. At 4 the mean begins to suffer.
_LATE_WEIGHT = 2.0

#: Maximum number of sizes considered per type.
_SIZES = 60


class _Size(NamedTuple):
    allocation: Resources
    rate: float


class _Sharer(NamedTuple):
    """A task while its cluster is shared out."""

    task: TaskView
    #: Share of the work that is left.
    left: float
    weight: float


def sharing_pays(site: SiteTables) -> bool:
    """Whether resizing is free on this site and its fast sizes cost much more than the cheapest."""
    types = site.context.task_types
    fast = sum(t.weight * site.sizes.of[t.name][0].cost for t in types)
    cheap = sum(t.weight * site.sizes.cheapest[t.name].cost for t in types)
    return site.context.switching_cost == 0.0 and fast / cheap >= LEAST_SLACK


class Sharing:
    """Shares out clusters; remembers the sizes that tasks were started with, and their estimated progress."""

    def __init__(self, site: SiteTables) -> None:
        """Start with no running tasks."""
        self._own: dict[int, Resources] = {}
        #: Estimated progress of tasks that report none, by task id.
        self._progress: dict[int, float] = {}
        self._running = TaskTracker(Snapshot.running)
        self._late_after = math.inf
        self._done = -1
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._options = site.sizes
        self._sizes = {
            (t.name, kind): self._worth_having(t.on(kind)) for t in site.context.task_types for kind in site.sizes.at
        }
        self._growth: dict[tuple[tuple[str, str], _Size], list[tuple[_Size, float]]] = {}

    def finished(self, snapshot: Snapshot) -> bool:
        """Whether this slot has been decided."""
        return self._done == snapshot.slot

    def decide(
        self, snapshot: Snapshot, turn: Callable[[Snapshot], Decision], late_after: float = math.inf
    ) -> Decision:
        """Plan the whole slot, calling ``turn`` until it starts nothing more.

        ``late_after``: completion time in slots beyond which a task counts as late.
        """
        self._done, self._late_after = snapshot.slot, late_after
        self._count(snapshot)
        lost: list[Proposal] = []
        started = _turns(self._seen(snapshot, self._own), turn, lost)
        self._own |= {p.task: p.allocation for p in started}
        # Some tasks have room only because others shrink.
        least = {task.id: task.type.minimum for task in snapshot.queue}
        squeezed = self._seen(snapshot, {})
        starting: list[Placement] = []
        for placement in started:
            smallest = replace(placement, allocation=least[placement.task])
            if smallest.allocation.fits(squeezed.clusters[placement.cluster].free):
                squeezed = squeezed.after((smallest,))
                starting.append(smallest)
        if squeezed.queue:
            more = _turns(squeezed, turn, lost, least)
            self._own |= {p.task: p.allocation for p in more}
            starting += more
        return self._share_out(snapshot, starting, lost)

    def _count(self, snapshot: Snapshot) -> None:
        """Estimate the progress that tasks have made since the last slot."""
        changes = self._running.observe(snapshot)
        if changes is None:
            return
        running = self._running.there
        self._own = {ident: own for ident, own in self._own.items() if ident in running}
        self._progress = {ident: done for ident, done in self._progress.items() if ident in running}
        for ident, task in running.items():
            if task.progress is None and task.allocation is not None and resizable(task):
                before = self._progress.get(ident, 0.0)
                self._progress[ident] = advanced(task.type.profile, task.allocation, changes.slots, before)

    def _seen(self, snapshot: Snapshot, sizes: dict[int, Resources]) -> Snapshot:
        """The snapshot with tasks at these sizes, and all other resizable tasks at their minimum."""
        tasks = filter(resizable, snapshot.running())
        return snapshot.with_sizes({task.id: sizes.get(task.id, task.type.minimum) for task in tasks})

    def _share_out(self, snapshot: Snapshot, starting: Iterable[Placement], lost: Sequence[Proposal]) -> Decision:
        waiting = {task.id: task for task in snapshot.queue}
        new: dict[int, list[TaskView]] = {}
        for placement in starting:
            task, hardware = waiting[placement.task], snapshot.clusters[placement.cluster].hardware
            new.setdefault(placement.cluster, []).append(replace(task, type=task.type.on(hardware)))
        placements: list[Placement] = []
        resizes: list[Resize] = []
        rooms, tasks = Rooms(snapshot.clusters), {c.index: new.get(c.index, []) for c in snapshot.clusters if c.up}
        for n in tasks:
            # A task that is only just starting cannot be resized.
            running = [t for t in snapshot.clusters[n].running if resizable(t)]
            for task in running:
                rooms.resize(n, task, task.allocation or task.type.minimum, task.type.minimum)
            for task in tasks[n]:
                rooms.start(n, task, task.type.minimum)
            tasks[n] = running + tasks[n]
        for n, here in tasks.items():
            for task, size in zip(here, self._share(here, rooms[n]), strict=True):
                rooms.resize(n, task, task.type.minimum, size)
                if task.cluster is None:
                    placements.append(Placement(task.id, n, size))
                elif size != task.allocation or rooms.moved(task):
                    resizes.append(Resize(task.id, size))
        return Decision(tuple(placements), tuple(resizes), tuple(lost))

    def _share(self, tasks: Sequence[TaskView], room: Resources) -> list[Resources]:
        """Sizes of the tasks; ``room`` is what is left when all are at their minimum."""
        sharers = self._sharers(tasks)
        sizes = [_Size(t.type.minimum, t.type.profile.rate(t.type.minimum)) for t in tasks]
        left = list(room)
        offers = [self._offers(sharer, size) for sharer, size in zip(sharers, sizes, strict=True)]
        # The best offer of each task.
        heap = [(offer[-1][0], index, offer[-1][1]) for index, offer in enumerate(offers) if offer]
        heapq.heapify(heap)
        while heap:
            _, index, size = heap[0]
            more = [then - now for now, then in zip(sizes[index].allocation, size.allocation, strict=True)]
            if all(m <= have for m, have in zip(more, left, strict=True)):
                left = [have - m for m, have in zip(more, left, strict=True)]
                sizes[index] = size
                offers[index] = self._offers(sharers[index], size)
            else:
                offers[index].pop()
            if offers[index]:
                value, next_size = offers[index][-1]
                heapq.heapreplace(heap, (value, index, next_size))
            else:
                heapq.heappop(heap)
        return [size.allocation for size in sizes]

    def _offers(self, sharer: _Sharer, now: _Size) -> list[tuple[float, _Size]]:
        """All faster sizes, in order of their gain for what they take; the best comes last."""
        left, weight = sharer.left, sharer.weight
        slots = left / now.rate + ROUNDING
        found = [
            (-(weight * math.log(slots / (left / size.rate + ROUNDING))) / taken, size)
            for size, taken in self._faster(sharer.task.type, now)
        ]
        found.sort(reverse=True)
        return found

    def _faster(self, task_type: TaskType, now: _Size) -> Sequence[tuple[_Size, float]]:
        """Sizes that are faster than ``now``, and how much more of a mean cluster they take."""
        key = (task_type.name, task_type.hardware), now
        if key not in self._growth:
            faster = (size for size in self._sizes[key[0]] if size.rate > now.rate)
            self._growth[key] = [(size, self._taken(now.allocation, size.allocation)) for size in faster]
        return self._growth[key]

    def _sharers(self, tasks: Sequence[TaskView]) -> list[_Sharer]:
        left = [share_left(self._progress_of(task)) for task in tasks]
        ideal = [
            rest / self._sizes[task.type.name, task.type.hardware][0].rate
            for rest, task in zip(left, tasks, strict=True)
        ]
        rank = {index: place for place, index in enumerate(sorted(range(len(tasks)), key=lambda i: -ideal[i]), start=1)}
        return [_Sharer(t, left[i], rank[i] ** _SOONER * self._hurry(t, ideal[i])) for i, t in enumerate(tasks)]

    def _hurry(self, task: TaskView, slots: float) -> float:
        """Weight factor: higher for tasks that will be late even at their fastest size from now on."""
        return _LATE_WEIGHT if self._running.slot - task.arrival + slots > self._late_after else 1.0

    def _progress_of(self, task: TaskView) -> float:
        return task.progress if task.progress is not None else self._progress.get(task.id, 0.0)

    def _worth_having(self, task_type: TaskType) -> tuple[_Size, ...]:
        """Sizes of a type to choose from, fastest first."""
        options = self._options.at[task_type.hardware][task_type.name]
        # Of many sizes, those with the least cost.
        thrifty = sorted(options, key=lambda o: o.cost)[:_SIZES] if len(options) > _SIZES else options
        sizes = (_Size(o.allocation, task_type.profile.rate(o.allocation)) for o in {*thrifty, options[0]})
        return tuple(sorted(sizes, key=lambda size: (-size.rate, size.allocation)))

    def _taken(self, now: Resources, then: Resources) -> float:
        """Largest share of a mean cluster, of any resource, by which the size grows."""
        most = 1e-6  # not 0: a size that takes nothing more is always worth it
        for a, b, c in zip(now, then, self._options.mean_capacity, strict=True):
            if c:
                most = max(most, (b - a) / c)
        return most


def _turns(
    snapshot: Snapshot,
    turn: Callable[[Snapshot], Decision],
    lost: list[Proposal],
    sizes: dict[int, Resources] | None = None,
) -> list[Placement]:
    """Placements of all turns until one starts nothing; at these ``sizes``, if given, instead of the decided ones."""
    found: list[Placement] = []
    while snapshot.queue:
        decision = turn(snapshot)
        lost += decision.lost
        placements = decision.placements
        if sizes is not None:
            placements = tuple(replace(p, allocation=sizes[p.task]) for p in placements)
        if not placements:
            break
        found += placements
        snapshot = snapshot.after(placements)
    return found
