"""Short menus of sizes with their speed: numpy tables for one set of clusters and task types.

A profile-aware policy sees these menus and chooses from them. Everything is relative (to a mean cluster, to the task's
ideal, to the site's usual duration), so that the numbers mean the same at any site.

A type may have a thousand efficient sizes, so they are sorted into buckets by their duration. A menu has one place per
bucket: of the bucket's sizes that fit now, the one that is best for its price. If some bucket holds several sizes, the
first place is the fastest of all sizes that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import Resources, TaskType
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.efficient_sizes import EfficientSize, EfficientSizes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Maximum number of buckets per type, and of sizes per bucket.
BUCKETS = 15
DEPTH = 6

#: Places of a menu: the fastest size, then one per bucket.
PLACES = BUCKETS + 1

#: Amount that is more than any cluster has.
NOWHERE = np.iinfo(np.int64).max // 4


class Menus:
    """Tables of T types, R resources, N clusters, and S speeds: of a type on some hardware, as in sim.layout.Tables.

    Each speed has BUCKETS x DEPTH sizes; padding fits nowhere.
    """

    def __init__(self, context: SchedulerContext, sizes: EfficientSizes) -> None:
        """``sizes``: the efficient sizes of the same context; ``SiteTables.menus`` ensures that."""
        self.options = sizes
        types = context.task_types
        self.kind = {t.name: kind for kind, t in enumerate(types)}
        self.capacity: Ints = np.array([c.capacity for c in context.clusters], dtype=np.int64)
        self.minimum: Ints = np.array([t.minimum for t in types], dtype=np.int64)
        speeds = [(t.on(kind), options[t.name]) for kind, options in sizes.at.items() for t in types]
        first = np.array([list(sizes.at).index(c.hardware) * len(types) for c in context.clusters], dtype=np.int64)
        #: (T, N) which speed the type has on the cluster; (T,) on the hardware that most clusters have.
        self.speed: Ints = np.arange(len(types))[:, None] + first
        self.usual_speed: Ints = np.arange(len(types)) + list(sizes.at).index(types[0].hardware) * len(types)
        shape = len(speeds), BUCKETS, DEPTH
        self.allocation: Ints = np.full((*shape, self.capacity.shape[1]), NOWHERE)
        self.slots: Floats = np.full(shape, np.inf)
        #: Slots x largest share of a mean cluster.
        self.cost: Floats = np.full(shape, np.inf)
        self.doubt: Floats = np.zeros(shape)
        #: (S,) whether some bucket holds several sizes, so that the menu begins with the fastest that fits.
        self.several: Bools = np.zeros(len(speeds), dtype=np.bool_)
        places: list[Ints] = []
        self._place_of: list[dict[Resources, int]] = []
        for speed, (t, options) in enumerate(speeds):
            buckets = into_buckets([o.slots for o in options])
            places.append(buckets + 1)
            self._place_of.append({o.allocation: int(b) + 1 for o, b in zip(options, buckets, strict=True)})
            for b in range(int(buckets.max()) + 1):
                for d, o in enumerate(choose([o for o, c in zip(options, buckets, strict=True) if c == b], t.minimum)):
                    self.allocation[speed, b, d] = o.allocation
                    self.slots[speed, b, d], self.cost[speed, b, d] = o.slots, o.cost
                    self.doubt[speed, b, d] = doubt_of(t, o.allocation)
            self.several[speed] = np.isfinite(self.slots[speed, :, 1]).any()
        #: Place on the menu of every option of every speed, one speed after the other.
        self.place: Ints = np.concatenate(places)
        self.mean_doubt: Floats = self.doubt.sum(axis=(1, 2)) / np.isfinite(self.slots).sum(axis=(1, 2))
        #: Maximum number of places that a menu has at once.
        self.places = int((np.isfinite(self.slots[:, :, 0]).sum(axis=1) + self.several).max())
        #: (T, N) shortest duration on the empty cluster, inf where the type does not fit.
        self.ideal_on: Floats = np.array(
            [[self.options.ideal_on(t.name, n) for n in range(len(context.clusters))] for t in types]
        )
        ideal = self.ideal_on.min(axis=1)
        fastest = np.array([self.options.of[t.name][0].slots for t in types])
        self.ideal: Floats = np.where(np.isfinite(ideal), ideal, fastest)  # a type may fit nowhere
        #: (T,) least cost of any size.
        self.least_cost: Floats = np.array([sizes.cheapest[t.name].cost for t in types])
        weights = np.array([t.weight for t in types], dtype=np.float64)
        #: The site's usual duration: mean of the ideals, weighted by how frequent the types are.
        self.usual = float((weights * self.ideal).sum() / weights.sum())
        self.mean_capacity: Floats = np.maximum(np.array(self.options.mean_capacity), 1e-9)
        self.accelerator = context.resources.accelerator
        #: Mean slots of every cell of every speed, for running tasks.
        durations = [mean_slots(t.profile, context.noise) for t, _ in speeds]
        self._durations: Floats = np.concatenate(durations)
        self._first: Ints = np.cumsum([0, *(len(d) for d in durations[:-1])])
        self._least: Ints = np.array([t.minimum for t, _ in speeds], dtype=np.int64)
        self._extent: Ints = np.array([t.profile.extent for t, _ in speeds], dtype=np.int64)
        self._offset: Floats = np.array([t.profile.shape_offset or 0.0 for t, _ in speeds])

    def predicted(self, speed: Ints, allocation: Ints, mask: npt.NDArray[np.bool_]) -> Floats:
        """Mean slots of running tasks (...,) with these amounts (..., R); 1 where ``mask`` is false."""
        position = np.zeros_like(speed)
        for r in range(allocation.shape[-1]):
            position = position * self._extent[speed, r] + allocation[..., r] - self._least[speed, r]
        return np.where(mask, self._durations[np.where(mask, self._first[speed] + position, 0)], 1.0)

    def left(self, speed: Ints, predicted: Floats, elapsed: Any, progress: Any) -> Floats:
        """Slots until running tasks end, including this one: from reported progress or, if it is -1, from slots run.

        Mirror of `tapfinger.core.estimates.work`: the share of it that is left.
        """
        offset = self._offset[speed]
        known = np.maximum(progress, 0.0)
        end = np.sqrt(np.maximum(offset - 1.0, 0.0))
        slowing = np.sqrt(np.maximum(offset - known, 0.0)) - end
        share = np.where(offset > 0.0, slowing / np.maximum(np.sqrt(offset) - end, 1e-9), 1.0 - known)
        return np.asarray(np.maximum(np.where(progress >= 0.0, share * predicted, predicted - elapsed), 1.0))

    def place_of(self, kind: int, cluster: int, allocation: Resources) -> int:
        """The place on the menu of a type on a cluster that stands for this size, one of the options."""
        return self._place_of[int(self.speed[kind, cluster])][allocation]


def into_buckets(slots: Sequence[float]) -> Ints:
    """The bucket of each option, fastest first: one per duration, or one per range of durations if there are many."""
    values, which = np.unique(np.asarray(slots), return_inverse=True)
    if len(values) <= BUCKETS:
        return np.asarray(which, dtype=np.int64)
    # Ranges of equal ratio; the first is kept for the very fastest.
    edges = np.geomspace(values[0] * 1.01, values[-1] * (1.0 + 1e-9), BUCKETS)
    used = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]
    return np.asarray(used[which], dtype=np.int64)


def choose(options: Sequence[EfficientSize], minimum: Resources) -> list[EfficientSize]:
    """At most DEPTH options of a bucket, the best for its price first; some suit clusters short of one resource."""
    best = sorted(options, key=lambda o: (o.slots**2 * o.cost, o.allocation))
    wanted = [o for o in options if o.allocation == minimum]
    wanted += [best[0], min(options, key=lambda o: o.cost)]
    wanted += [min(options, key=lambda o, r=r: (o.allocation[r], o.cost)) for r in range(len(minimum))]  # type: ignore[misc]
    wanted += best[1:]
    kept = list(dict.fromkeys(wanted))[:DEPTH]
    return [o for o in best if o in kept]


def doubt_of(t: TaskType, allocation: Resources) -> float:
    """How uncertain the speed at this size is: the standard deviation of its logarithm."""
    doubt = t.profile.doubt
    return 0.0 if doubt is None else doubt[t.profile.index(allocation)]
