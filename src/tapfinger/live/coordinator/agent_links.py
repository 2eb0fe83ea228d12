"""What a coordinator knows about an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tapfinger.core.contract import ClusterView
from tapfinger.core.model import Resources


@dataclass(slots=True)
class Link:
    """The link to the agent of one cluster."""

    #: Time after which the agent can no longer hold a lease.
    ends: float
    agent: str | None = None
    #: Incarnation and number of the last report.
    seen: tuple[int, int] = (0, 0)
    #: Number of orders sent to the agent in this epoch.
    sent: int = 0
    #: Whether the agent has reported in this epoch and within its lease.
    heard: bool = False
    drained: bool = False
    #: Why the agent wants no tasks now; empty if it does.
    trouble: str = ""

    @property
    def open(self) -> bool:
        """Whether the cluster takes tasks."""
        return self.heard and not self.drained and not self.trouble


def shown(
    view: ClusterView,
    link: Link,
    tasks: Iterable[int],
    natural: Callable[[Resources], Mapping[str, float]],
    now: float,
) -> dict[str, object]:
    """A cluster as shown to people: its capacity, what is free, whether its agent is connected."""
    return {
        "name": view.name,
        "capacity": natural(view.capacity),
        "free": natural(view.free),
        "tasks": sorted(tasks),
        "agent": link.agent,
        "connected": link.heard,
        "drained": link.drained,
        "trouble": link.trouble,
        "lease_ends_in": max(0.0, link.ends - now),
    }
