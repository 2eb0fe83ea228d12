"""Where small sizes are much more efficient than fast ones and resizing is free, tasks share their cluster.

Two passes in every slot. First whoever decides what starts sees a world in which tasks hold the sizes it gave them;
then, for those that still wait, one in which all are at their minimum. So everything is started that has room, and
where it would have been started anyway as long as there is enough. Sizes follow from who runs on a cluster: resources
go to the largest gain in the logarithm of remaining slots, which is fair, with more weight for those that end sooner,
as the best policy for tasks of one concave speed-up has it (heSRPT, Berg et al. 2020).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tapfinger.core.contract import Decision, Phase, Placement, Proposal, Resize, SchedulerContext, Snapshot, TaskView
from tapfinger.core.model import Resources, TaskType
from tapfinger.profiles.options import Options

#: Sharing pays if fast sizes cost so many times what the cheapest do.
LEAST_SLACK = 1.25

#: How much more weight those have that end sooner: their rank to this power.
_SOONER = 0.5

#: How much more weight late tasks have. At 4 the mean begins to suffer.
_LATE = 2.0

#: Tasks end with whole slots: half of one is lost on average.
_ROUNDING = 0.5

#: Sizes of a type that are considered at most.
_SIZES = 60

#: A task that still runs has at least this share of its work left, whatever the estimate says.
_LEAST_LEFT = 0.01


class _Size(NamedTuple):
    allocation: Resources
    rate: float


class _Sharer(NamedTuple):
    """A task while its cluster is shared out."""

    task: TaskView
    #: Share of the work that is left.
    left: float
    weight: float


class Sharing:
    """Keeps the books: the sizes that tasks were started with, and how far they should be."""

    def reset(self, context: SchedulerContext) -> None:
        """Nobody runs."""
        self._free_of_charge = context.switching_cost == 0.0
        self._own: dict[int, Resources] = {}
        #: Progress of tasks that report none, by what they held.
        self._progress: dict[int, float] = {}
        self._last = 0
        self._late = math.inf
        self._done = -1
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Take other profiles from now on."""
        self._options = Options(context)
        self._sizes = {t.name: self._worth_having(t) for t in context.task_types}
        self._growth: dict[tuple[str, _Size], list[tuple[_Size, float]]] = {}
        weights = {t.name: t.weight for t in context.task_types}
        fast = sum(weights[name] * options[0].cost for name, options in self._options.of.items())
        cheap = sum(weights[name] * min(o.cost for o in options) for name, options in self._options.of.items())
        #: How many times what is needed a site spends if every task gets its fastest size.
        self.slack = fast / cheap

    @property
    def pays(self) -> bool:
        """Whether tasks should share here."""
        return self._free_of_charge and self.slack >= LEAST_SLACK

    def finished(self, snapshot: Snapshot) -> bool:
        """Whether this slot has been decided."""
        return self._done == snapshot.slot

    def decide(self, snapshot: Snapshot, turn: Callable[[Snapshot], Decision], late: float = math.inf) -> Decision:
        """The whole slot; ``turn`` is asked what starts, time and again. ``late``: to take so many slots is."""
        self._done, self._late = snapshot.slot, late
        self._count(snapshot)
        lost: list[Proposal] = []
        started = _turns(self._seen(snapshot, self._own), turn, lost)
        self._own |= {p.task: p.allocation for p in started}
        # Tasks may have been started where there is only room because others shrink.
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
        """What tasks should have done since the last slot."""
        passed = snapshot.slot - self._last
        self._last = snapshot.slot
        running = {task.id: task for cluster in snapshot.clusters for task in cluster.running}
        before = self._progress
        self._progress = {
            ident: min(1.0 - _LEAST_LEFT, before.get(ident, 0.0) + passed * task.type.profile.rate(task.allocation))
            for ident, task in running.items()
            if task.progress is None and task.allocation is not None and task.phase is Phase.RUNNING
        }
        self._own = {ident: own for ident, own in self._own.items() if ident in running}

    def _seen(self, snapshot: Snapshot, sizes: dict[int, Resources]) -> Snapshot:
        """The snapshot with tasks at these sizes, others at their minimum; where that is too much, nothing is free."""
        clusters = []
        for cluster in snapshot.clusters:
            free = list(cluster.free)
            running = []
            for task in cluster.running:
                held = task.allocation or task.type.minimum
                size = held if task.phase is not Phase.RUNNING else sizes.get(task.id, task.type.minimum)
                free = [f + h - s for f, h, s in zip(free, held, size, strict=True)]
                running.append(task if size == held else replace(task, allocation=size))
            room = Resources(max(0, f) for f in free)
            clusters.append(replace(cluster, free=room, running=tuple(running)))
        return replace(snapshot, clusters=tuple(clusters))

    def _share_out(self, snapshot: Snapshot, starting: Iterable[Placement], lost: Sequence[Proposal]) -> Decision:
        waiting = {task.id: task for task in snapshot.queue}
        new: dict[int, list[TaskView]] = {}
        for placement in starting:
            new.setdefault(placement.cluster, []).append(waiting[placement.task])
        placements: list[Placement] = []
        resizes: list[Resize] = []
        for cluster in snapshot.clusters:
            if not cluster.up:
                continue
            # One that is only just starting cannot be resized.
            tasks = [t for t in cluster.running if t.phase is Phase.RUNNING] + new.get(cluster.index, [])
            room = cluster.free
            for task in tasks:
                room = room + task.allocation - task.type.minimum if task.allocation else room - task.type.minimum
            for task, size in zip(tasks, self._share(tasks, room), strict=True):
                if task.cluster is None:
                    placements.append(Placement(task.id, cluster.index, size))
                elif size != task.allocation:
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
        """All faster sizes, by what they gain for what they take; the best comes last."""
        left, weight = sharer.left, sharer.weight
        slots = left / now.rate + _ROUNDING
        found = [
            (-(weight * math.log(slots / (left / size.rate + _ROUNDING))) / taken, size)
            for size, taken in self._faster(sharer.task.type.name, now)
        ]
        found.sort(reverse=True)
        return found

    def _faster(self, type_name: str, now: _Size) -> Sequence[tuple[_Size, float]]:
        """Sizes that are faster than that, and how much more they take."""
        key = type_name, now
        if key not in self._growth:
            faster = (size for size in self._sizes[type_name] if size.rate > now.rate)
            self._growth[key] = [(size, self._taken(now.allocation, size.allocation)) for size in faster]
        return self._growth[key]

    def _sharers(self, tasks: Sequence[TaskView]) -> list[_Sharer]:
        left = [max(_LEAST_LEFT, 1.0 - self._progress_of(task)) for task in tasks]
        ideal = [rest / self._sizes[task.type.name][0].rate for rest, task in zip(left, tasks, strict=True)]
        rank = {index: place for place, index in enumerate(sorted(range(len(tasks)), key=lambda i: -ideal[i]), start=1)}
        return [_Sharer(t, left[i], rank[i] ** _SOONER * self._hurry(t, ideal[i])) for i, t in enumerate(tasks)]

    def _hurry(self, task: TaskView, slots: float) -> float:
        """More weight for those that will be late even if they get all from now on."""
        return _LATE if self._last - task.arrival + slots > self._late else 1.0

    def _progress_of(self, task: TaskView) -> float:
        return task.progress if task.progress is not None else self._progress.get(task.id, 0.0)

    def _worth_having(self, task_type: TaskType) -> tuple[_Size, ...]:
        """Fastest first."""
        options = self._options.of[task_type.name]
        # Of many, those that are cheap for how fast they are.
        thrifty = sorted(options, key=lambda o: o.cost)[:_SIZES] if len(options) > _SIZES else options
        sizes = (_Size(o.allocation, task_type.profile.rate(o.allocation)) for o in {*thrifty, options[0]})
        return tuple(sorted(sizes, key=lambda size: (-size.rate, size.allocation)))

    def _taken(self, now: Resources, then: Resources) -> float:
        """The largest part of a mean cluster by which it grows."""
        most = 1e-6  # one that takes nothing more is worth anything
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
    """What is started until nothing more is; at these sizes, if given, instead of those said."""
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
