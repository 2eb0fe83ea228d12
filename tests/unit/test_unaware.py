"""A scheduler that sees whole clusters: it acts legally, and knowing nodes and hardware beats it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapfinger.config import parse_scenario
from tapfinger.core.contract import Mode, Placement
from tapfinger.core.model import Cluster, Resources
from tapfinger.core.state import EdgeState
from tapfinger.evaluation.specs import parse_spec
from tapfinger.schedulers.unaware import fitted, mean_type
from tapfinger.sim.run import new_session, run_scheduler
from tapfinger.workloads.world import World, build_world, draw_workload

R = Resources


def world(**more: Any) -> World:
    speed = {"kind": "amdahl", "seconds": 300, "parallel": {"gpu": 0.9}}
    one = {"name": "one", "minimum": {"cpu": 1, "gpu": 1}, "maximum": {"gpu": 4}, "speed": speed}
    on = {"on": {"old": 1, "new": 5}}
    clusters = [
        {
            "name": "lab",
            "nodes": [{"cpu": 8, "gpu": 4, "kind": "old", "count": 2}, {"cpu": 8, "gpu": 3, "kind": "new"}],
        },
        {"name": "edge", "capacity": {"cpu": 8, "gpu": 4}, "kind": "old"},
    ]
    data = {"name": "x", "mode": "multi", "tasks": 60, "clusters": clusters, "task_types": [{**one, **on}]}
    arrivals = {"kind": "poisson", "rate": 0.8}
    return build_world(parse_scenario({**data, "arrivals": arrivals, "eligibility": {"kind": "all"}, **more}))


@pytest.mark.parametrize("of", ["greedy", "optimus", "tiresias-elastic", "min", "lookahead"])
@pytest.mark.parametrize("mode", ["single", "multi"])
def test_it_is_always_legal(of: str, mode: str) -> None:
    run_scheduler(world(mode=mode), parse_spec(f"unaware@of={of}").create(), 0)


def test_it_sees_whole_clusters_of_one_speed() -> None:
    made = world()
    scheduler = parse_spec("unaware").create()
    scheduler.reset(made.context(0))
    seen = scheduler._seen(new_session(made, draw_workload(made, 0)).state.snapshot())  # type: ignore[attr-defined]
    assert [(c.free, c.capacity, c.hardware) for c in seen.clusters] == [
        (R([24, 11]), R([24, 11]), ""),
        (R([8, 4]), R([8, 4]), ""),
    ]
    assert all(task.eligible == (0, 1) for task in seen.queue)
    told, (true,) = scheduler._types["one"], made.task_types  # type: ignore[attr-defined]
    each = [true.on(c.hardware).profile.rates for c in made.clusters]
    assert told.profile.rates == pytest.approx(np.exp(np.log(each).mean(axis=0)))
    assert mean_type(told, made.clusters) is told


def test_the_best_fit_is_left_with_the_least_of_what_is_scarce() -> None:
    made = world()
    state = EdgeState(
        [Cluster("a:0", R([18, 4]), "a"), Cluster("a:1", R([2, 3]), "a"), Cluster("a:2", R([2, 2]), "a")], Mode.MULTI
    )
    task = new_session(made, draw_workload(made, 0)).state.snapshot().queue[:1]
    nodes = state.cluster_views()
    found = [fitted(task[0], nodes, R([1, gpus])) for gpus in (2, 3, 4)]
    assert [(p.cluster, p.allocation) for p in found if p] == [(2, (1, 2)), (1, (1, 3)), (0, (1, 4))]
    assert fitted(task[0], nodes[1:], R([1, 4])) == Placement(0, 1, R([1, 3])), "cut to what is there"
    assert fitted(task[0], nodes, R([0, 1])) is None, "below the minimum"


@pytest.mark.parametrize("of", ["greedy", "optimus-central"])
def test_to_know_pays(of: str) -> None:
    made = world()
    shorter = [
        run_scheduler(made, parse_spec(of).create(), seed).total_completion_time
        / run_scheduler(made, parse_spec(f"unaware@of={of}").create(), seed).total_completion_time
        for seed in range(8)
    ]
    assert sum(shorter) / len(shorter) < 0.95
