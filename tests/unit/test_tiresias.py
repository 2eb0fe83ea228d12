"""Tiresias: the threshold, demotion and preemption by hand, growth, and the non-preemptive variant."""

from __future__ import annotations

import dataclasses

import pytest
from helpers import R, arrive, constant_type, log_of, make_state, make_task, place, play, running

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Mode, Phase, Placement, Resize, SchedulerContext
from tapfinger.core.events import TaskResized
from tapfinger.core.model import NO_NOISE, ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.schedulers.fifo import Fifo
from tapfinger.schedulers.tiresias import Tiresias, elastic, median_service, nonpreemptive
from tapfinger.workloads.world import build_world

UNIT = constant_type((2, 1), (8, 8), 4, "unit")
PAUSE = R((0, 0))


def ready(scheduler, state, *types):
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, types or (UNIT,), state.mode))
    return scheduler


def aged(state, slots):
    for _ in range(slots):
        state.end_slot({})
    return state


# --------------------------------------------------------------------------------------------- threshold


def test_the_threshold_is_the_lower_median_of_service_at_minimum():
    quick = constant_type((2, 1), (4, 4), 4, "quick")  # 4 slots x 1 gpu
    wide = constant_type((2, 3), (4, 4), 5, "wide")  # 5 slots x 3 gpus = 15
    slow = constant_type((2, 1), (4, 4), 40, "slow")  # 40
    assert median_service((quick, slow), NO_NOISE, 1) == 4
    assert median_service((slow, wide, quick), NO_NOISE, 1) == 15
    heavy = dataclasses.replace(slow, weight=3.0)  # 3 of 5 tasks need 40
    assert median_service((quick, wide, heavy), NO_NOISE, 1) == 40


# -------------------------------------------------------------------------------------------- preemption


def test_a_task_beyond_the_threshold_yields_to_a_newcomer():
    state = make_state((2, 2))
    running(state, make_task(1, UNIT), 0, 2, 1)
    scheduler = ready(Tiresias(threshold=3), state)
    for attained, expected in (
        (3, Decision()),  # exactly at the threshold it still belongs to the first queue
        (1, Decision(placements=(Placement(2, 0, R((2, 1))),), resizes=(Resize(1, PAUSE),))),
    ):
        aged(state, attained)
        if not state.snapshot().queue:
            play(state, *arrive(make_task(2, UNIT, arrival=state.slot)))
        assert scheduler.decide(state.snapshot()) == expected
    play(state, expected)
    assert state.snapshot().clusters[0].paused[0].id == 1


def test_nothing_is_paused_while_another_cluster_has_room():
    state = make_state((2, 2), (2, 2))
    running(state, make_task(1, UNIT, eligible=(0, 1)), 0, 2, 1)
    aged(state, 9)
    play(state, *arrive(make_task(2, UNIT, arrival=9, eligible=(0, 1))))
    decision = ready(Tiresias(), state).decide(state.snapshot())
    assert decision == Decision(placements=(Placement(2, 1, R((2, 1))),))


def test_only_as_many_yield_as_must_and_the_last_started_first():
    state = make_state((6, 6))
    scheduler = ready(Tiresias(threshold=0), state)
    # Arrival order 5, 6, 7, but 7 started first: first in, first out goes by start.
    for task, slot in ((7, 0), (5, 1), (6, 2)):
        state.slot = slot
        running(state, make_task(task, UNIT, arrival=0), 0, 2, 1)
        scheduler._started[task] = slot
    aged(state, 1)
    play(state, *arrive(make_task(8, UNIT, arrival=3)))
    assert scheduler.decide(state.snapshot()).resizes == (Resize(6, PAUSE),)


def test_start_slots_are_remembered_and_forgotten():
    state = make_state((2, 2))
    scheduler = ready(Tiresias(threshold=0), state)
    play(state, *arrive(make_task(1, UNIT)))
    scheduler.decide(state.snapshot())
    assert scheduler._started == {1: 0}
    scheduler.decide(make_state((2, 2)).snapshot())  # the task has ended
    assert scheduler._started == {}


def test_a_paused_task_resumes_when_there_is_room_again():
    state = make_state((2, 2))
    running(state, make_task(1, UNIT), 0, 2, 1)
    aged(state, 5)
    play(state, Decision(resizes=(Resize(1, PAUSE),)), TaskResized(5, 1, 0, PAUSE))
    assert state.snapshot().clusters[0].paused[0].phase is Phase.PAUSED
    assert ready(Tiresias(), state).decide(state.snapshot()) == Decision(resizes=(Resize(1, R((2, 1))),))


def test_a_task_that_is_only_just_starting_is_left_alone():
    state = make_state((2, 2))
    play(state, *arrive(make_task(1, UNIT), make_task(2, UNIT)), place(1, 0, 2, 1))
    assert ready(Tiresias(threshold=0), state).decide(state.snapshot()).void


def test_single_mode_starts_one_per_cluster():
    state = make_state((8, 8), (8, 8), mode=Mode.SINGLE)
    play(state, *arrive(*[make_task(i, UNIT, eligible=(0, 1)) for i in range(5)]))
    decision = ready(Tiresias(), state).decide(state.snapshot())
    assert [(p.task, p.cluster) for p in decision.placements] == [(0, 0), (1, 1)]
    play(state, decision)


# ------------------------------------------------------------------------------------- elastic and static


def test_elastic_grows_in_order_up_to_the_maximum_and_static_does_not():
    state = make_state((16, 10))
    play(state, *arrive(make_task(1, UNIT), make_task(2, UNIT)))
    assert [p.allocation for p in ready(Tiresias(), state).decide(state.snapshot()).placements] == [(2, 1), (2, 1)]
    # Minima first: (12, 8) is left. The first takes (6, 7) to reach its maximum (8, 8), the second (6, 1).
    decision = ready(elastic(), state).decide(state.snapshot())
    assert [p.allocation for p in decision.placements] == [(8, 8), (8, 2)]
    play(state, decision)


def test_elastic_gives_back_for_a_newcomer_and_leaves_equal_sizes_alone():
    state = make_state((16, 10))
    running(state, make_task(1, UNIT), 0, 8, 8)
    running(state, make_task(2, UNIT), 0, 8, 2)
    scheduler = ready(elastic(threshold=99), state)
    assert scheduler.decide(state.snapshot()).void
    play(state, *arrive(make_task(3, UNIT)))
    # Minima of three leave (10, 7): the first reaches (8, 8), the second (6, 1), the third its minimum.
    decision = scheduler.decide(state.snapshot())
    assert decision == Decision(placements=(Placement(3, 0, R((2, 1))),), resizes=(Resize(2, R((6, 1))),))
    play(state, decision)


def test_without_preemption_it_is_fifo_at_the_minimum():
    world = build_world(load_scenario("multi-3", ["tasks=120"]))
    assert log_of(world, nonpreemptive(), seed=5)[0] == log_of(world, Fifo(backfill=True), seed=5)[0]


@pytest.mark.parametrize("scenario", ["synthetic-3", "hetero-6"])
def test_whole_runs_are_legal_and_preempt(scenario):
    world = build_world(load_scenario(scenario, ["tasks=150"]))
    events, _ = log_of(world, Tiresias(), seed=1)
    assert any(isinstance(e, TaskResized) and e.allocation.none for e in events)
    grown, _ = log_of(world, elastic(), seed=1)
    assert any(isinstance(e, TaskResized) and max(e.allocation) > 2 for e in grown)


@pytest.mark.parametrize("options", [{"threshold": -1}, {"elastic": True, "preemptive": False}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match="tiresias"):
        Tiresias(**options)
