"""Measurements of a run, taken from its events as they happen.

Everything is derived from the events, so the same collector measures a simulation, a live run or a log
that is read back. Nothing changes between two events: the collector moves from event to event and
weights each level by the slots it lasted. Memory grows with the tasks in the system, plus one row
of numbers per finished task.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tapfinger.core.events import (
    CapacityChanged,
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    Event,
    OthersChanged,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskOutOfMemory,
    TaskRequeued,
    TaskResized,
    TaskStaging,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.feasibility import ever_fits
from tapfinger.core.model import Cluster, Resources, TaskType
from tapfinger.core.spans import Parts, nodes_of
from tapfinger.evaluation.accumulate import SlotSeries, StartCounts
from tapfinger.records import RunRecord

#: Rows processed together: numpy is slow on small arrays.
_ROWS = 256


@dataclass(slots=True)
class _Open:
    """A task in the system."""

    #: Index of its type on arrival, and of that with its present bounds.
    type: int
    kind: int
    arrival: int
    eligible: tuple[int, ...]
    #: Eligible clusters with enough capacity for its minimum.
    usable: list[int]
    start: int | None = None
    cluster: int | None = None
    #: Current allocation; None while the task waits, zeros while it is paused.
    held: Resources | None = None
    #: What that is of each node, on a span.
    parts: Parts = ()
    #: The last allocation that was not zero.
    last: Resources | None = None
    #: Slot since which the task has held ``held``.
    since: int = 0
    #: Whether it waits for data with what it holds.
    stages: bool = False
    running: int = 0
    staging: int = 0
    overtaken: int = 0

    def settle(self, slot: int) -> None:
        """Count the slots before the beginning of ``slot`` in which it ran, or waited for data."""
        if self.stages:
            self.staging += slot - self.since
        elif self.held is not None and not self.held.none:
            self.running += slot - self.since
        self.since = slot


class MetricsCollector:
    """A sink of events that measures a run; ``record`` gives the result when the run has ended."""

    def __init__(self, resources: Sequence[str], clusters: Sequence[Cluster], task_types: Sequence[TaskType]) -> None:
        """Start with no events."""
        self._resources = tuple(resources)
        self._clusters = tuple(clusters)
        self._types = tuple(task_types)
        self._kinds = {task_type.name: index for index, task_type in enumerate(task_types)}
        size = (len(clusters), len(resources))
        self._nodes = nodes_of(clusters)
        self._capacity = np.array([c.capacity for c in clusters], dtype=np.int64).reshape(size)
        self._capacity[list(self._nodes)] = 0  # it is that of their nodes
        self._minimum = np.array([t.minimum for t in task_types], dtype=np.int64)
        # (types, clusters) whether an empty cluster holds the type's minimum
        self._holds = [[ever_fits(t.minimum, c.capacity) for c in clusters] for t in task_types]
        self._now = 0
        self._open: dict[int, _Open] = {}
        # Everything that holds now, in one vector: tasks in system, waiting, waiting tasks that could use a cluster
        # by (clusters, types), and units in use by (clusters, resources). Rows are buffered and processed together.
        first_used = 2 + size[0] * len(task_types)
        self._level = np.zeros(first_used + size[0] * size[1], dtype=np.int64)
        self._used = self._level[first_used:].reshape(size)
        self._wants = [0] * (size[0] * len(task_types))
        self._buffer = np.zeros((_ROWS, len(self._level)), dtype=np.int64)
        self._spans: list[tuple[int, int]] = []
        self._series = SlotSeries(2 + size[0] * size[1])
        self._up = np.ones((len(clusters), 1), dtype=np.bool_)
        # Closed clusters take no new tasks: what is free there is useless.
        self._closed = np.zeros((len(clusters), 1), dtype=np.bool_)
        # What others use is free for nobody.
        self._others = np.zeros(size, dtype=np.int64)
        self._waiting = 0
        self._starts = StartCounts(len(clusters))
        self._new_starts: list[tuple[int, int]] = []
        # (4, clusters, resources) sums over waiting slots: free, stranded and held-back amounts, and capacity
        self._fragments = np.zeros((4, *size), dtype=np.int64)
        self._waiting_slots = 0
        self._in_system_max = 0
        self._arrived = 0
        self._failed = 0
        #: Placements of tasks that need data, those that waited for it, and attempts that ran out of memory.
        self._with_data = self._staged = self._short = 0
        self._has_data = any(t.data for t in task_types)
        self._has_ladders = any(t.base is not None and not t.weight for t in task_types)
        #: Index of the present type of families of which a task ran out of memory.
        self._raised: dict[str, int] = {}
        self._rows = array("q")
        self._handlers = {
            TaskArrived: self._task_arrived,
            TaskStaging: self._task_staging,
            TaskStarted: self._task_started,
            TaskResized: self._task_resized,
            TaskFinished: self._task_ended,
            TaskFailed: self._task_ended,
            TaskOutOfMemory: self._out_of_memory,
            ClusterLost: self._cluster_lost,
            ClusterJoined: self._cluster_joined,
            ClusterClosed: self._cluster_closed,
            CapacityChanged: lambda _event: None,  # shares are of the configured capacity
            OthersChanged: self._others_changed,
            TaskWithdrawn: self._task_withdrawn,
            TaskRequeued: self._task_requeued,
        }

    def __call__(self, event: Event) -> None:
        """Process an event; events come in canonical order."""
        # An end takes effect after its slot, everything else at the beginning of its slot.
        slot = event.slot + 1 if isinstance(event, _AT_THE_END) else event.slot
        if slot > self._now:
            self._advance(slot)
        self._handlers[type(event)](event)  # type: ignore[operator]

    # ------------------------------------------------------------------ events

    def _task_arrived(self, event: TaskArrived) -> None:
        task, kind = event.task, self._kinds[event.task.type.name]
        opened = _Open(kind, kind, task.arrival, task.eligible, [])
        self._open[task.id] = opened
        self._bound(opened, self._raised.get(task.type.family, kind))
        self._arrived += 1
        self._queue(opened, 1)

    def _bound(self, task: _Open, kind: int) -> None:
        """Give the task this type's bounds, unless its own are narrower; it must not be in the queue."""
        if self._types[kind].minimum.fits(self._types[task.kind].minimum) and task.usable:
            return
        task.kind, holds = kind, self._holds[kind]
        task.usable = [n for n in task.eligible if holds[n]]

    def _queue(self, task: _Open, change: int) -> None:
        self._waiting += change
        count = len(self._types)
        for cluster in task.usable:
            self._wants[cluster * count + task.kind] += change

    def _use(self, task: _Open, sign: int) -> None:
        """Count what the task holds; on a span, by node."""
        nodes = self._nodes.get(-1 if task.cluster is None else task.cluster)
        if nodes is None:
            self._used[task.cluster] += sign * np.array(task.held)
            return
        for node, part in zip(nodes, task.parts, strict=True):
            self._used[node] += sign * np.array(part)

    def _task_staging(self, event: TaskStaging) -> None:
        task = self._open[event.task]
        self._queue(task, -1)
        task.stages, task.since, task.cluster = True, event.slot, event.cluster
        task.held = event.allocation
        task.parts = event.parts
        self._use(task, 1)
        self._staged += 1

    def _task_started(self, event: TaskStarted) -> None:
        task = self._open[event.task]
        self._with_data += bool(self._types[task.kind].data)
        task.settle(event.slot)
        if task.held is None:
            self._queue(task, -1)
            task.cluster, task.held, task.parts = event.cluster, event.allocation, event.parts
            self._use(task, 1)
        task.stages = False
        if task.start is None:
            task.start = event.slot
            task.overtaken = self._starts.later_than(task.arrival, task.usable)
            # Counted after the slot: tasks that start in the same slot do not overtake each other.
            self._new_starts.append((task.arrival, event.cluster))
        task.cluster = event.cluster
        task.since = event.slot
        task.held = task.last = event.allocation

    def _task_resized(self, event: TaskResized) -> None:
        task = self._open[event.task]
        task.settle(event.slot)
        self._use(task, -1)
        task.held, task.parts = event.allocation, event.parts
        self._use(task, 1)
        task.last = task.last if event.allocation.none else event.allocation

    def _task_ended(self, event: TaskFinished | TaskFailed) -> None:
        task = self._open.pop(event.task)
        if task.held is None:  # a live attempt may fail before it runs
            self._queue(task, -1)
        else:
            task.settle(event.slot + 1)
            self._use(task, -1)
        if isinstance(event, TaskFailed):
            self._failed += 1
            return
        row = (event.task, task.type, event.cluster, task.arrival, task.start, event.slot, task.running, task.overtaken)
        self._rows.extend((*row, task.staging, *(task.last or ())))  # type: ignore[arg-type]

    def _task_withdrawn(self, event: TaskWithdrawn) -> None:
        """A withdrawn task neither finished nor failed: it counts only as arrived."""
        self._queue(self._open.pop(event.task), -1)

    def _task_requeued(self, event: TaskRequeued) -> None:
        self._put_back(self._open[event.task], event.slot + 1)

    def _out_of_memory(self, event: TaskOutOfMemory) -> None:
        """The task waits again; it and its family have at least the event's type's minimum."""
        self._short += 1
        kind, family = self._kinds[event.type.name], event.type.family
        self._put_back(self._open[event.task], event.slot + 1)
        known = self._raised.get(family)
        if known is not None and event.type.minimum.fits(self._types[known].minimum):
            kind = known
        self._raised[family] = kind
        for task in self._open.values():
            if task.held is None and self._types[task.kind].family == family:
                self._queue(task, -1)
                self._bound(task, kind)
                self._queue(task, 1)

    def _put_back(self, task: _Open, slot: int) -> None:
        """Return a task from a cluster to the queue, from the beginning of ``slot`` on."""
        if task.held is None:  # it was placed but had not started
            return
        task.settle(slot)
        self._use(task, -1)
        task.cluster = task.held = None
        task.parts = ()
        task.stages = False
        self._bound(task, self._raised.get(self._types[task.kind].family, task.kind))
        self._queue(task, 1)

    def _cluster_closed(self, event: ClusterClosed) -> None:
        self._reckon()
        self._closed[event.cluster] = True

    def _others_changed(self, event: OthersChanged) -> None:
        self._reckon()
        self._others[event.cluster] = event.amounts

    def _cluster_lost(self, event: ClusterLost) -> None:
        self._reckon()
        self._up[event.cluster] = False
        for task in self._open.values():
            nodes = self._nodes.get(-1 if task.cluster is None else task.cluster, ())
            parts = [part for n, part in zip(nodes, task.parts, strict=False) if n == event.cluster]
            if task.cluster == event.cluster or any(not part.none for part in parts):
                self._put_back(task, event.slot)

    def _cluster_joined(self, event: ClusterJoined) -> None:
        self._reckon()
        self._up[event.cluster] = True
        self._closed[event.cluster] = False

    # -------------------------------------------------------------------- time

    def _advance(self, slot: int) -> None:
        """Record that the current level lasted until the beginning of ``slot``."""
        level = self._level
        level[0], level[1] = len(self._open), self._waiting
        level[2 : 2 + len(self._wants)] = self._wants
        self._buffer[len(self._spans)] = level
        self._spans.append((self._now, slot - self._now))
        if len(self._spans) == _ROWS:
            self._reckon()
        if self._new_starts:
            oldest = next((t.arrival for t in self._open.values() if t.start is None), slot)
            for arrival, cluster in self._new_starts:
                self._starts.add(arrival, cluster, oldest)
            self._new_starts.clear()
        self._now = slot

    def _reckon(self) -> None:
        """Add the buffered rows to the sums."""
        if not self._spans:
            return
        slots, lengths = np.array(self._spans, dtype=np.int64).T
        rows = self._buffer[: len(self._spans)]
        self._spans = []
        first_used = 2 + len(self._wants)
        self._series.add(slots, lengths, np.delete(rows, np.s_[2:first_used], axis=1))
        self._in_system_max = max(self._in_system_max, int(rows[:, 0].max()))
        some_wait = rows[:, 1] > 0
        rows, lengths = rows[some_wait], lengths[some_wait]
        self._waiting_slots += int(lengths.sum())
        used = rows[:, first_used:].reshape(-1, *self._capacity.shape)
        room = np.maximum(self._capacity - self._others, used)
        capacity = np.where(self._closed, used, room * self._up)  # (slots, clusters, resources)
        free = capacity - used
        wants = rows[:, 2:first_used].reshape(-1, len(self._clusters), len(self._types)) > 0
        room = free.copy()
        for span, nodes in self._nodes.items():
            room[:, span] = free[:, list(nodes)].sum(axis=1)
        fits = wants & np.all(self._minimum <= room[:, :, None], axis=3)  # (slots, clusters, types)
        held_back = np.asarray(fits.any(axis=2, keepdims=True))
        wanted = np.asarray(wants.any(axis=2, keepdims=True))
        for span, nodes in self._nodes.items():  # what is free on a node may be wanted for its span
            held_back[:, list(nodes)] |= held_back[:, [span]]
            wanted[:, list(nodes)] |= wanted[:, [span]]
        stranded = wanted & ~held_back
        parts = (free, free * stranded, free * held_back, capacity)
        self._fragments += np.array([(lengths[:, None, None] * part).sum(axis=0) for part in parts])

    # ------------------------------------------------------------------ result

    def record(
        self, scenario: str, scheduler: str, seed: int, conflicts: int = 0, decision_seconds: Sequence[float] = ()
    ) -> RunRecord:
        """The measurements; ``conflicts`` and ``decision_seconds`` are not part of the events."""
        self._reckon()
        count, size = len(self._resources), self._used.shape
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 9 + count)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        bins = -(-self._now // self._series.width)
        lengths = np.minimum(self._series.width, self._now - self._series.width * np.arange(bins))
        means = self._series.sums[:bins] / lengths[:, None]
        fragments = self._fragments.sum(axis=1)
        free = fragments[:3] / np.maximum(1, fragments[3])
        seconds = np.asarray(decision_seconds if len(decision_seconds) else [0.0])
        return RunRecord(
            scenario=scenario,
            scheduler=scheduler,
            seed=seed,
            resources=self._resources,
            clusters=tuple(c.name for c in self._clusters),
            wholes=tuple(c.whole for c in self._clusters) if any(c.part_of for c in self._clusters) else (),
            hardware=tuple(c.hardware for c in self._clusters) if any(c.hardware for c in self._clusters) else (),
            task_types=tuple(t.name for t in self._types),
            slots=self._now,
            tasks=self._arrived,
            failed=self._failed,
            staged_share=self._staged / max(1, self._with_data) if self._has_data else None,
            out_of_memory=self._short if self._has_ladders else None,
            conflicts=conflicts,
            waiting_slots=self._waiting_slots,
            in_system_max=self._in_system_max,
            bin_slots=self._series.width,
            capacity=self._capacity,
            **dict(zip(_COLUMNS, rows[:, :9].T, strict=True)),
            allocation=rows[:, 9:],
            in_system=means[:, 0],
            waiting=means[:, 1],
            used=means[:, 2:].reshape(bins, *size),
            idle=free[0],
            stranded=free[1],
            held_back=free[2],
            stranded_by_cluster=self._fragments[1] / np.maximum(1, self._fragments[3]),
            decision=np.array([seconds.mean(), np.percentile(seconds, 95), seconds.max(), seconds.sum()]),
        )


#: Events at the end of their slot, which take effect after it.
_AT_THE_END = (TaskFinished, TaskFailed, TaskOutOfMemory, ClusterClosed, TaskWithdrawn, TaskRequeued)

_COLUMNS = ("task", "type", "cluster", "arrival", "start", "end", "running", "overtaken", "staging")
