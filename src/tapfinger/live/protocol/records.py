"""A task as people submit it, and as the coordinator keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from tapfinger.core.contract import Phase
from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.live.protocol.messages import AttemptId, Launch
from tapfinger.settings import FieldHelp

#: Longest text in a request, in characters: as much as Linux accepts as one argument of a program.
MAX_TEXT = 128 * 1024

Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00]*$")]
#: Python's JSON parser accepts Infinity and NaN; others do not, so both are refused.
Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
#: Name of an environment variable.
Variable = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

#: Most amounts of a task, and most clusters that it names.
MAX_AMOUNTS, MAX_CLUSTERS = 100, 1000
#: Most secrets of a task, and most characters of the value of one.
MAX_SECRETS, MAX_VALUE = 16, 16 * 1024
#: Most characters in the orders of one message to start tasks. Each may take six bytes there, as control characters do.
#: Every text counts whose length a submitter chooses, except for empty arguments, which ``max_waiting_mb`` limits.
MAX_LAUNCHES = 4 * 1024 * 1024

#: Task type of the default site, and of tasks that name none on the command line.
DEFAULT_TYPE = "demo"

#: Phases in which a task has ended.
ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.LOST})


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task as someone submits it. For input from outside, check its field names with ``unknown_field``."""

    #: Unknown fields are not refused here: a store may hold tasks that a newer version has written.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(json_schema_extra={"additionalProperties": False})

    argv: Annotated[
        tuple[Text, ...],
        Field(min_length=1, max_length=10_000, fail_fast=True),
        FieldHelp("Program and arguments; never a line for a shell."),
    ]
    type: Annotated[
        Name,
        FieldHelp(
            "A task type of the configuration: it says how speed depends on resources.",
            "NAME",
            option_help="Task type of the site. Without it: demo if the site has that type, else its only one.",
        ),
    ]
    minimum: Annotated[
        dict[Name, Amount],
        Field(max_length=MAX_AMOUNTS),
        FieldHelp(
            "Least it may get, by resource; what is left out is as the type says.",
            "NAME=AMOUNT",
            option="--minimum --min",
            option_help="Least of a resource, such as cpu=2; repeatable.",
        ),
    ] = field(default_factory=dict)
    maximum: Annotated[
        dict[Name, Amount],
        Field(max_length=MAX_AMOUNTS),
        FieldHelp(
            "Most it may get, by resource; what is left out is as the type says.",
            "NAME=AMOUNT",
            option="--maximum --max",
            option_help="Most of a resource; repeatable.",
        ),
    ] = field(default_factory=dict)
    clusters: Annotated[
        tuple[Name, ...],
        Field(max_length=MAX_CLUSTERS, fail_fast=True),
        FieldHelp(
            "Clusters it may run on; none means all.",
            "NAME",
            option="--cluster",
            option_help="Cluster it may run on; repeatable. Without it: any.",
        ),
    ] = ()
    env: Annotated[
        dict[Variable, Text],
        Field(max_length=1000),
        FieldHelp("Environment of the task.", "NAME=VALUE", option_help="Environment of the task; repeatable."),
    ] = field(default_factory=dict)
    cwd: Annotated[
        Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")] | None,
        FieldHelp(
            "Where it runs, on the cluster; without it, in a new empty directory.",
            "DIR",
            option_help="Where it runs, on the cluster; '' for a new empty directory. Without it: here.",
        ),
    ] = None
    retries: Annotated[int, Field(ge=0, le=1000), FieldHelp("How often it may fail and be run again.")] = 0
    time_limit: Annotated[
        Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None,
        FieldHelp("Longest time an attempt may take.", "SECONDS"),
    ] = None
    on_disconnect: Annotated[
        Literal["stop", "keep"],
        FieldHelp(
            "What becomes of it if its cluster loses the coordinator for longer than the lease.",
            option="--keep",
            option_help="Let it run on if its cluster loses the coordinator; it is never moved then.",
        ),
    ] = "stop"
    requeue_lost: Annotated[bool, FieldHelp("Run it again if its cluster was lost.")] = True
    # Only the number of cores can change. The task must ask for it (``live.agent.allotment``), since settings made at
    # its start, such as numbers of threads, stay.
    resizable: Annotated[
        bool,
        FieldHelp("It may get more or fewer cores while it runs, if the scheduler does that.", option="--resizable"),
    ] = False
    key: Annotated[
        Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")] | None,
        FieldHelp("Submitting again with the same key gives the same task.", "KEY"),
    ] = None
    name: Annotated[Name, FieldHelp("What to call it in lists. Without it: its program.", "TEXT")] = ""
    # Their values are not here: a task is stored, shown and exported.
    secrets: Annotated[
        tuple[Variable, ...],
        Field(max_length=MAX_SECRETS, fail_fast=True),
        FieldHelp(
            "Names of its owner's secrets, which it gets as environment variables; never shown.",
            "NAME[=FILE]",
            option="--secret",
            option_help="Environment variable from a secret of yours, or from a file, for this task only; repeatable.",
        ),
    ] = ()


