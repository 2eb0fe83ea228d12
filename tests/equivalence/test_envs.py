"""Environments add no rule of their own: parallel, joint, batched and evaluation play the same worlds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from strategies import stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.contract import VOID, Decision, Snapshot
from tapfinger.core.events import Event
from tapfinger.envs.joint import EdgeJointEnv
from tapfinger.envs.parallel import EdgeParallelEnv
from tapfinger.envs.vector import EdgeBatchEnv
from tapfinger.errors import ConfigError, InvalidDecision
from tapfinger.observation import GraphObs
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import World, build_world

PENDING = 4


def small(name: str, *overrides: str) -> World:
    if name.startswith("stocked"):
        return stocked_world(name.split("-")[1])
    return build_world(load_scenario(name, ["tasks=25", *overrides]))


def random_choice(env: EdgeBatchEnv, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Legal actions for every world and cluster; void a fifth of the time."""
    obs = env.sim.observations
    worlds, clusters, _, resources = obs.largest.shape
    choice = np.full((worlds, clusters), -1, dtype=np.int64)
    allocation = np.zeros((worlds, clusters, resources), dtype=np.int64)
    for b, n in np.ndindex(worlds, clusters):
        places = np.flatnonzero(obs.startable[b, n])
        if len(places) and rng.random() > 0.2:
            place = choice[b, n] = rng.choice(places)
            low = obs.pending_features[b, obs.node[b, n, place], :resources].astype(np.int64)
            allocation[b, n] = rng.integers(low, obs.largest[b, n, place] + 1)
    return choice, allocation, rng.integers(0, 3, choice.shape) / 2.0


def as_actions(env: EdgeParallelEnv, choice: Any, allocation: Any, score: Any) -> dict[str, Any]:
    return {
        agent: {
            "choice": np.array([choice[n] if choice[n] >= 0 else PENDING, *allocation[n]]),
            "score": score[n : n + 1],
        }
        for n, agent in enumerate(env.agents)
    }


@pytest.mark.parametrize("reward", ["shared", "own"])
@pytest.mark.parametrize("name", ["synthetic-3", "multi-3", "hetero-6", "shared-3", "stocked-multi", "stocked-single"])
def test_batched_env_equals_the_parallel_one(name: str, reward: Any) -> None:
    world = small(name)
    batched = EdgeBatchEnv(world, 2, pending=PENDING, reward=reward)
    single = EdgeParallelEnv(world, pending=PENDING, reward=reward, scores=True)
    batched.reset(seed=5)
    single.reset(seed=int(batched.seeds[1]))
    rng = np.random.default_rng(0)
    rewards_seen: set[float] = set()
    # Into the third episode of world 1, so restarts with fresh workloads are part of it.
    while batched.episodes[1] < 3:
        for field in fields(GraphObs):
            np.testing.assert_array_equal(
                getattr(batched.sim.observations, field.name)[1], getattr(single.graph, field.name), err_msg=field.name
            )
        action = random_choice(batched, rng)
        step = batched.step(*action)
        _, rewards, terminated, truncated, infos = single.step(as_actions(single, *(part[1] for part in action)))
        assert step.reward[1].tolist() == list(rewards.values())
        assert step.granted[1].tolist() == [info["granted"] for info in infos.values()]
        assert not any(info["illegal"] for info in infos.values())
        assert [bool(step.settled[1])] * len(infos) == [info["settled"] for info in infos.values()]
        assert (bool(step.terminated[1]), False) == (any(terminated.values()), any(truncated.values()))
        rewards_seen |= set(rewards.values())
        if not single.agents:
            single.reset(seed=int(batched.seeds[1]))
    assert len(rewards_seen) > 3  # else nothing was compared


def test_batched_worlds_do_not_depend_on_their_neighbours() -> None:
    world = small("multi-3")

    def seeds(void_first: bool) -> list[int]:
        env = EdgeBatchEnv(world, 2, pending=PENDING)
        env.reset(seed=9)
        rng = np.random.default_rng(1)
        for _ in range(150):
            choice, allocation, score = random_choice(env, rng)
            if void_first:
                choice[0] = -1
            env.step(choice, allocation, score)
            if env.episodes[1] == 3:
                break
        return [int(env.seeds[1]), int(env.episodes[0])]

    (played, episodes), (beside_void, stuck) = seeds(False), seeds(True)
    assert played == beside_void
    assert (episodes > 1, stuck) == (True, 1)


