"""What happens at a live site, as data: the lines of its history, and how they are written as JSON.

Sentences for people are made of them where people read (``words.py``); no code reads the sentences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from tapfinger.core.contract import Phase

#: Natural amounts by resource name.
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """What every line has."""

    #: Seconds since the epoch.
    at: float
    #: Task, its attempt and its cluster, as far as the line is about one.
    task: int | None = None
    attempt: int | None = None
    cluster: str | None = None

    @property
    def kind(self) -> str:
        """Name of its class in the store and in the HTTP interface."""
        return _KINDS[type(self)]


# ------------------------------------------------------------------------- of tasks


@dataclass(frozen=True, slots=True)
class Submitted(LiveEvent):
    """A task was taken and waits."""

    type: str = ""
    #: Size it asked for, where it differs from its type's.
    minimum: Amounts = field(default_factory=dict)
    maximum: Amounts = field(default_factory=dict)
    #: Clusters it may run on; none means all.
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was known when a task got its place and size."""

    #: Seconds that the profile expects at this size, at the minimum and at the maximum.
    expected: float
    at_minimum: float
    at_maximum: float
    minimum: Amounts
    maximum: Amounts
    #: Other tasks that waited.
    others: int
    #: Free on that cluster before anything was started in this round.
    free: Amounts
    #: Clusters that had room for the task.
    fitting: int
    #: Name of the scheduler.
    by: str


@dataclass(frozen=True, slots=True)
class Granted(LiveEvent):
    """An attempt belongs to a cluster from now on, and holds this much."""

    allocation: Amounts = field(default_factory=dict)
    grounds: Grounds | None = None
    #: Grounds as a sentence: older versions kept nothing else.
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted(LiveEvent):
    """The agent says that the attempt runs."""


@dataclass(frozen=True, slots=True)
class AttemptResizing(LiveEvent):
    """The agent was asked to give a running attempt this much."""

    allocation: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptResized(LiveEvent):
    """The agent says that a running attempt has this much."""

    allocation: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptEnded(LiveEvent):
    """An attempt is over and holds nothing any more; what becomes of its task is the next line."""

    #: finished, failed, stopped or lost: as ``Outcome`` defines them.
    result: str = ""
    #: Exit code; minus the signal's number if a signal ended it; None where no process has run.
    code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Requeued(LiveEvent):
    """The task waits again."""


@dataclass(frozen=True, slots=True)
class Cancelling(LiveEvent):
    """Someone wants the task to end."""


@dataclass(frozen=True, slots=True)
class AttemptRefused(LiveEvent):
    """An old attempt reported its end after the task had gone on without it."""

    result: str = ""


@dataclass(frozen=True, slots=True)
class Warned(LiveEvent):
    """Something is wrong with what an attempt reported."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class TaskClosed(LiveEvent):
    """The task has come to its end."""


@dataclass(frozen=True, slots=True)
class ClosedFinished(TaskClosed):
    """It ended well."""


@dataclass(frozen=True, slots=True)
class ClosedFailed(TaskClosed):
    """It failed more often than it may be run again."""


@dataclass(frozen=True, slots=True)
class ClosedCancelled(TaskClosed):
    """Someone has cancelled it."""


@dataclass(frozen=True, slots=True)
class ClosedLost(TaskClosed):
    """Its cluster was lost, and it must not be run again."""


# ---------------------------------------------------------------------- of the site


@dataclass(frozen=True, slots=True)
class AgentJoined(LiveEvent):
    """A cluster's agent is heard of."""

    agent: str = ""


@dataclass(frozen=True, slots=True)
class AgentSilent(LiveEvent):
    """A cluster's agent was not heard of for longer than its lease."""


@dataclass(frozen=True, slots=True)
class ClusterDrained(LiveEvent):
    """A person wants a cluster to take no new tasks."""


@dataclass(frozen=True, slots=True)
class ClusterOpened(LiveEvent):
    """A drained cluster takes tasks again."""