_FIELDS = tuple(f.name for f in fields(TaskSpec))
#: Settings of a validator that limit how much someone may hand in.
_LIMITS = frozenset({"max_length", "le"})


def without_limits(schema: Any) -> Any:
    """The schema of a validator for what was accepted before, perhaps by a version that had no such limits.

    Types, patterns and everything else are checked as they are for input.
    """
    if isinstance(schema, dict):
        return {name: without_limits(part) for name, part in schema.items() if name not in _LIMITS}
    return [without_limits(part) for part in schema] if isinstance(schema, list) else schema


def unknown_field(names: Iterable[object]) -> str:
    """A message about the first unknown field name of a task; empty if all names are known."""
    wrong = next((str(name) for name in names if name not in _FIELDS), None)
    if wrong is None:
        return ""
    close = get_close_matches(wrong[:100], _FIELDS, 1)  # its time grows with the length
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(_FIELDS)}"
    return f"a task has no field {wrong[:100]!r}; {hint}"


def length(spec: TaskSpec) -> int:
    """Characters of its arguments and environment."""
    return sum(map(len, (*spec.argv, *spec.env, *spec.env.values())))


class LostAttempt(NamedTuple):
    """Where the latest attempt of a waiting task was: its result still counts if it comes before a new attempt."""

    cluster: str
    agent: str | None
    #: In smallest units.
    allocation: tuple[int, ...]
    started: float | None


@dataclass(slots=True)
class TaskRecord:
    """A task and its state; one row of the store."""

    id: int
    spec: TaskSpec
    #: Holder of the token that submitted it.
    owner: str
    #: Seconds since the epoch.
    submitted: float
    phase: Phase = Phase.QUEUED
    #: Number of the latest attempt; 0 before the first.
    attempt: int = 0
    cluster: str | None = None
    #: Name of the agent that the attempt was granted to.
    agent: str | None = None
    #: In smallest units, by resource: what is debited for it, which may be more than it has during a resize.
    allocation: tuple[int, ...] | None = None
    #: Size that the agent was asked for and has not confirmed yet.
    wanted: tuple[int, ...] | None = None
    #: Number of the latest resize of this attempt.
    resized: int = 0
    started: float | None = None
    ended: float | None = None
    failures: int = 0
    losses: int = 0
    #: Whether someone has cancelled the task; it then ends as cancelled, however its attempt ends.
    cancelled: bool = False
    code: int | None = None
    reason: str = ""
    #: Bytes of output of the latest ended attempt.
    output: int = 0
    #: What the latest attempt has reported: its progress from 0 to 1, and metrics of its own.
    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    #: Whether it ended with exit code 0 before it had reported progress 1.
    incomplete: bool = False
    #: What was wrong with the reports of the latest attempt, each kind of fault once.
    warnings: tuple[str, ...] = ()
    #: Attempts in a row that ended early and without success, and how many of the last of them were lost.
    setbacks: int = 0
    lost_in_a_row: int = 0
    #: End of its rest, in seconds since the epoch: until then a waiting task is not started. 0 without a rest.
    not_before: float = 0.0
    #: The latest attempt, while the task waits again because it was lost.
    lost: LostAttempt | None = None
    #: Number of warnings in its history, of all attempts.
    warned: int = 0
    #: Directory on its cluster with the files of the latest ended attempt, and until when they are kept at most.
    results: str = ""
    results_until: float | None = None
    #: Natural amounts that its next attempts get at least, by resource: an attempt ran out with less.
    least: dict[str, float] = field(default_factory=dict)

    @property
    def attempt_id(self) -> AttemptId:
        """Task and latest attempt."""
        return (self.id, self.attempt)

    def copy(self) -> TaskRecord:
        """A copy; much faster than ``dataclasses.replace``."""
        return TaskRecord(*_values(self))

    @property
    def on_cluster(self) -> bool:
        """Whether an attempt holds resources, and may be alive."""
        return self.phase in (Phase.PLACED, Phase.RUNNING)


_values = attrgetter(*(f.name for f in fields(TaskRecord)))


def launch_of(record: TaskRecord, resources: ResourceTypes) -> Launch:
    """What an agent needs to know to run the latest attempt."""
    spec = record.spec
    return Launch(
        id=record.attempt_id,
        argv=spec.argv,
        allocation=resources.natural(Resources(record.allocation or ())),
        env=spec.env,
        cwd=spec.cwd,
        time_limit=spec.time_limit,
        on_disconnect=spec.on_disconnect,
    )


def launches(records: Iterable[TaskRecord], resources: ResourceTypes) -> tuple[Launch, ...]:
    """Launches for one message, in this order; the rest is sent once these have started. At least one is in it."""
    found: list[Launch] = []
    size = 0
    for record in records:
        spec = record.spec
        size += length(spec) + len(spec.cwd or "") + MAX_VALUE * len(spec.secrets)
        if found and size > MAX_LAUNCHES:
            break
        found.append(launch_of(record, resources))
    return tuple(found)
