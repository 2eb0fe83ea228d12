"""A short menu of sizes for every task type, with what is known of their speed: numpy tables for one set of clusters.

What a profile-aware policy chooses from and sees. Everything is relative (to a mean cluster, to the task's ideal, to
the site's usual duration), so that the numbers mean the same at any site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import Noise, Resources, TaskType
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.options import Option, Options

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Sizes of a type at most. With two resources there may be thirty worth having, most of them nearly alike.
MENU = 16

#: A size counts as like another if it is slower by less than this factor; raised until the menu is short enough.
_ALIKE = 1.02

#: What is cheaper by less than this is no cheaper.
_WORTH_HAVING = 0.99

#: Shares of the way from the minimum to the largest useful size at which a type's speed is told.
CURVE = (0.0, 0.125, 0.25, 0.5, 1.0)

#: Columns of ``Menus.types`` and ``Menus.static``.
TYPE_COLUMNS = 8 + len(CURVE) + 2 + 1
SIZE_COLUMNS = 7


class Menus:
    """Tables of T types with C sizes each, fastest first; R resources, N clusters."""

    def __init__(self, context: SchedulerContext) -> None:
        """Work everything out once per run, or when profiles change."""
        self.options = Options(context)
        types = context.task_types
        self.kind = {t.name: kind for kind, t in enumerate(types)}
        menus = [shorten(self.options.of[t.name], t.minimum) for t in types]
        most = max(map(len, menus))
        resources = len(types[0].minimum)
        self.capacity: Ints = np.array([c.capacity for c in context.clusters], dtype=np.int64)
        self.minimum: Ints = np.array([t.minimum for t in types], dtype=np.int64)
        #: (T,) how many sizes; the rest of the rows are padding that fits nowhere.
        self.count: Ints = np.array([len(menu) for menu in menus])
        self.allocation: Ints = np.full((len(types), most, resources), np.iinfo(np.int64).max // 4)
        self.slots: Floats = np.full((len(types), most), np.inf)
        #: (T, C) slots x largest share of a mean cluster.
        self.cost: Floats = np.full((len(types), most), np.inf)
        self.doubt: Floats = np.zeros((len(types), most))
        for kind, (t, menu) in enumerate(zip(types, menus, strict=True)):
            self.allocation[kind, : len(menu)] = [o.allocation for o in menu]
            self.slots[kind, : len(menu)] = [o.slots for o in menu]
            self.cost[kind, : len(menu)] = [o.cost for o in menu]
            self.doubt[kind, : len(menu)] = [doubt_of(t, o.allocation) for o in menu]
        #: (T, N) shortest duration on the empty cluster, inf where the type does not fit.
        self.ideal_on: Floats = np.array(
            [[self.options.ideal_on(t.name, n) for n in range(len(context.clusters))] for t in types]
        )
        ideal = self.ideal_on.min(axis=1)
        self.ideal: Floats = np.where(np.isfinite(ideal), ideal, self.slots[:, 0])  # a type may fit nowhere
        #: (T,) least cost of any size.
        self.least_cost: Floats = self.cost.min(axis=1)
        weights = np.array([t.weight for t in types], dtype=np.float64)
        #: The site's usual duration: mean of the ideals, weighted by how frequent the types are.
        self.usual = float((weights * self.ideal).sum() / weights.sum())
        self.mean_capacity: Floats = np.maximum(np.array(self.options.mean_capacity), 1e-9)
        self.accelerator = context.resources.accelerator
        #: (T, TYPE_COLUMNS) what is told of a type.
        self.types: Floats = np.array([self._describe(t, context.noise) for t in types])
        #: (T, C, SIZE_COLUMNS) what is told of a size wherever it is given.
        self.static: Floats = self._sizes()

        #: Mean slots of every cell of every type, for tasks that run.
        durations = [mean_slots(t.profile, context.noise) for t in types]
        self._durations: Floats = np.concatenate(durations)
        self._first: Ints = np.cumsum([0, *(len(d) for d in durations[:-1])])
        self._extent: Ints = np.array([t.profile.extent for t in types], dtype=np.int64)
        self._offset: Floats = np.array([t.profile.shape_offset or 0.0 for t in types])
        self.mean_doubt: Floats = self.doubt.sum(axis=1) / self.count

    def predicted(self, kind: Ints, allocation: Ints, mask: npt.NDArray[np.bool_]) -> Floats:
        """Mean slots of running tasks (...,) with these amounts (..., R); 1 where ``mask`` is false."""
        position = np.zeros_like(kind)
        for r in range(allocation.shape[-1]):
            position = position * self._extent[kind, r] + allocation[..., r] - self.minimum[kind, r]
        return np.where(mask, self._durations[np.where(mask, self._first[kind] + position, 0)], 1.0)

    def left(self, kind: Ints, predicted: Floats, elapsed: Any, progress: Any) -> Floats:
        """Slots until they end, with this one: by the progress they reported, or else (-1) by the slots they ran."""
        offset = self._offset[kind]
        known = np.maximum(progress, 0.0)
        end = np.sqrt(np.maximum(offset - 1.0, 0.0))
        slowing = np.sqrt(np.maximum(offset - known, 0.0)) - end
        share = np.where(offset > 0.0, slowing / np.maximum(np.sqrt(offset) - end, 1e-9), 1.0 - known)
        return np.asarray(np.maximum(np.where(progress >= 0.0, share * predicted, predicted - elapsed), 1.0))

    def _describe(self, t: TaskType, noise: Noise) -> list[float]:
        kind = self.kind[t.name]
        ideal, count = self.ideal[kind], self.count[kind]
        least = np.asarray(t.minimum) / self.mean_capacity
        most = np.minimum(t.maximum, self.capacity.max(axis=0)) / self.mean_capacity
        return [
            math.log1p(ideal) / 3.0,
            math.log(ideal / self.usual) / 2.0,
            float(least.max()),
            float(least[self.accelerator]),
            math.log1p(float(most.max())),
            math.log(self.cost[kind, count - 1] / self.usual) / 3.0,
            math.log(self.least_cost[kind] / self.usual) / 3.0,
            math.log(self.cost[kind, 0] / self.usual) / 3.0,
            *(math.log(slots / ideal) / 3.0 for slots in self._curve(t, noise)),
            float(self.doubt[kind, :count].mean()),
        ]

    def _curve(self, t: TaskType, noise: Noise) -> list[float]:
        """Slots at fixed allocations between the minimum and what fits the largest cluster; then one resource alone."""
        low = np.asarray(t.minimum)
        high = np.maximum(low, np.minimum(t.maximum, self.capacity.max(axis=0)))
        cells = [np.rint(low + share * (high - low)).astype(int) for share in CURVE]
        only = np.arange(len(low)) == self.accelerator
        cells += [np.where(only, high, low), np.where(only, low, high)]
        slots = mean_slots(t.profile, noise)
        return [float(slots[t.profile.index(tuple(cell.tolist()))]) for cell in cells]

    def _sizes(self) -> Floats:
        real = np.isfinite(self.slots)
        slots, cost = np.where(real, self.slots, 1.0), np.where(real, self.cost, 1.0)
        ideal = self.ideal[:, None]
        columns = [
            np.log(slots / ideal) / 2.0,
            np.log(slots / self.usual) / 3.0,
            1.0 / slots,
            np.log(cost / self.usual) / 3.0,
            np.log(cost / self.least_cost[:, None]) / 2.0,
            (slots - ideal) / self.usual / 4.0,
            self.doubt,
        ]
        return np.stack([np.where(real, column, 0.0) for column in columns], axis=2).clip(-4.0, 4.0)

    def nearest(self, kind: int, allocation: Sequence[int]) -> int:
        """The size on the menu that is most like this one; among equally fast ones the first."""
        mine = self.allocation[kind, : self.count[kind]]
        same = np.flatnonzero((mine == np.asarray(allocation)).all(axis=1))
        if len(same):
            return int(same[0])
        inside = np.flatnonzero((mine <= np.asarray(allocation)).all(axis=1))  # never more than was asked for
        return int(inside[0])


def shorten(options: Sequence[Option], minimum: Resources) -> list[Option]:
    """The options that matter most, fastest first, at most MENU; the fastest and the minimum are always among them."""
    kept, alike = list(options), _ALIKE
    if len(kept) > MENU:
        kept = useful = _useful(options)
        while len(kept) > MENU:
            kept = _thin(useful, alike)
            alike *= _ALIKE
    if all(option.allocation != minimum for option in kept):
        kept = [*kept[: MENU - 1], *(o for o in options if o.allocation == minimum)]
    return sorted(kept, key=lambda o: (o.slots, o.cost))


def _useful(options: Sequence[Option]) -> list[Option]:
    """Those with less of something than every faster one: of slots x the largest share, or of slots x one resource."""
    resources = len(options[0].allocation)
    least = [math.inf] * (resources + 1)
    found = []
    for option in options:
        prices = [option.cost, *(option.slots * amount for amount in option.allocation)]
        if any(price < _WORTH_HAVING * low for price, low in zip(prices, least, strict=True)):
            found.append(option)
        least = [min(price, low) for price, low in zip(prices, least, strict=True)]
    return found


def _thin(options: Sequence[Option], alike: float) -> list[Option]:
    """The fastest, and of each run of sizes that are about as fast the cheapest."""
    kept = [options[0]]
    first = 0.0  # slots of the fastest in the run
    for option in options[1:]:
        if first and option.slots < first * alike:
            if option.cost < kept[-1].cost:
                kept[-1] = option
        else:
            kept.append(option)
            first = option.slots
    return kept


def doubt_of(t: TaskType, allocation: Resources) -> float:
    """How uncertain the speed at this size is: the deviation of its logarithm."""
    doubt = t.profile.doubt
    return 0.0 if doubt is None else doubt[t.profile.index(allocation)]
