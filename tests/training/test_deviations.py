"""Learning from simulated deviations: what is compared, and that it makes a policy better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tapfinger.config import load_scenario
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.sim.batch import BatchSim
from tapfinger.training.config import DeviationConfig, TrainConfig
from tapfinger.training.deviations import distinct, gains
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.rollout import Deviations
from tapfinger.training.shards import gather, roll
from tapfinger.training.simulators import make_encoder
from tapfinger.training.trainer import Trainer
from tapfinger.workloads.world import World, build_world, draw_workload


def world(tasks: int = 24) -> World:
    return build_world(load_scenario("multi-3", [f"tasks={tasks}"]))


def one_agent(choice: list[int], amounts: list[int], granted: list[bool]) -> Deviations:
    shape = (1, 1, len(choice))
    return Deviations(
        choice=np.array(choice).reshape(shape),
        amounts=np.array(amounts).reshape(*shape, 1),
        score=np.ones(shape),
        cost=np.zeros(shape),
        granted=np.array(granted).reshape(shape),
    )


def test_equal_actions_count_once() -> None:
    got = one_agent([0, 0, 1, 0, 2], [4, 4, 4, 3, 0], [True, True, True, True, False])
    assert distinct(got)[0, 0].tolist() == [True, False, True, True, True]
    # A task that another cluster got is lost at any size.
    lost = one_agent([0, 0, 1], [4, 3, 4], [False, False, True])
    assert distinct(lost)[0, 0].tolist() == [True, False, True]


def test_gains_by_hand() -> None:
    cost = np.array([[[10.0, 10.0, 14.0], [7.0, 7.0, 7.0]]])
    different = np.array([[[True, False, True], [True, False, False]]])
    gain = gains(cost, different)
    # Two actions of the first cluster, 10 and 14: two below and two above their mean; the spread is 2.
    np.testing.assert_allclose(gain[0], [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]])


def test_the_first_action_is_the_one_taken_and_others_vary() -> None:
    site = world()
    sim = BatchSim(site, [draw_workload(site, seed) for seed in range(6)])
    inputs = make_encoder(site).make(sim.observations)
    torch.manual_seed(0)
    network = build("full", config_for(inputs, 1, hidden=16))
    acts = NetworkPolicy(network, 1, seed=0, deviations=5, explore=False)(inputs)
    assert acts.others is not None
    np.testing.assert_array_equal(acts.others.choice[..., 0], acts.choice)
    np.testing.assert_array_equal(acts.others.amounts[:, :, 0], acts.amounts)
    plain = NetworkPolicy(network, 1)(inputs)
    np.testing.assert_array_equal(plain.choice, acts.choice)  # without exploring, the most likely action
    assert (distinct(acts.others).sum(axis=2) > 1).mean() > 0.5
    low, high = inputs.minimum, inputs.largest
    void = inputs.startable.shape[2]
    for b, n, a in np.ndindex(acts.others.choice.shape):
        place, amounts = acts.others.choice[b, n, a], acts.others.amounts[b, n, a]
        if place == void:
            assert (amounts == 0).all()
        else:
            assert inputs.startable[b, n, place]
            assert (amounts >= low[b, n, place]).all()
            assert (amounts <= high[b, n, place]).all()


def test_parts_of_an_update_do_not_depend_on_who_plays_them(tmp_path: Path) -> None:
    trainer = Trainer(world(), TrainConfig(teacher="none", deviation=DeviationConfig(workloads=4)), tmp_path)
    network = build("full", trainer.sizes)
    shards = trainer._deviating(network, 0, np.random.default_rng(0))
    assert [shard.explore for shard in shards] == [False, True]
    together = gather([roll(shard) for shard in shards])
    again = gather([roll(shard) for shard in shards])
    assert together.turns is not None
    assert again.turns is not None
    for mine, other in zip(together.turns.others, again.turns.others, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert len(together.turns.others.cost) == len(together.turns.choice)
