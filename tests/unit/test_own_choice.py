"""Each agent's own choice, computed by itself from the observation that all have, is that of the central pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import log_of

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode
from tapfinger.core.exchange import AgentChoice, InfersByAgents, SharedObservation
from tapfinger.errors import CheckpointMismatch, ConfigError, DataError, TapfingerError
from tapfinger.policy.encoding import packing
from tapfinger.policy.encoding.packing import pack, unpack
from tapfinger.policy.exported import load_model
from tapfinger.schedulers.own_choice import choose
from tapfinger.schedulers.stages import by_agents
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import new_session
from tapfinger.workloads.world import build_world, draw_workload

#: Scenario and model: both modes, both schemas of features, three and six clusters, alike and unlike, other heads.
CASES = [
    ("synthetic-3", "synthetic-3"),
    ("multi-3", "multi-3"),
    ("hetero-6", "hetero-6"),
    ("synthetic-3", "universal"),
    ("multi-3", "multi-3-joint-head"),
    ("synthetic-3", "synthetic-3-vanilla"),
]


class Agents:
    """Agents that infer one by one; ``faulty`` says what the answers of some clusters are instead."""

    def __init__(self, faulty: Mapping[int, AgentChoice | None] | None = None) -> None:
        self.faulty = faulty or {}
        self.asked: list[tuple[SharedObservation, Collection[int]]] = []

    def __call__(self, seen: SharedObservation, clusters: Collection[int]) -> Mapping[int, AgentChoice]:
        self.asked.append((seen, clusters))
        answers = {
            n: self.faulty[n] if n in self.faulty else choose(seen.model, seen.digest, seen.data, n) for n in clusters
        }
        return {n: answer for n, answer in answers.items() if answer is not None}


def by_agents_of(model: str, agents: Any = None, **options: Any) -> TapFinger:
    scheduler = TapFinger(model, **options)
    assert isinstance(scheduler, InfersByAgents)
    scheduler.infer_by(agents or Agents())
    return scheduler


def events_of(world: Any, scheduler: Any) -> tuple[Any, int]:
    events, totals = log_of(world, scheduler, seed=3)
    return events, totals.conflicts


@pytest.mark.parametrize(("scenario", "model"), CASES)
def test_every_turn_is_decided_as_by_the_central_pass(scenario: str, model: str) -> None:
    world = build_world(load_scenario(scenario, ["tasks=60"]))
    agents = Agents()
    central, distributed = TapFinger(model), by_agents_of(model, agents)
    for scheduler in (central, distributed):
        scheduler.reset(world.context(1))
    session = new_session(world, draw_workload(world, 7), ())
    turns = 0
    while not session.done:
        for _ in range(100):
            snapshot = session.state.snapshot()
            decision = central.decide(snapshot)
            assert distributed.decide(snapshot) == decision
            turns += 1
            if session.turn(decision):
                break
        session.end_slot()
    assert turns >= 20
    assert len(agents.asked) >= 15
    assert distributed.counters == central.counters


@pytest.mark.parametrize(("scenario", "model"), CASES[:2])
def test_runs_are_the_same_in_both_modes(scenario: str, model: str) -> None:
    for mode in Mode:
        world = build_world(load_scenario(scenario, ["tasks=40", f"mode={mode.value}"]))
        assert events_of(world, by_agents_of(model)) == events_of(world, TapFinger(model))


def test_agents_are_asked_only_where_something_could_start() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=60"]))
    agents = Agents()
    log_of(world, by_agents_of("multi-3", agents), seed=3)
    for seen, clusters in agents.asked:
        startable = unpack(seen.data).startable[0].any(axis=1)
        assert clusters == np.flatnonzero(startable).tolist() != []


IMPOSSIBLE = {
    "no answer": None,
    "no such place": AgentChoice(999, (2, 1), 0.5),
    "negative place": AgentChoice(-1, (2, 1), 0.5),
    "too few amounts": AgentChoice(0, (2,), 0.5),
    "below the minimum": AgentChoice(0, (1, 1), 0.5),
    "above what is free": AgentChoice(0, (2, 999), 0.5),
    "no number": AgentChoice(0, (2, 1), float("nan")),
    "no probability": AgentChoice(0, (2, 1), 1e300),
}


@pytest.mark.parametrize("answer", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_choice_that_cannot_be_is_void_and_the_others_go_on(answer: AgentChoice | None) -> None:
    world = build_world(load_scenario("multi-3"))
    scheduler = by_agents_of("multi-3", Agents({1: answer}), max_wait=10_000.0)
    scheduler.reset(world.context(1))
    session = new_session(world, draw_workload(world, 3), ())
    for _ in range(20):
        session.play_round(scheduler)
        session.end_slot()
    clusters = session.state.snapshot().clusters
    assert clusters[0].running
    assert not clusters[1].running
    assert clusters[2].running
    assert scheduler.counters["missing"] >= 20
    assert scheduler.counters["failed"] == 0


def test_greedy_plans_where_no_agent_can_be_asked() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=30"]))
    scheduler = by_agents_of("multi-3", lambda *_: None)
    assert events_of(world, scheduler) == events_of(world, TapFinger(network="none"))
    assert scheduler.counters["fallbacks"] > 0


def test_an_observation_beyond_the_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_agents, "MOST_OBSERVED", 10)
    world = build_world(load_scenario("multi-3", ["tasks=30"]))
    agents = Agents()
    assert events_of(world, by_agents_of("multi-3", agents)) == events_of(world, TapFinger(network="none"))
    assert not agents.asked


def test_a_network_that_draws_its_tasks_is_refused() -> None:
    world = build_world(load_scenario("short-long-3"))
    with pytest.raises(ConfigError, match=r"draws its tasks at random.*live\.inference"):
        by_agents_of("short-long-3-no-pointer").reset(world.context(1))
    with pytest.raises(ConfigError, match="network=none"):
        TapFinger(network="none").infer_by(Agents())


def observations(scenario: str = "multi-3", model: str = "multi-3") -> list[SharedObservation]:
    world = build_world(load_scenario(scenario, ["tasks=30"]))
    agents = Agents()
    log_of(world, by_agents_of(model, agents), seed=3)
    return [seen for seen, _ in agents.asked]


def test_a_model_that_differs_or_is_not_there_is_refused(tmp_path: Any) -> None:
    seen = observations()[0]
    with pytest.raises(CheckpointMismatch, match="model 'synthetic-3' is another one here"):
        choose("synthetic-3", seen.digest, seen.data, 0)
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        choose(str(tmp_path / "gone.onnx"), seen.digest, seen.data, 0)


def test_inputs_come_back_as_they_were() -> None:
    network = load_model("universal")
    found = unpack(observations("multi-3", "universal")[-1].data)
    again = unpack(pack(found, network.takes))
    for name in {*network.takes, *packing.TO_ACT}:
        before, after = getattr(found, name), getattr(again, name)
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)


def test_bytes_that_hold_no_observation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observations()[0]
    generator = np.random.default_rng(0)
    for cut in (b"", b"x", seen.data[:-1], bytes(reversed(seen.data))):
        with pytest.raises(DataError, match="cannot be read"):
            unpack(cut)
    for _ in range(200):
        damaged = bytearray(seen.data)
        damaged[generator.integers(len(damaged))] ^= int(generator.integers(1, 256))
        with pytest.raises(TapfingerError):
            choose("multi-3", seen.digest, bytes(damaged), 0)
    with pytest.raises(DataError, match="none of number 3"):
        choose("multi-3", seen.digest, seen.data, 3)
    monkeypatch.setattr(packing, "MOST_UNPACKED", 100)
    with pytest.raises(DataError, match="more than 100 bytes"):
        unpack(seen.data)


def test_a_damaged_shape_is_refused() -> None:
    network = load_model("multi-3")
    inputs = unpack(observations()[0].data)
    for wrong in ({"node": inputs.node + 10_000}, {"cluster": inputs.cluster[:, :1]}):
        data = pack(inputs._replace(**wrong), network.takes)
        with pytest.raises(Exception, match=r"\w"):
            choose("multi-3", network.digest, data, 0)


def test_observations_are_small() -> None:
    sizes = [len(seen.data) for scenario in ("multi-3", "hetero-6") for seen in observations(scenario, "universal")]
    assert max(sizes) < 4096


def test_the_digest_tells_networks_apart() -> None:
    assert load_model("multi-3").digest != load_model("hetero-6").digest
    assert replace(observations()[0], slot=0).digest == load_model("multi-3").digest