@dataclass(frozen=True, slots=True)
class SchedulerFault(LiveEvent):
    """A scheduler failed in a round, and another one decided."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class SpeedDrift(LiveEvent):
    """Tasks of a type have become faster or slower."""

    type: str = ""
    #: Duration relative to before.
    factor: float = 1.0
    #: When the first of them ended, in seconds since the epoch.
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeedForgotten(LiveEvent):
    """The configured profile of a type has changed, so what was learnt about it is forgotten."""

    type: str = ""


@dataclass(frozen=True, slots=True)
class OtherEvent(LiveEvent):
    """A line that this version cannot read: only its words are known, and they are only shown."""

    name: str = ""
    words: str = ""

    @property
    def kind(self) -> str:
        """As it was written."""
        return self.name


TYPES: dict[str, type[LiveEvent]] = {
    "submitted": Submitted,
    "granted": Granted,
    "started": AttemptStarted,
    "resizing": AttemptResizing,
    "resized": AttemptResized,
    "ended": AttemptEnded,
    "requeued": Requeued,
    "cancelling": Cancelling,
    "refused": AttemptRefused,
    "warning": Warned,
    "finished": ClosedFinished,
    "failed": ClosedFailed,
    "cancelled": ClosedCancelled,
    "lost": ClosedLost,
    "joined": AgentJoined,
    "silent": AgentSilent,
    "drained": ClusterDrained,
    "opened": ClusterOpened,
    "fault": SchedulerFault,
    "profile drift": SpeedDrift,
    "profile restarted": SpeedForgotten,
}
_KINDS = {cls: name for name, cls in TYPES.items()}
#: By the phase in which a task ends.
CLOSED: dict[Phase, type[LiveEvent]] = {phase: TYPES[phase.value] for phase in Phase if phase.value in TYPES}
#: Lines after which it is another matter whether a cluster takes tasks.
LINKS = (AgentJoined, AgentSilent, ClusterDrained, ClusterOpened)

# ------------------------------------------------------------------------------ JSON


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


# The name of an OtherEvent is its kind.
_COMMON = (*(f.name for f in fields(LiveEvent)), "name")
#: By class: name and default of each field of its own.
_OWN = {
    cls: tuple((f.name, _default(f)) for f in fields(cls) if f.name not in _COMMON) for cls in (*_KINDS, OtherEvent)
}
_GROUNDS = tuple(f.name for f in fields(Grounds))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def own_fields(event: LiveEvent) -> dict[str, Any]:
    """What a line has besides when, which task and where, as plain data; defaults are left out."""
    found: dict[str, Any] = {}
    for name, default in _OWN[type(event)]:
        value = getattr(event, name)
        if value != default:
            found[name] = value
    if "grounds" in found:  # by hand: asdict would copy every amount
        grounds = found["grounds"]
        found["grounds"] = {name: getattr(grounds, name) for name in _GROUNDS}
    return found


def encode_fields(event: LiveEvent) -> str:
    """``own_fields`` as JSON."""
    return _encode(own_fields(event)) if _OWN[type(event)] else "{}"


def make_event(
    at: float, kind: str, task: int | None, attempt: int | None, cluster: str | None, own: Mapping[str, Any]
) -> LiveEvent:
    """The opposite of ``own_fields``; kinds and fields that a newer version has added do no harm."""
    cls = TYPES.get(kind)
    if not own and cls is not None:
        return cls(at, task, attempt, cluster)
    if cls is None or "words" in own:
        return OtherEvent(at, task, attempt, cluster, kind, str(own.get("words", "")))
    given = {name: own[name] for name, _ in _OWN[cls] if name in own}
    if "clusters" in given:
        given["clusters"] = tuple(given["clusters"])
    if given.get("grounds") is not None:
        given["grounds"] = Grounds(**given["grounds"])
    return cls(at, task, attempt, cluster, **given)


def decode_event(
    at: float, kind: str, task: int | None, attempt: int | None, cluster: str | None, own: str
) -> LiveEvent:
    """A line of the store."""
    return make_event(at, kind, task, attempt, cluster, json.loads(own) if own != "{}" else {})


def read_event(line: Mapping[str, Any]) -> LiveEvent:
    """A line as the HTTP interface shows it (``words.shown``)."""
    return make_event(line["at"], line["kind"], line["task"], line["attempt"], line["cluster"], line["data"])
