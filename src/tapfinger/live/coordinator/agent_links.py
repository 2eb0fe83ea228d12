"""What a coordinator knows of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tapfinger.core.contract import ClusterView
from tapfinger.core.model import Resources


@dataclass(slots=True)
class Link:
    """To the agent of one cluster."""

    #: When the agent can hold no lease any more.
    ends: float
    agent: str | None = None
    #: Incarnation and number of the last report.
    seen: tuple[int, int] = (0, 0)
    #: Orders sent to it in this epoch.
    sent: int = 0
    #: Whether it was heard of in this epoch and within its lease.
    heard: bool = False
    drained: bool = False

    @property
    def open(self) -> bool:
        """Whether it takes tasks."""
        return self.heard and not self.drained


def shown(
    view: ClusterView,
    link: Link,
    tasks: Iterable[int],
    natural: Callable[[Resources], Mapping[str, float]],
    now: float,
) -> dict[str, object]:
    """A cluster for people: what it has, what is free, whether its agent is there."""
    return {
        "name": view.name,
        "capacity": natural(view.capacity),
        "free": natural(view.free),
        "tasks": sorted(tasks),
        "agent": link.agent,
        "connected": link.heard,
        "drained": link.drained,
        "lease_ends_in": max(0.0, link.ends - now),
    }
