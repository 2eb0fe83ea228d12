"""The environments pass the tests of the libraries whose interfaces they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

from tapfinger.config import load_scenario, parse_scenario
from tapfinger.envs.joint import EdgeJointEnv
from tapfinger.envs.parallel import EdgeParallelEnv
from tapfinger.errors import ConfigError, InvalidDecision
from tapfinger.testing import tiny_scenarios
from tapfinger.workloads.world import build_world

VARIANTS: list[dict[str, Any]] = [{}, {"scores": True}, {"reward": "own", "pending": 3}, {"max_slots": 9}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("name", ["synthetic-3", "hetero-6"])
def test_pettingzoo(name: str, options: dict[str, Any]) -> None:
    world = build_world(load_scenario(name, ["tasks=40"]))
    parallel_api_test(EdgeParallelEnv(world, **options), num_cycles=150)
    parallel_seed_test(lambda: EdgeParallelEnv(world, **options), num_cycles=30)


@pytest.mark.parametrize("name", ["nodes-3", "hardware-3", "shared-3", "labs-4"])
def test_pettingzoo_with_nodes_kinds_and_others(name: str) -> None:
    world = build_world(load_scenario(name, ["tasks=40"]))
    parallel_api_test(EdgeParallelEnv(world, max_slots=60), num_cycles=150)
    parallel_seed_test(lambda: EdgeParallelEnv(world), num_cycles=30)


@pytest.mark.parametrize(
    "name", ["synthetic-3", "hetero-6", "testbed-3", "nodes-3", "hardware-3", "shared-3", "labs-4"]
)
def test_gymnasium(name: str) -> None:
    # There is nothing to render.
    check_env(EdgeJointEnv(build_world(load_scenario(name, ["tasks=40"]))), skip_render_check=True)


@pytest.mark.parametrize("scenario", tiny_scenarios(), ids=lambda s: s.name)
def test_observations_are_in_their_space_and_masks_open(scenario: Any) -> None:
    env = EdgeParallelEnv(scenario, pending=3, max_slots=60)
    joint = EdgeJointEnv(scenario, pending=3)
    seen, _ = env.reset(seed=1)
    joint_seen, info = joint.reset(seed=1)
    for n, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(n)
    granted = 0
    while env.agents:
        assert joint_seen in joint.observation_space
        assert env.state() in env.state_space
        for agent in env.agents:
            assert seen[agent] in env.observation_space(agent)
            masks = seen[agent]["action_mask"]
            assert masks[0][-1] == 1
            assert all(mask.any() for mask in masks)
        parts = [seen[agent]["action_mask"] for agent in env.agents]
        np.testing.assert_array_equal(np.concatenate([m for part in parts for m in part]), joint.action_masks())
        actions = {agent: env.action_space(agent).sample(seen[agent]["action_mask"]) for agent in env.agents}
        order = env.agents
        seen, rewards, _, _, infos = env.step(actions)
        joint_seen, reward, _, _, info = joint.step(np.concatenate([actions[agent] for agent in order]))
        assert set(rewards.values()) == {reward}
        assert [i["illegal"] for i in infos.values()] == list(info["illegal"])
        granted += sum(i["granted"] for i in infos.values())
    assert granted  # else only void was tested


def one_cluster() -> EdgeParallelEnv:
    kind = {"name": "t", "minimum": {"cpu": 2, "gpu": 1}, "maximum": {"cpu": 4, "gpu": 4}}
    return EdgeParallelEnv(
        parse_scenario(
            {
                "name": "tiny",
                "mode": "multi",
                "tasks": 5,
                "clusters": [{"name": "c", "capacity": {"cpu": 4, "gpu": 2}}],
                "task_types": [{**kind, "speed": {"kind": "constant", "slots": 2}}],
                "arrivals": {"kind": "poisson", "rate": 50.0},
            }
        )
    )


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ([0, 1, 1], "below its minimum"),
        ([0, 4, 5], "above its maximum"),
        ([0, 2, 3], "cannot start on cluster 0"),
        ([7, 2, 1], "has 5 pending tasks"),
    ],
)
def test_illegal_actions_are_void_and_explained(action: list[int], why: str) -> None:
    env = one_cluster()
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step({"cluster_0": np.array(action)})
    assert why in infos["cluster_0"]["illegal"]
    assert (infos["cluster_0"]["granted"], infos["cluster_0"]["settled"]) == (False, True)
    assert rewards == {"cluster_0": -5.0}


def test_own_and_shared_reward_by_hand() -> None:
    for reward, expected in (("shared", -3.0), ("own", [-3.0, -2.0])):
        scenario = parse_scenario(
            {
                "name": "two",
                "mode": "multi",
                "tasks": 3,
                "clusters": [{"name": "c", "count": 2, "capacity": {"cpu": 4, "gpu": 4}}],
                "task_types": [
                    {"name": "t", "minimum": {"cpu": 1, "gpu": 1}, "speed": {"kind": "constant", "slots": 2}},
                ],
                "arrivals": {"kind": "poisson", "rate": 90.0},
                "eligibility": {"kind": "all"},
            }
        )
        env = EdgeParallelEnv(scenario, reward=reward)
        env.reset(seed=0)
        void = np.array([10, 0, 0])
        # One of three tasks starts on cluster 0: it counts there alone, the two others for both clusters.
        _, paid, _, _, infos = env.step({"cluster_0": np.array([0, 1, 1]), "cluster_1": void})
        assert set(paid.values()) == {0.0}
        assert infos["cluster_0"]["granted"]
        _, paid, _, _, _ = env.step({"cluster_0": void, "cluster_1": void})
        assert list(paid.values()) == (expected if isinstance(expected, list) else [expected] * 2)


def test_a_conflict_has_one_winner_and_the_score_decides() -> None:
    world = build_world(load_scenario("multi-3", ["eligibility.kind=all"]))
    for scores, winner in (([0.2, 0.9, 0.1], 1), ([0.5, 0.5, 0.5], 0)):
        env = EdgeParallelEnv(world, scores=True)
        env.reset(seed=2)
        actions = {
            agent: {"choice": np.array([0, 2, 1]), "score": np.array([score])}
            for agent, score in zip(env.agents, scores, strict=True)
        }
        *_, infos = env.step(actions)
        assert [info["granted"] for info in infos.values()] == [n == winner for n in range(3)]


def test_what_is_no_action_is_refused() -> None:
    env = one_cluster()
    with pytest.raises(InvalidDecision, match=r"reset\(\) first"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(InvalidDecision, match="one action for each"):
        env.step({})
    with pytest.raises(InvalidDecision, match="place, cpu, gpu"):
        env.step({"cluster_0": np.array([0, 2])})
    with pytest.raises(InvalidDecision, match="3 integers"):
        env.step({"cluster_0": np.array([0.0, 2.0, 1.0])})
    with pytest.raises(ConfigError, match="reward 'selfish'"):
        EdgeParallelEnv("multi-3", reward="selfish")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_slots = 0"):
        EdgeJointEnv("multi-3", max_slots=0)


def test_reset_without_a_seed_goes_on_with_the_stream() -> None:
    first, second = one_cluster(), one_cluster()
    drawn = []
    for env in (first, second):
        env.reset(seed=4)
        drawn.append([env.reset() and env.episode.session._executor._workload.noise_key.tolist() for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len({tuple(keys) for keys in drawn[0]}) == 3
