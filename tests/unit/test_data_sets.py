"""Data sets, links and needs of a scenario: what is drawn, what schedulers do, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tapfinger.config import load_scenario, parse_scenario
from tapfinger.core.events import TaskOutOfMemory, TaskStaging, TaskStarted
from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.records import decode_event, encode_event
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world, draw_workload


def scenario(**changes):
    data = {
        "name": "two",
        "mode": "multi",
        "tasks": 30,
        "slot_seconds": 10,
        "clusters": [
            {"name": "lab", "nodes": [{"cpu": 8, "gpu": 2, "count": 2}]},
            {"name": "edge", "capacity": {"cpu": 8, "gpu": 2}, "cache_gb": 5},
        ],
        "data": [{"name": "scans", "gb": 4, "at": ["lab"]}, {"name": "weights", "gb": 1}],
        "links": {"mbps": 100, "between": [{"ends": ["edge", "lab"], "mbps": 200}]},
        "task_types": [
            {
                "name": "training",
                "minimum": {"cpu": 1, "gpu": 1},
                "maximum": {"cpu": 4, "gpu": 2},
                "speed": {"kind": "amdahl", "seconds": 100, "parallel": {"gpu": 0.9}},
                "data": ["scans", "weights"],
            }
        ],
        "arrivals": {"kind": "poisson", "rate": 0.5},
        "eligibility": {"kind": "all"},
    }
    return {**data, **changes}


def changed(key, **values):
    """The scenario with other values in the first entry of a list of tables."""
    whole = scenario()
    first, *rest = whole[key]
    return {**whole, key: [{**first, **values}, *rest]}


def play(data, scheduler="greedy", seed=0):
    world = build_world(parse_scenario(data))
    events = []
    run_scheduler(world, parse_spec(scheduler).create(), seed, [events.append], observe=lambda s: s.state.validate())
    return world, events


def test_layout_of_places_and_links():
    world = build_world(parse_scenario(scenario()))
    layout = draw_workload(world, 0).data
    assert layout.names == ("scans", "weights")
    assert layout.place_of == (0, 0, 1)
    assert layout.lies == ((True, False), (False, False), (False, True))
    assert layout.cache_gb == (math.inf, 5.0)
    # 8000 Mb over 200 Mbps, in slots of 10 s; from the submitters over 100 Mbps
    assert layout.slots_per_gb[0][1] == layout.slots_per_gb[1][0] == 4.0
    assert layout.slots_per_gb[2] == (8.0, 8.0)


def test_drawn_links_are_the_same_both_ways_and_from_the_seed():
    data = scenario(links={"kind": "uniform", "minimum_mbps": 1, "maximum_mbps": 10})
    world = build_world(parse_scenario(data))
    first, again, other = (np.array(draw_workload(world, seed).data.slots_per_gb) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert first[0, 1] == first[1, 0]
    mbps = 8000.0 / first / 10.0
    assert mbps.min() >= 1.0
    assert mbps.max() <= 10.0


def test_links_draw_nothing_from_other_streams():
    world, without = (
        build_world(parse_scenario(d))
        for d in (
            scenario(),
            scenario(
                data=[],
                links={},
                task_types=[{key: value for key, value in scenario()["task_types"][0].items() if key != "data"}],
            ),
        )
    )
    one, other = draw_workload(world, 3), draw_workload(without, 3)
    assert other.data is None
    assert (one.slot == other.slot).all()
    assert (one.noise_key == other.noise_key).all()


def test_a_task_starts_when_its_data_has_come_and_later_ones_find_it():
    _, events = play(scenario())
    staging = {e.task: e for e in events if isinstance(e, TaskStaging)}
    started = {e.task: e for e in events if isinstance(e, TaskStarted)}
    assert staging
    assert len(staging) < len(started) == 30
    for task, event in staging.items():
        assert started[task].slot == event.until > event.slot
        assert started[task].allocation == event.allocation
    # 1 GB of weights from the submitters: 8 slots; the scans lie in the lab.
    first = min(staging.values(), key=lambda e: e.slot)
    assert first.until - first.slot == 8


@pytest.mark.parametrize("scheduler", ["greedy", "optimus", "optimus-central", "shortest-first", "tiresias"])
def test_who_knows_of_data_brings_less(scheduler):
    data = load_scenario("data-3", ["tasks=80"]).resolved()
    _, aware = play(data, scheduler)
    _, unaware = play(data, f"unaware@of={scheduler}")

    def waits(events):
        return sum(e.until - e.slot for e in events if isinstance(e, TaskStaging))

    assert waits(aware) < 0.7 * waits(unaware)


def test_events_survive_the_log():
    data = changed("task_types", maximum={"cpu": 8, "gpu": 2}, needs={"cpu": 3})
    world, events = play(data, "min")
    types = {t.name: t for t in world.task_types}
    for event in events:
        if isinstance(event, TaskStaging | TaskOutOfMemory):
            assert decode_event(json.loads(json.dumps(encode_event(event))), types) == event
    assert any(isinstance(e, TaskOutOfMemory) for e in events)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (scenario(links={"mbps": 0}), r"links.mbps"),
        (scenario(links={"mbps": -5}), r"links.mbps"),
        (scenario(links={"between": [{"ends": ["lab", "edge"], "mbps": 0}]}), r"mbps"),
        (scenario(links={"between": [{"ends": ["lab", "cellar"], "mbps": 1}]}), r"there is no cluster 'cellar'"),
        (scenario(links={"between": [{"ends": ["lab", "lab"], "mbps": 1}]}), r"both are lab; name two places"),
        (scenario(links={"maximum_mbps": 5}), r"maximum_mbps has no effect with kind 'fixed'"),
        (scenario(links={"kind": "uniform", "minimum_mbps": 9, "maximum_mbps": 5}), r"minimum_mbps 9 exceeds"),
        (scenario(data=[]), r"task_types.training.data: there is no data set 'scans'"),
        (changed("data", at=["cellar"]), r"data.scans.at: there is no cluster 'cellar'"),
        (changed("data", gb=0), r"data.0.gb"),
        (changed("data", name="weights"), r"data: the name 'weights' appears twice"),
        (changed("data", gb=40), r"clusters.edge.cache_gb: task type 'training' needs scans and weights, 41 GB"),
        (
            changed("task_types", needs={"gpu": 3}),
            r"needs: 3 gpu is not between the type's minimum 1 and its maximum 2",
        ),
        (changed("task_types", needs={"tpu": 3}), r"needs: tpu is not a resource"),
        (changed("task_types", needs={"gpu": 2, "cpu": 2}), r"only one resource can be needed without being known"),
        (
            changed("task_types", maximum={"cpu": 64, "gpu": 2}, needs={"cpu": 40}),
            r"'training' needs a step of 64 cpu, 1 gpu, which fits no cluster",
        ),
    ],
)
def test_refusals(data, message):
    with pytest.raises(ConfigError, match=message):
        draw_workload(build_world(parse_scenario(data)), 0)


def test_usual_amounts_of_a_resource():
    data = scenario(resources={"cpu": 1, "gpu": 1, "memory": {"unit": 4, "of_tasks": 8, "of_nodes": 64}})
    world = build_world(parse_scenario(data))
    assert [c.capacity[2] for c in world.clusters] == [16, 16, 16]
    assert world.task_types[0].minimum[2] == world.task_types[0].maximum[2] == 2
    assert parse_scenario(parse_scenario(data).resolved()) == parse_scenario(data)
