"""Everything TapFinger raises on purpose.

TapfingerError
├── ConfigError            a scenario, override or option that cannot be used
├── UnknownNameError       a scenario, scheduler or arrival process that does not exist
├── DataError              a profile or trace file that cannot be read
│   └── NotFetched         some of a task's files could not be fetched; the others were
├── InvalidDecision        a scheduler asked for something illegal; the world is unchanged
│   ├── CapacityExceeded
│   ├── BelowMinimum
│   ├── AboveMaximum
│   ├── NotEligible
│   ├── NotPending
│   └── TooManyStarts
├── SchedulerFailed        a scheduler in a process of its own raised something
│   └── SchedulerGone      its process has ended, or was ended
├── InvalidTransition      an event that cannot happen to this task now
├── CheckpointMismatch     a checkpoint or model that does not fit this version or this world
├── MissingDependency      an optional package is needed for this
├── NotFound               a task, cluster or token that does not exist
├── TooMany                more than may wait, or more than may be requested at once
├── AgentRefused           an agent that may not speak for its cluster
├── AgentUnavailable       an agent that does not answer, or is not connected
├── CoordinatorError       the coordinator cannot be reached, or refuses
├── NotLeading             a standby coordinator, which changes nothing
├── StoreUnavailable       the database cannot be reached; whether the last save succeeded is unknown
├── StoreFailed            a store that cannot be read or written, such as on a full disk
└── BackendError           a backend that cannot do what it was asked
    ├── LaunchFailed
    └── UnsupportedOperation
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class TapfingerError(Exception):
    """Base of every error a user can cause; the command line prints it without a traceback."""


class ConfigError(TapfingerError):
    """A configuration that cannot be used: says the file, the key, the value and what is allowed."""


class UnknownNameError(TapfingerError):
    """A name that nothing is registered under: names the closest match and lists what exists."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Compose the message from the requested name and the known ones."""
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(f"there is no {kind} {name!r}.{hint} Known: {', '.join(names)}")


#: Most characters of a message about a file: what it quotes may be as long as the file.
LONGEST_MESSAGE = 2000


class DataError(TapfingerError):
    """A data file (profile, trace, workload) that cannot be used: says the file, line and value."""

    def __init__(self, text: str) -> None:
        """Keep the beginning of a long message."""
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} ...")


class NotFetched(DataError):  # noqa: N818
    """Some files of a task could not be fetched, or not be written here; all others were fetched."""

    def __init__(self, fetched: Sequence[str], failed: Sequence[str]) -> None:
        """``fetched``: where the files are that are complete. ``failed``: a line for each that is not."""
        self.fetched = tuple(fetched)
        self.failed = tuple(failed)
        super().__init__(f"{len(failed)} of {len(fetched) + len(failed)} files were not fetched: {'; '.join(failed)}")


class InvalidDecision(TapfingerError):  # noqa: N818 - named for what it is, as its siblings
    """A decision that breaks a rule. No part of it was carried out."""


class CapacityExceeded(InvalidDecision):
    """A placement or resize asks for more than the cluster has free."""


class BelowMinimum(InvalidDecision):
    """An allocation is below the task's minimum."""


class AboveMaximum(InvalidDecision):
    """An allocation is above the task's maximum."""


class NotEligible(InvalidDecision):
    """The cluster is not one the task may run on, or is down."""


class NotPending(InvalidDecision):
    """The task is not waiting (a placement) or not on a cluster (a resize)."""


class TooManyStarts(InvalidDecision):
    """More starts on one cluster in one slot than the mode allows."""


class SchedulerFailed(TapfingerError):  # noqa: N818
    """A scheduler in a process of its own raised something; the message is what it raised."""


class SchedulerGone(SchedulerFailed):
    """The process of a scheduler has ended, or was ended: it must be started again."""


class InvalidTransition(TapfingerError):  # noqa: N818
    """An event that contradicts the state; the message includes the task's history."""


class CheckpointMismatch(TapfingerError):  # noqa: N818
    """A checkpoint or exported model that cannot be used: says the file and the field."""

    def __init__(self, text: str) -> None:
        """Keep the beginning of a long message."""
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} ...")


class MissingDependency(TapfingerError):  # noqa: N818
    """An optional package is missing; says how to install it."""


class NotFound(TapfingerError):  # noqa: N818
    """A task, cluster or token that does not exist (any more)."""


class TooMany(TapfingerError):  # noqa: N818
    """More than may wait, or more than may be requested at once; there may be room later."""


class AgentRefused(TapfingerError):  # noqa: N818
    """An agent that may not speak for its cluster."""


class AgentUnavailable(TapfingerError):  # noqa: N818
    """An agent that does not answer, or is not connected; it may be heard of later."""


class BackendError(TapfingerError):
    """A backend that cannot do what it was asked."""


class LaunchFailed(BackendError):  # noqa: N818
    """A task could not be started: no such program, no room, no permission."""


class LaunchLost(BackendError):  # noqa: N818
    """A task could not be started now, and may not be to blame: the attempt is given back."""


class UnsupportedOperation(BackendError):  # noqa: N818
    """A backend that cannot do this at all."""


class CoordinatorError(TapfingerError):
    """The coordinator cannot be reached, or refuses: says the address and the reason."""


class NotLeading(TapfingerError):  # noqa: N818
    """A standby coordinator was asked to change something and did not; the message names the leader."""

    def __init__(self, leader: str = "") -> None:
        """``leader``: address of the leader, empty if none is known."""
        self.leader = leader
        where = f"the leader is at {leader}" if leader else "no leader is known yet; try again in a moment"
        super().__init__(f"this coordinator stands by: {where}")


class StoreUnavailable(TapfingerError):  # noqa: N818
    """The database cannot be reached; whether the last save succeeded is unknown."""


class StoreFailed(TapfingerError):  # noqa: N818
    """A store that cannot be read or written: says the file, the reason, and the way back."""
