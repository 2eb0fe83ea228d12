"""What tasks have shown to need of a resource by running out of it, and what their type gets from then on.

The rule of simulation (``workloads/needs.py``) with real tasks: what an attempt held was not enough, so the task and
its family, the other tasks of its type, get at least the first of the type's minimum, twice as much and so on that is
twice what was not enough. Nobody gets more than its own maximum, or than one of its clusters has. A family is of one
owner: a task that uses all it can get makes nobody else's tasks larger.

Each step doubles, and an attempt that had the most it may get is not tried again for this. So running out of a resource
costs a task at most log2(maximum / minimum) + 1 further attempts, whatever it or its
agent says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tapfinger.core.feasibility import ever_fits
from tapfinger.core.model import Cluster, Resources, ResourceTypes

#: Natural amounts by resource.
Least = Mapping[str, float]
#: Owner, type, and what their tasks get at least, as it is kept in the store.
Kept = Iterable[tuple[str, str, Least]]

#: Most families that are remembered; the one that was raised longest ago is forgotten, and would show it again.
MOST = 1000

NOTHING: Least = {}


class ShownNeeds:
    """What each family gets at least."""

    def __init__(self) -> None:
        """Start without knowledge."""
        #: By owner and type; the latest raised is last.
        self._known: dict[tuple[str, str], Least] = {}

    def restore(self, kept: Kept) -> None:
        """Know what was kept, and nothing else."""
        self._known = {(owner, family): dict(least) for owner, family, least in kept}

    @property
    def kept(self) -> list[tuple[str, str, Least]]:
        """What to keep in the store."""
        return [(owner, family, least) for (owner, family), least in self._known.items()]

    def of(self, owner: str, family: str) -> Least:
        """Least amounts of this owner's tasks of a type."""
        return self._known.get((owner, family), NOTHING)

    def learn(self, owner: str, family: str, least: Least) -> bool:
        """Raise what a family gets; False if it gets so much already."""
        known = self.of(owner, family)
        raised = larger_of(known, least)
        if raised == known:
            return False
        self._known.pop((owner, family), None)
        self._known[owner, family] = raised
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return True


def larger_of(one: Least, other: Least) -> Least:
    """The larger amount of each resource."""
    if not one or not other:
        return one or other
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def next_amount(least: int, held: int) -> int:
    """The first of ``least``, twice as much and so on that is at least twice what was not enough, and above it."""
    amount = max(1, least)
    while amount < 2 * held:
        amount *= 2
    return amount


def raised_minimum(
    minimum: Resources, maximum: Resources, least: Least, clusters: Sequence[Cluster], resources: ResourceTypes
) -> Resources:
    """The minimum of a task with these bounds that gets at least ``least``, as far as its bounds and clusters allow.

    ``clusters``: those that it may run on. Where one of them can hold the minimum, one can hold the result.
    """
    for r, (name, unit) in enumerate(zip(resources.names, resources.units, strict=True)):
        if name not in least:
            continue
        room = max((c.capacity[r] for c in clusters if ever_fits(minimum, c.capacity)), default=0)
        amount = min(math.ceil(least[name] / unit - 1e-9), maximum[r], room)
        if amount > minimum[r]:
            minimum = Resources([amount if n == r else low for n, low in enumerate(minimum)])
    return minimum
