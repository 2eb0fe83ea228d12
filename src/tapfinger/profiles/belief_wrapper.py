"""A wrapper that shows a scheduler beliefs in place of true speed profiles.

Beliefs begin with the profiles of the context. They are corrected by what tasks are seen to do, in one snapshot after
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tapfinger.core.contract import (
    ClusterView,
    Decision,
    Scheduler,
    SchedulerContext,
    Snapshot,
    TaskView,
)
from tapfinger.core.model import Resources, TaskType
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.profiles.beliefs import Belief


class Believing(SchedulerWrapper):
    """A scheduler that knows about speed profiles only what it was told and what it has seen since."""

    def __init__(self, scheduler: Scheduler, learn: bool = True) -> None:
        """``learn``: if False, beliefs stay at the initial knowledge."""
        super().__init__(scheduler)
        self._learn = learn

    def reset(self, context: SchedulerContext) -> None:
        """Begin with the profiles of the context."""
        self._context = context
        self._types = {t.name: t for t in context.task_types}
        self._evidence = Evidence(context)
        self._last: tuple[Snapshot, Decision] | None = None
        self._retold = Retold()
        super().reset(context)

    def learn(self, context: SchedulerContext) -> None:
        """Ignore beliefs from outside: beliefs here follow from what tasks are seen to do."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Update beliefs from the snapshot, then ask the scheduler."""
        if self._learn:
            self._see(snapshot)
        decision = self.inner.decide(self._retold.show(snapshot, self._types))
        # Used only in the next turn: by then the decision has been checked and carried out.
        self._last = snapshot, decision
        return decision

    def _see(self, snapshot: Snapshot) -> None:
        if self._last is not None:
            self._evidence.note(*self._last)
        if snapshot.turn == 0:
            self._evidence.look(snapshot)
            self._revise()

    def _revise(self) -> None:
        """Adopt beliefs that have changed, and tell the scheduler."""
        changed = self._evidence.revised()
        if not changed:
            return
        self._types = self._types | {t.name: t for t in changed}
        self._context = replace(self._context, task_types=tuple(self._types[t.name] for t in self._context.task_types))
        super().learn(self._context)


class Retold:
    """Snapshots with believed task types in place of the true ones; unchanged parts are reused."""

    def __init__(self) -> None:
        """Start with nothing shown."""
        self._types: Mapping[str, TaskType] = {}
        #: By task id and by cluster: the original view, and the view that was shown.
        self._shown: dict[int, tuple[TaskView, TaskView]] = {}
        self._clusters: dict[int, tuple[ClusterView, ClusterView]] = {}

    def show(self, snapshot: Snapshot, types: Mapping[str, TaskType]) -> Snapshot:
        """The snapshot with each task's type taken from ``types`` by name; new types need a new mapping."""
        if types is not self._types:
            self._types, self._shown, self._clusters = types, {}, {}
        clusters = tuple(map(self._cluster, snapshot.clusters))
        # Only waiting tasks are remembered: a placed task is shown with its cluster.
        before, self._shown = self._shown, {}
        return replace(snapshot, clusters=clusters, queue=tuple(self._task(view, before) for view in snapshot.queue))

    def _cluster(self, view: ClusterView) -> ClusterView:
        came, shown = self._clusters.get(view.index, (None, view))
        if came is not view:
            running, paused = (tuple(map(self._retold, views)) for views in (view.running, view.paused))
            shown = replace(view, running=running, paused=paused)
            self._clusters[view.index] = (view, shown)
        return shown

    def _task(self, view: TaskView, before: dict[int, tuple[TaskView, TaskView]]) -> TaskView:
        came, shown = before.get(view.id, (None, view))
        if came is not view:
            shown = self._retold(view)
        self._shown[view.id] = (view, shown)
        return shown

    def _retold(self, view: TaskView) -> TaskView:
        believed = self._types[view.type.name].on(view.type.hardware)
        return view if view.type is believed else replace(view, type=believed)


@dataclass(slots=True)
class _Stay:
    """A task on a cluster, as last seen."""

    type: str
    #: Of the cluster.
    hardware: str
    #: Present allocation, and the last one that was not zero.
    allocation: Resources
    size: Resources
    elapsed: int = 0
    progress: float | None = None
    #: Slots of work still lost to changes of allocation.
    overhead: float = 0.0
    #: Whether it has run with one allocation only and lost no work; then its rate follows from its duration.
    steady: bool = True


class Evidence:
    """Finds out from snapshots and decisions how fast tasks have run, and holds the resulting beliefs."""

    def __init__(self, context: SchedulerContext) -> None:
        """Types whose profile has no doubt are certain: there is nothing to learn about them."""
        self._beliefs = {t.name: Belief(t, context.noise) for t in context.task_types if t.profile.doubt is not None}
        self._switching_cost = context.switching_cost
        self._stays: dict[int, _Stay] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Learn from one slot. ``snapshot``: the first turn of the next slot."""
        waiting = {task.id for task in snapshot.queue}
        gone = dict(self._stays)
        for view in snapshot.on_clusters():
            stay = gone.pop(view.id, None)
            if stay is not None and view.allocation is not None:
                self._see(stay, view, view.allocation)
        for ident, stay in gone.items():
            # A task that waits again was lost with its cluster. A task that reported has already shown its rate.
            if ident not in waiting and stay.progress is None and stay.steady:
                self._beliefs[stay.type].see_end(stay.size, stay.elapsed + 1, stay.hardware)
            del self._stays[ident]

    def _see(self, stay: _Stay, view: TaskView, allocation: Resources) -> None:
        if view.elapsed == stay.elapsed + 1:
            lost = min(1.0, stay.overhead)
            before = 0.0 if stay.elapsed == 0 else stay.progress
            if view.progress is not None and before is not None:
                gain = view.progress - before
                self._beliefs[stay.type].see_progress(allocation, before, gain, lost, stay.hardware)
            stay.overhead -= lost
        stay.elapsed, stay.progress, stay.allocation = view.elapsed, view.progress, allocation

    def note(self, snapshot: Snapshot, decision: Decision) -> None:
        """Record the decision on a snapshot: a task may end before the next snapshot."""
        for resize in decision.resizes:
            stay = self._stays.get(resize.task)
            if stay is not None and not resize.allocation.none:
                if resize.allocation != stay.allocation:
                    stay.overhead += self._switching_cost
                if resize.allocation != stay.size or stay.overhead:
                    stay.steady = False
                stay.size = resize.allocation
            if stay is not None:
                stay.allocation = resize.allocation
        placed = {p.task: p for p in decision.placements}
        for task in snapshot.queue:
            placement = placed.get(task.id)
            if placement is not None and task.type.name in self._beliefs:
                size, hardware = placement.allocation, snapshot.clusters[placement.cluster].hardware
                self._stays[task.id] = _Stay(task.type.name, hardware, size, size)

    def revised(self) -> list[TaskType]:
        """Types for which beliefs have changed since the last call."""
        return [new for belief in self._beliefs.values() if (new := belief.revised()) is not None]
