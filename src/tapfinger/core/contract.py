"""The one file a scheduler author reads: what a scheduler sees, and what it may answer.

A scheduler sees a ``Snapshot`` and returns a ``Decision``. It never gets the state itself, cannot
change the snapshot, and everything it returns is checked again before anything happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from tapfinger.core.model import NO_NOISE, Cluster, Noise, Resources, ResourceTypes, TaskType


class Mode(Enum):
    """How many tasks a cluster may start in one slot."""

    #: At most one per cluster and slot; a cluster that loses a conflict waits a slot.
    SINGLE = "single"
    #: Turns are played until every cluster is void in the same turn (Algorithm 1).
    MULTI = "multi"


class Phase(Enum):
    """Where a task is in its life."""

    QUEUED = "queued"
    PLACED = "placed"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a scheduler may know of one task that is in the system."""

    id: int
    type: TaskType
    #: Slot of arrival.
    arrival: int
    #: Indices of the clusters it may run on (D_j).
    eligible: tuple[int, ...]
    phase: Phase
    #: Where it was placed; None while it waits.
    cluster: int | None = None
    #: What it holds; None while it waits, zeros while it is paused.
    allocation: Resources | None = None
    #: Slots it has run so far, at any size.
    elapsed: int = 0
    #: What it has been served: slots run times amounts held, of each resource; None before it runs.
    service: Resources | None = None
    #: Progress in [0, 1) as last reported by the task; None if it does not report.
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a scheduler may know of one cluster."""

    index: int
    name: str
    capacity: Resources
    #: What is not held by tasks now (B, or e of the paper's state).
    free: Resources
    #: Placed and running tasks, in order of placement.
    running: tuple[TaskView, ...]
    #: Paused tasks, in order of placement; only preemptive schedulers make any.
    paused: tuple[TaskView, ...]
    #: False while the cluster is lost or closed: nothing can be placed there.
    up: bool
    #: How many tasks it may still start in this slot; None means no limit (multi-task mode).
    starts_left: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole system at one moment, frozen."""

    slot: int
    #: Logical turn inside the slot, from 0.
    turn: int
    clusters: tuple[ClusterView, ...]
    #: Every waiting task (Q), oldest first, each once however many clusters it may run on.
    queue: tuple[TaskView, ...]

    @property
    def free(self) -> tuple[Resources, ...]:
        """What each cluster has free."""
        return tuple(cluster.free for cluster in self.clusters)

    def queue_of(self, cluster: int) -> Iterator[TaskView]:
        """Waiting tasks that may run on this cluster, oldest first."""
        return (task for task in self.queue if cluster in task.eligible)

    def pending(self, cluster: int, size: int) -> tuple[TaskView, ...]:
        """The first ``size`` waiting tasks of the cluster (P): a view, never stored."""
        chosen: list[TaskView] = []
        for task in self.queue:
            if len(chosen) == size:
                break
            if cluster in task.eligible:
                chosen.append(task)
        return tuple(chosen)

    def backlog(self, cluster: int, size: int) -> int:
        """How many of the cluster's waiting tasks lie beyond its pending set (q)."""
        return max(0, sum(1 for _ in self.queue_of(cluster)) - size)

    @property
    def tasks_in_system(self) -> int:
        """Waiting, running and paused tasks; its sum over slots is the objective."""
        return len(self.queue) + sum(len(c.running) + len(c.paused) for c in self.clusters)

    def after(self, placements: Sequence[Placement]) -> Snapshot:
        """What the next turn would see once these (legal) placements are committed."""
        if not placements:
            return self
        waiting = {task.id: task for task in self.queue}
        clusters = list(self.clusters)
        for placement in placements:
            cluster, size = clusters[placement.cluster], placement.allocation
            task = replace(waiting.pop(placement.task), phase=Phase.PLACED, cluster=placement.cluster, allocation=size)
            left = None if cluster.starts_left is None else cluster.starts_left - 1
            clusters[placement.cluster] = replace(
                cluster, free=cluster.free - size, running=(*cluster.running, task), starts_left=left
            )
        return replace(self, turn=self.turn + 1, clusters=tuple(clusters), queue=tuple(waiting.values()))


@dataclass(frozen=True, slots=True)
class Placement:
    """Start a waiting task on a cluster with this allocation (y and x of the paper)."""

    task: int
    cluster: int
    allocation: Resources


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a task that is on a cluster another allocation; all zeros pauses it."""

    task: int
    allocation: Resources


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one cluster's agent wants (z of the paper), before conflicts are settled."""

    cluster: int
    task: int
    allocation: Resources
    #: Pr(j|n): the agent's probability of choosing this task.
    score: float = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything a scheduler wants done in one turn. Resizes take effect before placements."""

    placements: tuple[Placement, ...] = ()
    resizes: tuple[Resize, ...] = ()
    #: Proposals that lost a conflict; only counted.
    lost: tuple[Proposal, ...] = ()

    @property
    def void(self) -> bool:
        """Whether nothing is to be done."""
        return not self.placements and not self.resizes


#: The decision that does nothing.
VOID = Decision()


@dataclass(frozen=True)
class SchedulerContext:
    """What a scheduler knows before the first slot."""

    resources: ResourceTypes
    clusters: tuple[Cluster, ...]
    #: Task types with their speed profiles as far as they are known: a profile that may be wrong carries its doubt.
    task_types: tuple[TaskType, ...]
    mode: Mode
    #: Seed of the scheduler's own randomness; never the workload's.
    seed: int = 0
    #: Share of a slot's gain lost when a task's allocation changes.
    switching_cost: float = 0.0
    #: How much a slot's progress varies: what repeated measurements of a profile would show.
    noise: Noise = field(default=NO_NOISE)
    #: Real seconds in one slot.
    slot_seconds: float = 10.0


@runtime_checkable
class Scheduler(Protocol):
    """The contract. ``tapfinger.testing.check_scheduler`` tests an implementation of it."""

    #: True: ``decide`` is called once per slot and plans the whole slot (central schedulers).
    #: False: called turn after turn until it is void (one agent per cluster, Algorithm 1).
    one_shot: bool

    def reset(self, context: SchedulerContext) -> None:
        """Forget everything and get ready for a new run."""
        ...

    def decide(self, snapshot: Snapshot) -> Decision:
        """Say what to start (and resize) now; void is a legal answer."""
        ...


@runtime_checkable
class LearningScheduler(Scheduler, Protocol):
    """A scheduler that keeps tables made of speed profiles, and wants to hear when these are believed otherwise.

    One that reads profiles from the snapshot needs none of this: those are always the latest.
    """

    def learn(self, context: SchedulerContext) -> None:
        """The run's context with other profiles: make tables of them anew, and forget nothing else."""
        ...
