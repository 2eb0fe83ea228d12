"""Shortest-first: the order, and that it pays where tasks differ in length."""

from __future__ import annotations

from helpers import arrive, constant_type, log_of, make_state, make_task, play

from tapfinger.config import load_scenario
from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import ResourceTypes
from tapfinger.schedulers.fifo import Fifo
from tapfinger.schedulers.shortest_first import ShortestFirst
from tapfinger.workloads.world import build_world

SHORT = constant_type((3, 3), (8, 8), 1, "short")
LONG = constant_type((3, 3), (8, 8), 10, "long")


def starts(scheduler, state, *types):
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, types, state.mode))
    decision = scheduler.decide(state.snapshot())
    play(state, decision)
    return [(p.task, p.cluster, tuple(p.allocation)) for p in decision.placements]


def test_short_tasks_overtake_long_ones_and_equals_go_by_arrival():
    state = make_state((9, 9))
    kinds = [LONG, SHORT, LONG, SHORT]
    play(state, *arrive(*[make_task(i, kind) for i, kind in enumerate(kinds)]))
    # Nothing is gained by more than the minimum, so best is the minimum.
    assert starts(ShortestFirst(), state, SHORT, LONG) == [(1, 0, (3, 3)), (3, 0, (3, 3)), (0, 0, (3, 3))]


def test_the_least_used_cluster_is_taken():
    state = make_state((9, 9), (9, 9))
    tasks = [make_task(i, SHORT, eligible=(0, 1)) for i in range(3)]
    play(state, *arrive(*tasks))
    assert [(t, c) for t, c, _ in starts(ShortestFirst(), state, SHORT)] == [(0, 0), (1, 1), (2, 0)]


def test_types_are_ordered_by_their_shortest_duration_not_by_that_at_the_minimum():
    world = build_world(load_scenario("multi-3"))
    insensitive, sensitive = world.task_types  # 4 slots; 2 at best although 21 at the minimum
    state = make_state((2, 16))
    play(state, *arrive(make_task(0, insensitive), make_task(1, sensitive)))
    scheduler = ShortestFirst()
    scheduler.reset(world.context(0))
    assert [p.task for p in scheduler.decide(state.snapshot()).placements] == [1]


def test_it_beats_fifo_where_lengths_differ():
    world = build_world(load_scenario("short-long-3"))
    for seed in range(3):
        shortest = log_of(world, ShortestFirst(), seed=seed)[1].total_completion_time
        fifo = log_of(world, Fifo(), seed=seed)[1].total_completion_time
        assert shortest < fifo
