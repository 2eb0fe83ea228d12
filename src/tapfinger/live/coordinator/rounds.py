"""Rounds of a live site, played with the same state, session and rules as in simulation."""

from __future__ import annotations

from collections.abc import Iterable

from tapfinger.core.contract import ClusterView, Decision, Mode, Phase, Placement, Resize, Scheduler, Snapshot
from tapfinger.core.events import (
    Event,
    StartTask,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskRequeued,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.feasibility import may_start
from tapfinger.core.model import Resources, Task
from tapfinger.core.session import Session
from tapfinger.core.staging import Staging
from tapfinger.core.state import EdgeState
from tapfinger.errors import InvalidDecision
from tapfinger.live.coordinator.decisions import Answer, Decider, Elsewhere, RoundQuestion
from tapfinger.live.coordinator.resizing import larger
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.records import TaskRecord

#: Most waiting tasks that a scheduler sees. Of a longer queue, it sees the first tasks of each kind: decision time
#: grows with the queue, and a task far behind others of its kind cannot start before them.
WINDOW = 2_000


class Rounds:
    """Prepares questions for schedulers, and turns their answers into grants."""

    def __init__(
        self,
        site: Site,
        scheduler: Scheduler,
        slot: int,
        fallback: Scheduler | None = None,
    ) -> None:
        """``fallback`` decides in rounds in which the scheduler fails."""
        self._site = site
        self.deciders = tuple(
            chosen if isinstance(chosen, Decider) else Decider(chosen)
            for chosen in (scheduler, fallback)
            if chosen is not None
        )
        state = EdgeState(site.clusters, Mode.MULTI, None if site.data is None else Staging.begin(site.data))
        state.slot = slot
        self._elsewhere = Elsewhere()
        self._session = Session(state, self._elsewhere)
        #: Whether something has changed since the last question.
        self.stale = True

    @property
    def slot(self) -> int:
        """The current slot."""
        return self._session.state.slot

    @property
    def snapshot(self) -> Snapshot:
        """What a scheduler would see."""
        return self._session.state.snapshot()

    @property
    def clusters(self) -> tuple[ClusterView, ...]:
        """The clusters as schedulers see them, without a full snapshot."""
        return self._session.state.cluster_views()

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return self._session.state.waiting

    def take(self, *events: Event) -> None:
        """Apply events to the state."""
        self._session.take(list(events))
        for event in events:
            if isinstance(event, TaskFinished | TaskFailed | TaskRequeued):
                self._elsewhere.reports.pop(event.task, None)  # another attempt starts from 0
        self.stale = True

    def arrive(self, tasks: Iterable[Task], owner: str) -> None:
        """Show waiting tasks to schedulers. They are told of their types with that: one unknown type stops them all."""
        arrived = list(tasks)
        for task in arrived:
            self._site.accepted(task, owner)
        self.take(*(TaskArrived(self.slot, task) for task in arrived))

    def change(self, tasks: Iterable[Task], owner: str) -> None:
        """Show tasks that wait already with other bounds, at their old places."""
        changed = list(tasks)
        self.take(*(TaskWithdrawn(self.slot, task.id) for task in changed))
        self.arrive(changed, owner)

    def progressed(self, task: int, progress: float) -> None:
        """Note the progress of a running task; schedulers see it from the next slot on, as in simulation."""
        self._elsewhere.reports[task] = progress

    def restore(self, record: TaskRecord, arrival: int, ran: int) -> None:
        """Restore a waiting, placed or running task; clusters must be open. ``ran``: slots it has run so far."""
        task = self._site.task_of(record, arrival)
        self.arrive([task], record.owner)
        if record.cluster is None or record.allocation is None:
            return
        cluster, size = self._site.index[record.cluster], Resources(record.allocation)
        state = self._session.state
        if state.data is not None and record.started is not None:
            state.data = state.data.found(task.type.data, cluster, self.slot)
        state.commit(Decision((Placement(record.id, cluster, size),)))
        if record.started is not None:
            self._session.take([TaskStarted(self.slot, record.id, cluster, size)])
            state.has_run(record.id, ran)
            if record.progress is not None:
                self.progressed(record.id, record.progress)

    def advance(self, slot: int) -> None:
        """End slots until this one is the current slot."""
        while self.slot < slot:
            self._session.end_slot()
            # Schedulers weigh the time waited, so a new slot alone can change their decision about the queue.
            self.stale = True

    def ask(self, resizable: Iterable[int] = ()) -> RoundQuestion | None:
        """The question to put to schedulers now; None if no task can start and none is ``resizable``."""
        self.stale = False
        may_change = frozenset(resizable)
        # A copy of a long queue is expensive, and of no use while nothing at all is free.
        possible = self.waiting and any(may_start(cluster) and not cluster.free.none for cluster in self.clusters)
        if not possible and not may_change:
            return None
        return RoundQuestion(self._session.state.fork(WINDOW), self._site.context(), self.deciders, may_change)

    def settle(self, answer: Answer) -> tuple[list[StartTask], dict[int, Resources]]:
        """Carry out an answer. It may come late: what no longer fits is dropped and left to the next round.

        Returns the starts, and the new sizes of running tasks. For a new size, the larger of the old and the new
        amounts is debited.
        """
        for start in answer.starts:
            self._try(Decision((Placement(start.task.id, start.cluster, start.allocation),)))
        held = {t.id: t for c in self.clusters for t in c.running if answer.sizes and t.phase is Phase.RUNNING}
        sizes = {
            task: size
            for task, size in answer.sizes.items()
            if task in held and self._debit(task, held[task].allocation or size, size)
        }
        return [command for command in self._session.collect() if isinstance(command, StartTask)], sizes

    def _debit(self, task: int, now: Resources, size: Resources) -> bool:
        top = larger(now, size)
        return top == now or self._try(Decision((), (Resize(task, top),)))

    def _try(self, decision: Decision) -> bool:
        try:
            self._session.turn(decision)
        except InvalidDecision:
            self.stale = True
            return False
        return True

    def resized(self, task: int, size: Resources) -> bool:
        """Set the size of a running task and free the rest of what it held; False if that is impossible."""
        possible = self._try(Decision((), (Resize(task, size),)))
        self._session.collect()
        self.stale = True
        return possible

    def validate(self) -> None:
        """Check every invariant of the state, and that schedulers are told of every type that they see."""
        self._session.state.validate()
        shown = self.snapshot
        unknown = {task.type.name for task in (*shown.queue, *shown.running())} - self._site.task_types.keys()
        if unknown:
            raise AssertionError(f"schedulers see tasks of types that they are not told of: {sorted(unknown)}")
