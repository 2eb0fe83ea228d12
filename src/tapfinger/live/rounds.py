"""Where live tasks meet the schedulers: the same state, session and rounds as in simulation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tapfinger.core.contract import ClusterView, Decision, Mode, Placement, Scheduler, SchedulerContext, Snapshot
from tapfinger.core.events import Command, Event, StartTask, TaskArrived, TaskStarted
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.core.session import Session, SlotOutcome
from tapfinger.core.state import EdgeState
from tapfinger.live.site import Site
from tapfinger.live.tasks import TaskRecord

logger = logging.getLogger(__name__)

#: Waiting tasks that a scheduler sees. Of a longer queue, the first of each kind: a decision takes time in
#: proportion to the queue, and those far behind others of their kind cannot come before them.
WINDOW = 2_000


class _Elsewhere:
    """Events come from agents at any time, and commands are collected at once: a slot's end brings neither."""

    exhausted = False

    def begin(self) -> list[Event]:
        return []

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        if commands:
            raise AssertionError(f"slot {slot}: {len(commands)} commands were not collected")
        return SlotOutcome()


class NoResizes:
    """A scheduler whose tasks keep the size they start with.

    Resizes are left out, and placements that would need the room they were to make.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Wrap a scheduler."""
        self._scheduler = scheduler
        self.one_shot = scheduler.one_shot
        self.name = getattr(scheduler, "name", type(scheduler).__name__)
        self._types = 0

    def reset(self, context: SchedulerContext) -> None:
        """As the scheduler does."""
        self._scheduler.reset(context)

    def know(self, site: Site) -> None:
        """Begin anew if there are task types that it has not heard of: its tables know only those it was told."""
        if self._types != len(site.task_types):
            self.reset(site.context())
            self._types = len(site.task_types)

    def decide(self, snapshot: Snapshot) -> Decision:
        """The placements that fit as things are."""
        decision = self._scheduler.decide(snapshot)
        if not decision.resizes:
            return decision
        free = list(snapshot.free)
        kept: list[Placement] = []
        for placement in decision.placements:
            if placement.allocation.fits(free[placement.cluster]):
                free[placement.cluster] = free[placement.cluster] - placement.allocation
                kept.append(placement)
        return Decision(tuple(kept), (), decision.lost)


class Rounds:
    """Plays rounds on what is known now, and says what to grant."""

    def __init__(
        self,
        site: Site,
        scheduler: Scheduler,
        slot: int,
        fallback: Scheduler | None = None,
        sinks: Iterable[Callable[[Event], None]] = (),
    ) -> None:
        """``fallback`` decides in rounds in which the scheduler fails."""
        self._site = site
        self._scheduler = NoResizes(scheduler)
        self._fallback = NoResizes(fallback) if fallback is not None else None
        state = EdgeState(site.clusters, Mode.MULTI)
        state.slot = slot
        self._session = Session(state, _Elsewhere(), sinks)
        #: Whether something has changed that a scheduler may want to act on.
        self.stale = True

    @property
    def slot(self) -> int:
        """The slot that is now."""
        return self._session.state.slot

    @property
    def snapshot(self) -> Snapshot:
        """What a scheduler would see."""
        return self._session.state.snapshot()

    @property
    def clusters(self) -> tuple[ClusterView, ...]:
        """The clusters alone."""
        return self._session.state.cluster_views()

    def take(self, *events: Event) -> None:
        """Something happened."""
        self._session.take(list(events))
        self.stale = True

    def restore(self, record: TaskRecord, arrival: int) -> None:
        """Bring back a task that is on a cluster; clusters must be open."""
        task = self._site.task(record.id, record.spec, arrival)
        self._session.take([TaskArrived(self.slot, task)])
        if record.cluster is None or record.allocation is None:
            return
        cluster, size = self._site.index[record.cluster], Resources(record.allocation)
        self._session.state.commit(Decision((Placement(record.id, cluster, size),)))
        if record.started is not None:
            self._session.take([TaskStarted(self.slot, record.id, cluster, size)])

    def advance(self, slot: int) -> None:
        """Slots pass."""
        while self.slot < slot:
            self._session.end_slot()
            # Patience depends on the time waited: with a queue, a new slot is reason enough to decide anew.
            self.stale = True

    def play(self) -> tuple[list[StartTask], str]:
        """One round: what is to start, and what went wrong with the decision, if anything did."""
        self.stale = False
        if not self._possible():
            return [], ""
        fault = self._attempt(self._scheduler)
        if fault and self._fallback is not None:
            fault += self._attempt(self._fallback)
        return [c for c in self._session.collect() if isinstance(c, StartTask)], fault

    def _possible(self) -> bool:
        """Whether anything that waits could start now: with a long queue and full clusters, asking is dear."""
        return any(can_start(task, cluster) for task in self._session.state.kinds() for cluster in self.clusters)

    def _attempt(self, scheduler: NoResizes) -> str:
        try:
            scheduler.know(self._site)
            self._session.play_round(scheduler, WINDOW)
        except Exception as error:  # a scheduler may raise anything; tasks must go on
            logger.exception("scheduler %s failed", scheduler.name)
            return f"{scheduler.name}: {type(error).__name__}: {error}. "
        return ""

    def validate(self) -> None:
        """Check every invariant of the state."""
        self._session.state.validate()
