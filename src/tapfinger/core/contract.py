"""The one file a scheduler author reads: what a scheduler sees, and what it may answer.

A scheduler sees a ``Snapshot`` and returns a ``Decision``. It never gets the state itself, cannot
change the snapshot, and everything it returns is checked again before anything happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from tapfinger.core.model import NO_NOISE, Cluster, Noise, Resources, ResourceTypes, TaskType
from tapfinger.core.spans import Parts, Rooms, nodes_of
from tapfinger.core.staging import Staging


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
    #: Index of the cluster it was placed on; None while it waits.
    cluster: int | None = None
    #: Resources it holds; None while it waits, zeros while it is paused.
    allocation: Resources | None = None
    #: Slots it has run so far, at any size.
    elapsed: int = 0
    #: Service received: slots run times the amount held, for each resource; None before it runs.
    service: Resources | None = None
    #: Progress in [0, 1) as last reported by the task; None if it does not report.
    progress: float | None = None
    #: Slots until a placed task has its data and runs.
    staging: int = 0
    #: What it holds of each node, on a span.
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a scheduler may know of one cluster."""

    index: int
    name: str
    capacity: Resources
    #: Resources that nobody holds now (B, or e of the paper's state).
    free: Resources
    #: Placed and running tasks, in order of placement.
    running: tuple[TaskView, ...]
    #: Paused tasks, in order of placement; only preemptive schedulers pause tasks.
    paused: tuple[TaskView, ...]
    #: False while the cluster is lost or closed: nothing can be placed there.
    up: bool
    #: How many tasks it may still start in this slot; None means no limit (multi-task mode).
    starts_left: int | None
    #: Kind of its hardware: a task of type ``t`` runs there at the speed of ``t.on(hardware)``.
    hardware: str = ""
    #: What people use there who are not scheduled here; None on sites where there is nobody else.
    others: Resources | None = None
    #: Mean of what they used before this slot; the last 20 slots count for most of it. Empty where nobody else is.
    others_lately: tuple[float, ...] = ()
    #: Indices of the nodes of a span; empty for all other clusters. What is free on a span is free on its nodes.
    nodes: tuple[int, ...] = ()

    def free_with(self, sizes: Mapping[int, Resources]) -> Resources:
        """Free resources if running tasks held these sizes, by task id; negative where they exceed the capacity."""
        free = self.free
        for task in self.running:
            size = sizes.get(task.id)
            if size is not None and task.allocation is not None:
                free = free + task.allocation - size
        return free

    def with_sizes(self, sizes: Mapping[int, Resources]) -> ClusterView:
        """The cluster as if running tasks held these sizes, by task id; no free amount goes below zero."""
        if not any(task.id in sizes for task in self.running):
            return self
        free = self.free_with(sizes)
        return replace(
            self,
            free=free if min(free) >= 0 else Resources([max(0, amount) for amount in free]),
            running=tuple(replace(t, allocation=sizes[t.id]) if t.id in sizes else t for t in self.running),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole system at one moment, frozen."""

    slot: int
    #: Logical turn inside the slot, from 0.
    turn: int
    clusters: tuple[ClusterView, ...]
    #: Every waiting task (Q), oldest first, each once however many clusters it may run on.
    queue: tuple[TaskView, ...]
    #: Which data sets are where; None on sites without data sets.
    data: Staging | None = None

    def staging(self, task: TaskView, cluster: int) -> int:
        """Slots that a waiting task would wait for its data if it were placed on this cluster now."""
        return 0 if self.data is None else self.data.wait(task.type.data, cluster, self.slot)

    def staging_of(self, task: TaskView) -> dict[int, int]:
        """The same for every eligible cluster; empty where no task waits for data."""
        if self.data is None or not task.type.data:
            return {}
        waits, place_of = self.data.waits(task.type.data, self.slot), self.data.layout.place_of
        return {n: waits[place_of[n]] for n in task.eligible}

    @property
    def free(self) -> tuple[Resources, ...]:
        """Free resources of each cluster."""
        return tuple(cluster.free for cluster in self.clusters)

    @property
    def spans(self) -> dict[int, tuple[int, ...]]:
        """The nodes of every span, by the span's index; empty on most sites."""
        return nodes_of(self.clusters)

    def on_clusters(self) -> Iterator[TaskView]:
        """Running and paused tasks, cluster by cluster."""
        for cluster in self.clusters:
            yield from cluster.running
            yield from cluster.paused

    def running(self) -> Iterator[TaskView]:
        """Placed and running tasks, cluster by cluster."""
        for cluster in self.clusters:
            yield from cluster.running

    def tasks(self) -> Iterator[TaskView]:
        """Every task in the system: tasks on clusters, then waiting tasks."""
        yield from self.on_clusters()
        yield from self.queue

    def arrived_since(self, slot: int) -> Iterator[TaskView]:
        """Waiting tasks that arrived after this slot, the latest first."""
        for task in reversed(self.queue):
            if task.arrival <= slot:
                return
            yield task

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
        """Number of waiting, running and paused tasks; its sum over slots is the objective."""
        return len(self.queue) + sum(len(c.running) + len(c.paused) for c in self.clusters)

    def after(self, placements: Sequence[Placement]) -> Snapshot:
        """What the next turn would see once these (legal) placements are committed."""
        if not placements:
            return self
        waiting = {task.id: task for task in self.queue}
        clusters, data = list(self.clusters), self.data
        rooms = Rooms(self.clusters)
        split = book(rooms, placements)
        for placement in placements:
            cluster, size = clusters[placement.cluster], placement.allocation
            task = waiting.pop(placement.task)
            there = task.type.on(cluster.hardware)
            parts = split.get(placement.task, ())
            task = replace(
                task, type=there, phase=Phase.PLACED, cluster=placement.cluster, allocation=size, parts=parts
            )
            if data is not None:
                data, runs_from = data.ask(there.data, placement.cluster, self.slot)
                task = replace(task, staging=runs_from - self.slot)
            left = None if cluster.starts_left is None else cluster.starts_left - 1
            clusters[placement.cluster] = replace(cluster, running=(*cluster.running, task), starts_left=left)
        queue = tuple(waiting.values())
        clusters = [
            c if c.free is free else replace(c, free=free) for c, free in zip(clusters, rooms.left, strict=True)
        ]
        return replace(self, turn=self.turn + 1, clusters=tuple(clusters), queue=queue, data=data)

    def booked(self, placements: Sequence[Placement]) -> Snapshot:
        """Free resources and queue after these placements, in the same turn; placed tasks do not show as running."""
        if not placements:
            return self
        later = self.after(placements)
        pairs = zip(self.clusters, later.clusters, strict=True)
        clusters = tuple(replace(then, running=now.running) for now, then in pairs)
        return replace(later, turn=self.turn, clusters=clusters)

    def with_sizes(self, sizes: Mapping[int, Resources]) -> Snapshot:
        """The snapshot as if running tasks held these sizes, by task id; see ``ClusterView.with_sizes``.

        A task on a span is split anew if its size changes.
        """
        clusters = tuple(cluster.with_sizes(sizes) for cluster in self.clusters)
        return replace(self, clusters=_with_spans(self.clusters, clusters, sizes) if self.spans else clusters)

    def with_queue(self, tasks: Iterable[TaskView]) -> Snapshot:
        """The snapshot as if only these tasks waited, oldest first."""
        return replace(self, queue=tuple(tasks))

    def sharing(self, clusters: Collection[int]) -> Collection[int]:
        """These clusters and all that share resources with them: the nodes of spans, and the spans of nodes."""
        spans = self.spans if clusters else {}
        nodes = (n for span, of in spans.items() if span in clusters for n in of)
        return {*clusters, *nodes, *(span for span, of in spans.items() if any(n in clusters for n in of))}

    def closed(self, clusters: Collection[int]) -> Snapshot:
        """The snapshot as if these clusters were down, so that nothing starts on clusters held for other tasks."""
        if not clusters:
            return self
        return replace(self, clusters=tuple(replace(c, up=False) if c.index in clusters else c for c in self.clusters))


def _with_spans(
    before: Sequence[ClusterView], after: Sequence[ClusterView], sizes: Mapping[int, Resources]
) -> tuple[ClusterView, ...]:
    """The clusters after a change of sizes, with what spans then hold of their nodes."""
    rooms, changed = Rooms(after), []
    for cluster in before:
        for task in cluster.running if cluster.nodes else ():
            if task.allocation is not None and sizes.get(task.id, task.allocation) != task.allocation:
                rooms.give(cluster.index, task.allocation, task.parts)
                changed.append((cluster.index, task))
    parts = {task.id: rooms.take(span, sizes[task.id], task.parts) for span, task in changed}
    return tuple(
        replace(
            cluster,
            free=free,
            running=tuple(replace(t, parts=parts.get(t.id, t.parts)) for t in cluster.running)
            if cluster.nodes
            else cluster.running,
        )
        for cluster, free in zip(after, rooms.left, strict=True)
    )


_set = object.__setattr__  # the way to write a field of a frozen dataclass


def _resources(allocation: tuple[int, ...]) -> Resources:
    """Amounts as ``Resources``. Anything but a tuple is kept: ``core.feasibility.check_amounts`` refuses it with a
    reason.
    """
    return Resources(allocation) if type(allocation) is tuple else allocation  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Placement:
    """Start a waiting task on a cluster with this allocation (y and x of the paper)."""

    task: int
    cluster: int
    #: A plain tuple of amounts is accepted and becomes ``Resources``; the same in ``Resize`` and ``Proposal``.
    allocation: Resources

    def __init__(self, task: int, cluster: int, allocation: tuple[int, ...]) -> None:
        """``allocation``: amounts in the order of the scenario's resources, as a tuple or ``Resources``."""
        _set(self, "task", task)
        _set(self, "cluster", cluster)
        _set(self, "allocation", _resources(allocation))


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a task that is on a cluster another allocation; all zeros pauses it."""

    task: int
    allocation: Resources

    def __init__(self, task: int, allocation: tuple[int, ...]) -> None:
        """``allocation``: amounts in the order of the scenario's resources, as a tuple or ``Resources``."""
        _set(self, "task", task)
        _set(self, "allocation", _resources(allocation))


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one cluster's agent wants (z of the paper), before conflicts are settled."""

    cluster: int
    task: int
    allocation: Resources
    #: Pr(j|n): the agent's probability of choosing this task.
    score: float = 1.0

    def __init__(self, cluster: int, task: int, allocation: tuple[int, ...], score: float = 1.0) -> None:
        """``allocation``: amounts in the order of the scenario's resources, as a tuple or ``Resources``."""
        _set(self, "cluster", cluster)
        _set(self, "task", task)
        _set(self, "allocation", _resources(allocation))
        _set(self, "score", score)


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything a scheduler wants done in one turn. Resizes take effect before placements."""

    placements: tuple[Placement, ...] = ()
    resizes: tuple[Resize, ...] = ()
    #: Proposals that lost a conflict; only counted.
    lost: tuple[Proposal, ...] = ()

    @property
    def void(self) -> bool:
        """Whether there is nothing to do."""
        return not self.placements and not self.resizes


#: The decision that does nothing.
VOID = Decision()


@dataclass(frozen=True)
class SchedulerContext:
    """What a scheduler knows before the first slot."""

    resources: ResourceTypes
    clusters: tuple[Cluster, ...]
    #: Task types with their speed profiles, as far as known; a profile that may be wrong has a ``doubt``.
    task_types: tuple[TaskType, ...]
    mode: Mode
    #: Seed of the scheduler's own randomness; never the workload's.
    seed: int = 0
    #: Share of a slot's gain lost when a task's allocation changes.
    switching_cost: float = 0.0
    #: Random variation of progress per slot, as repeated measurements of a profile would show it.
    noise: Noise = field(default=NO_NOISE)
    #: Real seconds in one slot.
    slot_seconds: float = 10.0


def book(
    rooms: Rooms, placements: Sequence[Placement], resized: Sequence[tuple[int, int, Resources, Parts]] = ()
) -> dict[int, Parts]:
    """Take what these placements need, in their order; return the parts of tasks on spans, by task.

    ``resized``: task, span, new size and present parts of tasks on spans that are split anew; they come first. If a
    span took from a node what a placement there needs, everything on nodes comes first instead.
    """
    wanted = [*resized, *((p.task, p.cluster, p.allocation, ()) for p in placements)]
    before = list(rooms.left)
    parts = {task: rooms.take(cluster, size, held) for task, cluster, size, held in wanted}
    if rooms.spans and any(min(left) < 0 for left in rooms.left):
        rooms.left[:] = before
        wanted.sort(key=lambda one: one[1] in rooms.spans)
        parts = {task: rooms.take(cluster, size, held) for task, cluster, size, held in wanted}
    return {task: part for task, part in parts.items() if part}


@runtime_checkable
class Scheduler(Protocol):
    """The contract. ``tapfinger.testing.check_scheduler`` tests an implementation of it."""

    #: True: ``decide`` is called once per slot and plans the whole slot (central schedulers).
    #: False: ``decide`` is called turn after turn until its decision is void (one agent per cluster, Algorithm 1).
    one_shot: bool

    def reset(self, context: SchedulerContext) -> None:
        """Forget everything and get ready for a new run."""
        ...

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide what to start (and resize) now; a void decision is legal."""
        ...


@runtime_checkable
class LearningScheduler(Scheduler, Protocol):
    """A scheduler that keeps tables derived from speed profiles and needs to know when beliefs about them change.

    A scheduler that reads profiles from the snapshot does not need this: a snapshot always has the latest ones.
    """

    def learn(self, context: SchedulerContext) -> None:
        """Rebuild the tables from the profiles of this context, and keep everything else."""
        ...
