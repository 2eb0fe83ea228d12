"""Lending: who gets what is spare, when it is taken back, and what it must never touch."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import R, arrive, log_of, make_state, make_task, make_workload, make_world, place, play, running

from tapfinger.config import load_scenario
from tapfinger.core.contract import VOID, Mode, Placement, Resize, SchedulerContext
from tapfinger.core.model import Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lending import Lending
from tapfinger.testing import check_scheduler, tiny_scenarios
from tapfinger.workloads.world import build_world


def by_gpus(name: str, slots: float) -> TaskType:
    """Takes ``slots`` divided by its gpus, of which it may have 1 to 8."""
    low, high = R((1, 1)), R((1, 8))
    return TaskType(name, low, high, SpeedProfile(low, high, tuple((gpus + 0.01) / slots for gpus in range(1, 9))))


LONG, SHORT = by_gpus("long", 40.0), by_gpus("short", 16.0)


def ready(state: EdgeState, cost: float = 0.0) -> Lending:
    clusters = tuple(Cluster(c.name, c.capacity) for c in state.clusters)
    context = SchedulerContext(ResourceTypes(), clusters, (LONG, SHORT), state.mode, switching_cost=cost)
    return Lending(SiteTables(context))


def test_spare_goes_to_the_task_it_spares_most_slots():
    state = make_state((16, 12))
    running(state, make_task(0, SHORT), 0, 1, 2)
    running(state, make_task(1, LONG), 0, 1, 2)
    # 8 of 12 are spare: the long task gets what it can use (6 more), the short one the rest.
    assert ready(state).lend(state.snapshot(), VOID).resizes == (Resize(0, R((1, 4))), Resize(1, R((1, 8))))


def test_what_was_lent_is_free_to_those_who_plan_and_taken_back_when_they_start_something():
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 3)
    lending = ready(state)
    play(state, lending.lend(state.snapshot(), VOID))
    assert state.snapshot().clusters[0].running[0].allocation == R((1, 8))
    assert state.snapshot().free[0][1] == 0
    state.end_slot({0: 0.3})
    play(state, *arrive(make_task(1, SHORT, arrival=1)))
    seen = lending.returned(state.snapshot())
    assert seen.clusters[0].running[0].allocation == R((1, 3))
    assert seen.free[0] == R((15, 5))
    decision = lending.lend(state.snapshot(), place(1, 0, 1, 4))
    assert decision.placements == (Placement(1, 0, R((1, 4))),)
    assert decision.resizes == (Resize(0, R((1, 4))),)  # its own 3, and the one that is still spare
    play(state, decision)


def test_no_more_is_taken_back_than_is_needed_while_more_may_start():
    state = make_state((16, 16), mode=Mode.MULTI)
    running(state, make_task(0, LONG), 0, 1, 2)
    running(state, make_task(1, LONG), 0, 1, 2)
    lending = ready(state)
    play(state, lending.lend(state.snapshot(), VOID))
    state.end_slot({0: 0.1, 1: 0.1})
    play(state, *arrive(make_task(2, SHORT, arrival=1)))
    decision = lending.lend(state.snapshot(), place(2, 0, 1, 1), last=False)
    assert len(decision.resizes) == 1
    play(state, decision)
    assert not lending.finished(state.snapshot())
    last = lending.lend(state.snapshot(), VOID)
    assert lending.finished(state.snapshot())
    play(state, last)
    assert state.snapshot().free[0][1] == 0  # 8 and 7 for the two, 1 for the new one


@pytest.mark.parametrize(("cost", "changes"), [(0.0, 1), (2.0, 1), (50.0, 0)])
def test_a_change_must_be_worth_what_it_costs(cost, changes):
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 4)
    assert len(ready(state, cost).lend(state.snapshot(), VOID).resizes) == changes


def test_where_changes_cost_nobody_is_resized_for_nothing():
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 4)
    lending = ready(state, cost=0.5)
    play(state, lending.lend(state.snapshot(), VOID))
    state.end_slot({0: 0.2})
    assert lending.lend(state.snapshot(), VOID).void  # it keeps what it was lent


def test_a_task_that_is_only_just_starting_keeps_its_size():
    state = make_state((16, 8))
    play(state, *arrive(make_task(0, LONG)), place(0, 0, 1, 2))
    assert ready(state).lend(state.snapshot(), VOID).void


def test_a_faster_size_that_ends_no_sooner_is_not_lent():
    state = make_state((16, 8))
    running(state, make_task(0, SHORT), 0, 1, 6)
    state.end_slot({0: 0.9})  # one slot is left at any size
    assert ready(state).lend(state.snapshot(), VOID).void


def test_the_fastest_size_may_be_a_smaller_one():
    low, high = R((1, 1)), R((1, 8))
    rebound = TaskType("long", low, high, SpeedProfile(low, high, tuple(g / 40 for g in (1, 2, 3, 8, 4, 3, 2, 1))))
    state = make_state((16, 8))
    running(state, make_task(0, rebound), 0, 1, 2)
    context = SchedulerContext(ResourceTypes(), (Cluster("c0", R((16, 8))),), (rebound,), Mode.MULTI)
    lending = Lending(SiteTables(context))
    assert lending.lend(state.snapshot(), VOID).resizes == (Resize(0, R((1, 4))),)


@pytest.mark.parametrize("scenario", tiny_scenarios(), ids=lambda s: s.name)
def test_keeps_the_contract(scenario):
    check_scheduler(lambda: Greedy(lend=True), [scenario])


def test_a_lone_task_ends_as_soon_as_it_can():
    speed = {"kind": "power", "seconds": 400, "exponent": {"gpu": 1.0}}
    types = [{"name": "t", "minimum": {"cpu": 1, "gpu": 1}, "maximum": {"cpu": 1, "gpu": 16}, "speed": speed}]
    world = make_world(task_types=types, tasks=2)
    workload = make_workload([0, 0])
    ends = {}
    for lend in (False, True):
        # Whoever comes first leaves the other little; it gets the rest as soon as the first has ended.
        events, _ = log_of(world, Greedy(lend=lend, queue_price=0.0, patience=100.0), seed=0, workload=workload)
        ends[lend] = [e.slot for e in events if type(e).__name__ == "TaskFinished"]
    assert ends[True][0] == ends[False][0]
    assert ends[True][-1] <= ends[False][-1]


@pytest.mark.parametrize("name", ["multi-3", "hetero-6"])
def test_where_it_is_free_it_pays(name):
    world = build_world(load_scenario(name))
    means = {}
    for lend in (False, True):
        runs = [log_of(world, Greedy(lend=lend), seed=seed)[1] for seed in range(3)]
        means[lend] = np.mean([run.total_completion_time / run.tasks for run in runs])
    assert means[True] < means[False]


def test_bad_option():
    with pytest.raises(ConfigError, match="lend = 2 must be true or false"):
        Greedy(lend=2)
