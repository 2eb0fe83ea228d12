"""What a coordinator knows of an agent."""

from __future__ import annotations

from dataclasses import dataclass


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