def test_truncated_worlds_can_be_looked_at_before_they_restart() -> None:
    env = EdgeBatchEnv(small("multi-3"), 2, max_slots=2, auto_restart=False)
    obs = env.reset(seed=1)
    void = np.full((2, 3), -1), np.zeros((2, 3, 2), dtype=np.int64)
    assert not env.step(*void).truncated.any()
    step = env.step(*void)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert env.sim.worlds.slot.tolist() == [2, 2]
    with pytest.raises(InvalidDecision, match="restart"):
        env.step(*void)
    before = env.seeds.copy()
    env.restart(step.truncated)
    assert (env.seeds != before).all()
    assert env.sim.worlds.slot.tolist() == [0, 0]
    assert obs.waiting.shape == (2, 3)


def test_batched_env_refuses_what_is_illegal() -> None:
    env = EdgeBatchEnv(small("multi-3"), 1)
    with pytest.raises(InvalidDecision, match=r"reset\(\)"):
        _ = env.sim
    env.reset()
    with pytest.raises(InvalidDecision, match="world 0"):
        env.step(np.zeros((1, 3), dtype=np.int64), np.full((1, 3, 2), 99))
    with pytest.raises(ConfigError, match="batch = 0"):
        EdgeBatchEnv("multi-3", 0)


class Recorder:
    """Keeps every decision of a scheduler, by slot."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.one_shot, self.reset = scheduler.one_shot, scheduler.reset
        self.decisions: list[Decision] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.decisions.append(self._scheduler.decide(snapshot))
        return self.decisions[-1]


def turns_of(decision: Decision, multi: bool) -> list[Decision]:
    """A central decision as turns with at most one start per cluster, and the void one that settles the round."""
    turns: list[list[Any]] = [[]]
    for placement in decision.placements:
        free = next((t for t in turns if placement.cluster not in {p.cluster for p in t}), None)
        if free is None:
            turns.append([placement])
        else:
            free.append(placement)
    decisions = [Decision(tuple(turn)) for turn in turns]
    return [*decisions, VOID] if multi and decision.placements else decisions


def place_of(graph: GraphObs, task: int, cluster: int) -> int:
    return int(np.flatnonzero(graph.task[cluster] == task)[0])


@pytest.mark.parametrize("env_kind", ["parallel", "joint"])
@pytest.mark.parametrize("scheduler", ["min", "random", "greedy"])
@pytest.mark.parametrize("name", ["synthetic-3", "multi-3"])
def test_env_and_evaluation_write_the_same_log(name: str, scheduler: str, env_kind: str) -> None:
    world = small(name)
    evaluated: list[Event] = []
    recorder = Recorder(create("scheduler", scheduler, {}))
    totals = run_scheduler(world, recorder, 7, [evaluated.append])
    decisions = recorder.decisions
    if recorder.one_shot:
        decisions = [turn for decision in decisions for turn in turns_of(decision, name == "multi-3")]

    stepped: list[Event] = []
    env: Any = (EdgeParallelEnv if env_kind == "parallel" else EdgeJointEnv)(world, pending=25, sinks=[stepped.append])
    env.reset(seed=7)
    paid, done = 0.0, False
    for decision in decisions:
        assert not done
        actions = np.tile([25, 0, 0], (3, 1))
        for p in decision.placements:
            actions[p.cluster] = [place_of(env.graph, p.task, p.cluster), *p.allocation]
        if env_kind == "parallel":
            _, rewards, terminated, _, infos = env.step(dict(zip(env.agents, actions, strict=True)))
            paid += rewards["cluster_0"]
            done = terminated["cluster_0"]
            assert not any(info["illegal"] for info in infos.values())
        else:
            _, reward, done, _, info = env.step(actions.ravel())
            paid += reward
            assert not any(info["illegal"])
    assert done
    assert stepped == evaluated
    assert paid == -totals.total_completion_time
