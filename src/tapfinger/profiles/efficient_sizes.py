"""The efficient sizes of every task type, priced for one set of clusters: what Greedy and Lookahead choose from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import Resources
from tapfinger.profiles.durations import efficient_sizes

#: Stretch at which room for a task is as bad as no room.
WORST_STRETCH = 3.0


@dataclass(frozen=True, slots=True)
class EfficientSize:
    """One efficient size of a task type."""

    allocation: Resources
    #: Mean duration in slots.
    slots: float
    #: Duration x the largest share of a mean cluster that the size takes of any resource, in slots.
    cost: float


class EfficientSizes:
    """Efficient sizes of every type, and figures that follow from these sizes and the clusters alone."""

    def __init__(self, context: SchedulerContext) -> None:
        """Price the sizes of all types; made once per ``SiteTables``."""
        self.clusters = context.clusters
        #: Clusters with resources of their own: all but spans.
        self._pools = [n for n, cluster in enumerate(self.clusters) if not cluster.nodes]
        #: Mean amount of each resource per cluster.
        self.mean_capacity = tuple(
            sum(amounts) / len(self._pools)
            for amounts in zip(*(self.clusters[n].capacity for n in self._pools), strict=True)
        )
        kinds = dict.fromkeys(cluster.hardware for cluster in self.clusters)
        #: By kind of hardware, then by type name: fastest first.
        self.at: dict[str, dict[str, tuple[EfficientSize, ...]]] = {
            kind: {
                t.name: tuple(self._price(s.allocation, s.slots) for s in efficient_sizes(t.on(kind), context.noise))
                for t in context.task_types
            }
            for kind in kinds
        }
        #: On the hardware that most clusters have, by type name.
        self.of = self.at[context.task_types[0].hardware]
        #: The size with the least cost, by type name.
        self.cheapest = {name: min(sizes, key=lambda size: size.cost) for name, sizes in self.of.items()}
        self._ideal_on: dict[tuple[str, int], float] = {}

    def _price(self, allocation: Resources, slots: float) -> EfficientSize:
        share = max(a / c for a, c in zip(allocation, self.mean_capacity, strict=True) if c)
        return EfficientSize(allocation, slots, slots * share)

    def ideal_on(self, type_name: str, cluster: int) -> float:
        """Shortest duration in slots on the cluster if it were empty; infinite if the minimum does not fit."""
        key = (type_name, cluster)
        if key not in self._ideal_on:
            where = self.clusters[cluster]
            fitting = (o.slots for o in self.at[where.hardware][type_name] if o.allocation.fits(where.capacity))
            self._ideal_on[key] = min(fitting, default=float("inf"))
        return self._ideal_on[key]

    def ideal(self, type_name: str, eligible: tuple[int, ...]) -> float:
        """Shortest duration in slots on any of these clusters if it were empty."""
        return min(self.ideal_on(type_name, n) for n in eligible)

    def pace(self, type_name: str, cluster: int) -> float:
        """Factor on what is too slow for a type, on nodes and other hardware: the root of how much longer it takes.

        Without the factor tasks would wait for the largest node and the fastest hardware while all else is idle;
        without the root they would take what is slow although the fast will be free sooner.
        """
        here, slots = self.clusters[cluster], self.ideal_on(type_name, cluster)
        if math.isinf(slots) or not (here.part_of or here.hardware):
            return 1.0
        others = range(len(self.clusters)) if here.nodes else self._pools
        return math.sqrt(slots / min(self.ideal_on(type_name, n) for n in others))

    def usual_ideal(self, type_name: str, eligible: tuple[int, ...]) -> float:
        """Shortest duration in slots on any of these clusters if it were empty, each over its ``pace``."""
        return min(self.ideal_on(type_name, n) / self.paces[type_name][n] for n in eligible)

    @cached_property
    def paces(self) -> dict[str, list[float]]:
        """By type name, the pace on every cluster."""
        return {name: [self.pace(name, n) for n in range(len(self.clusters))] for name in self.of}

    def durations(self, free: Resources, hardware: str) -> float:
        """Shortest durations in this room, bounded, summed over the types; the less, the more the room is worth."""
        total = 0.0
        for options in self.at[hardware].values():
            worst = WORST_STRETCH * options[0].slots
            total += min(worst, next((o.slots for o in options if o.allocation.fits(free)), worst))
        return total

    def free_share(self, free: Resources) -> float:
        """Free resources as shares of a mean cluster, summed over resources; for ties between clusters."""
        return sum((a / c for a, c in zip(free, self.mean_capacity, strict=True) if c), start=0.0)
