"""Small worlds for tests, with everything that does not matter filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.contract import VOID, Decision, Mode, Placement, Resize, SchedulerContext, Snapshot
from tapfinger.core.events import Event, TaskArrived, TaskStarted
from tapfinger.core.model import Cluster, Resources, SpeedProfile, Task, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.sim.run import RunTotals, run_scheduler
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, build_world

R = Resources


def constant_type(
    minimum: Sequence[int] = (2, 1), maximum: Sequence[int] = (16, 16), slots: float = 4.0, name: str = "steady"
) -> TaskType:
    """A task type that takes the same number of slots under every allocation."""
    low, high = R(minimum), R(maximum)
    cells = math.prod(b - a + 1 for a, b in zip(low, high, strict=True))
    return TaskType(name, low, high, SpeedProfile(low, high, (1.0 / slots,) * cells))


STEADY = constant_type()


def make_task(ident: int, task_type: TaskType = STEADY, arrival: int = 0, eligible: Sequence[int] = (0,)) -> Task:
    return Task(ident, task_type, arrival, tuple(eligible))


def make_state(*capacities: Sequence[int], mode: Mode = Mode.MULTI) -> EdgeState:
    """Clusters c0, c1, ... of these capacities; 16 cpus and 16 gpus if none is given."""
    chosen = capacities or ((16, 16),)
    return EdgeState([Cluster(f"c{i}", R(c)) for i, c in enumerate(chosen)], mode)


def place(task: int, cluster: int, *amounts: int) -> Decision:
    return Decision(placements=(Placement(task, cluster, R(amounts)),))


def resize(task: int, *amounts: int) -> Decision:
    return Decision(resizes=(Resize(task, R(amounts)),))


def play(state: EdgeState, *stimuli: Event | Decision) -> list[Any]:
    """Feed events and decisions in order, with every invariant checked after each; returns all commands."""
    commands: list[Any] = []
    for stimulus in stimuli:
        if isinstance(stimulus, Decision):
            commands += state.commit(stimulus)
        else:
            state.apply(stimulus)
        state.validate()
    return commands


def arrive(*tasks: Task) -> list[Event]:
    return [TaskArrived(task.arrival, task) for task in tasks]


def running(state: EdgeState, task: Task, cluster: int, *amounts: int) -> EdgeState:
    """Bring a task to RUNNING on a cluster."""
    play(state, TaskArrived(state.slot, task), place(task.id, cluster, *amounts))
    play(state, TaskStarted(state.slot, task.id, cluster, R(amounts)))
    return state


def make_scenario(**changes: Any) -> Scenario:
    """One cluster of (16, 16), one type of four slots at a minimum of (2, 1), multi-task, 20 tasks at rate 1."""
    data: dict[str, Any] = {
        "name": "small",
        "mode": "multi",
        "tasks": 20,
        "clusters": [{"name": "c0", "capacity": {"cpu": 16, "gpu": 16}}],
        "task_types": [
            {
                "name": "steady",
                "minimum": {"cpu": 2, "gpu": 1},
                "maximum": {"cpu": 16, "gpu": 16},
                "speed": {"kind": "constant", "slots": 4},
            }
        ],
        "arrivals": {"kind": "poisson", "rate": 1.0},
    }
    return parse_scenario({**data, **changes})


def make_world(**changes: Any) -> World:
    return build_world(make_scenario(**changes))


def make_workload(slots: Sequence[int], clusters: int = 1, types: Sequence[int] | None = None) -> Workload:
    """Tasks that arrive in these slots and may run anywhere."""
    count = len(slots)
    return Workload(
        slot=np.array(slots, dtype=np.int64),
        type=np.array(types if types is not None else [0] * count, dtype=np.int64),
        eligible=np.ones((count, clusters), dtype=np.bool_),
        noise_key=np.arange(count, dtype=np.uint64),
    )


class Scripted:
    """A scheduler that plays given decisions by (slot, turn) and is void otherwise."""

    def __init__(self, decisions: dict[tuple[int, int], Decision], one_shot: bool = False) -> None:
        self.decisions = decisions
        self.one_shot = one_shot
        self.seen: list[Snapshot] = []

    def reset(self, context: SchedulerContext) -> None:
        self.seen = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.seen.append(snapshot)
        return self.decisions.get((snapshot.slot, snapshot.turn), VOID)


class StartAll:
    """Starts every waiting task that fits, at a fixed allocation or its minimum, on the first cluster that can."""

    one_shot = False

    def __init__(self, *amounts: int) -> None:
        self._amounts = R(amounts) if amounts else None

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        for task in snapshot.queue:
            for cluster in snapshot.clusters:
                size = self._amounts or task.type.minimum
                open_ = cluster.up and cluster.starts_left != 0 and cluster.index in task.eligible
                if open_ and size.fits(cluster.free):
                    return Decision(placements=(Placement(task.id, cluster.index, size),))
        return VOID


class Odd:
    """An arrival process that returns what it is told."""

    def __init__(self, returned: Any) -> None:
        self._returned = returned

    def arrivals(self, *_: Any) -> Any:
        return self._returned


def log_of(
    world: World, scheduler: Any, workload: Workload | None = None, seed: int = 0
) -> tuple[list[Event], RunTotals]:
    """All events of a run, and its totals; invariants are checked in every slot."""
    events: list[Event] = []
    totals = run_scheduler(
        world, scheduler, seed, [events.append], workload, observe=lambda session: session.state.validate()
    )
    return events, totals
