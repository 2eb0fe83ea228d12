"""What coordinator and agents say to each other: two messages, each a whole picture.

An agent reports everything it runs; the coordinator answers with everything it wants of it. Nothing
depends on a single message: one that is lost is made good by the next, and one that is late is
recognised by its numbers and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

#: Raised when a message changes its meaning; both sides must have the same.
VERSION = 1

#: Longest text that an agent may have noted.
LONGEST = 4000


def _tidy(text: str) -> str:
    """As every store can keep it. Not refused: the next report would say the same."""
    return text.replace("\0", "")[:LONGEST]


# Bounds of what comes over the wire; whoever makes messages from what there is need not think of them. Numbers beyond
# these no store could keep, and a coordinator that cannot save ends.
Number = Annotated[int, Field(ge=0, le=2**53)]
Said = Annotated[str, AfterValidator(_tidy)]

#: Task and attempt: attempts of a task are numbered from 1 and only one of them may be alive.
AttemptId = tuple[Number, Annotated[int, Field(ge=0, le=2**31 - 1)]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    #: finished: exit code 0. failed: any other, or it could not start, or it took too long.
    #: stopped: ended on order or with the lease. lost: the agent cannot tell how it ended, only that it has.
    result: Literal["finished", "failed", "stopped", "lost"]
    #: Exit code; minus the signal's number if one ended it; None where no process has run.
    code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    reason: Said = ""
    #: Bytes of output it wrote.
    output: Number = 0


@dataclass(frozen=True, slots=True)
class RunReport:
    """One attempt as its agent sees it."""

    id: AttemptId
    #: None while it runs.
    outcome: Outcome | None = None
    #: Number of the latest change of size that it has seen, and what it has since, carried out or not.
    size: Number = 0
    allocation: dict[str, float] | None = None
    #: The latest that it has reported of itself and that can be true, from 0 to 1, with numbers of its own; None if
    #: nothing.
    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    #: Seconds from its start to that; None where that is not known.
    ran: float | None = None
    #: What was wrong with its reports, each kind once.
    faults: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Agent to coordinator: all that runs, and all that has ended and was not yet taken note of."""

    cluster: str
    #: Random name of the agent, kept on its disk: two agents for one cluster can be told apart.
    agent: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
    #: Rises with every start of the agent.
    incarnation: Number
    #: Rises with every report of an incarnation.
    seq: Number
    #: Of the coordinator that the agent last heard of; 0 before it has heard of any.
    epoch: Number
    runs: tuple[RunReport, ...] = ()
    version: int = VERSION


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
    #: Seconds after which it is stopped and has failed; None for no limit.
    time_limit: float | None = None
    #: What becomes of it when the agent's lease ends: the agent stops it, or lets it run on.
    on_disconnect: Literal["stop", "keep"] = "stop"


@dataclass(frozen=True, slots=True)
class SizeOrder:
    """What a running attempt is to get from now on."""

    id: AttemptId
    #: Rises with every change of an attempt; an agent carries out none that is not above the last.
    number: int
    #: Natural amounts by resource name.
    allocation: dict[str, float]


@dataclass(frozen=True, slots=True)
class Orders:
    """Coordinator to agent: all that it should start, stop and forget."""

    cluster: str
    agent: str
    #: Of the agent that this is meant for; a restarted one does not obey what was meant for its predecessor.
    incarnation: int
    #: Rises with every start of a coordinator: an older one is not obeyed.
    epoch: int
    #: Rises with every message of an epoch to this cluster.
    seq: int
    #: The report this lease answers: the lease runs from when that was sent.
    echo: int
    #: Seconds; 0 grants none.
    lease: float
    starts: tuple[Launch, ...] = ()
    #: Attempts that must end; one that is unknown to the agent must never start.
    stops: tuple[AttemptId, ...] = ()
    #: Ended attempts whose outcome is recorded, or does not count.
    forgets: tuple[AttemptId, ...] = ()
    #: Running attempts whose size is to change.
    sizes: tuple[SizeOrder, ...] = ()
    version: int = VERSION
