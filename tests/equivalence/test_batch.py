"""BatchSim must equal the readable simulator, event by event and observation by observation.

Kernels that are compared with what they mirror:

- `tapfinger.core.conflict.resolve`
- `tapfinger.core.feasibility.check_decision`
- `tapfinger.core.model.Noise.apply`
- `tapfinger.core.model.SpeedProfile.gain`
- `tapfinger.core.model.SpeedProfile.rate`
- `tapfinger.core.session.Session.end_slot`
- `tapfinger.core.session.Session.turn`
- `tapfinger.core.spans.Rooms.give`
- `tapfinger.core.spans.Rooms.take`
- `tapfinger.core.spans.pooled`
- `tapfinger.core.spans.split`
- `tapfinger.core.staging.Staging._trimmed`
- `tapfinger.core.staging.Staging.ask`
- `tapfinger.core.staging.Staging.begin`
- `tapfinger.core.staging.Staging.release`
- `tapfinger.core.state.EdgeState._arrive`
- `tapfinger.core.state.EdgeState._raise`
- `tapfinger.core.state.EdgeState._share`
- `tapfinger.core.state.EdgeState._share_span`
- `tapfinger.core.state.EdgeState.commit`
- `tapfinger.core.state.EdgeState.end_slot`
- `tapfinger.observation.Observer.observe`
- `tapfinger.sim.executor.SimExecutor._arrivals`
- `tapfinger.sim.executor.SimExecutor._others`
- `tapfinger.sim.executor.SimExecutor.run_slot`
- `tapfinger.workloads.needs.Ladder.above`
- `tapfinger.workloads.needs.Ladder.enough`
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import spanning_world, stocked_world, worlds

from tapfinger.config import load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Proposal
from tapfinger.core.events import Event, TaskOutOfMemory, TaskStaging, TaskStarted
from tapfinger.core.model import Resources
from tapfinger.errors import InvalidDecision
from tapfinger.observation import GraphObs, Observer
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.run import new_session
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import World, build_world, draw_workload

SCENARIOS = ["synthetic-3", "multi-3", "hetero-6", "short-long-3", "testbed-3"]


def random_actions(obs: GraphObs, minimum: dict[int, Resources], rng: np.random.Generator):
    """A random legal action for every cluster; void a quarter of the time."""
    clusters, _, resources = obs.largest.shape
    choice = np.full(clusters, -1, dtype=np.int64)
    allocation = np.zeros((clusters, resources), dtype=np.int64)
    for n in range(clusters):
        places = np.flatnonzero(obs.startable[n])
        if len(places) and rng.random() > 0.25:
            choice[n] = rng.choice(places)
            task = int(obs.task[n, choice[n]])
            allocation[n] = rng.integers(minimum[task], obs.largest[n, choice[n]] + 1)
    # Coarse scores make ties common, neighbouring ones show a comparison that rounds: exactly one may win.
    coarse = rng.integers(0, 3, clusters) / 2.0
    fine = rng.random() * np.ones(clusters)
    fine = np.where(rng.random(clusters) < 0.5, fine, np.nextafter(fine, 2.0))
    return choice, allocation, coarse if rng.random() < 0.5 else fine


def compare_run(world: World, seed: int, turns: int = 10_000) -> list[Event]:
    workload = draw_workload(world, seed)
    batch = BatchSim(world, [draw_workload(world, seed + 1000), workload], pending=4)
    log: list[Event] = []
    session = new_session(world, workload, [log.append])
    observer = Observer(world.clusters, world.task_types, pending=4)
    rng = np.random.default_rng(seed)
    clusters = len(world.clusters)
    void = np.full(clusters, -1, dtype=np.int64), np.zeros((clusters, len(world.resources.names)), dtype=np.int64)
    for _ in range(turns):
        if session.done:
            break
        snapshot = session.state.snapshot()
        obs = observer.observe(snapshot)
        for field in fields(GraphObs):
            np.testing.assert_array_equal(getattr(batch.observations, field.name)[1], getattr(obs, field.name))
        minimum = {task.id: task.type.minimum for task in snapshot.queue}
        choice, allocation, score = random_actions(obs, minimum, rng)
        proposals = [
            Proposal(n, int(obs.task[n, k]), Resources(allocation[n].tolist()), float(score[n]))
            for n, k in enumerate(choice)
            if k >= 0
        ]
        settled = session.turn(resolve(proposals, snapshot.free, minimum, snapshot.spans))
        session.state.validate()
        cost = session.end_slot() if settled else 0
        batch.step(np.stack([void[0], choice]), np.stack([void[1], allocation]), np.stack([np.ones(clusters), score]))
        assert (bool(batch.settled[1]), int(batch.cost[1])) == (settled, cost)
        assert batch.worlds.conflicts[1] == session.conflicts
    assert batch.done[1] == session.done
    assert batch.events(1) == log
    assert batch.worlds.total[1] == session.total_tasks_in_system
    return log


@pytest.mark.parametrize("name", SCENARIOS)
def test_shipped_scenarios(name: str) -> None:
    world = build_world(load_scenario(name, ["tasks=60"]))
    compare_run(world, seed=3)


@pytest.mark.parametrize("links", ["uniform", "fixed"])
@pytest.mark.parametrize("mode", ["single", "multi"])
def test_data_sets_and_unknown_memory(mode: str, links: str) -> None:
    logs = [compare_run(stocked_world(mode, links), seed) for seed in range(4)]
    assert {TaskStaging, TaskOutOfMemory} <= {type(event) for log in logs for event in log}


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_tasks_that_span_nodes(mode: str) -> None:
    logs = [compare_run(spanning_world(mode), seed) for seed in range(4)]
    events = [event for log in logs for event in log]
    several = [e for e in events if isinstance(e, TaskStarted) and sum(not part.none for part in e.parts) > 1]
    assert len(several) > 20, "else nothing was tested"
    assert {TaskStaging, TaskOutOfMemory} <= {type(event) for event in events}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(worlds(), st.integers(0, 2**20))
def test_random_scenarios(world: World, seed: int) -> None:
    compare_run(world, seed)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_sites(seed: int) -> None:
    compare_run(build_world(draw_site(seed, tasks=30)), seed)


def test_illegal_choice_is_refused_and_changes_nothing() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=20"]))
    batch = BatchSim(world, [draw_workload(world, 0)])
    before = batch.events(0)
    free = batch.worlds.free.copy()
    choice = np.array([[0, -1, -1]])
    too_much = np.array([[[16, 17], [0, 0], [0, 0]]])
    with pytest.raises(InvalidDecision, match="world 0"):
        batch.step(choice, too_much, np.ones((1, 3)))
    assert batch.events(0) == before
    np.testing.assert_array_equal(batch.worlds.free, free)
    assert not batch.done.any()


def test_restart_plays_the_same_workload_again() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=20"]))
    batch = BatchSim(world, [draw_workload(world, 0)])

    def play() -> list[Event]:
        while not batch.done.all():
            obs = batch.observations
            choice = np.where(obs.startable.any(axis=2), obs.startable.argmax(axis=2), -1)
            batch.step(choice, np.full((1, 3, 2), 2), np.ones((1, 3)))
        return batch.events(0)

    first = play()
    batch.restart(batch.done)
    assert play() == first


def test_worlds_of_different_length_end_each_in_its_own_time() -> None:
    worlds = [build_world(load_scenario("multi-3", [f"tasks={count}"])) for count in (12, 30)]
    batch = BatchSim(worlds[0], [draw_workload(world, 5) for world in worlds])
    ends: list[tuple[bool, bool]] = []
    while not batch.done.all():
        obs = batch.observations
        choice = np.where(obs.startable.any(axis=2), obs.startable.argmax(axis=2), -1)
        batch.step(choice, np.full((2, 3, 2), 2), np.ones((2, 3)))
        ends.append((bool(batch.done[0]), bool(batch.done[1])))
    assert (True, False) in ends
    for b, world in enumerate(worlds):
        alone = BatchSim(world, [draw_workload(world, 5)])
        while not alone.done.all():
            obs = alone.observations
            choice = np.where(obs.startable.any(axis=2), obs.startable.argmax(axis=2), -1)
            alone.step(choice, np.full((1, 3, 2), 2), np.ones((1, 3)))
        assert batch.events(b) == alone.events(0)


@pytest.mark.parametrize("score", [np.nan, np.inf, -1.0])
def test_a_score_that_is_no_probability_is_refused(score: float) -> None:
    world = build_world(load_scenario("multi-3", ["tasks=20", "eligibility.kind=all"]))
    batch = BatchSim(world, [draw_workload(world, 1)])
    with pytest.raises(InvalidDecision, match="world 0"):
        batch.step(np.zeros((1, 3), dtype=np.int64), np.full((1, 3, 2), 2), np.full((1, 3), score))
    assert batch.worlds.running_count[0] == 0


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=20"]))
    batch = BatchSim(world, [draw_workload(world, 1)])
    with pytest.raises(InvalidDecision, match=r"choice has shape \(1, 2\)"):
        batch.step(np.full((1, 2), -1), np.zeros((1, 3, 2), dtype=np.int64), np.ones((1, 3)))


def test_observations_cannot_be_changed() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=20"]))
    batch = BatchSim(world, [draw_workload(world, 1)])
    with pytest.raises(ValueError, match="read-only"):
        batch.observations.largest[:] = 99
