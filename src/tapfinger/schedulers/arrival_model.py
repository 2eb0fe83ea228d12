"""Recent arrivals, and futures sampled from them, in which lookahead plays its plans."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Mode, Snapshot
from tapfinger.profiles.site_tables import SiteTables

#: Number of recent arrivals that futures are sampled from, and decay of the arrival rate per slot.
_POOL = 512
_RATE_MEMORY = 0.99

#: Assumed arrival rate before any slot is seen, as a share of what the clusters could just serve; and its weight, in
#: slots seen. Without the weight, chance in the first few slots would decide the rate.
_USUAL_LOAD = 0.8
_SLOTS_OF_BELIEF = 4.0


class Future(NamedTuple):
    """Sampled arrivals of F futures over a horizon, padded to the largest number of arrivals. N clusters."""

    tasks: npt.NDArray[np.int64]  # (F,)
    slot: npt.NDArray[np.int64]  # (F, most) counted from 1
    type: npt.NDArray[np.int64]  # (F, most)
    eligible: npt.NDArray[np.bool_]  # (F, most, N)


class ArrivalModel:
    """An arrival rate, and a pool of recent arrivals as (type, eligible clusters)."""

    def __init__(self, site: SiteTables) -> None:
        """Start with no arrivals seen."""
        types, self._clusters = site.context.task_types, len(site.context.clusters)
        self._kind = {t.name: kind for kind, t in enumerate(types)}
        #: First type of the ladder, of types that tasks have only after one of their family ran out of memory.
        self._first = {i: self._kind[t.base] for i, t in enumerate(types) if t.base in self._kind and not t.weight}
        #: The step that a ladder's family has reached, by its first type.
        self._reached: dict[int, int] = {}
        # One imaginary task per type, so that the first futures differ.
        imagined = [kind for kind in range(len(types)) if kind not in self._first]
        self._types = deque(imagined, maxlen=_POOL)
        self._eligible = deque([np.ones(self._clusters, dtype=np.bool_) for _ in imagined], maxlen=_POOL)
        #: Arrivals seen, slots seen, and weight of the assumed rate in slots; all three decay.
        self._tasks, self._slots, self._belief = 0.0, 0.0, _SLOTS_OF_BELIEF
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on; they change how many tasks the clusters can serve."""
        self._usual = _USUAL_LOAD * _rate_served(site)

    @property
    def rate(self) -> float:
        """Estimated arrivals per slot."""
        return (self._tasks + self._belief * self._usual) / (self._slots + self._belief)

    def update(self, snapshot: Snapshot) -> None:
        """Record this slot's arrivals."""
        arrived = list(snapshot.arrived_since(snapshot.slot - 1))
        for task in arrived[-_POOL:]:
            row = np.zeros(self._clusters, dtype=np.bool_)
            row[list(task.eligible)] = True
            self._types.append(self._kind[task.type.name])
            self._eligible.append(row)
        self._tasks = _RATE_MEMORY * self._tasks + len(arrived)
        self._slots = _RATE_MEMORY * self._slots + 1.0
        self._belief *= _RATE_MEMORY
        if self._first:
            self._climb(snapshot)

    def _climb(self, snapshot: Snapshot) -> None:
        """Where families have gone up their ladders, tasks to come have the type that those waiting now have."""
        for task in snapshot.queue:
            kind = self._kind[task.type.name]
            if (first := self._first.get(kind)) is not None:
                self._reached[first] = max(kind, self._reached.get(first, kind))
        if self._reached:
            climbed = (max(kind, self._reached.get(self._first.get(kind, kind), kind)) for kind in self._types)
            self._types = deque(climbed, maxlen=_POOL)

    def draw(self, futures: int, horizon: int, rng: np.random.Generator) -> Future:
        """Sample Poisson arrivals at the estimated rate, each a copy of a task in the pool."""
        counts = rng.poisson(self.rate, size=(futures, horizon))
        per_future = counts.sum(axis=1)
        most = int(per_future.max())
        slot = np.zeros((futures, most), dtype=np.int64)
        # Row by row, each slot is repeated once per task that arrives in it.
        slot[np.arange(most) < per_future[:, None]] = np.repeat(
            np.tile(np.arange(1, horizon + 1), futures), counts.reshape(-1)
        )
        picks = rng.integers(0, len(self._types), size=(futures, most))
        return Future(per_future, slot, np.array(self._types)[picks], np.array(self._eligible)[picks])


def _rate_served(site: SiteTables) -> float:
    """Tasks per slot that the clusters can just serve, each at its cheapest size."""
    types, clusters = site.context.task_types, len(site.context.clusters)
    costs = [site.sizes.cheapest[t.name].cost for t in types]
    served = clusters / float(np.average(costs, weights=[t.weight for t in types]))
    return min(served, clusters) if site.context.mode is Mode.SINGLE else served
