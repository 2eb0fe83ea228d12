"""Other people's load: what they use is free for nobody, and running tasks are never taken away by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapfinger.config import parse_scenario
from tapfinger.core.contract import Decision, Mode, Placement
from tapfinger.core.events import CapacityChanged, OthersChanged, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.model import Cluster, Resources, Task
from tapfinger.core.state import EdgeState
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import parse_spec
from tapfinger.records import decode_event, encode_event
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.base import Others, Workload
from tapfinger.workloads.world import build_world, draw_workload

R = Resources
BURSTY = {"kind": "bursty", "busy": 0.5, "calm": 0.25, "busy_slots": 5, "calm_slots": 5}


def scenario(*others: dict[str, Any], **more: Any) -> dict[str, Any]:
    one = {"name": "one", "minimum": {"cpu": 1, "gpu": 1}, "speed": {"kind": "constant", "slots": 2}}
    clusters = [
        {"name": "lab", "nodes": [{"cpu": 8, "gpu": 4}, {"cpu": 4, "gpu": 2}]},
        {"name": "edge", "capacity": {"cpu": 8, "gpu": 8}},
    ]
    data = {"name": "x", "mode": "multi", "tasks": 60, "arrivals": {"kind": "poisson", "rate": 1.0}}
    return data | {"clusters": clusters, "task_types": [one], "others": list(others)} | more


def drawn(*others: dict[str, Any], seed: int = 0, **more: Any) -> Workload:
    return draw_workload(build_world(parse_scenario(scenario(*others, **more))), seed)


def state_with_a_task() -> EdgeState:
    world = build_world(parse_scenario(scenario()))
    state = EdgeState([Cluster("lab", R([8, 4]))], Mode.MULTI)
    state.apply(TaskArrived(0, Task(1, world.task_types[0], 0, (0,))))
    state.commit(Decision((Placement(1, 0, R([1, 1])),)))
    state.apply(TaskStarted(0, 1, 0, R([1, 1])))
    return state


def test_what_others_use_is_free_for_nobody_and_comes_back() -> None:
    state = state_with_a_task()
    state.apply(OthersChanged(0, 0, R([2, 3])))
    (view,) = state.cluster_views()
    assert (view.free, view.others, view.capacity) == (R([5, 0]), R([2, 3]), R([8, 4]))
    state.apply(OthersChanged(0, 0, R([8, 4])))
    assert state.cluster_views()[0].free == R([0, 0]), "the task is not taken away, and less than nothing is left"
    state.validate()
    state.apply(TaskFinished(0, 1, 0))
    assert state.cluster_views()[0].free == R([0, 0])
    state.apply(CapacityChanged(0, 0, R([10, 4])))
    state.apply(OthersChanged(0, 0, R([1, 1])))
    assert state.cluster_views()[0].free == R([9, 3])
    state.validate()


def test_a_copy_knows_the_others() -> None:
    state = state_with_a_task()
    state.apply(OthersChanged(0, 0, R([2, 3])))
    twin = state.fork()
    twin.apply(OthersChanged(0, 0, R([0, 0])))
    assert twin.cluster_views()[0].free == R([7, 3])
    assert state.cluster_views()[0].free == R([5, 0])


def test_an_event_is_read_as_it_was_written() -> None:
    event = OthersChanged(3, 1, R([2, 3]))
    assert decode_event(json.loads(json.dumps(encode_event(event))), {}) == event


def test_bursts_are_of_every_node_and_repeat() -> None:
    others = drawn(BURSTY).others
    assert [one.cluster for one in others] == [0, 1, 2]
    first = others[0]
    assert {tuple(row) for row in first.amounts.tolist()} == {(2, 1), (4, 2)}
    assert not np.array_equal(first.slot, others[1].slot)
    count = len(first.slot)
    assert first.change(count + 1) == (first.period + int(first.slot[1]), R(first.amounts[1].tolist()))
    assert drawn(BURSTY, seed=1).others[0].slot.tolist() != first.slot.tolist()
    assert np.array_equal(drawn(BURSTY).eligible, drawn().eligible), "others have a random stream of their own"


def test_day_and_night() -> None:
    (edge,) = drawn({"kind": "day-night", "mean": 0.5, "swing": 0.5, "period": 100, "clusters": ["edge"]}).others
    assert (edge.cluster, edge.period) == (2, 100)
    assert edge.amounts.max() == 8
    assert edge.amounts.min() == 0
    assert len(edge.slot) < 40, "slots in which nothing changes are left out"


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "others.csv"
    path.write_text("seconds,cluster,cpu,gpu\n20,lab:0,4,2\n50,lab:0,0,0\n0,edge,1,1\n")
    lab, edge = drawn({"kind": "trace", "file": str(path)}).others
    assert (lab.cluster, lab.period, lab.slot.tolist()) == (0, 6, [0, 2, 5])
    assert lab.amounts.tolist() == [[0, 0], [4, 2], [0, 0]]
    assert (edge.cluster, edge.period) == (2, 1)
    (lab, _) = drawn({"kind": "trace", "file": str(path), "repeat": 100}).others
    assert lab.period == 10


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("0,lab,1,1", ":2: cluster lab has 2 nodes; name one of them, such as lab:0"),
        ("0,nowhere,1,1", "there is no cluster 'nowhere'"),
        ("0,edge,9,1", "others use 9 cpu, 1 gpu of edge, which has 8 cpu, 8 gpu"),
        ("0,edge,0.5,1", "multiple of its smallest unit"),
        ("-1,edge,1,1", "seconds = -1"),
        ("nan,edge,1,1", "seconds = nan"),
        ("0,edge,x,1", "must be numbers"),
        ("0,edge,1", "must be numbers"),
        ("90,edge,1,1", "repeat = 50 must be later"),
        ("", "no rows below its header"),
    ],
)
def test_bad_traces_are_refused(tmp_path: Path, row: str, fault: str) -> None:
    path = tmp_path / "others.csv"
    path.write_text(f"seconds,cluster,cpu,gpu\n{row}\n")
    with pytest.raises(TapfingerError, match=fault):
        drawn({"kind": "trace", "file": str(path), "repeat": 50})


@pytest.mark.parametrize(
    ("others", "fault"),
    [
        ([{"kind": "bursty", "busy": 1.5}], r"others.0.bursty.busy: must be less than or equal to 1"),
        ([{"kind": "bursty", "clusters": ["lap"]}], "others.0.clusters: there is no cluster 'lap'. Did you mean 'lab'"),
        ([BURSTY, {"kind": "day-night", "clusters": ["lab:1"]}], "cluster lab:1 has an entry already"),
        ([{**BURSTY, "busy": 1.0, "calm": 1.0}], "others never leave room for its minimum 1 cpu, 1 gpu on any of its"),
        ([{"kind": "trace", "file": "none.csv"}], "others.0.file: .*none.csv cannot be read"),
    ],
)
def test_bad_others_are_refused(others: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(TapfingerError, match=fault):
        drawn(*others)


@pytest.mark.parametrize("scheduler", ["greedy", "optimus", "tiresias", "lookahead", "fifo", "greedy@lend=true"])
def test_nothing_starts_on_what_others_use(scheduler: str) -> None:
    busy = {"kind": "bursty", "busy": 1.0, "busy_slots": 20, "calm_slots": 10}
    world = build_world(parse_scenario(scenario(busy, eligibility={"kind": "all"})))
    events: list[Any] = []
    collector = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    run_scheduler(world, parse_spec(scheduler).create(), 1, [events.append, collector])
    full: dict[int, bool] = {}
    for event in events:
        if isinstance(event, OthersChanged):
            full[event.cluster] = any(event.amounts)
        if isinstance(event, TaskStarted):
            assert not full[event.cluster]
    record = collector.record("x", scheduler, 1)
    assert (record.idle <= 1.0).all()


def test_changes_are_counted_without_end() -> None:
    one = Others(0, 10, np.array([0, 4]), np.array([[1], [2]]))
    assert [one.change(n) for n in range(5)] == [(0, (1,)), (4, (2,)), (10, (1,)), (14, (2,)), (20, (1,))]
