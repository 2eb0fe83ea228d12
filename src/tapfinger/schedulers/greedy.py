"""Greedy with patience: the size and cluster with the least duration + price x cost, or wait.

It knows the speed profiles and finds the efficient sizes of any profile. A plain greedy is weak because it accepts any
size that fits; this one waits rather than take a far slower size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

from tapfinger.core.contract import Decision, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.estimates import staging_pays
from tapfinger.core.feasibility import room
from tapfinger.core.model import Resources
from tapfinger.core.spans import Rooms
from tapfinger.errors import ConfigError
from tapfinger.profiles.efficient_sizes import EfficientSize
from tapfinger.profiles.greedy_options import GREEDY_DEFAULTS
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.lending import Lending


class Greedy:
    """Patient greedy that knows the speed profiles (the baseline to beat)."""

    one_shot = True

    def __init__(
        self,
        queue_price: float = GREEDY_DEFAULTS["queue_price"],
        calm: float = GREEDY_DEFAULTS["calm"],
        patience: float = GREEDY_DEFAULTS["patience"],
        max_wait: float = GREEDY_DEFAULTS["max_wait"],
        short_first: float = GREEDY_DEFAULTS["short_first"],
        choosy_first: float = 0.0,
        room_price: float = 0.0,
        crowd_price: float = 0.0,
        lend: bool = False,
    ) -> None:
        """The price of resources is ``queue_price`` x the waiting tasks per cluster beyond ``calm``; tasks that arrived
        in this slot do not count.

        A size slower than ``patience`` times the task's ideal duration is refused until the task has waited
        ``max_wait`` ideal durations. Tasks are considered in order of short_first x shortest duration + choosy_first x
        number of eligible clusters - slots waited. With 0 and 0 this is first come, first served; a large
        ``short_first`` puts short tasks first, a large ``choosy_first`` those with few eligible clusters.

        Two prices are for the effect on other tasks: ``room_price`` for each slot by which a task type's shortest
        duration on the cluster grows, ``crowd_price`` for each task per cluster that waits for the cluster.

        ``lend``: lend spare resources to running tasks; otherwise a task keeps the size it was started with.
        """
        options = {"queue_price": queue_price, "calm": calm, "patience": patience, "max_wait": max_wait}
        options |= {"room_price": room_price, "crowd_price": crowd_price}
        for name, value in {**options, "short_first": short_first, "choosy_first": choosy_first}.items():
            if not isinstance(value, int | float) or not math.isfinite(value) or (value < 0 and name in options):
                raise ConfigError(f"greedy: {name} = {value!r} must be a number, zero or more")
        self._queue_price = queue_price
        self._calm = calm
        self._patience = patience
        self._max_wait = max_wait
        self._short_first = short_first
        self._choosy_first = choosy_first
        self._room_price = room_price
        self._crowd_price = crowd_price
        if not isinstance(lend, bool):
            raise ConfigError(f"greedy: lend = {lend!r} must be true or false")
        self._lend = lend
        self._lending: Lending | None = None

    def reset(self, context: SchedulerContext) -> None:
        """Use the profiles of the context; nothing is lent yet."""
        site = SiteTables(context)
        self.learn_from(site)
        self._lending = Lending(site) if self._lend else None

    def learn(self, context: SchedulerContext) -> None:
        """Use new profiles from now on; what is lent stays lent."""
        site = SiteTables(context)
        self.learn_from(site)
        if self._lending is not None:
            self._lending.learn(site)

    def learn_from(self, site: SiteTables) -> None:
        """Use tables made by the caller; for a Greedy that does not lend, this can replace ``reset``."""
        self._options = site.sizes
        clusters = site.context.clusters
        #: Whole nodes are kept for those who need them.
        self._emptier = [-1.0 if cluster.part_of else 1.0 for cluster in clusters]
        #: Queues are by whole cluster, prices by node.
        self._calm_here = self._calm * (len({cluster.whole for cluster in clusters}) / len(clusters))
        self._head_start = {name: self._short_first * sizes[0].slots for name, sizes in self._options.of.items()}

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide what to start and what to lend."""
        if self._lending is None:
            return self._start(snapshot)
        return self._lending.lend(snapshot, self._start(self._lending.returned(snapshot)))

    def _start(self, snapshot: Snapshot) -> Decision:
        """Walk the queue once; each task takes the best cluster and size for it now, or waits."""
        price = self._queue_price * max(0.0, carried_over(snapshot) / len(snapshot.clusters) - self._calm_here)
        rooms, free = Rooms(snapshot.clusters), [room(c) for c in snapshot.clusters]
        shares = [0.0 if left is None else self._options.free_share(left) for left in free]
        self._hardware = [cluster.hardware for cluster in snapshot.clusters]
        self._best_option: dict[tuple[str, Resources, float, str, int], tuple[float, EfficientSize] | None] = {}
        self._waiting_for = [sum(1 for _ in snapshot.queue_of(n)) if self._crowd_price else 0 for n in range(len(free))]
        placements: list[Placement] = []
        for task in sorted(snapshot.queue, key=lambda t: self._rank(t, snapshot.slot)):
            found = self._choose(task, snapshot, price, free, shares)
            if found is None:
                continue
            n, option = found
            if snapshot.data is not None:
                snapshot = replace(snapshot, data=snapshot.data.ask(task.type.data, n, snapshot.slot)[0])
            for m in task.eligible:
                self._waiting_for[m] -= 1
            placements.append(Placement(task.id, n, option.allocation))
            rooms.take(n, option.allocation)
            if snapshot.clusters[n].starts_left is not None:
                free[n] = None
            for m in rooms.sharing(n):
                left = free[m] = None if free[m] is None else rooms[m]
                shares[m] = 0.0 if left is None else self._options.free_share(left)
        return Decision(tuple(placements))

    def _choose(
        self, task: TaskView, snapshot: Snapshot, price: float, free: list[Resources | None], shares: list[float]
    ) -> tuple[int, EfficientSize] | None:
        """Best cluster and size; ties go to the emptier cluster or to the fuller node, then to the lower index."""
        waited, staging = snapshot.slot - task.arrival, snapshot.staging_of(task)
        ideal = self._options.usual_ideal(task.type.name, task.eligible)
        limit = math.inf if waited >= self._max_wait * ideal else self._patience * ideal
        soonest = min(staging.values(), default=0)
        best: tuple[float, float, int] | None = None
        chosen: EfficientSize | None = None
        for n in task.eligible:
            left = free[n]
            if left is None:
                continue
            hardware, wait = self._hardware[n], staging.get(n, 0)
            if wait and not staging_pays(wait - soonest, ideal, waited):
                continue
            slowest = limit * self._options.paces[task.type.name][n]
            found = self._best(task.type.name, left, slowest, price, hardware, wait)
            if found is None:
                continue
            crowd = self._crowd_price * (self._waiting_for[n] / len(free))
            rank = (found[0] + crowd, -self._emptier[n] * shares[n], n)
            if best is None or rank < best:
                best, chosen = rank, found[1]
        return None if best is None or chosen is None else (best[2], chosen)

    def _best(
        self, type_name: str, room: Resources, limit: float, price: float, hardware: str, wait: int
    ) -> tuple[float, EfficientSize] | None:
        """Least duration + price x cost among the sizes that fit and are fast enough.

        ``wait``: slots until the task has its data; it holds its size meanwhile, so that they count as duration.
        """
        key = (type_name, room, limit, hardware, wait)
        if key in self._best_option:  # many tasks and clusters are alike within one slot
            return self._best_option[key]
        best: tuple[float, EfficientSize] | None = None
        before = self._options.durations(room, hardware) if self._room_price else 0.0
        for option in self._options.at[hardware][type_name]:
            if option.slots > limit:
                break
            if option.allocation.fits(room):
                score = option.slots + price * option.cost
                if wait:
                    score += wait + price * option.cost * (wait / option.slots)
                if self._room_price:
                    after = self._options.durations(room - option.allocation, hardware)
                    score += self._room_price * (after - before)
                if best is None or score < best[0]:
                    best = (score, option)
        self._best_option[key] = best
        return best

    def _rank(self, task: TaskView, slot: int) -> float:
        """Sort key of a task in the queue; the smallest goes first."""
        choosy = self._choosy_first * len(task.eligible)
        return self._head_start[task.type.name] + choosy - (slot - task.arrival)


def carried_over(snapshot: Snapshot) -> int:
    """Number of waiting tasks that arrived in an earlier slot: a sign of congestion, unlike fresh arrivals."""
    return bisect_left(snapshot.queue, snapshot.slot, key=lambda task: task.arrival)
