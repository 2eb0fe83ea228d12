"""FIFO and the room-keeping it shares with other central schedulers."""

from __future__ import annotations

import pytest
from helpers import R, arrive, constant_type, log_of, make_state, make_task, play

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.events import ClusterLost
from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.schedulers.fifo import Fifo
from tapfinger.workloads.world import build_world

SMALL = constant_type((2, 1), (8, 8), 4, "small")
LARGE = constant_type((6, 6), (8, 8), 4, "large")


def starts(scheduler, state, *types):
    """(task, cluster) of every start, after checking that the decision is legal."""
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, types or (SMALL, LARGE), state.mode))
    decision = scheduler.decide(state.snapshot())
    play(state, decision)
    return [(p.task, p.cluster) for p in decision.placements]


def test_oldest_first_where_there_is_most_room():
    state = make_state((4, 4), (6, 6))
    play(state, *arrive(*[make_task(i, SMALL, eligible=(0, 1)) for i in range(9)]))
    # Room in minima of (2, 1): 2 and 3 -> cluster 1; 2 and 2 -> lowest index; 1 and 2 -> 1; 1 and 1 -> 0; then 1.
    assert starts(Fifo(), state) == [(0, 1), (1, 0), (2, 1), (3, 0), (4, 1)]


def test_a_task_that_does_not_fit_holds_up_its_clusters_unless_backfilling():
    for backfill, expected in ((False, [(0, 0), (3, 1)]), (True, [(0, 0), (2, 0), (3, 1)])):
        state = make_state((8, 8), (8, 8))
        play(
            state,
            *arrive(
                make_task(0, LARGE, eligible=(0,)),
                make_task(1, LARGE, eligible=(0,)),
                make_task(2, SMALL, eligible=(0,)),
                make_task(3, SMALL, eligible=(1,)),
            ),
        )
        assert starts(Fifo(backfill=backfill), state) == expected


def test_a_task_does_not_wait_for_a_cluster_that_could_never_hold_it():
    state = make_state((8, 8), (4, 4))
    tasks = [make_task(i, LARGE, eligible=(0, 1)) for i in (0, 1)]
    play(state, *arrive(*tasks, make_task(2, SMALL, eligible=(0, 1)), make_task(3, SMALL, eligible=(0,))))
    assert starts(Fifo(), state) == [(0, 0), (2, 1)]


def test_single_mode_starts_one_per_cluster():
    state = make_state((8, 8), (8, 8), mode=Mode.SINGLE)
    play(state, *arrive(*[make_task(i, SMALL, eligible=(0, 1)) for i in range(4)]))
    assert starts(Fifo(), state) == [(0, 0), (1, 1)]


def test_a_lost_cluster_gets_nothing():
    state = make_state((8, 8), (4, 4))
    play(state, ClusterLost(0, 0), *arrive(make_task(0, SMALL, eligible=(0, 1))))
    assert starts(Fifo(), state) == [(0, 1)]


def test_sizes():
    world = build_world(load_scenario("multi-3"))
    _, sensitive = world.task_types
    for size, wanted in (("min", [(2, 1), (2, 1)]), ("best", [(2, 10), (2, 5)])):
        state = make_state((16, 16))
        play(state, *arrive(make_task(0, sensitive), make_task(1, sensitive)))
        scheduler = Fifo(size)
        scheduler.reset(world.context(0))
        # Noise-free slots: 10 gpus are the fewest that give 2, and of the 6 left 5 are the fewest that give 4.
        assert [p.allocation for p in scheduler.decide(state.snapshot()).placements] == wanted


def test_best_prefers_the_cluster_where_it_ends_sooner():
    world = build_world(load_scenario("multi-3"))
    _, sensitive = world.task_types
    # 16 cpus and 4 gpus hold more minima than 4 cpus and 10 gpus, but the task is faster on the latter.
    state = make_state((16, 4), (4, 10))
    play(state, *arrive(make_task(0, sensitive, eligible=(0, 1))))
    scheduler = Fifo("best")
    scheduler.reset(world.context(0))
    (placement,) = scheduler.decide(state.snapshot()).placements
    assert (placement.cluster, placement.allocation) == (1, R((2, 10)))


def test_a_bad_size_is_refused():
    with pytest.raises(ConfigError, match="'medium' must be one of min, best"):
        Fifo(size="medium")


def test_nobody_is_overtaken_on_a_cluster_that_could_serve_both():
    world = build_world(load_scenario("short-long-3", ["tasks=120", "eligibility.kind=all"]))
    events, _ = log_of(world, Fifo(), seed=2)
    order = [e.task for e in events if type(e).__name__ == "TaskStarted"]
    by_slot = {e.task: e.slot for e in events if type(e).__name__ == "TaskStarted"}
    assert len(order) == 120
    assert [by_slot[t] for t in sorted(by_slot)] == sorted(by_slot.values())
