"""Greedy with patience: the size and place with the least duration + price x cost, or wait.

It knows the speed profiles and finds the sizes worth having in any of them. Accepting any size
that fits is what makes a plain greedy weak: this one waits rather than take a far slower size.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapfinger.core.contract import Decision, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.model import Cluster, Resources, TaskType
from tapfinger.errors import ConfigError
from tapfinger.profiles.durations import Size, efficient_sizes

#: In which order waiting tasks are considered: by arrival, or by the cost of their best size.
ORDERS = ("fifo", "cheapest", "dearest")

#: How fast the smoothed arrival load forgets, per slot.
LOAD_MEMORY = 0.97


@dataclass(frozen=True, slots=True)
class _Option:
    """A size with what it takes: slots, and slots x share of a mean cluster."""

    size: Size
    cost: float


class Greedy:
    """Patient greedy (the baseline to beat)."""

    one_shot = True

    def __init__(
        self,
        load_price: float = 2.0,
        queue_price: float = 1.0,
        patience: float = 3.0,
        order: str = "fifo",
        max_wait: float = 10.0,
    ) -> None:
        """Price of resources = load_price x smoothed arrival load + queue_price x waiting tasks per cluster.

        A size slower than ``patience`` times the task's ideal is refused, until the task has waited
        ``max_wait`` times its ideal. ``order``: fifo, cheapest or dearest.
        """
        if order not in ORDERS:
            raise ConfigError(f"greedy: order {order!r} must be one of {', '.join(ORDERS)}")
        self._load_price = load_price
        self._queue_price = queue_price
        self._patience = patience
        self._order = order
        self._max_wait = max_wait

    def reset(self, context: SchedulerContext) -> None:
        """Work out the sizes worth having and what they cost."""
        self._clusters = context.clusters
        self._mean_capacity = mean_capacity(context.clusters)
        self._options = {
            t.name: [_Option(s, relative_cost(s, self._mean_capacity)) for s in efficient_sizes(t, context.noise)]
            for t in context.task_types
        }
        self._ideals: dict[tuple[str, tuple[int, ...]], float] = {}
        self._load = SmoothedLoad({name: min(o.cost for o in options) for name, options in self._options.items()})

    def decide(self, snapshot: Snapshot) -> Decision:
        """Walk the queue once; each task takes the best place and size there is for it now, or waits."""
        load = self._load.update(snapshot) / len(self._clusters)
        price = self._load_price * load + self._queue_price * len(snapshot.queue) / len(self._clusters)
        free = [c.free if c.up else None for c in snapshot.clusters]
        placements: list[Placement] = []
        best_option: dict[tuple[str, Resources, float], tuple[float, _Option] | None] = {}
        for task in self._ordered(snapshot):
            limit = self._limit(task, snapshot.slot)
            best: tuple[float, float, int] | None = None
            chosen: _Option | None = None
            for n in task.eligible:
                room = free[n]
                if room is None:
                    continue
                key = (task.type.name, room, limit)
                if key not in best_option:
                    best_option[key] = self._best(task.type, room, limit, price)
                found = best_option[key]
                if found is None:
                    continue
                rank = (found[0], -free_share(room, self._mean_capacity), n)
                if best is None or rank < best:
                    best, chosen = rank, found[1]
            if best is None or chosen is None:
                continue
            n, room = best[2], free[best[2]]
            placements.append(Placement(task.id, n, chosen.size.allocation))
            one_start = snapshot.clusters[n].starts_left is not None
            free[n] = None if one_start or room is None else room - chosen.size.allocation
        return Decision(tuple(placements))

    def _best(self, task_type: TaskType, room: Resources, limit: float, price: float) -> tuple[float, _Option] | None:
        """Least duration + price x cost among the sizes that fit and are fast enough."""
        best: tuple[float, _Option] | None = None
        for option in self._options[task_type.name]:
            if option.size.slots <= limit and option.size.allocation.fits(room):
                score = option.size.slots + price * option.cost
                if best is None or score < best[0]:
                    best = (score, option)
        return best

    def _limit(self, task: TaskView, slot: int) -> float:
        """The slowest size accepted for this task now."""
        ideal = self._ideal(task)
        return float("inf") if slot - task.arrival >= self._max_wait * ideal else self._patience * ideal

    def _ideal(self, task: TaskView) -> float:
        """Shortest duration on any of its clusters, were it empty."""
        key = (task.type.name, task.eligible)
        if key not in self._ideals:
            self._ideals[key] = min(
                option.size.slots
                for option in self._options[task.type.name]
                for n in task.eligible
                if option.size.allocation.fits(self._clusters[n].capacity)
            )
        return self._ideals[key]

    def _ordered(self, snapshot: Snapshot) -> list[TaskView]:
        if self._order == "fifo":
            return list(snapshot.queue)
        sign = 1.0 if self._order == "cheapest" else -1.0
        return sorted(snapshot.queue, key=lambda t: sign * self._load.cost[t.type.name])


class SmoothedLoad:
    """Cost of arriving work per slot, exponentially smoothed."""

    def __init__(self, cost: dict[str, float]) -> None:
        """``cost``: what one task of each type costs at its cheapest."""
        self.cost = cost
        self._sum = 0.0
        self._weight = 0.0

    def update(self, snapshot: Snapshot) -> float:
        """Take in this slot's arrivals and return the smoothed load."""
        arrived = 0.0
        for task in reversed(snapshot.queue):
            if task.arrival < snapshot.slot:
                break
            arrived += self.cost[task.type.name]
        self._sum = LOAD_MEMORY * self._sum + arrived
        self._weight = LOAD_MEMORY * self._weight + 1.0
        return self._sum / self._weight


def mean_capacity(clusters: tuple[Cluster, ...]) -> tuple[float, ...]:
    """Mean amount of each resource per cluster."""
    return tuple(sum(amounts) / len(clusters) for amounts in zip(*(c.capacity for c in clusters), strict=True))


def relative_cost(size: Size, capacity: tuple[float, ...]) -> float:
    """Slots x the largest share of a mean cluster the size takes."""
    return size.slots * max(a / c for a, c in zip(size.allocation, capacity, strict=True) if c)


def free_share(free: Resources, capacity: tuple[float, ...]) -> float:
    """Free resources in mean clusters, summed over resources; breaks ties towards the emptier cluster."""
    return sum(a / c for a, c in zip(free, capacity, strict=True) if c)
