"""First come, first served among tasks of one type."""

from __future__ import annotations

import pytest
from helpers import R, constant_type, make_state, make_task
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.contract import Placement, Snapshot
from tapfinger.core.events import TaskArrived
from tapfinger.schedulers.seniority import Seniority
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

SMALL = constant_type((1, 1), (2, 2), slots=2, name="small")
LARGE = constant_type((2, 2), (4, 4), slots=5, name="large")


def snapshot_of(*tasks) -> Snapshot:
    """Three clusters; each task is (type, eligible), in order of arrival, one a slot."""
    state = make_state((8, 8), (8, 8), (8, 8))
    for slot, (kind, eligible) in enumerate(tasks):
        state.apply(TaskArrived(slot, make_task(slot, kind, slot, eligible)))
        state.end_slot({})
    return state.snapshot()


def start(task: int, cluster: int, size: tuple[int, int] = (1, 1)) -> Placement:
    return Placement(task, cluster, R(size))


@pytest.mark.parametrize(
    ("older", "exchanged"),
    [
        ((SMALL, (0, 1)), True),
        ((SMALL, (0,)), True),  # it can go nowhere else
        ((SMALL, (0, 1, 2)), False),  # it has more clusters to go to than the younger one
        ((SMALL, (1, 2)), False),  # it may not run there
        ((LARGE, (0, 1)), False),  # it is of another type
    ],
)
def test_who_takes_the_place_of_a_younger_task(older, exchanged):
    snapshot = snapshot_of(older, (SMALL, (0, 2)))
    seniority = Seniority()
    assert seniority.put_first([start(1, 0)], snapshot) == (start(0 if exchanged else 1, 0),)
    assert seniority.counters["exchanged"] == exchanged


def test_the_oldest_first_and_nobody_twice():
    everywhere = (SMALL, (0, 1, 2))
    snapshot = snapshot_of(everywhere, everywhere, everywhere, everywhere)
    wanted = [start(3, 2, (2, 2)), start(1, 0), start(2, 1)]
    # Task 1 keeps its own start; 3 gives way to 0, then nobody older is left for 2.
    assert Seniority().put_first(wanted, snapshot) == (start(0, 2, (2, 2)), start(1, 0), start(2, 1))
    assert Seniority().put_first([], snapshot) == ()


@given(st.data())
def test_the_same_starts_for_older_tasks(data):
    eligible = st.lists(st.sampled_from([0, 1, 2]), min_size=1, unique=True).map(lambda e: tuple(sorted(e)))
    tasks = data.draw(st.lists(st.tuples(st.sampled_from([SMALL, LARGE]), eligible), min_size=1, max_size=9))
    snapshot = snapshot_of(*tasks)
    chosen = data.draw(st.lists(st.sampled_from(snapshot.queue), max_size=5, unique_by=lambda t: t.id))
    wanted = [start(t.id, data.draw(st.sampled_from(t.eligible)), t.type.minimum) for t in chosen]
    found = Seniority().put_first(wanted, snapshot)
    assert [(p.cluster, p.allocation) for p in found] == [(p.cluster, p.allocation) for p in wanted]
    assert len({p.task for p in found}) == len(found)
    views = {t.id: t for t in snapshot.queue}
    for before, after in zip(wanted, found, strict=True):
        old, new = views[before.task], views[after.task]
        assert new.type is old.type
        assert new.arrival <= old.arrival
        assert after.cluster in new.eligible
        assert len(new.eligible) <= len(old.eligible)


def test_the_scheduler_counts_and_can_do_without():
    world = build_world(load_scenario("synthetic-3"))
    scheduler, plain = TapFinger(), TapFinger(seniority=False)
    run_scheduler(world, scheduler, 50)
    run_scheduler(world, plain, 50)
    assert scheduler.counters["exchanged"] > 0
    assert plain.counters["exchanged"] == 0


def test_a_task_that_is_drawn_may_be_any():
    world = build_world(load_scenario("short-long-3", ["tasks=60"]))
    scheduler = TapFinger("short-long-3-no-pointer")
    run_scheduler(world, scheduler, 50)
    assert scheduler.counters["exchanged"] == 0
