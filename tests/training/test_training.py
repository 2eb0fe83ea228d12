"""Training: what is recorded, what is compared, and that a run can be stopped and repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tapfinger.commands.train import train
from tapfinger.config import load_scenario
from tapfinger.core.events import Event
from tapfinger.errors import CheckpointMismatch, ConfigError
from tapfinger.parallel.local import Processes
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import as_tensors, config_for, make_network
from tapfinger.policy.card import make_card
from tapfinger.policy.checkpoint import load, save
from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.policy.exported import load_model
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.shortest_first import ShortestFirst
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.run import run_scheduler
from tapfinger.training.batches import chunks, evaluate_rows
from tapfinger.training.config import DeviationConfig, GroupConfig, TrainConfig, preset_config
from tapfinger.training.group import advantages, update
from tapfinger.training.imitation import Pace, imitate_in_turn, imitation_step
from tapfinger.training.logs import METRICS
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.publish import publish
from tapfinger.training.rollout import BatchActions, RolloutResult, play
from tapfinger.training.seeds import FINAL_SEEDS
from tapfinger.training.selection import Selection
from tapfinger.training.shards import Shard, gather, roll, weights_of
from tapfinger.training.simulators import make_encoder
from tapfinger.training.teacher import Examples, Recorder
from tapfinger.training.trainer import Trainer, training_worlds
from tapfinger.workloads.world import World, build_world, draw_workload


def world(*overrides: str, name: str = "multi-3") -> World:
    return build_world(load_scenario(name, ["tasks=24", *overrides]))


@pytest.mark.parametrize("name", ["multi-3", "synthetic-3"])
def test_recorded_turns_replay_the_teacher(name: str) -> None:
    # Playing the recorded choices turn by turn must give the very run the teacher makes on its own.
    site = world(name=name)
    examples = Recorder(site, pending=40).record(Greedy(), [3])
    rows = iter(range(len(examples)))

    def replay(inputs):
        row = next(rows)
        for array, recorded in zip(inputs, examples.inputs, strict=True):
            np.testing.assert_array_equal(array[0], recorded[row])
        score = np.ones((1, len(site.clusters)))
        return BatchActions(examples.choice[row][None], examples.amounts[row][None], score)

    sim = BatchSim(site, [draw_workload(site, 3)], pending=40)
    play(sim, make_encoder(site), replay)
    log: list[Event] = []
    run_scheduler(site, Greedy(), 3, [log.append])
    assert sim.events(0) == log


def test_examples_survive_the_disk(tmp_path: Path) -> None:
    examples = Recorder(world()).record(Greedy(), [1])
    examples.save(tmp_path / "e.npz")
    back = Examples.load(tmp_path / "e.npz")
    for mine, other in zip((*examples.inputs, examples.choice), (*back.inputs, back.choice), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_imitation_learns_the_teacher() -> None:
    site = world()
    examples = Recorder(site).record(Greedy(), range(4))
    torch.manual_seed(0)
    network = make_network(config_for(examples.inputs, 1, hidden=16))
    rows = np.arange(len(examples))
    before = imitation_step(network, examples, rows, 1)
    imitate_in_turn(network, [examples], 1, epochs=20, seed=0, pace=Pace(64, 5e-3))
    assert imitation_step(network, examples, rows, 1) < 0.5 * before


def test_advantages_by_hand() -> None:
    # Two rollouts of one workload: tasks in system 3, 1 and 1, 1. Discount one half.
    episode = RolloutResult(np.zeros(2), np.array([[3.0, 1.0], [1.0, 1.0]]), 0, None)
    # Apart from their mean by -1, 0 and 1, 0; the spread of the group is sqrt(1/2).
    np.testing.assert_allclose(advantages(episode, 2, 0.5), np.array([[-1.0, 0.0], [1.0, 0.0]]) * 2**0.5, rtol=1e-6)


def test_one_update_stays_close_to_the_policy_that_played() -> None:
    site = world()
    config = GroupConfig(group=4, entropy=0.0)
    sim = BatchSim(site, [draw_workload(site, 5)] * config.group)
    encoder = make_encoder(site)
    torch.manual_seed(1)
    network = make_network(config_for(encoder.make(sim.observations), 1, hidden=16))
    episode = play(sim, encoder, NetworkPolicy(network, 1, seed=0), keep=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    logged = update(network, optimizer, [episode], config, 1, np.random.default_rng(0))
    assert logged["clipped"] < 0.2
    assert abs(logged["kl"]) < 0.05
    assert all(np.isfinite(value) for value in logged.values())


def test_stored_log_probs_are_those_of_the_network() -> None:
    site = world()
    sim = BatchSim(site, [draw_workload(site, seed) for seed in range(3)])
    encoder = make_encoder(site)
    torch.manual_seed(2)
    network = make_network(config_for(encoder.make(sim.observations), 1, hidden=16))
    episode = play(sim, encoder, NetworkPolicy(network, 1, seed=3), keep=True)
    config = GroupConfig(group=1, epochs=1, batch=10_000, learning_rate=0.0, entropy=0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    logged = update(network, optimizer, [episode], config, 1, np.random.default_rng(0))
    assert logged["clipped"] == 0.0
    assert logged["kl"] == pytest.approx(0.0, abs=1e-6)


SHORT = {
    "teacher": "greedy",
    "teacher_runs": 3,
    "imitation_epochs": 2,
    "refinements": 2,
    "deviation": DeviationConfig(workloads=2, actions=3),
    "workloads": 2,
    "selection_runs": 2,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds are left early: networks that have learnt little never finish them."""
    for module in ("selection", "shards"):
        monkeypatch.setattr(f"tapfinger.training.{module}.patience", lambda sim: 40)


