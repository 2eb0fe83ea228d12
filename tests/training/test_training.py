"""Training: what is recorded, what is compared, and that a run can be stopped and repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tapfinger.config import load_scenario
from tapfinger.core.events import Event
from tapfinger.errors import ConfigError
from tapfinger.policy.actor_critic import config_for, make_network
from tapfinger.schedulers.greedy import Greedy
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.run import run_scheduler
from tapfinger.training.act import NetworkPolicy
from tapfinger.training.config import TrainConfig
from tapfinger.training.group import GroupConfig, advantages, update
from tapfinger.training.imitation import imitate, imitation_step
from tapfinger.training.rollout import Acts, Episode, play
from tapfinger.training.teacher import Examples, Recorder, input_maker
from tapfinger.training.trainer import Trainer
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
        return Acts(examples.choice[row][None], examples.amounts[row][None], score)

    sim = BatchSim(site, [draw_workload(site, 3)], pending=40)
    play(sim, input_maker(site), replay)
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
    imitate(network, examples, 1, epochs=20, seed=0, batch=64, learning_rate=5e-3)
    assert imitation_step(network, examples, rows, 1) < 0.5 * before


def test_advantages_by_hand() -> None:
    # Two rollouts of one workload: tasks in system 3, 1 and 1, 1. Discount one half.
    episode = Episode(np.zeros(2), np.array([[3.0, 1.0], [1.0, 1.0]]), 0, None)
    # Apart from their mean by -1, 0 and 1, 0; the spread of the group is sqrt(1/2).
    np.testing.assert_allclose(advantages(episode, 2, 0.5), np.array([[-1.0, 0.0], [1.0, 0.0]]) * 2**0.5, rtol=1e-6)


def test_one_update_stays_close_to_the_policy_that_played() -> None:
    site = world()
    config = GroupConfig(group=4, entropy=0.0)
    sim = BatchSim(site, [draw_workload(site, 5)] * config.group)
    maker = input_maker(site)
    torch.manual_seed(1)
    network = make_network(config_for(maker.make(sim.observations), 1, hidden=16))
    episode = play(sim, maker, NetworkPolicy(network, 1, seed=0), keep=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    logged = update(network, optimizer, episode, config, 1, np.random.default_rng(0))
    assert logged["clipped"] < 0.2
    assert abs(logged["kl"]) < 0.05
    assert all(np.isfinite(value) for value in logged.values())


def test_stored_log_probs_are_those_of_the_network() -> None:
    site = world()
    sim = BatchSim(site, [draw_workload(site, seed) for seed in range(3)])
    maker = input_maker(site)
    torch.manual_seed(2)
    network = make_network(config_for(maker.make(sim.observations), 1, hidden=16))
    episode = play(sim, maker, NetworkPolicy(network, 1, seed=3), keep=True)
    config = GroupConfig(group=1, epochs=1, batch=10_000, learning_rate=0.0, entropy=0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    logged = update(network, optimizer, episode, config, 1, np.random.default_rng(0))
    assert logged["clipped"] == 0.0
    assert logged["kl"] == pytest.approx(0.0, abs=1e-6)


SHORT = {"teacher": "greedy", "teacher_runs": 3, "imitation_epochs": 2, "workloads": 2, "selection_runs": 2}


def weights(network) -> list[np.ndarray]:
    return [p.detach().numpy() for p in network.parameters()]


def test_same_seed_same_weights_also_when_interrupted(tmp_path: Path) -> None:
    site = world()
    group = GroupConfig(group=2)
    whole, _, best = Trainer(
        site, TrainConfig(**SHORT, iterations=2, evaluate_every=1, group=group), tmp_path / "a"
    ).run()
    Trainer(site, TrainConfig(**SHORT, iterations=1, evaluate_every=1, group=group), tmp_path / "b").run()
    resumed, _, again = Trainer(
        site, TrainConfig(**SHORT, iterations=2, evaluate_every=1, group=group), tmp_path / "b"
    ).run()
    assert best == again
    for mine, other in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    Trainer(world(), TrainConfig(**SHORT), tmp_path)
    with pytest.raises(ConfigError, match="other settings"):
        Trainer(world(), TrainConfig(**{**SHORT, "teacher": "min"}), tmp_path)
