"""What a coordinator can be told, and what it wants done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tapfinger.live.coordinator.decisions import Answer
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.records import TaskRecord, TaskSpec


@dataclass(frozen=True, slots=True)
class Submit:
    """Someone wants these to be run; all or none are taken."""

    specs: Sequence[TaskSpec]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Someone wants a task to end."""

    task: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A cluster is to take no new tasks, or to take them again."""

    cluster: str
    drained: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A person says that a cluster's machine is gone for good: nothing on it is alive."""

    cluster: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to the question that the coordinator has asked last."""

    answer: Answer


Stimulus = Submit | Cancel | Drain | GiveUp | Report | Tick | Decided


@dataclass(frozen=True, slots=True)
class Instructions:
    """What to do now, in this order."""

    #: To be saved, as one, before anything else.
    records: tuple[TaskRecord, ...] = ()
    history: tuple[LiveEvent, ...] = ()
    #: To be sent; may get lost.
    orders: tuple[Orders, ...] = ()


@dataclass(frozen=True, slots=True)
class Leases:
    """How long agents may act on their own."""

    #: Seconds from when an agent sent a report that was answered.
    lease: float = 60.0
    #: Seconds that an agent has to stop what must not outlive its lease.
    grace: float = 10.0
