"""The state of all clusters and tasks, with no I/O: events and decisions in, commands and snapshots out.

Tasks leave the state when they end, so its size depends on the tasks in the system, not on all tasks ever seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tapfinger.core.contract import ClusterView, Decision, Mode, Phase, Snapshot, TaskView, book
from tapfinger.core.events import (
    CapacityChanged,
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    Command,
    Event,
    OthersChanged,
    ResizeTask,
    StartTask,
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
from tapfinger.core.feasibility import check_decision, check_eligible, check_form, check_size
from tapfinger.core.model import Cluster, Resources, Task, TaskType
from tapfinger.core.spans import Parts, Rooms, linked, nodes_of, pooled
from tapfinger.core.staging import Staging
from tapfinger.errors import InvalidDecision, InvalidTransition

#: Weight of the last slot in ``ClusterView.others_lately``.
OTHERS_WEIGHT = 0.1

#: Kind of a waiting task: name of its type, and its eligible clusters. Tasks of one kind differ only in age.
Kind = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class _Held:
    """A task that is on a cluster."""

    task: Task
    cluster: int
    allocation: Resources
    phase: Phase
    #: Its type, with its speed on this cluster.
    type: TaskType
    elapsed: int = 0
    service: Resources | None = None
    progress: float | None = None
    #: Slot from which on it has its data.
    runs_from: int = 0
    #: What it holds of each node, on a span.
    parts: Parts = ()
    #: The last view, and the slot it is of.
    seen: TaskView | None = None
    seen_slot: int = -1

    def view(self, slot: int) -> TaskView:
        """The same object as before while nothing has changed: a slot has many turns."""
        seen = self.seen
        if (
            seen is not None
            and self.seen_slot == slot
            and seen.phase is self.phase
            and seen.allocation is self.allocation
            and seen.elapsed == self.elapsed
            and seen.progress == self.progress
            and seen.service is self.service
            and seen.type is self.type
            and seen.parts is self.parts
        ):
            return seen
        task, self.seen_slot = self.task, slot
        self.seen = TaskView(
            task.id,
            self.type,
            task.arrival,
            task.eligible,
            self.phase,
            self.cluster,
            self.allocation,
            self.elapsed,
            self.service,
            self.progress,
            max(0, self.runs_from - slot) if self.phase is Phase.PLACED else 0,
            self.parts,
        )
        return self.seen


class EdgeState:
    """Clusters, the queue, and what runs where."""

    def __init__(self, clusters: Sequence[Cluster], mode: Mode, data: Staging | None = None) -> None:
        """Start empty: all clusters up and free. ``data``: which data sets are where, on sites that have any."""
        self.clusters = tuple(clusters)
        self.mode = mode
        self.data = data
        self.slot = 0
        self.turn = 0
        self._capacity = [cluster.capacity for cluster in self.clusters]
        #: The nodes of every span, and for every cluster those whose free resources change with its own.
        self._spans = nodes_of(self.clusters)
        self._linked = linked(self._spans, len(self.clusters))
        #: Below zero where a capacity was lowered under what tasks hold, or others use more; views show zero there.
        #: Of spans it means nothing: what is free there is free on their nodes.
        self._free = list(self._capacity)
        self._others: list[Resources | None] = [None] * len(self.clusters)
        self._others_lately: list[tuple[float, ...]] = [()] * len(self.clusters)
        self._up = [True] * len(self.clusters)
        self._closed = [False] * len(self.clusters)  # up, but nothing new is placed there
        self._started = [0] * len(self.clusters)  # starts in this slot, per cluster
        self._waiting: dict[int, TaskView] = {}  # in order of arrival, unless _unsorted
        self._tasks: dict[int, Task] = {}  # waiting tasks only
        self._alike: dict[Kind, dict[int, TaskView]] = {}  # waiting tasks by kind, each in the same order
        self._unsorted: set[Kind] = set()  # kinds of tasks that have come back since the queue was last put in order
        #: Types of families of which a task ran out of memory, by family.
        self._raised: dict[str, TaskType] = {}
        self._held: dict[int, _Held] = {}
        self._on: list[dict[int, _Held]] = [{} for _ in self.clusters]  # the same, by cluster
        self._cluster_views: list[ClusterView | None] = [None] * len(self.clusters)
        self._queue_view: tuple[TaskView, ...] | None = ()

    # ------------------------------------------------------------------ views

    def fork(self, window: int | None = None) -> EdgeState:
        """An independent copy; frozen parts are shared, so it is cheap. ``window``: as in ``snapshot``."""
        twin = EdgeState(self.clusters, self.mode, self.data)
        twin._raised = dict(self._raised)
        twin.slot, twin.turn = self.slot, self.turn
        twin._free, twin._started = list(self._free), list(self._started)
        twin._capacity, twin._others = list(self._capacity), list(self._others)
        twin._others_lately = list(self._others_lately)
        twin._up, twin._closed = list(self._up), list(self._closed)
        for held in self._held.values():
            twin._hold(replace(held))
        seen = self.snapshot(window)
        for view in seen.queue:
            twin._wait(self._tasks[view.id], view)
        twin._cluster_views, twin._queue_view = list(seen.clusters), seen.queue
        return twin

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return len(self._waiting)

    def snapshot(self, window: int | None = None) -> Snapshot:
        """A frozen picture; parts that did not change are shared with the previous one.

        ``window``: if more tasks than this wait, only the oldest of each kind are shown, about this many in total.
        """
        self._sort()
        if window is not None and len(self._waiting) > window:
            return Snapshot(self.slot, self.turn, self.cluster_views(), self._first_of_each(window), self.data)
        if self._queue_view is None:
            self._queue_view = tuple(self._waiting.values())
        return Snapshot(self.slot, self.turn, self.cluster_views(), self._queue_view, self.data)

    def cluster_views(self) -> tuple[ClusterView, ...]:
        """The clusters without the queue: quick to get, however long the queue is."""
        for index, cached in enumerate(self._cluster_views):
            if cached is None:
                self._cluster_views[index] = self._view_cluster(index)
        views: list[ClusterView] = self._cluster_views  # type: ignore[assignment]
        return tuple(views)

    def kinds(self) -> list[TaskView]:
        """The oldest waiting task of each kind: if it can start on a cluster, all others of its kind can as well."""
        self._sort()
        return [next(iter(views.values())) for views in self._alike.values()]

    def _first_of_each(self, window: int) -> tuple[TaskView, ...]:
        share = max(1, window // len(self._alike))
        shown = [view for views in self._alike.values() for view in islice(views.values(), share)]
        return tuple(sorted(shown, key=_age))

    def _view_cluster(self, index: int) -> ClusterView:
        running: list[TaskView] = []
        paused: list[TaskView] = []
        for held in self._on[index].values():
            (paused if held.phase is Phase.PAUSED else running).append(held.view(self.slot))
        nodes = self._spans.get(index, ())
        free = pooled([self._free[n] for n in nodes], map(self._open, nodes)) if nodes else self._free[index]
        starts_left = None if self.mode is Mode.MULTI else 1 - self._started[index]
        return ClusterView(
            index,
            self.clusters[index].name,
            self._capacity[index],
            free if min(free) >= 0 else Resources([max(0, amount) for amount in free]),
            tuple(running),
            tuple(paused),
            self._open(index),
            starts_left,
            self.clusters[index].hardware,
            self._others[index],
            self._others_lately[index],
            nodes,
        )

    def _open(self, index: int) -> bool:
        return self._up[index] and not self._closed[index]

    def _changed(self, index: int) -> None:
        """Forget the views of a cluster and of all that share resources with it."""
        for n in self._linked[index]:
            self._cluster_views[n] = None

    @property
    def tasks_in_system(self) -> int:
        """Number of waiting, running and paused tasks."""
        return len(self._waiting) + len(self._held)

    # --------------------------------------------------------------- decisions

    def commit(self, decision: Decision) -> list[Command]:
        """Check the whole decision, then carry it out; a decision with any fault changes nothing."""
        check_form(decision)
        if decision.void:
            self.turn += 1
            return []
        views = self.cluster_views()
        try:
            free = check_decision(decision, views, self._waiting, self._held, self.story)
        except InvalidDecision as error:
            error.args = (f"slot {self.slot}: {error}",)  # the same error, with its slot
            raise
        commands: list[Command] = []
        parts = self._split(decision, views) if self._spans else {}
        for resize in decision.resizes:
            held = self._held[resize.task]
            held.allocation = resize.allocation
            held.phase = Phase.PAUSED if resize.allocation.none else Phase.RUNNING
            held.parts = parts.get(resize.task, ())
            commands.append(ResizeTask(held.task, held.cluster, resize.allocation, held.parts))
            self._changed(held.cluster)
        for placement in decision.placements:
            task = self._leave(placement.task)
            there = task.type.on(self.clusters[placement.cluster].hardware)
            held = _Held(task, placement.cluster, placement.allocation, Phase.PLACED, there)
            held.parts = parts.get(placement.task, ())
            if self.data is not None:
                self.data, held.runs_from = self.data.ask(there.data, placement.cluster, self.slot)
            self._hold(held)
            self._started[placement.cluster] += 1
            commands.append(StartTask(task, placement.cluster, placement.allocation, held.runs_from, held.parts))
        for index, amount in free.items():
            # The difference, since a view shows zero where less is free than nothing.
            self._free[index] = self._free[index] + (amount - views[index].free)
        self.turn += 1
        return commands

    def _split(self, decision: Decision, views: Sequence[ClusterView]) -> dict[int, Parts]:
        """Divide what a (legal) decision gives to tasks on spans among their nodes, and take it from there."""
        rooms, again = Rooms(views), []
        for resize in decision.resizes:
            held = self._held[resize.task]
            rooms.give(held.cluster, held.allocation, held.parts)
            if held.cluster in self._spans:
                again.append((resize.task, held.cluster, resize.allocation, held.parts))
        for resize in decision.resizes:
            if self._held[resize.task].cluster not in self._spans:
                rooms.take(self._held[resize.task].cluster, resize.allocation)
        parts = book(rooms, decision.placements, again)
        places = {placement.task: placement.cluster for placement in decision.placements}
        places |= {task: span for task, span, _, _ in again}
        for task, each in parts.items():
            for n, part in zip(self._spans[places[task]], each, strict=True):
                self._free[n] = self._free[n] - part
        return parts

    def _hold(self, held: _Held) -> None:
        self._held[held.task.id] = held
        self._on[held.cluster][held.task.id] = held
        self._changed(held.cluster)

    # ------------------------------------------------------------------ events

    def apply(self, event: Event) -> None:
        """Update the state with an event."""
        if isinstance(event, TaskArrived):
            self._arrive(event.task)
        elif isinstance(event, TaskStarted):
            self._expect(event.task, Phase.PLACED).phase = Phase.RUNNING
            self._changed(event.cluster)
        elif isinstance(event, TaskStaging):
            self._expect(event.task, Phase.PLACED)
        elif isinstance(event, TaskResized):
            self._expect(event.task, Phase.RUNNING, Phase.PAUSED)
        elif isinstance(event, TaskOutOfMemory):
            self._raise(event)
        elif isinstance(event, TaskFinished):
            self._release(self._expect(event.task, Phase.RUNNING, Phase.PAUSED))
        elif isinstance(event, TaskFailed):
            self._release(self._expect(event.task, Phase.PLACED, Phase.RUNNING, Phase.PAUSED))
        elif isinstance(event, TaskRequeued):
            held = self._expect(event.task, Phase.PLACED, Phase.RUNNING, Phase.PAUSED)
            self._release(held)
            self._return([held.task])
        elif isinstance(event, TaskWithdrawn):
            self._withdraw(event.task)
        elif isinstance(event, ClusterLost):
            self._lose(event.cluster)
        elif isinstance(event, ClusterClosed):
            self._closed[event.cluster] = True
            self._changed(event.cluster)
        elif isinstance(event, CapacityChanged):
            self._free[event.cluster] = self._free[event.cluster] + event.capacity - self._capacity[event.cluster]
            self._capacity[event.cluster] = event.capacity
            self._changed(event.cluster)
        elif isinstance(event, OthersChanged):
            self._share(event.cluster, event.amounts)
        elif isinstance(event, ClusterJoined):
            self._up[event.cluster] = True
            self._closed[event.cluster] = False
            self._changed(event.cluster)

    def _raise(self, event: TaskOutOfMemory) -> None:
        """The task waits again; it and its family have the event's type from now on."""
        held = self._expect(event.task, Phase.RUNNING)
        self._release(held)
        self._return([held.task])
        family = event.type.family
        known = self._raised.get(family)
        if known is not None and event.type.minimum.fits(known.minimum):
            return  # another task of the family has shown it in the same slot
        self._raised[family] = event.type
        self._sort()
        for ident in [i for i, view in self._waiting.items() if view.type.family == family]:
            self._return([self._leave(ident)])

    def _share(self, cluster: int, others: Resources) -> None:
        before = self._others[cluster]
        free = self._free[cluster] if before is None else self._free[cluster] + before
        self._free[cluster], self._others[cluster] = free - others, others
        if before is None:
            self._others_lately[cluster] = tuple(map(float, others))
        for span in self._linked[cluster][1:]:
            self._share_span(span)
        self._changed(cluster)

    def _share_span(self, span: int) -> None:
        """What others use of a span is what they use of its nodes."""
        nobody = self._capacity[span] - self._capacity[span]
        used = nobody
        for n in self._spans[span]:
            used = used + (self._others[n] or nobody)
        if self.slot == 0:
            self._others_lately[span] = tuple(map(float, used))
        self._others[span] = used

    def _arrive(self, task: Task) -> None:
        if task.id in self._held or task.id in self._waiting:
            raise InvalidTransition(f"task {task.id} arrived twice: {self.story(task.id)}")
        task = self._as_known(task)
        if (task.type.name, task.eligible) not in self._alike:  # else another one of its kind was checked
            check_eligible(task, self.clusters)
        last = next(reversed(self._waiting.values()), None)
        if self._unsorted or (last is not None and (task.arrival, task.id) < _age(last)):
            self._unsorted.add((task.type.name, task.eligible))  # it, or one before it, has come back
        self._wait(task)

    def _as_known(self, task: Task) -> Task:
        """The task with the bounds that its family has shown to need."""
        raised = self._raised.get(task.type.family) if self._raised else None
        if raised is None or raised.minimum.fits(task.type.minimum):
            return task
        return replace(task, type=raised)

    def _wait(self, task: Task, view: TaskView | None = None) -> None:
        """``view``: the task's view, if it already waits in another state."""
        view = view or TaskView(task.id, task.type, task.arrival, task.eligible, Phase.QUEUED)
        self._tasks[task.id] = task
        self._waiting[task.id] = view
        self._alike.setdefault((task.type.name, task.eligible), {})[task.id] = view
        self._queue_view = None

    def _leave(self, ident: int) -> Task:
        """Remove this task from the queue and return it."""
        task = self._tasks.pop(ident)
        del self._waiting[ident]
        kind = (task.type.name, task.eligible)
        del self._alike[kind][ident]
        if not self._alike[kind]:
            del self._alike[kind]
        self._queue_view = None
        return task

    def _expect(self, task: int, *phases: Phase) -> _Held:
        held = self._held.get(task)
        if held is None or held.phase not in phases:
            wanted = " or ".join(phase.value for phase in phases)
            raise InvalidTransition(f"task {task} should be {wanted}, but: {self.story(task)}")
        return held

    def _release(self, held: _Held) -> None:
        del self._held[held.task.id]
        del self._on[held.cluster][held.task.id]
        self._free[held.cluster] = self._free[held.cluster] + held.allocation
        for n, part in zip(self._spans.get(held.cluster, ()), held.parts, strict=True):
            self._free[n] = self._free[n] + part
        self._changed(held.cluster)
        if self.data is not None:
            self.data = self.data.release(held.type.data, held.cluster, self.slot)

    def _lose(self, cluster: int) -> None:
        self._up[cluster] = False
        lost = list(self._on[cluster].values())
        for span in self._linked[cluster][1:] if cluster not in self._spans else ():
            place = self._spans[span].index(cluster)
            lost += [held for held in self._on[span].values() if held.parts and not held.parts[place].none]
        for held in lost:
            self._release(held)
        self._return([held.task for held in lost])
        self._changed(cluster)

    def _return(self, tasks: Sequence[Task]) -> None:
        """Put lost tasks back into the queue, at their old positions in the order of arrival."""
        for each in tasks:
            task = self._as_known(each)
            self._wait(task)
            self._unsorted.add((task.type.name, task.eligible))

    def _sort(self) -> None:
        """Put the queue in order. Many tasks may have come back at once, so it waits until someone looks."""
        if self._unsorted:
            for kind in self._unsorted & self._alike.keys():
                self._alike[kind] = _in_order(self._alike[kind])
            self._waiting = _in_order(self._waiting)
            self._unsorted.clear()

    def _withdraw(self, task: int) -> None:
        if task not in self._waiting:
            raise InvalidTransition(f"task {task} should wait, but: {self.story(task)}")
        self._leave(task)

    def end_slot(self, progress: Mapping[int, float]) -> None:
        """Time passes: running tasks age by one slot and may have reported progress."""
        self.slot += 1
        self.turn = 0
        for index, others in enumerate(self._others):
            if others is not None:
                before = self._others_lately[index]
                self._others_lately[index] = tuple(
                    mean + OTHERS_WEIGHT * (amount - mean) for mean, amount in zip(before, others, strict=True)
                )
                self._changed(index)
        for index, held_here in enumerate(self._on):
            if held_here or self._started[index]:
                self._changed(index)
            self._started[index] = 0
        for held in self._held.values():
            if held.phase is Phase.RUNNING:
                held.elapsed += 1
                held.service = held.allocation if held.service is None else held.service + held.allocation
        for task, reported in progress.items():
            if task in self._held:
                self._held[task].progress = reported

    def has_run(self, task: int, slots: int) -> None:
        """Record that a running task had run for ``slots`` slots before this state began, at its present size."""
        held = self._expect(task, Phase.RUNNING)
        held.elapsed = slots
        held.service = Resources([slots * amount for amount in held.allocation]) if slots else None
        self._changed(held.cluster)

    # ------------------------------------------------------------------ checks

    def story(self, task: int) -> str:
        """Description of a task, for messages."""
        if task in self._waiting:
            view = self._waiting[task]
            return f"task {task} waits since slot {view.arrival} for one of clusters {list(view.eligible)}"
        if task in self._held:
            held = self._held[task]
            return f"task {task} is {held.phase.value} on cluster {held.cluster} with {tuple(held.allocation)}"
        return f"task {task} is not in the system: it has not arrived, or it has ended"

    def validate(self) -> None:
        """Check every invariant; raises AssertionError. For tests and debugging."""
        _assert(not self._waiting.keys() & self._held.keys(), "a task both waits and is on a cluster")
        _assert(self._waiting.keys() == self._tasks.keys(), "views and tasks of the queue differ")
        self._sort()
        arrivals = [(view.arrival, view.id) for view in self._waiting.values()]
        _assert(arrivals == sorted(arrivals), "the queue is not in order of arrival")
        alike = [list(views.values()) for views in self._alike.values()]
        _assert(all(views == sorted(views, key=_age) and views for views in alike), "a kind is not in order of arrival")
        every = [view for views in alike for view in views]
        _assert(sorted(every, key=_age) == list(self._waiting.values()), "the kinds are not the queue")
        for index, cluster in enumerate(self.clusters):
            held_here = self._on[index]
            capacity = self._capacity[index]
            used = Resources([0] * len(capacity))
            for task, held in held_here.items():
                _assert(self._held.get(task) is held, f"task {task} is held by two records")
                _assert(held.cluster == index, f"task {task} is listed on the wrong cluster")
                _assert(index in held.task.eligible, f"task {task} runs where it may not")
                _assert((held.phase is Phase.PAUSED) == held.allocation.none, f"task {task} is paused with resources")
                if not held.allocation.none:
                    check_size(task, held.task.type, held.allocation)
                used = used + held.allocation
            for span in self._linked[index][1:] if index not in self._spans else ():
                place = self._spans[span].index(index)
                for held in self._on[span].values():
                    used = used + held.parts[place] if held.parts else used
            if index in self._spans:
                for task, held in held_here.items():
                    whole = [sum(column) for column in zip(*held.parts, strict=True)] if held.parts else []
                    _assert(
                        held.allocation.none or whole == list(held.allocation), f"parts of task {task} do not add up"
                    )
                continue
            others = self._others[index]
            _assert(
                used + self._free[index] == (capacity if others is None else capacity - others),
                f"resources of cluster {index} do not add up",
            )
            lowered = capacity != cluster.capacity or others is not None
            _assert(lowered or min(self._free[index]) >= 0, f"cluster {index} is over capacity")
            _assert(self._up[index] or not held_here, f"cluster {index} is down but holds tasks")
        _assert(sum(map(len, self._on)) == len(self._held), "tasks on clusters do not add up")


def _age(view: TaskView) -> tuple[int, int]:
    return view.arrival, view.id


def _in_order(waiting: dict[int, TaskView]) -> dict[int, TaskView]:
    return {view.id: view for view in sorted(waiting.values(), key=_age)}


def _assert(condition: bool, message: str) -> None:
    """An assertion that ``python -O`` does not remove."""
    if not condition:
        raise AssertionError(message)


def eligible_ids(row: Iterable[bool]) -> tuple[int, ...]:
    """Indices of the true values in a row of booleans, one per cluster."""
    return tuple(index for index, may in enumerate(row) if may)