def weights(network) -> list[np.ndarray]:
    return [p.detach().numpy() for p in network.parameters()]


@pytest.mark.parametrize(
    ("algorithm", "interrupted"), [("group", "deviations"), ("group", "rollouts"), ("mappo", "rollouts")]
)
@pytest.mark.usefixtures("impatient")
def test_same_seed_same_weights_also_when_interrupted(tmp_path: Path, algorithm: str, interrupted: str) -> None:
    site = world()
    short = {**SHORT, "algorithm": algorithm, "evaluate_every": 1, "group": GroupConfig(group=2)}
    # The learning rate falls over the whole run, so the interrupted run must be one of the same length.
    whole, _, best = Trainer(site, TrainConfig(**short, iterations=2), tmp_path / "a").run()

    def stop(stage: str, share: float, known: dict[str, float]) -> None:
        if stage == f"learning from {interrupted}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(site, TrainConfig(**short, iterations=2), tmp_path / "b", stop).run()
    resumed, _, again = Trainer(site, TrainConfig(**short, iterations=2), tmp_path / "b").run()
    assert best == again
    for mine, other in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert_same_log(tmp_path / "a", tmp_path / "b")


def assert_same_log(one: Path, other: Path) -> None:
    """Every step once, with the same values, whatever the clock said."""
    logs = [[json.loads(line) for line in (f / "logs" / METRICS).read_text().splitlines()] for f in (one, other)]
    assert [{k: v for k, v in r.items() if k != "time"} for r in logs[0]] == [
        {k: v for k, v in r.items() if k != "time"} for r in logs[1]
    ]
    assert [r["step"] for r in logs[0]] == [1, 2, 3, 4]


def test_a_run_can_start_from_a_checkpoint(tmp_path: Path) -> None:
    # An older network without second thoughts: they begin without effect, so nothing is lost.
    site = world()
    first = Trainer(site, TrainConfig(**SHORT, iterations=0), tmp_path / "a")
    sizes = replace(first.sizes, rounds=0)
    torch.manual_seed(1)
    old = build("full", sizes)
    save(tmp_path / "old", old, sizes, make_card(site.scenario, name="old"))
    expected = first.selection.play(old, 1)
    config = TrainConfig(**{**SHORT, "refinements": 0}, iterations=0, start=str(tmp_path / "old"))
    network, _, found = Trainer(site, config, tmp_path / "b").run()
    assert found == expected
    assert len(network.actor.chooser.rounds) == 2
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        Trainer(site, replace(config, start=str(tmp_path / "none")), tmp_path / "c").run()


@pytest.mark.usefixtures("impatient")
def test_a_run_begins_at_its_first_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = world()
    played = []

    def note(shards):
        played.extend(shard.worlds for shard in shards)
        return [roll(shard) for shard in shards]

    config = preset_config(
        "paper-small",
        "any",
        site.mode,
        workloads=1,
        iterations=3,
        selection_runs=2,
        first_loads=(0.5, 0.8),
        first_steps=1,
    )
    trainer = Trainer(site, config, tmp_path)
    monkeypatch.setattr(trainer, "_roll", note)
    trainer.run()
    rates = [[w.scenario.arrivals.options()["rate"] for w in worlds] for worlds in played]
    rate = site.scenario.arrivals.options()["rate"]
    # Each update plays more than one env-step, so the second load is passed over where a stage is that short.
    assert rates == [[0.5 * rate], [rate], [rate]]


def assert_same_weights(one, other) -> None:
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.usefixtures("impatient")
def test_the_papers_model_is_published_in_the_papers_pipeline(tmp_path: Path) -> None:
    site = world()
    config = preset_config("paper-small", "any", site.mode, workloads=1, iterations=1, selection_runs=2)
    network, sizes, _ = Trainer(site, config, tmp_path).run()
    path, evaluation = publish(site, network, sizes, config, tmp_path, "any", runs=2)
    card = load_model(str(path)).card
    assert card.pipeline == "paper"
    assert card.training["teacher"] == "none"
    assert card.features["pair"] == []
    assert card.evaluation == evaluation
    again = [run_scheduler(site, TapFinger(str(path)), seed) for seed in range(FINAL_SEEDS, FINAL_SEEDS + 2)]
    assert evaluation["per_seed"] == [run.total_completion_time / run.tasks for run in again]
    # And it can be trained on.
    kept, _ = load(tmp_path / "checkpoint")
    assert_same_weights(kept, network)
    more = replace(config, iterations=0, start=str(tmp_path / "checkpoint"))
    assert_same_weights(Trainer(site, more, tmp_path / "more").run()[0], network)


