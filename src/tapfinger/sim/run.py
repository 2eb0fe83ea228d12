"""Run one scheduler on one workload to the end: the evaluation driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tapfinger.core.contract import Decision, Scheduler, Snapshot
from tapfinger.core.events import ClusterJoined, Event, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.feasibility import can_start
from tapfinger.core.session import Session
from tapfinger.core.staging import Staging
from tapfinger.core.state import EdgeState
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import TapfingerError
from tapfinger.profiles.belief_wrapper import Believing
from tapfinger.sim.executor import SimExecutor
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, draw_workload

#: Number of slots with nothing running and nothing started after which a run is given up as stuck.
STUCK_SLOTS = 5_000


@dataclass(frozen=True)
class RunTotals:
    """What the driver itself knows after a run; everything else is computed from events."""

    slots: int
    tasks: int
    total_completion_time: int
    conflicts: int
    #: Seconds spent in ``decide``, all turns together, per slot that began with a task waiting.
    decision_seconds: list[float]


class StuckError(TapfingerError):
    """A scheduler left tasks waiting forever although clusters are idle."""


def new_session(world: World, workload: Workload, sinks: Iterable[Callable[[Event], None]] = ()) -> Session:
    """A fresh session of the simulator."""
    data = None if workload.data is None else Staging.begin(workload.data)
    return Session(EdgeState(world.clusters, world.mode, data), SimExecutor(world, workload), sinks)


def informed(world: World, scheduler: Scheduler) -> Scheduler:
    """The scheduler as it may play in this world: if profiles are not known exactly, it sees beliefs instead."""
    return scheduler if world.exact else Believing(scheduler, world.scenario.knowledge.learn)


def run_scheduler(
    world: World,
    scheduler: Scheduler,
    seed: int,
    sinks: Iterable[Callable[[Event], None]] = (),
    workload: Workload | None = None,
    observe: Callable[[Session], None] | None = None,
) -> RunTotals:
    """Play until every task has ended. ``observe`` is called before each slot ends."""
    workload = workload if workload is not None else draw_workload(world, seed)
    watch = _StuckWatch()
    session = new_session(world, workload, (*sinks, watch))
    timed = _Timed(informed(world, scheduler))
    timed.reset(world.context(seed))
    while not session.done:
        session.play_round(timed)
        if observe is not None:
            observe(session)
        session.end_slot()
        watch.check(session, scheduler)
    return RunTotals(session.state.slot, len(workload), session.total_tasks_in_system, session.conflicts, timed.seconds)


class _Timed(SchedulerWrapper):
    """Times the scheduler in slots that begin with a task waiting."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        #: Seconds per slot, all turns together.
        self.seconds: list[float] = []
        self._counts = False

    def decide(self, snapshot: Snapshot) -> Decision:
        begin = time.perf_counter()
        decision = self.inner.decide(snapshot)
        spent = time.perf_counter() - begin
        if snapshot.turn == 0:
            # Hardly anything is decided for an empty queue: many short times would hide the others.
            self._counts = bool(snapshot.queue)
            if self._counts:
                self.seconds.append(0.0)
        if self._counts:
            self.seconds[-1] += spent
        return decision


class _StuckWatch:
    """Notices a run that will never end."""

    def __init__(self) -> None:
        self._last_sign_of_life = 0

    def __call__(self, event: Event) -> None:
        # An arrival after a long quiet time, or a cluster that returns, restarts the wait.
        if isinstance(event, TaskStarted | TaskFinished | TaskArrived | ClusterJoined):
            self._last_sign_of_life = event.slot

    def check(self, session: Session, scheduler: Scheduler) -> None:
        idle = session.state.slot - self._last_sign_of_life
        if idle > STUCK_SLOTS and session.state.tasks_in_system:
            snapshot = session.state.snapshot()
            running = any(c.running for c in snapshot.clusters)
            # During an outage a scheduler may have nothing it could start.
            could = any(c.paused or any(can_start(t, c) for t in snapshot.queue_of(c.index)) for c in snapshot.clusters)
            if could and not running:
                raise StuckError(
                    f"{type(scheduler).__name__} has started nothing for {idle} slots although "
                    f"{session.state.tasks_in_system} tasks wait and every cluster is idle; a scheduler that refuses a "
                    "task that fits must have a reason that ends"
                )
