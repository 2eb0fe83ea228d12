"""The typed events of a live site's history, and how they are stored as JSON.

``words.py`` turns events into text for people; no code parses that text.
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
    """The fields of every event."""

    #: Seconds since the epoch.
    at: float
    #: Task, its attempt and its cluster; None where the event is not about one.
    task: int | None = None
    attempt: int | None = None
    cluster: str | None = None

    @property
    def kind(self) -> str:
        """Name of the event's class in the store and in the HTTP interface."""
        return _KINDS[type(self)]


# ------------------------------------------------------------------------- of tasks


@dataclass(frozen=True, slots=True)
class Submitted(LiveEvent):
    """A task was accepted and waits."""

    type: str = ""
    #: Bounds of its own, where they differ from its type's.
    minimum: Amounts = field(default_factory=dict)
    maximum: Amounts = field(default_factory=dict)
    #: Clusters it may run on; none means all.
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was known when a task got its cluster and size."""

    #: Seconds expected by the profile: at this size, at the minimum and at the maximum.
    expected: float
    at_minimum: float
    at_maximum: float
    minimum: Amounts
    maximum: Amounts
    #: Number of other waiting tasks.
    others: int
    #: Free on that cluster before anything was started in this round.
    free: Amounts
    #: Number of clusters that had room for the task.
    fitting: int
    #: Name of the scheduler.
    by: str
    #: Seconds after which its data would be there.
    data: float = 0.0


@dataclass(frozen=True, slots=True)
class Granted(LiveEvent):
    """A task was granted to a cluster: a new attempt, with this allocation."""

    allocation: Amounts = field(default_factory=dict)
    grounds: Grounds | None = None
    #: The grounds as text: older versions stored only that.
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted(LiveEvent):
    """The agent says that the attempt runs."""


@dataclass(frozen=True, slots=True)
class AttemptResizing(LiveEvent):
    """The agent was asked to give a running attempt this allocation."""

    allocation: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptResized(LiveEvent):
    """The agent says that a running attempt has this allocation."""

    allocation: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptEnded(LiveEvent):
    """An attempt is over and holds no resources; the next event says what happens to its task."""

    #: finished, failed, stopped or lost, as ``Outcome`` defines them.
    result: str = ""
    #: Exit code; minus the signal's number if a signal ended it; None if no process has run.
    code: int | None = None
    reason: str = ""
    #: Resource that it ran out of.
    short: str = ""


@dataclass(frozen=True, slots=True)
class RanShort(LiveEvent):
    """An attempt ran out of a resource: its task waits again, and gets more of it, as do others of its type and owner.

    It is not counted as a failure.
    """

    resource: str = ""
    #: Natural amounts: what it was granted, and what is the least from now on.
    held: float = 0.0
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Requeued(LiveEvent):
    """The task waits again, at once or after a rest."""

    #: When its rest ends, in seconds since the epoch; None without a rest.
    until: float | None = None
    #: Attempts in a row that ended early and without success; with it, rests grow.
    setbacks: int = 0


@dataclass(frozen=True, slots=True)
class Cancelling(LiveEvent):
    """Someone wants the task to end."""


@dataclass(frozen=True, slots=True)
class AttemptRefused(LiveEvent):
    """An old attempt reported its end too late to count for the task. Stopped: it had exited by itself just then."""

    result: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecovered(LiveEvent):
    """The latest attempt had counted as lost, and its agent says how it really ended; the next event tells that."""


@dataclass(frozen=True, slots=True)
class Warned(LiveEvent):
    """Something is wrong with what an attempt reported."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class TaskClosed(LiveEvent):
    """The task has ended."""


@dataclass(frozen=True, slots=True)
class ClosedFinished(TaskClosed):
    """The task finished."""


@dataclass(frozen=True, slots=True)
class ClosedFailed(TaskClosed):
    """The task failed and has no retries left."""


@dataclass(frozen=True, slots=True)
class ClosedCancelled(TaskClosed):
    """The task was cancelled."""


@dataclass(frozen=True, slots=True)
class ClosedLost(TaskClosed):
    """The task's attempt was lost, and the task is not run again: it must not be, or it was lost too often."""


# ---------------------------------------------------------------------- of the site


@dataclass(frozen=True, slots=True)
class AgentJoined(LiveEvent):
    """A cluster's agent has reported, for the first time or after a silence."""

    agent: str = ""


