"""What the environments' ``info`` tells of nodes and kinds is what is measured of the same run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import make_scenario

from tapfinger.config import load_scenario
from tapfinger.envs.joint import EdgeJointEnv
from tapfinger.envs.parallel import EdgeParallelEnv
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.workloads.world import build_world


def test_info_tells_who_waits_for_data() -> None:
    world = build_world(load_scenario("data-3", ["tasks=60"]))
    collector = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    env = EdgeParallelEnv(world, sinks=[collector])
    seen, infos = env.reset(seed=2)
    for n, agent in enumerate(env.agents):
        env.action_space(agent).seed(n)
    staging = 0
    while env.agents:
        actions = {agent: env.action_space(agent).sample(seen[agent]["action_mask"]) for agent in env.agents}
        seen, *_, infos = env.step(actions)
        staging += sum(info["staging"] for info in infos.values() if info["settled"])
    assert staging == collector.record("data-3", "sampled", 2).staging.sum() > 0


@pytest.mark.parametrize("name", ["nodes-3", "hardware-3"])
def test_info_adds_up_to_the_measures(name: str) -> None:
    world = build_world(load_scenario(name, ["tasks=60"]))
    collector = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    parallel, joint = EdgeParallelEnv(world, sinks=[collector]), EdgeJointEnv(world)
    seen, infos = parallel.reset(seed=2)
    _, info = joint.reset(seed=2)
    assert [infos[agent]["cluster"] for agent in parallel.agents] == [c.name for c in world.clusters]
    for n, agent in enumerate(parallel.agents):
        parallel.action_space(agent).seed(n)
    stranded: Any = 0
    used = []
    while parallel.agents:
        agents = parallel.agents
        actions = {a: parallel.action_space(a).sample(seen[a]["action_mask"]) for a in agents}
        seen, *_, infos = parallel.step(actions)
        *_, info = joint.step(np.concatenate(list(actions.values())))
        assert np.array_equal(info["stranded"], [infos[a]["stranded"] for a in agents])
        if info["settled"]:
            stranded = stranded + info["stranded"]
            used.append(info.get("utilisation_per_kind", {}))
    record = collector.record(world.scenario.name, "sampled", 2)
    capacity = np.array([c.capacity for c in world.clusters])
    assert np.sum(stranded) > 0, "else nothing was tested"
    assert np.allclose(stranded / (capacity * record.waiting_slots), record.stranded_by_cluster)
    for kind, share in record.hardware_utilisation.items():
        assert np.mean([shares[kind] for shares in used], axis=0) == pytest.approx(share)
    assert set(info) & {"kind", "utilisation_per_kind"} == (
        {"kind", "utilisation_per_kind"} if record.hardware else set()
    )
    assert info["whole_cluster"] == record.wholes


def test_what_others_use_is_not_stranded() -> None:
    others = [{"kind": "bursty", "calm": 0.5, "busy": 0.5, "calm_slots": 5, "busy_slots": 5}]
    nodes = [{"name": "lab", "nodes": [{"cpu": 4, "gpu": 4}, {"cpu": 4, "gpu": 4}]}]
    big = {"name": "big", "minimum": {"cpu": 2, "gpu": 2}, "speed": {"kind": "constant", "slots": 3}}
    env = EdgeParallelEnv(make_scenario(clusters=nodes, others=others, task_types=[big]))
    seen, infos = env.reset(seed=0)
    while not infos["cluster_0"]["settled"]:
        actions = {}
        for agent in env.agents:
            place = int(np.flatnonzero(seen[agent]["action_mask"][0])[0])
            actions[agent] = np.array([place, 2, 2])
        seen, *_, infos = env.step(actions)
    assert [info["stranded"].tolist() for info in infos.values()] == [[0, 0], [0, 0]]


def test_plain_sites_have_no_new_keys() -> None:
    _, infos = EdgeParallelEnv("multi-3").reset(seed=0)
    assert set(infos["cluster_0"]) == {"slot", "turn", "settled", "tasks_in_system", "granted", "illegal"}
