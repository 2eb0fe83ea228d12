"""Random small worlds under a random scheduler: whatever it does, the rules hold and the run ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from helpers import R
from hypothesis import given, settings
from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.core.contract import VOID, Decision, Placement, Resize, SchedulerContext, Snapshot, TaskView
from tapfinger.core.events import ClusterLost, Event, TaskArrived, TaskFinished, TaskResized, TaskStarted
from tapfinger.core.feasibility import can_start, largest_allocation
from tapfinger.core.model import Resources
from tapfinger.core.session import Session
from tapfinger.core.spans import Rooms, pooled
from tapfinger.errors import InvalidDecision
from tapfinger.sim.run import new_session, run_scheduler
from tapfinger.workloads.world import World, build_world, draw_workload

NAMES = ("cpu", "gpu", "memory")


@st.composite
def worlds(draw: st.DrawFn, outages: bool = True) -> World:
    """1-4 clusters, 1-3 resources, 1-3 types of any speed, both modes, sometimes noise, outages, nodes and types that
    span them.
    """
    names = NAMES[: draw(st.integers(1, 3))]
    amounts = st.fixed_dictionaries({name: st.integers(0, 3) for name in names})
    minima = draw(st.lists(amounts.filter(lambda m: any(m.values())), min_size=1, max_size=3))
    # Every cluster holds every minimum at least once, so no draw is refused.
    need = {name: max(m[name] for m in minima) for name in names}
    count = draw(st.integers(1, 4))
    clusters = [
        {"name": f"c{i}", "capacity": {name: need[name] + draw(st.integers(0, 6)) for name in names}}
        for i in range(count)
    ]
    for i in range(draw(st.integers(0, count))):  # more nodes besides the one that holds every minimum
        more = st.fixed_dictionaries({name: st.integers(0, 4) for name in names})
        first = clusters[i].pop("capacity")
        clusters[i]["nodes"] = draw(st.permutations([first, *draw(st.lists(more, min_size=1, max_size=3))]))
    data: dict[str, Any] = {
        "name": "random",
        "mode": draw(st.sampled_from(["single", "multi"])),
        "tasks": draw(st.integers(1, 25)),
        "resources": dict.fromkeys(names, 1),
        "clusters": clusters,
        "task_types": [_task_type(draw, i, minimum) for i, minimum in enumerate(minima)],
        "arrivals": {"kind": "poisson", "rate": draw(st.sampled_from([0.3, 1.0, 5.0]))},
        "eligibility": {"kind": draw(st.sampled_from(["subset", "bandwidth", "all"]))},
        "noise": draw(st.sampled_from([{}, *({"kind": k, "amplitude": 0.1} for k in ("additive", "relative"))])),
        "switching_cost": draw(st.sampled_from([0.0, 0.5, 1.5])),
    }
    if outages and draw(st.booleans()):
        start = draw(st.integers(1, 20))
        data["outages"] = [
            {"cluster": draw(st.integers(0, count - 1)), "start": start, "end": start + draw(st.integers(1, 10))}
        ]
    return build_world(parse_scenario(data))


def _task_type(draw: st.DrawFn, index: int, minimum: dict[str, int]) -> dict[str, Any]:
    first = next(iter(minimum))
    speeds: list[dict[str, Any]] = [
        {"kind": "constant", "slots": draw(st.integers(1, 6))},
        {"kind": "tanh", "resource": first, "scale": 4, "shape_offset": 1.2},
    ]
    usable = speeds if minimum[first] > 0 else speeds[:1]
    return {
        "name": f"t{index}",
        "minimum": minimum,
        "maximum": {name: amount + draw(st.integers(0, 4)) for name, amount in minimum.items()},
        "speed": draw(st.sampled_from(usable)),
        "spans": draw(st.booleans()),
    }


class Restless:
    """Starts, resizes and pauses at random, always legally; from slot 40 on it only starts and resumes."""

    one_shot = False

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        calm = snapshot.slot >= 40
        free = Rooms(snapshot.clusters)
        resizes = self._resizes(snapshot, free, calm) if snapshot.turn == 0 else []
        placements: list[Placement] = []
        used: set[int] = set()
        for cluster in self._rng.permutation(len(snapshot.clusters)).tolist():
            view = snapshot.clusters[cluster]
            fits = [
                task
                for task in snapshot.queue_of(cluster)
                if task.id not in used and can_start(task, view) and task.type.minimum.fits(free[cluster])
            ]
            if fits and (calm or self._rng.random() < 0.7):
                task = fits[int(self._rng.integers(len(fits)))]
                size = self._size(task, free[cluster])
                free.take(cluster, size)
                used.add(task.id)
                placements.append(Placement(task.id, cluster, size))
        return Decision(tuple(placements), tuple(resizes)) if placements or resizes else VOID

    def _resizes(self, snapshot: Snapshot, free: Rooms, calm: bool) -> list[Resize]:
        found = []
        for cluster in snapshot.clusters:
            for task in (*cluster.running, *cluster.paused):
                paused = task in cluster.paused
                if not (calm and paused) and (calm or self._rng.random() < 0.6):
                    continue
                held = task.allocation
                assert held is not None
                room = free[cluster.index] + held
                if task.type.minimum.fits(room) and (calm or self._rng.random() < 0.7):
                    size = self._size(task, room)
                else:
                    size = R([0] * len(held))
                free.resize(cluster.index, task, held, size)
                found.append(Resize(task.id, size))
        return found

    def _size(self, task: TaskView, free: Resources) -> Resources:
        top = largest_allocation(task.type, free)
        assert top is not None
        return R([int(self._rng.integers(lo, hi + 1)) for lo, hi in zip(task.type.minimum, top, strict=True)])


def check_ledger(world: World, events: list[Event]) -> None:
    """Keep the books from the log alone: never over capacity, never below zero, empty at the end."""
    held: dict[int, tuple[int, Resources, tuple[Resources, ...]]] = {}
    for position, event in enumerate(events):
        if isinstance(event, TaskStarted | TaskResized):
            held[event.task] = (event.cluster, event.allocation, event.parts)
        elif isinstance(event, TaskFinished):
            assert held.pop(event.task)[0] == event.cluster
        elif isinstance(event, ClusterLost):
            held = {task: what for task, what in held.items() if what[0] != event.cluster}
        following = events[position + 1] if position + 1 < len(events) else None
        # Changes of one slot take effect together: look when the last of them has been written.
        if isinstance(following, TaskStarted | TaskResized):
            continue
        for index, cluster in enumerate(world.clusters):
            used = R([0] * len(cluster.capacity))
            for where, amounts, parts in held.values():
                used = used + amounts if where == index else used
                for node, part in zip(world.clusters[where].nodes, parts, strict=True):
                    used = used + part if node == index else used
            assert used.fits(cluster.capacity)
    assert not held


@settings(max_examples=120)
@given(worlds(), st.integers(0, 2**32))
def test_rules_hold_and_the_run_ends(world: World, seed: int) -> None:
    events: list[Event] = []
    work = draw_workload(world, seed)

    def observe(session: Session) -> None:
        session.state.validate()
        snapshot = session.state.snapshot()
        left = {c.index: c.capacity for c in snapshot.clusters}
        for cluster in snapshot.clusters:
            for task in cluster.running:
                assert task.allocation is not None
                left[cluster.index] = left[cluster.index] - task.allocation
                for node, part in zip(cluster.nodes, task.parts, strict=True):
                    left[node] = left[node] - part
                if cluster.nodes:
                    assert [sum(column) for column in zip(*task.parts, strict=True)] == list(task.allocation)
        for cluster in snapshot.clusters:
            if cluster.up:
                assert cluster.free == (
                    pooled([left[n] for n in cluster.nodes]) if cluster.nodes else left[cluster.index]
                )

    totals = run_scheduler(world, Restless(seed), seed, [events.append], work, observe)
    check_ledger(world, events)
    ends = {e.task: e.slot for e in events if isinstance(e, TaskFinished)}
    assert sorted(ends) == list(range(len(work))), "every task ended, once"
    assert totals.total_completion_time == sum(ends[i] - int(work.slot[i]) + 1 for i in ends)
    for event in events:
        if isinstance(event, TaskStarted):
            assert work.eligible[event.task, event.cluster]
            assert event.slot >= work.slot[event.task]


@given(worlds(outages=False), st.integers(0, 2**32))
def test_without_outages_a_task_is_placed_once(world: World, seed: int) -> None:
    events: list[Event] = []
    run_scheduler(world, Restless(seed), seed, [events.append])
    starts = Counter(e.task for e in events if isinstance(e, TaskStarted))
    assert set(starts.values()) == {1}
    assert len(starts) == sum(isinstance(e, TaskArrived) for e in events)


@given(worlds(), st.integers(0, 2**32))
def test_a_task_starts_again_only_if_its_cluster_was_lost(world: World, seed: int) -> None:
    events: list[Event] = []
    run_scheduler(world, Restless(seed), seed, [events.append])
    on: dict[int, int] = {}
    for event in events:
        if isinstance(event, TaskStarted):
            assert event.task not in on
            on[event.task] = event.cluster
        elif isinstance(event, ClusterLost):
            on = {task: cluster for task, cluster in on.items() if cluster != event.cluster}
        elif isinstance(event, TaskResized):
            assert on[event.task] == event.cluster


@given(worlds(), st.integers(0, 2**32))
def test_in_single_task_mode_a_cluster_starts_at_most_one_task_a_slot(world: World, seed: int) -> None:
    events: list[Event] = []
    run_scheduler(world, Restless(seed), seed, [events.append])
    starts = Counter((e.slot, e.cluster) for e in events if isinstance(e, TaskStarted))
    if world.mode.value == "single":
        assert max(starts.values()) == 1


@given(worlds(), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_log(world: World, seed: int) -> None:
    logs: list[list[Event]] = [[], []]
    for log in logs:
        run_scheduler(world, Restless(seed), seed, [log.append])
    assert logs[0] == logs[1]


def wild_decision(rng: np.random.Generator, snapshot: Snapshot, tasks: int) -> Decision:
    """Any ids, any amounts, any number of parts: mostly illegal."""
    resources = len(snapshot.clusters[0].capacity)

    def amounts() -> Resources:
        length = resources if rng.random() < 0.95 else int(rng.integers(0, 5))
        return R(rng.integers(-1, 9, size=length).tolist())

    def task() -> int:
        return int(rng.integers(-1, tasks + 1))

    placements = [
        Placement(task(), int(rng.integers(-1, len(snapshot.clusters) + 1)), amounts())
        for _ in range(rng.integers(0, 4))
    ]
    resizes = [Resize(task(), amounts()) for _ in range(rng.integers(0, 3))]
    return Decision(tuple(placements), tuple(resizes))


@given(worlds(), st.integers(0, 2**32))
def test_a_wild_decision_is_carried_out_whole_or_changes_nothing(world: World, seed: int) -> None:
    rng = np.random.default_rng(seed)
    session = new_session(world, draw_workload(world, seed))
    scheduler = Restless(seed)
    refused = 0
    for _ in range(15):
        for _ in range(4):
            before = session.state.snapshot()
            decision = wild_decision(rng, before, world.scenario.tasks or 0)
            try:
                session.turn(decision)
            except InvalidDecision:
                refused += 1
                session.state.validate()
                assert session.state.snapshot() == before
            else:
                session.state.validate()
                held = {t.id: t.allocation for c in session.state.snapshot().clusters for t in (*c.running, *c.paused)}
                assert all(held[p.task] == p.allocation for p in (*decision.placements, *decision.resizes))
        if world.mode.value == "multi":
            session.play_round(scheduler)
        session.end_slot()
        session.state.validate()
    assert refused > 0


def test_the_random_scheduler_really_resizes_pauses_and_starts() -> None:
    world = build_world(
        parse_scenario(
            {
                "name": "busy",
                "mode": "multi",
                "tasks": 40,
                "clusters": [{"name": "c", "count": 2, "capacity": {"cpu": 9, "gpu": 9}}],
                "task_types": [
                    {
                        "name": "t",
                        "minimum": {"cpu": 1, "gpu": 1},
                        "maximum": {"cpu": 4, "gpu": 4},
                        "speed": {"kind": "constant", "slots": 5},
                    }
                ],
                "arrivals": {"rate": 2},
            }
        )
    )
    events: list[Event] = []
    run_scheduler(world, Restless(1), 0, [events.append])
    resized = [e for e in events if isinstance(e, TaskResized)]
    assert sum(e.allocation.none for e in resized) > 10
    assert sum(not e.allocation.none for e in resized) > 10
