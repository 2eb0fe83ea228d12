"""Random and Min: legal draws from the pending set, repeatable, conflicts counted."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers import arrive, constant_type, log_of, make_state, make_task, play

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.schedulers.naive import Min, Random
from tapfinger.workloads.world import build_world

UNIT = constant_type((2, 1), (6, 4), 4, "unit")


def ready(scheduler, state, seed=0):
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, (UNIT,), state.mode, seed=seed))
    return scheduler


def waiting(count, *capacities, mode=Mode.MULTI):
    state = make_state(*capacities, mode=mode)
    everywhere = tuple(range(len(state.clusters)))
    play(state, *arrive(*[make_task(i, UNIT, eligible=everywhere) for i in range(count)]))
    return state


def test_min_allots_the_minimum():
    state = waiting(1, (16, 16))
    (placement,) = ready(Min(), state).decide(state.snapshot()).placements
    assert placement.allocation == UNIT.minimum


def test_random_draws_every_legal_allocation_and_no_other():
    # Free (5, 3): 2..5 cpus and 1..3 gpus are legal, twelve allocations.
    state = waiting(1, (5, 3))
    scheduler = ready(Random(), state)
    drawn = Counter(scheduler.decide(state.snapshot()).placements[0].allocation for _ in range(600))
    assert set(drawn) == {(cpu, gpu) for cpu in range(2, 6) for gpu in range(1, 4)}
    assert min(drawn.values()) > 20  # 50 expected of each


def test_the_maximum_bounds_random_where_more_is_free():
    state = waiting(1, (32, 32))
    scheduler = ready(Random(), state)
    drawn = {scheduler.decide(state.snapshot()).placements[0].allocation for _ in range(300)}
    assert (max(a[0] for a in drawn), max(a[1] for a in drawn)) == (6, 4)


def test_only_the_pending_set_is_drawn_from():
    state = waiting(30, (16, 16))
    scheduler = ready(Min(pending=4), state)
    assert {scheduler.decide(state.snapshot()).placements[0].task for _ in range(100)} == {0, 1, 2, 3}


def test_clusters_that_draw_the_same_task_conflict():
    state = waiting(1, (8, 8), (16, 16), mode=Mode.SINGLE)
    decision = ready(Min(), state).decide(state.snapshot())
    assert [p.cluster for p in decision.placements] == [1]  # eight minima fit there, four in cluster 0
    assert [p.cluster for p in decision.lost] == [0]


def test_a_task_that_does_not_fit_is_not_drawn():
    state = waiting(1, (2, 1))
    play(state, ready(Min(), state).decide(state.snapshot()))
    play(state, *arrive(make_task(9, UNIT)))
    assert ready(Min(), state).decide(state.snapshot()).void


@pytest.mark.parametrize("scheduler", [Min, Random])
def test_whole_runs_are_legal_and_repeat(scheduler):
    world = build_world(load_scenario("hetero-6", ["tasks=150"]))
    assert log_of(world, scheduler(), seed=7)[0] == log_of(world, scheduler(), seed=7)[0]


def test_an_empty_pending_set_is_refused():
    with pytest.raises(ConfigError, match="pending = 0"):
        Min(pending=0)
