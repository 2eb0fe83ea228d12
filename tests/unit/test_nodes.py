"""Clusters with nodes: an allocation fits on one node, and whatever a whole cluster has, each of its nodes has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapfinger.config import parse_scenario
from tapfinger.core.events import ClusterLost, TaskStarted
from tapfinger.core.model import Resources
from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.records import EventLog, LogHeader, read_header
from tapfinger.sim.run import new_session, run_scheduler
from tapfinger.workloads.base import Arrivals
from tapfinger.workloads.world import build_world, draw_workload

LAB = {"name": "lab", "nodes": [{"cpu": 32, "gpu": 2}, {"cpu": 8, "gpu": 1}, {"cpu": 4, "count": 2}]}
ARRIVALS = {"arrivals": {"kind": "poisson", "rate": 1.0}}


def scenario(*clusters: Mapping[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    speed = {"kind": "constant", "slots": 2}
    one = {"name": "one", "minimum": {"cpu": 1, "gpu": gpus}, "speed": speed}
    return {
        "name": "x",
        "mode": "multi",
        "tasks": 40,
        "clusters": list(clusters),
        "task_types": [one],
        **ARRIVALS,
        **more,
    }


def test_a_cluster_with_nodes_is_a_pool_per_node() -> None:
    edge = {"name": "edge", "capacity": {"cpu": 4, "gpu": 4}, "count": 2}
    world = build_world(parse_scenario(scenario(LAB, edge)))
    assert [(c.name, c.capacity, c.whole) for c in world.clusters] == [
        ("lab:0", (32, 2), "lab"),
        ("lab:1", (8, 1), "lab"),
        ("lab:2", (4, 0), "lab"),
        ("lab:3", (4, 0), "lab"),
        ("edge-0", (4, 4), "edge-0"),
        ("edge-1", (4, 4), "edge-1"),
    ]
    assert world.wholes == ("lab", "edge-0", "edge-1")
    assert world.capacity_of["lab"] == Resources([48, 3])


def test_a_request_that_only_the_sum_of_the_nodes_could_hold_is_refused() -> None:
    world = build_world(parse_scenario(scenario(LAB, gpus=3)))
    with pytest.raises(ConfigError, match="minimum 1 cpu, 3 gpu fits no cluster: lab:0 with 32 cpu, 2 gpu; lab:1"):
        draw_workload(world, 0)


def test_a_task_may_run_on_every_node_of_an_eligible_cluster() -> None:
    two = {**LAB, "name": "two"}
    eligible = draw_workload(build_world(parse_scenario(scenario(LAB, two))), 3).eligible
    assert (eligible[:, :4] == eligible[:, :1]).all()
    assert (eligible[:, 4:] == eligible[:, 4:5]).all()
    assert not eligible.all()
    whole = {"name": "lab", "capacity": {"cpu": 48, "gpu": 3}}
    alone = build_world(parse_scenario(scenario(whole, {**whole, "name": "two"})))
    assert np.array_equal(draw_workload(alone, 3).eligible, eligible[:, [0, 4]]), "the draw knows no nodes"


def test_arrivals_name_whole_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        def arrivals(self, context: Any, rng: np.random.Generator) -> Arrivals:
            assert context.cluster_names == ("edge", "lab")
            return Arrivals(np.array([0, 1]), eligible=np.array([[True, False], [False, True]]))

    monkeypatch.setattr("tapfinger.workloads.world.create", lambda *_: Named())
    edge = {"name": "edge", "capacity": {"cpu": 4, "gpu": 4}}
    eligible = draw_workload(build_world(parse_scenario(scenario(edge, LAB))), 0).eligible
    assert eligible.tolist() == [[True, False, False, False, False], [False, True, True, True, True]]


def test_an_outage_takes_every_node() -> None:
    edge = {"name": "edge", "capacity": {"cpu": 4, "gpu": 4}}
    outage = {"cluster": 1, "start": 2, "end": 5}
    world = build_world(parse_scenario(scenario(edge, LAB, outages=[outage])))
    lost: list[int] = []
    session = new_session(
        world, draw_workload(world, 0), [lambda e: lost.append(e.cluster) if isinstance(e, ClusterLost) else None]
    )
    while session.state.slot < 3:
        session.end_slot()
    assert lost == [1, 2, 3, 4]


@pytest.mark.parametrize("scheduler", ["greedy", "optimus", "tiresias", "lookahead", "shortest-first", "fifo"])
def test_no_node_is_ever_overfull(scheduler: str) -> None:
    more = {"eligibility": {"kind": "all"}, "arrivals": {"kind": "poisson", "rate": 3.0}}
    world = build_world(parse_scenario(scenario(LAB, {**LAB, "name": "two"}, **more)))
    events: list[Any] = []
    run_scheduler(world, parse_spec(scheduler).create(), 0, [events.append])
    used = {e.cluster for e in events if isinstance(e, TaskStarted)}
    assert used == {0, 1, 4, 5}, "nodes with gpus, and no others"


def test_an_event_log_tells_which_cluster_a_node_belongs_to(tmp_path: Path) -> None:
    world = build_world(parse_scenario(scenario(LAB, {"name": "edge", "capacity": {"cpu": 1, "gpu": 1}})))
    path = tmp_path / "log.jsonl"
    with EventLog(path, LogHeader("x", "greedy", 0, world.resources.names, world.clusters)):
        pass
    assert read_header(path).clusters == world.clusters
    assert path.read_text().count("part_of") == 4


@pytest.mark.parametrize(
    ("cluster", "fault"),
    [
        ({"name": "lab"}, "give a capacity, or nodes"),
        ({**LAB, "capacity": {"cpu": 48, "gpu": 4}}, "capacity has 4 gpu, but its nodes have 3 in all"),
        ({"name": "lab", "nodes": [{"cpu": 4, "tpu": 1}]}, "clusters.lab.nodes: .*unknown: tpu"),
        ({"name": "lab", "nodes": [{"cpu": -4}]}, "cpu = -4 must be a multiple"),
        ({"name": "lab", "nodes": [{"cpu": 4, "count": 0}]}, "count: must be greater than 0 .got 0"),
        ({"name": "lab", "nodes": [{"cpu": 4, "count": 10_001}]}, "count: must be less than or equal to 10000"),
        ({"name": "lab", "nodes": [{"cpu": 4, "count": 5_001}] * 2}, "make 10,002, at most 10,000"),
        ({"name": "lab", "nodes": [{"cpu": "many"}]}, "many"),
        ({"name": "lab", "nodes": [4]}, "nodes"),
    ],
)
def test_bad_nodes_are_refused(cluster: dict[str, Any], fault: str) -> None:
    with pytest.raises(TapfingerError, match=fault):
        build_world(parse_scenario(scenario(cluster)))


def test_names_of_nodes_are_unique() -> None:
    with pytest.raises(ConfigError, match="2 are named 'lab:0'"):
        build_world(parse_scenario(scenario(LAB, {"name": "lab:0", "capacity": {"cpu": 1, "gpu": 1}})))


def test_a_resource_may_not_be_called_like_a_key_of_nodes() -> None:
    lab = {"name": "lab", "nodes": [{"count": 4}]}
    with pytest.raises(ConfigError, match="'count' is a key of nodes"):
        parse_scenario(scenario(lab, resources={"cpu": 1, "gpu": 1, "count": 1}))


def test_a_scenario_with_nodes_is_written_as_it_was_given() -> None:
    data = scenario(LAB, {"name": "edge", "capacity": {"cpu": 4, "gpu": 4}})
    made = parse_scenario(data)
    assert made.written()["clusters"] == data["clusters"]
    assert parse_scenario(made.resolved()) == made
