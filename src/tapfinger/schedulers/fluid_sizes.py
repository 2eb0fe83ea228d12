"""Sizes as whole units of a cluster, for the fluid plan: tables made once per site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import Resources
from tapfinger.profiles.efficient_sizes import EfficientSize
from tapfinger.profiles.site_tables import SiteTables

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: Least number of units that a cluster is divided into; it has a whole number of them per unit of its scarcest
#: resource, and at most twice as many.
UNITS = 24

#: How much more the scarcer resource counts: a resource counts by its demand to this power.
SCARCITY = 2.0


class PlanSizes(NamedTuple):
    """The sizes of a task type on one cluster that a plan chooses from: the fastest for each number of units."""

    allocations: list[Resources]
    #: (sizes,) mean duration in slots; falling.
    slots: FloatArray
    #: (sizes,) units of the cluster; rising.
    units: IntArray


class FluidSizes:
    """Units of every cluster, and the sizes of every task type in these units."""

    def __init__(self, site: SiteTables) -> None:
        """Weigh the resources of every cluster by what the task types demand of them."""
        self._site = site
        self._capacity = [cluster.capacity for cluster in site.context.clusters]
        self._weights = [self._weigh(n) for n in range(len(self._capacity))]
        #: (clusters,) units of each cluster.
        self.units = np.array([self._divide(n) for n in range(len(self._capacity))], dtype=np.int64)
        #: Units of the cluster that has the most.
        self.most = int(self.units.max())
        self._of: dict[tuple[str, int], PlanSizes | None] = {}
        self._everywhere: dict[str, tuple[FloatArray, IntArray]] = {}

    def _fitting(self, type_name: str, cluster: int) -> list[EfficientSize]:
        hardware = self._site.context.clusters[cluster].hardware
        sizes = self._site.sizes.at[hardware][type_name]
        return [size for size in sizes if size.allocation.fits(self._capacity[cluster])]

    def _weigh(self, cluster: int) -> list[float]:
        """Weight of each resource, 1 in all: its share of the demand if every type had its cheapest size."""
        capacity = self._capacity[cluster]
        demand = [0.0] * len(capacity)
        for kind in self._site.context.task_types:
            sizes = self._fitting(kind.name, cluster)
            if sizes:
                cheapest = min(sizes, key=lambda size: size.slots * max(_shares(size.allocation, capacity)))
                for r, share in enumerate(_shares(cheapest.allocation, capacity)):
                    demand[r] += kind.weight * cheapest.slots * share
        powers = [amount**SCARCITY for amount in demand]
        total = sum(powers)
        return [power / total for power in powers] if total else [1.0 / len(capacity)] * len(capacity)

    def _divide(self, cluster: int) -> int:
        capacity, weights = self._capacity[cluster], self._weights[cluster]
        scarcest = capacity[max(range(len(capacity)), key=lambda r: weights[r])] or 1
        return min(2 * UNITS, scarcest * math.ceil(UNITS / scarcest))

    def share(self, amounts: Resources, cluster: int) -> float:
        """Weighted share of the cluster that these amounts are."""
        shares = _shares(amounts, self._capacity[cluster])
        return sum(weight * share for weight, share in zip(self._weights[cluster], shares, strict=True))

    def units_of(self, size: Resources, cluster: int) -> int:
        """The size in units, at least 1. Rounded, so plans in units are checked against real amounts."""
        units = int(self.units[cluster])
        return max(1, min(units, round(units * self.share(size, cluster))))

    def room(self, amounts: Resources, cluster: int) -> int:
        """What is available on the cluster in units, rounded down, at least 1."""
        units = int(self.units[cluster])
        return max(1, min(units, int(units * self.share(amounts, cluster) + 1e-9)))

    def of(self, type_name: str, cluster: int) -> PlanSizes | None:
        """Sizes of the type on the cluster; None if it fits in no size."""
        key = type_name, cluster
        if key not in self._of:
            self._of[key] = self._make(type_name, cluster)
        return self._of[key]

    def _make(self, type_name: str, cluster: int) -> PlanSizes | None:
        fastest: dict[int, EfficientSize] = {}
        for size in self._fitting(type_name, cluster):  # fastest first
            fastest.setdefault(self.units_of(size.allocation, cluster), size)
        kept: list[tuple[int, EfficientSize]] = []
        for units in sorted(fastest):
            if not kept or fastest[units].slots < kept[-1][1].slots:
                kept.append((units, fastest[units]))
        if not kept:
            return None
        slots = np.array([size.slots for _, size in kept], dtype=np.float64)
        return PlanSizes([size.allocation for _, size in kept], slots, np.array([units for units, _ in kept]))

    def everywhere(self, type_name: str) -> tuple[FloatArray, IntArray]:
        """(clusters, sizes) durations and units on every cluster; infinite, and too many, where there is no size."""
        if type_name not in self._everywhere:
            rows = [self.of(type_name, n) for n in range(len(self._capacity))]
            width = max((len(row.slots) for row in rows if row), default=1)
            slots = np.full((len(rows), width), np.inf)
            units = np.full((len(rows), width), self.most + 1, dtype=np.int64)
            for n, row in enumerate(rows):
                if row:
                    slots[n, : len(row.slots)], units[n, : len(row.units)] = row.slots, row.units
            self._everywhere[type_name] = slots, units
        return self._everywhere[type_name]


def _shares(amounts: Sequence[int], capacity: Sequence[int]) -> list[float]:
    return [amount / most if most else 0.0 for amount, most in zip(amounts, capacity, strict=True)]
