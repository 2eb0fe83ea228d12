"""What has happened (events, from the executor) and what to do (commands, to the executor)."""

from __future__ import annotations

from dataclasses import dataclass

from tapfinger.core.model import Resources, Task, TaskType
from tapfinger.core.spans import Parts


@dataclass(frozen=True, slots=True)
class TaskArrived:
    """A task entered the system and waits in the queue of every eligible cluster."""

    slot: int
    task: Task


@dataclass(frozen=True, slots=True)
class TaskStaging:
    """A placed task waits on its cluster for data; it starts in slot ``until``."""

    slot: int
    task: int
    cluster: int
    allocation: Resources
    until: int
    #: What it holds of each node, on a span.
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A placed task has started to run."""

    slot: int
    task: int
    cluster: int
    allocation: Resources
    #: What it holds of each node, on a span.
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class TaskResized:
    """A task on a cluster changed its allocation; zeros mean it is paused."""

    slot: int
    task: int
    cluster: int
    allocation: Resources
    #: What it holds of each node, on a span.
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A task finished at the end of ``slot``; completion time = slot - arrival + 1."""

    slot: int
    task: int
    cluster: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed at the end of ``slot`` and leaves the system."""

    slot: int
    task: int
    cluster: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TaskOutOfMemory:
    """An attempt ended at the end of ``slot`` because it held too little of a resource; the task waits again.

    From now on it and all tasks of its family have at least this type's minimum: what one needs, the others need.
    """

    slot: int
    task: int
    cluster: int
    #: The family's type from now on.
    type: TaskType


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """A cluster is gone; its tasks lose their progress and wait again."""

    slot: int
    cluster: int


@dataclass(frozen=True, slots=True)
class ClusterJoined:
    """A lost cluster is back, empty."""

    slot: int
    cluster: int


@dataclass(frozen=True, slots=True)
class ClusterClosed:
    """A cluster takes no new tasks (its agent is silent, or it is drained); its tasks stay. Joining reopens it."""

    slot: int
    cluster: int


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """A cluster has another capacity from now on; its tasks stay, also where they hold more than that."""

    slot: int
    cluster: int
    capacity: Resources


@dataclass(frozen=True, slots=True)
class OthersChanged:
    """From now on people who are not scheduled here use these amounts of a cluster; its tasks stay."""

    slot: int
    cluster: int
    amounts: Resources


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """A waiting task leaves the system: it was cancelled."""

    slot: int
    task: int


@dataclass(frozen=True, slots=True)
class TaskRequeued:
    """A task on a cluster has ended there and waits again, at its old position in the order of arrival."""

    slot: int
    task: int
    cluster: int


#: The last five occur only on real clusters.
Event = (
    OthersChanged
    | TaskArrived
    | TaskStaging
    | TaskStarted
    | TaskResized
    | TaskFinished
    | TaskFailed
    | TaskOutOfMemory
    | ClusterLost
    | ClusterJoined
    | ClusterClosed
    | CapacityChanged
    | TaskWithdrawn
    | TaskRequeued
)

#: Events about a whole cluster; all others are about a task.
ABOUT_CLUSTERS = (ClusterLost, ClusterJoined, ClusterClosed, CapacityChanged, OthersChanged)

#: Order of events inside one slot, so that logs of different executors can be compared line by line.
EVENT_ORDER: tuple[type, ...] = (
    ClusterLost,
    ClusterJoined,
    OthersChanged,
    TaskArrived,
    TaskResized,
    TaskStaging,
    TaskStarted,
    TaskFinished,
    TaskOutOfMemory,
    TaskFailed,
    ClusterClosed,
    CapacityChanged,
    TaskWithdrawn,
    TaskRequeued,
)


def event_key(event: Event) -> tuple[int, int, int]:
    """Canonical sort key: slot, kind, id of task or cluster."""
    if isinstance(event, TaskArrived):
        ident = event.task.id
    elif isinstance(event, ABOUT_CLUSTERS):
        ident = event.cluster
    else:
        ident = event.task
    return (event.slot, EVENT_ORDER.index(type(event)), ident)


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start this task here with this allocation."""

    task: Task
    cluster: int
    allocation: Resources
    #: Slot from which on the task has its data and runs.
    runs_from: int = 0
    #: What it gets of each node, on a span.
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class ResizeTask:
    """Give this task another allocation; zeros pause it."""

    task: Task
    cluster: int
    allocation: Resources
    #: What it gets of each node, on a span.
    parts: Parts = ()


Command = StartTask | ResizeTask
