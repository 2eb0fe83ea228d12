"""A start goes to the cluster that loses least by it."""

from __future__ import annotations

import pytest
from helpers import R, arrive, constant_type, make_state, make_task, play
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Mode, Placement, SchedulerContext
from tapfinger.core.events import ClusterLost
from tapfinger.core.model import ResourceTypes, SpeedProfile, TaskType
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.moving import Moving
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

#: Takes 6 slots with one GPU, 2 with four.
FAST = TaskType("fast", R((1, 1)), R((1, 4)), SpeedProfile(R((1, 1)), R((1, 4)), (1 / 6, 1 / 5, 1 / 4, 1 / 2)))
STEADY = constant_type((1, 1), (1, 1), slots=4, name="steady")
EVERYWHERE = (0, 1, 2)


def moving_for(state) -> Moving:
    return Moving(SiteTables(SchedulerContext(ResourceTypes(), state.clusters, (FAST, STEADY), state.mode)))


def start(task: int, cluster: int, gpus: int = 1) -> Placement:
    return Placement(task, cluster, R((1, gpus)))


@pytest.mark.parametrize(
    ("eligible", "goes"),
    [
        (EVERYWHERE, 2),  # the fastest size of the other type fits beside it
        ((0, 1), 0),  # the small cluster would be full: it loses more
        ((0,), 0),
    ],
)
def test_where_a_start_goes(eligible, goes):
    state = make_state((4, 4), (1, 1), (8, 8))
    play(state, *arrive(make_task(0, STEADY, eligible=eligible)))
    moving = moving_for(state)
    assert moving.move([start(0, 0)], state.snapshot()) == (start(0, goes),)
    assert moving.counters["moved"] == (goes != 0)


def test_starts_of_one_turn_see_each_other():
    state = make_state((4, 4), (5, 5))
    play(state, *arrive(make_task(0, STEADY, eligible=(0, 1)), make_task(1, STEADY, eligible=(0, 1))))
    # The second cluster has one GPU to spare beside the fastest size: only one of the two moves.
    found = moving_for(state).move([start(0, 0), start(1, 0)], state.snapshot())
    assert sorted(p.cluster for p in found) == [0, 1]


def test_a_cluster_that_starts_something_or_is_down_is_no_place_to_go():
    single = make_state((4, 4), (8, 8), mode=Mode.SINGLE)
    play(single, *arrive(make_task(0, STEADY, eligible=(0, 1)), make_task(1, STEADY, eligible=(0, 1))))
    both = [start(0, 0), start(1, 1)]
    assert moving_for(single).move(both, single.snapshot()) == tuple(both)
    down = make_state((4, 4), (8, 8))
    play(down, *arrive(make_task(0, STEADY, eligible=(0, 1))), ClusterLost(0, 1))
    assert moving_for(down).move([start(0, 0)], down.snapshot()) == (start(0, 0),)


@given(st.data())
def test_the_same_starts_and_still_legal(data):
    mode = data.draw(st.sampled_from(list(Mode)))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
    state = make_state(*((n, n) for n in sizes), mode=mode)
    eligible = st.lists(st.sampled_from(EVERYWHERE), min_size=1, unique=True).map(lambda e: tuple(sorted(e)))
    kinds = data.draw(st.lists(st.tuples(st.sampled_from([FAST, STEADY]), eligible), min_size=1, max_size=8))
    play(state, *arrive(*(make_task(i, kind, eligible=e) for i, (kind, e) in enumerate(kinds))))
    snapshot = state.snapshot()
    wanted, rest = [], snapshot
    for task in snapshot.queue:
        n = data.draw(st.sampled_from(task.eligible))
        placement = Placement(task.id, n, R((1, data.draw(st.integers(1, 4)) if task.type is FAST else 1)))
        if rest.clusters[n].starts_left != 0 and placement.allocation.fits(rest.clusters[n].free):
            wanted.append(placement)
            rest = rest.after([placement])
    found = moving_for(state).move(wanted, snapshot)
    assert [(p.task, p.allocation) for p in found] == [(p.task, p.allocation) for p in wanted]
    play(state, Decision(found))  # refuses what is not legal


def test_the_scheduler_counts_and_models_of_one_scenario_do_not_move():
    world = build_world(load_scenario("hetero-6", ["tasks=60"]))
    counts = {}
    for name, options in {"universal": {}, "fixed": {"move": False}, "own": {"model": "hetero-6"}}.items():
        scheduler = TapFinger(**{"model": "universal", **options})
        run_scheduler(world, scheduler, 50)
        counts[name] = scheduler.counters["moved"]
    assert counts["universal"] > 0
    assert counts["fixed"] == counts["own"] == 0
