"""Inputs and outputs of the coordinator's state machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tapfinger.live.coordinator.decisions import Answer
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.records import TaskRecord, TaskSpec


@dataclass(frozen=True, slots=True)
class Submit:
    """Someone submits tasks; either all are accepted or none."""

    specs: Sequence[TaskSpec]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Someone wants a task to end."""

    task: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A cluster must take no new tasks, or may take them again."""

    cluster: str
    drained: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A person says that a cluster's machine is gone for good: nothing on it is alive."""

    cluster: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection of a cluster's agent is closed."""

    cluster: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to the coordinator's latest question."""

    answer: Answer


Stimulus = Submit | Cancel | Drain | GiveUp | Report | Disconnected | Tick | Decided


@dataclass(frozen=True, slots=True)
class Instructions:
    """What to do now, in this order."""

    #: Saved first, together with the history in one transaction.
    records: tuple[TaskRecord, ...] = ()
    history: tuple[LiveEvent, ...] = ()
    #: Sent afterwards; messages may get lost.
    orders: tuple[Orders, ...] = ()
    #: New epoch, saved with the records: the store had an older one than an agent. None: it stays.
    epoch: int | None = None
    #: Whether the coordinator holds from now on, since its store is an older copy; saved, too. None: as before.
    holding: bool | None = None
    #: Highest id that an agent knows and the store did not; saved, too, since it is never given out. None: no news.
    last_id: int | None = None
    #: All that tasks have shown to need of resources; saved, too. None: no news.
    needs: Sequence[tuple[str, str, Mapping[str, float]]] | None = None


@dataclass(frozen=True, slots=True)
class Leases:
    """How long agents may act without hearing from the coordinator."""

    #: Seconds, counted from when the agent sent the report that this lease answers.
    lease: float = 60.0
    #: Seconds that an agent has to stop tasks that must not outlive its lease.
    grace: float = 10.0
    #: Seconds between an agent's reports when nothing happens.
    beat: float = 5.0

    @property
    def silence(self) -> float:
        """Seconds without a report after which an agent counts as away."""
        return max(3.0 * self.beat, 5.0)
