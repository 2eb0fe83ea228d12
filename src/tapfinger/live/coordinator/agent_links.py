"""What a coordinator knows about an agent: whether it is heard, until when it may act, and what its cluster has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tapfinger.core.contract import ClusterView
from tapfinger.core.model import Cluster, Resources, ResourceTypes
from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import Amounts, LiveEvent

#: Seconds between two events about the same matter of a cluster. An agent whose connection comes and goes must not fill
#: the history: what is shown is always right, and the history is late by this much at most.
FLAPPING = 10.0
#: Largest difference of two amounts that are the same.
_SAME = 1e-9


@dataclass(slots=True)
class Link:
    """The link to the agent of one cluster."""

    #: Time after which the agent can no longer hold a lease.
    ends: float
    agent: str | None = None
    #: Incarnation and number of the last report.
    seen: tuple[int, int] = (0, 0)
    #: Late reports since that one.
    late: int = 0
    #: Number of orders sent to the agent in this epoch.
    sent: int = 0
    #: Whether the agent has reported in this epoch and within its lease.
    heard: bool = False
    drained: bool = False
    #: When the agent last reported to this coordinator; None before the first time.
    last_heard: float | None = None
    #: Why it is not connected although its lease may last; empty while it is.
    away: str = ""
    #: Why the agent wants no tasks now; empty if it does.
    trouble: str = ""
    #: Whether the agent runs tasks in a sandbox; None if it has not told.
    isolates: bool | None = None
    #: Whether the agent still runs attempts that are not its any more: what they hold is counted by nobody.
    strays: bool = False
    #: Capacity that the agent reports, in natural amounts, where it differs from the configured one.
    reported: Amounts | None = None
    #: Natural amounts that others use, as the agent says; None if it does not.
    others: Amounts | None = None
    #: When the agent last showed that the store is older than itself.
    ahead: float = -math.inf
    #: When that last made the coordinator hold.
    held: float = -math.inf
    #: What the history says about the link and about its capacity, and since when.
    told: str = "silent"
    told_at: float = -math.inf
    told_capacity: Amounts | None = None
    told_capacity_at: float = -math.inf

    @property
    def state(self) -> Literal["joined", "away", "silent"]:
        """``away``: its connection is closed, or reports are missing. ``silent``: and its lease is over."""
        return "silent" if not self.heard else "away" if self.away else "joined"

    @property
    def open(self) -> bool:
        """Whether the cluster takes tasks."""
        return self.state == "joined" and not (self.drained or self.strays or self.trouble)

    def missing(self, now: float, silence: float) -> bool:
        """Note that reports are missing if there was none for ``silence`` seconds; False if that is nothing new."""
        late = now - (self.last_heard if self.last_heard is not None else now)
        if not self.heard or self.away or late <= silence:
            return False
        self.away = f"no report for {late:.0f} s"
        return True

    def news(self, cluster: str, configured: Amounts, now: float) -> Iterable[LiveEvent]:
        """Events that the history lacks."""
        state = self.state
        # The end of a lease, and a return after it, cannot follow each other quickly.
        if state != self.told and (now >= self.told_at + FLAPPING or "silent" in (state, self.told)):
            self.told, self.told_at = state, now
            if state == "joined":
                yield events.AgentJoined(now, cluster=cluster, agent=self.agent or "")
            elif state == "away":
                yield events.AgentAway(now, cluster=cluster, reason=self.away)
            else:
                yield events.AgentSilent(now, cluster=cluster)
        if self.reported != self.told_capacity and now >= self.told_capacity_at + FLAPPING:
            self.told_capacity, self.told_capacity_at = self.reported, now
            reported = configured if self.reported is None else self.reported
            yield events.CapacityCompared(now, cluster=cluster, configured=configured, reported=reported)


def differing(reported: Amounts | None, configured: Amounts) -> dict[str, float] | None:
    """The reported amounts of the configured resources; None if none of them differs, or none is reported."""
    known = {name: (reported or {}).get(name, amount) for name, amount in configured.items()}
    same = all(abs(known[name] - amount) <= _SAME for name, amount in configured.items())
    return None if same else known


def smaller(reported: Amounts | None, configured: Resources, resources: ResourceTypes) -> Resources:
    """The smaller of both capacities, resource by resource."""
    if reported is None:
        return configured
    named = zip(resources.names, resources.units, configured, strict=True)
    return Resources([min(amount, math.floor(reported[name] / unit + _SAME)) for name, unit, amount in named])


def used_by_others(said: Amounts | None, capacity: Resources, resources: ResourceTypes) -> Resources:
    """What others use, in whole units, never more than there is."""
    if said is None:
        return Resources([0] * len(capacity))
    named = zip(resources.names, resources.units, capacity, strict=True)
    return Resources([min(most, max(0, math.ceil(said.get(name, 0.0) / unit - _SAME))) for name, unit, most in named])


def shown(
    view: ClusterView,
    cluster: Cluster,
    link: Link,
    tasks: Iterable[int],
    natural: Callable[[Resources], Amounts],
    now: float,
) -> dict[str, object]:
    """A cluster or node as shown to people: its capacity, what is free, whether its agent is connected."""
    return {
        "name": view.name,
        "part_of": cluster.part_of,
        "kind": cluster.hardware,
        "capacity": natural(view.capacity),
        "free": natural(view.free),
        "others": None if view.others is None else natural(view.others),
        "tasks": sorted(tasks),
        "agent": link.agent,
        "connected": link.state == "joined",
        "last_heard": None if link.last_heard is None else max(0.0, now - link.last_heard),
        "drained": link.drained,
        "isolates": link.isolates,
        "trouble": link.trouble,
        "lease_ends_in": max(0.0, link.ends - now),
        "disagreement": None
        if link.reported is None
        else {"configured": natural(cluster.capacity), "agent": link.reported},
    }