def test_the_papers_inputs_have_no_teacher() -> None:
    with pytest.raises(ConfigError, match="with the paper's inputs there is none"):
        TrainConfig(features="paper")


def test_the_score_is_relative_to_the_best_rival_of_each_load() -> None:
    selection = Selection((world(), world("arrivals.rate=6")), 4, 10)
    rivals = {"greedy": [2.0, 50.0, 2.0, 50.0], "other": [4.0, 20.0, 4.0, 20.0]}
    assert selection.score([1.0, 20.0, 1.0, 20.0], rivals) == pytest.approx((0.5 + 1.0) / 2)


def test_a_damaged_state_is_refused_and_kept(tmp_path: Path) -> None:
    config = TrainConfig(**{**SHORT, "teacher": "none", "refinements": 0}, iterations=0)
    Trainer(world(), config, tmp_path).run()
    state = tmp_path / "state.safetensors"
    damaged = state.read_bytes()[:-20]
    state.write_bytes(damaged)
    with pytest.raises(ConfigError, match="is damaged"):
        Trainer(world(), config, tmp_path).run()
    assert state.read_bytes() == damaged


def test_rollouts_are_the_same_in_other_processes() -> None:
    site = world()
    sizes = Trainer.__new__(Trainer)  # only to have the sizes of this world
    sizes.worlds, sizes.config = (site,), TrainConfig()
    config = sizes._sizes(1)
    torch.manual_seed(0)
    network = build("full", config)
    shards = [Shard((site,), (s, s + 1), 2, "full", config, weights_of(network), s, "own") for s in (4, 6)]
    here = gather([roll(shard) for shard in shards])
    with Processes(2) as pool:
        there = gather(pool.gather(roll, shards))
    np.testing.assert_array_equal(here.cost, there.cost)
    np.testing.assert_array_equal(here.turns.extra, there.turns.extra)
    assert here.turns.world.max() == 7


def test_trimming_changes_no_probability() -> None:
    site = world()
    examples = Recorder(site).record(Greedy(), [1])
    torch.manual_seed(0)
    network = build("full", config_for(examples.inputs, 1, hidden=16))
    rows = np.arange(len(examples))
    whole = evaluate(
        network(as_tensors(examples.inputs)),
        as_tensors(examples.inputs),
        Actions(torch.from_numpy(examples.choice), torch.from_numpy(examples.amounts)),
        1,
    )
    found = np.empty(examples.choice.shape, dtype=np.float32)
    for chunk in chunks(network, examples.inputs, rows, size=7):
        _, terms = evaluate_rows(network, chunk, examples.choice, examples.amounts, 10, 1)
        found[chunk.rows] = (terms.task + terms.amounts).detach().numpy()
    np.testing.assert_allclose(found, (whole.task + whole.amounts).detach().numpy(), atol=1e-5)


def test_a_teacher_sees_what_agents_see() -> None:
    # With a window of one, a teacher that looks further would want what no agent can choose, for ever.
    site = world("tasks=12", name="short-long-3")
    assert len(Recorder(site, pending=1).record(ShortestFirst(), [0])) > 0


def test_loads_differ_in_arrivals_only() -> None:
    light, heavy = training_worlds(world(), TrainConfig(loads=(0.5, 2.0), tasks=7))
    assert heavy.scenario.arrivals.options()["rate"] == 4 * light.scenario.arrivals.options()["rate"]
    assert heavy.scenario.tasks == light.scenario.tasks == 7
    assert heavy.clusters == light.clusters


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    Trainer(world(), TrainConfig(**SHORT), tmp_path)
    with pytest.raises(ConfigError, match="other settings"):
        Trainer(world(), TrainConfig(**{**SHORT, "teacher": "min"}), tmp_path)


def test_a_run_from_before_a_key_existed_goes_on(tmp_path: Path) -> None:
    Trainer(world(), TrainConfig(**SHORT), tmp_path)
    path = tmp_path / "run.json"
    before = json.loads(path.read_text())
    del before["scenario"]["knowledge"]
    path.write_text(json.dumps(before))
    Trainer(world(), TrainConfig(**SHORT), tmp_path)
    assert "knowledge" in json.loads(path.read_text())["scenario"]


def test_training_with_profiles_that_are_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"knowledge.kind = 'missing': training plays with exact speed profiles"):
        Trainer(world("knowledge.kind='missing'"), TrainConfig(**SHORT), tmp_path)


@pytest.mark.parametrize(("scenario", "name"), [("multi-3", "../mine"), ("multi-3", ""), ("universal", "mine")])
def test_names_that_no_model_can_have(scenario: str, name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        train(scenario, name=name)
