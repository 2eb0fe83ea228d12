"""The two messages between coordinator and agents. Each gives the complete state.

An agent reports everything it runs; the coordinator answers with everything it wants the agent to do. No single
message matters: the next one makes up for a lost one, and a late one is recognised by its numbers and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

#: Increased when the meaning of a message changes; both sides must have the same version.
VERSION = 2

#: Most characters of a text from an agent.
LONGEST = 4000
#: Most attempts that an agent has, running or ended and not recorded yet: it takes no more orders beyond them.
MOST_RUNS = 20_000
#: Most faults, metrics and resources of an attempt in a report; agents keep to lower limits.
MOST_FAULTS, MOST_METRICS, MOST_RESOURCES = 100, 100, 1000


def _tidy(text: str) -> str:
    """The text in a form that every store can keep. It is not refused, since the next report would repeat it."""
    return text.replace("\0", "")[:LONGEST]


# Bounds for what comes over the wire; they are not checked when a message is built in code. No store could keep
# larger numbers, and a coordinator that cannot save ends.
Number = Annotated[int, Field(ge=0, le=2**53)]
Said = Annotated[str, AfterValidator(_tidy)]
Finite = Annotated[float, Field(ge=0.0, le=2**53)]

#: Task and attempt: attempts of a task are numbered from 1, and only one of them may be alive.
AttemptId = tuple[Number, Annotated[int, Field(ge=0, le=2**31 - 1)]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    #: finished: exit code 0. failed: any other code, or it could not start, or it exceeded its time limit.
    #: stopped: ended by order or with the lease. lost: the agent knows that it has ended, but not how.
    result: Literal["finished", "failed", "stopped", "lost"]
    #: Exit code; minus the signal's number if a signal ended it; None if no process has run.
    code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    reason: Said = ""
    #: Bytes of output that it wrote.
    output: Number = 0
    #: Directory on its cluster with the files that it has left, and until when they are kept at most, in seconds
    #: since the epoch; empty and None if it has left none.
    results: Said = ""
    results_until: Annotated[float, Field(ge=0.0, le=1e12)] | None = None
    #: Resource of which a failed attempt needed more than it was granted, such as memory; empty if it was not that.
    short: Annotated[str, Field(max_length=200)] = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """One attempt as its agent sees it."""

    id: AttemptId
    #: None while it runs.
    outcome: Outcome | None = None
    #: Number of the latest resize order that the agent has seen, and the allocation after it, carried out or not.
    size: Number = 0
    allocation: Annotated[dict[str, Finite], Field(max_length=MOST_RESOURCES)] | None = None
    #: Latest plausible progress that the attempt has reported, from 0 to 1, with metrics of its own; None if there is
    #: none.
    progress: float | None = None
    metrics: Annotated[dict[str, float], Field(max_length=MOST_METRICS)] = field(default_factory=dict)
    #: Seconds from the attempt's start to that report; None if unknown.
    ran: float | None = None
    #: What was wrong with its reports, each kind of fault once.
    faults: Annotated[tuple[Said, ...], Field(max_length=MOST_FAULTS, fail_fast=True)] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Agent to coordinator: all attempts that run, and all ended ones that the coordinator has not recorded yet."""

    cluster: str
    #: Random name of the agent, kept on its disk, so that two agents of one cluster can be told apart.
    agent: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
    #: Increases with every start of the agent.
    incarnation: Number
    #: Increases with every report of an incarnation.
    seq: Number
    #: Latest epoch of a coordinator that the agent has heard from; 0 before the first.
    epoch: Number
    # The first fault ends the check: a long list of wrong ones would make a longer list of faults.
    runs: Annotated[tuple[RunReport, ...], Field(max_length=MOST_RUNS, fail_fast=True)] = ()
    #: Why the cluster takes no tasks now, such as a full disk; empty if it does.
    trouble: Said = ""
    #: Whether tasks run in a sandbox; None if the agent cannot tell.
    isolates: bool | None = None
    version: int = VERSION
    #: Natural amounts by resource name that the agent can hand out; None from agents that do not tell.
    capacity: Annotated[dict[str, Finite], Field(max_length=MOST_RESOURCES)] | None = None
    #: Natural amounts by resource name that people use there who are not scheduled here; None if they are not observed.
    others: Annotated[dict[str, Finite], Field(max_length=MOST_RESOURCES)] | None = None
    #: Version of the observations (``core.exchange``) from which the agent computes proposals; 0: it computes none.
    infers: Number = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """What an agent needs to know to run an attempt."""

    id: AttemptId
    argv: tuple[str, ...]
    #: Natural amounts by resource name.
    allocation: dict[str, float]
    env: dict[str, str]
    #: None: a new empty directory.
    cwd: str | None = None
    #: Seconds after which the attempt is stopped and counts as failed; None for no limit.
    time_limit: float | None = None
    #: What the agent does when its lease ends: stop the attempt, or let it run on.
    on_disconnect: Literal["stop", "keep"] = "stop"
    #: Environment variables that must not be written to disk, shown or logged; None where the secret is gone, so that
    #: the attempt cannot start. Filled in just before the launch is sent.
    secrets: dict[str, str | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SizeOrder:
    """A new allocation for a running attempt."""

    id: AttemptId
    #: Increases with every resize of an attempt; an agent ignores a number that is not above the last.
    number: int
    #: Natural amounts by resource name.
    allocation: dict[str, float]


@dataclass(frozen=True, slots=True)
class Orders:
    """Coordinator to agent: all attempts that it must start, stop, forget or resize."""

    cluster: str
    agent: str
    #: Incarnation of the agent these orders are for; a restarted agent ignores orders to its predecessor.
    incarnation: int
    #: Increases each time a coordinator starts to lead: agents ignore orders of an older epoch.
    epoch: int
    #: Increases with every message of an epoch to this cluster.
    seq: int
    #: Number of the report that these orders answer: the lease counts from when that report was sent.
    echo: int
    #: Length of the lease in seconds; 0 grants none.
    lease: float
    starts: tuple[Launch, ...] = ()
    #: Attempts that must end; if the agent does not know one of them, it must never start it.
    stops: tuple[AttemptId, ...] = ()
    #: Ended attempts with an outcome that is recorded, or does not count.
    forgets: tuple[AttemptId, ...] = ()
    #: New sizes of running attempts.
    sizes: tuple[SizeOrder, ...] = ()
    version: int = VERSION