@dataclass(frozen=True, slots=True)
class AgentAway(LiveEvent):
    """A cluster's agent has closed its connection or missed its reports; its lease and its tasks are as before."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AgentSilent(LiveEvent):
    """A cluster's agent has not reported for longer than its lease."""


@dataclass(frozen=True, slots=True)
class CapacityCompared(LiveEvent):
    """An agent's capacity has begun to differ from the configured one, or has stopped to; the smaller one counts."""

    configured: Amounts = field(default_factory=dict)
    reported: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OlderStore(LiveEvent):
    """An agent knows of a later time than the store: an older copy of the store was put in its place."""

    #: What showed it.
    sign: str = ""
    #: The epoch from now on.
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ClusterDrained(LiveEvent):
    """A person has drained a cluster: it takes no new tasks."""


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
    #: Duration now divided by duration before.
    factor: float = 1.0
    #: When the first task with the new speed ended, in seconds since the epoch.
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeedForgotten(LiveEvent):
    """The configured profile of a type has changed, so what was learnt about it is forgotten."""

    type: str = ""


@dataclass(frozen=True, slots=True)
class OtherEvent(LiveEvent):
    """An event that this version does not know: only its text is kept, and only for display."""

    name: str = ""
    words: str = ""

    @property
    def kind(self) -> str:
        """The kind as it was stored."""
        return self.name


TYPES: dict[str, type[LiveEvent]] = {
    "submitted": Submitted,
    "granted": Granted,
    "started": AttemptStarted,
    "resizing": AttemptResizing,
    "resized": AttemptResized,
    "ended": AttemptEnded,
    "out of memory": RanShort,
    "requeued": Requeued,
    "cancelling": Cancelling,
    "refused": AttemptRefused,
    "recovered": AttemptRecovered,
    "warning": Warned,
    "finished": ClosedFinished,
    "failed": ClosedFailed,
    "cancelled": ClosedCancelled,
    "lost": ClosedLost,
    "joined": AgentJoined,
    "away": AgentAway,
    "silent": AgentSilent,
    "capacity": CapacityCompared,
    "older store": OlderStore,
    "drained": ClusterDrained,
    "opened": ClusterOpened,
    "fault": SchedulerFault,
    "profile drift": SpeedDrift,
    "profile restarted": SpeedForgotten,
}
_KINDS = {cls: name for name, cls in TYPES.items()}
#: Event by the phase in which a task ends.
CLOSED: dict[Phase, type[LiveEvent]] = {phase: TYPES[phase.value] for phase in Phase if phase.value in TYPES}
#: Events that may change whether a cluster takes tasks.
LINKS = (AgentJoined, AgentAway, AgentSilent, ClusterDrained, ClusterOpened)
#: Events after which a cluster is shown differently.
CLUSTERS = (*LINKS, CapacityCompared)

# ------------------------------------------------------------------------------ JSON


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


# The name of an OtherEvent is its kind.
_COMMON = (*(f.name for f in fields(LiveEvent)), "name")
#: Class -> name and default of each of its own fields.
_OWN = {
    cls: tuple((f.name, _default(f)) for f in fields(cls) if f.name not in _COMMON) for cls in (*_KINDS, OtherEvent)
}
_GROUNDS = tuple(f.name for f in fields(Grounds))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def own_fields(event: LiveEvent) -> dict[str, Any]:
    """The fields of an event's own class as plain data, without the common ones; defaults are left out."""
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
    """The inverse of ``own_fields``; accepts kinds and fields that a newer version has added."""
    cls = TYPES.get(kind)
    if not own and cls is not None:
        return cls(at, task, attempt, cluster)
    if cls is None or "words" in own:
        return OtherEvent(at, task, attempt, cluster, kind, str(own.get("words", "")))
    given = {name: own[name] for name, _ in _OWN[cls] if name in own}
    if "clusters" in given:
        given["clusters"] = tuple(given["clusters"])
    if given.get("grounds") is not None:
        given["grounds"] = Grounds(**{name: given["grounds"][name] for name in _GROUNDS if name in given["grounds"]})
    return cls(at, task, attempt, cluster, **given)


def decode_event(
    at: float, kind: str, task: int | None, attempt: int | None, cluster: str | None, own: str
) -> LiveEvent:
    """An event from a row of the store."""
    return make_event(at, kind, task, attempt, cluster, json.loads(own) if own != "{}" else {})


def read_event(line: Mapping[str, Any]) -> LiveEvent:
    """An event from its form in the HTTP interface (``words.shown``)."""
    return make_event(line["at"], line["kind"], line["task"], line["attempt"], line["cluster"], line["data"])
