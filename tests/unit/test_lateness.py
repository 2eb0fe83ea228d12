"""Who is late for a site, and that late tasks go first where that costs little."""

from __future__ import annotations

import math

import pytest
from helpers import R, arrive, constant_type, make_state, make_task, place, play
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.contract import Placement, SchedulerContext
from tapfinger.core.events import TaskFinished, TaskStarted
from tapfinger.core.model import ResourceTypes, SpeedProfile, TaskType
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.guards import FAR_TOO_LATE, SHORT_QUEUE, Ageing
from tapfinger.schedulers.lateness import CREDIT, FIRST_CREDIT, MIN_SAMPLES, MOST_LATE, LateFirst, Lateness
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

#: 8 slots on one gpu, 2 on four.
KIND = TaskType("kind", R((1, 1)), R((1, 4)), SpeedProfile(R((1, 1)), R((1, 4)), (1 / 8, 1 / 4, 1 / 3, 1 / 2)))
OTHER = constant_type((1, 1), (4, 4), slots=3, name="other")


def site(*, seen=MIN_SAMPLES, waits=1, capacity=(64, 64)):
    """One cluster on which so many tasks ended that waited and then ran for two slots, and what was noted of them."""
    state = make_state(capacity)
    lateness = Lateness(site_of(state))
    for i in range(seen):
        play(state, *arrive(make_task(i, KIND, arrival=state.slot)))
        for _ in range(waits):
            lateness.see(state.snapshot())
            state.end_slot({})
        play(state, place(i, 0, 1, 4), TaskStarted(state.slot, i, 0, R((1, 4))))
        for _ in range(2):
            lateness.see(state.snapshot())
            state.end_slot({})
        play(state, TaskFinished(state.slot - 1, i, 0))
        lateness.see(state.snapshot())
    return state, lateness


def wait(state, lateness, slots):
    for _ in range(slots):
        state.end_slot({})
        lateness.see(state.snapshot())


def late(state, lateness, least_wait=0.0):
    return [task.id for task in lateness.late(state.snapshot(), lambda _: least_wait)]


def test_what_is_usual_is_what_was_seen():
    _, lateness = site(waits=3)
    assert lateness.late_after == 5  # 3 slots of waiting and 2 of running
    assert lateness.usual("kind") == 2
    assert lateness.usual("other") == math.inf


def test_a_task_is_late_once_it_will_take_longer_than_the_others_did():
    state, lateness = site(waits=3)
    play(state, *arrive(make_task(900, KIND, arrival=state.slot)))
    for waited in range(6):
        # It should run for 2 slots, and 5 in all are usual.
        assert late(state, lateness) == ([900] if waited > 3 else []), waited
        assert late(state, lateness, least_wait=5) == ([900] if waited >= 5 else []), waited
        wait(state, lateness, 1)


def test_before_enough_was_seen_nobody_is_late():
    state, lateness = site(seen=MIN_SAMPLES - 1)
    play(state, *arrive(make_task(900, KIND, arrival=state.slot)))
    wait(state, lateness, 50)
    assert late(state, lateness) == []
    assert lateness.late_after == math.inf


def test_of_a_type_that_never_ran_nobody_is_late():
    state, lateness = site()
    play(state, *arrive(make_task(900, OTHER, arrival=state.slot)))
    wait(state, lateness, 50)
    assert late(state, lateness) == []


@pytest.mark.parametrize(("waiting", "most"), [(10, 1), (100, round(100 * MOST_LATE)), (200, round(200 * MOST_LATE))])
def test_only_the_oldest_few_are_late(waiting, most):
    state, lateness = site()
    play(state, *arrive(*(make_task(900 + i, KIND, arrival=state.slot) for i in range(waiting))))
    wait(state, lateness, 50)
    assert late(state, lateness) == [900 + i for i in range(most)]


def test_who_goes_first_takes_credit_and_who_ends_brings_some():
    state, lateness = site()
    play(state, *arrive(*(make_task(900 + i, KIND, arrival=state.slot) for i in range(10 * MIN_SAMPLES))))
    wait(state, lateness, 50)
    task = state.snapshot().queue[0]
    credit = FIRST_CREDIT + CREDIT * MIN_SAMPLES  # all are the same work, so each takes one
    for left in range(int(credit), 0, -1):
        assert len(late(state, lateness)) == min(left, round(10 * MIN_SAMPLES * MOST_LATE))
        lateness.spend(task)
    assert late(state, lateness) == []
    play(
        state,
        *(
            event
            for i in range(3)
            for event in (place(900 + i, 0, 1, 1), TaskStarted(state.slot, 900 + i, 0, R((1, 1))))
        ),
    )
    wait(state, lateness, 1)
    assert late(state, lateness) == []
    play(state, *(TaskFinished(state.slot, 900 + i, 0) for i in range(3)))
    wait(state, lateness, 1)
    assert len(late(state, lateness)) == 1


def test_much_work_takes_much_credit():
    state, lateness = site(seen=2 * MIN_SAMPLES)
    large = constant_type((32, 32), (32, 32), slots=3, name="large")  # a hundred times the work of the others
    lateness.learn(site_of(state, KIND, large))
    play(state, *arrive(*(make_task(900 + i, large, arrival=state.slot) for i in range(3))))
    play(state, place(900, 0, 32, 32), TaskStarted(state.slot, 900, 0, R((32, 32))))
    wait(state, lateness, 20)
    play(state, TaskFinished(state.slot, 900, 0))
    wait(state, lateness, 1)
    assert late(state, lateness) == [901]
    lateness.spend(state.snapshot().queue[0])
    assert late(state, lateness) == []


def test_a_slot_is_counted_once():
    state, lateness = site()
    again = Lateness(site_of(state))
    for each in (lateness, again):
        each.see(state.snapshot())
        each.see(state.snapshot())
    assert lateness.late_after == 3
    assert again.late_after == math.inf


def site_of(state, *types, clusters=1):
    alike = state.clusters * clusters
    return SiteTables(SchedulerContext(ResourceTypes(), alike, types or (KIND, OTHER), state.mode))


def put_first(placements, waiting, gpus):
    """Placements after a late task was offered so many gpus; usual are 2 slots."""
    state, lateness = site()
    play(state, *arrive(*(make_task(i, kind, arrival=state.slot) for i, kind in waiting.items())))
    first = LateFirst(site_of(state, clusters=8))
    tasks = [task for task in state.snapshot().queue if task.type is KIND]

    def choose(cluster, wanted):
        return Placement(min(wanted), cluster, R((1, gpus))) if gpus else None

    return first.put_first(placements, tasks, lateness, choose), first.counters["late_starts"]


def test_a_late_task_takes_the_start_of_another_at_the_size_it_would_get():
    start = Placement(901, 0, R((1, 1)))
    waiting = {900: KIND, 901: OTHER}
    assert put_first([start], waiting, gpus=4) == ((Placement(900, 0, R((1, 4))),), 1)
    assert put_first([start], waiting, gpus=3) == ((Placement(900, 0, R((1, 3))),), 1)  # 3 slots, 2 are usual
    assert put_first([start], waiting, gpus=2) == ((start,), 0)  # 4 slots: it rather waits for more room
    assert put_first([start], waiting, gpus=0) == ((start,), 0)  # it cannot start there


def test_late_tasks_take_one_start_each_and_none_from_each_other():
    starts = [Placement(902, 0, R((1, 1))), Placement(901, 1, R((1, 1))), Placement(903, 2, R((1, 1)))]
    found, taken = put_first(starts, {900: KIND, 901: KIND, 902: OTHER, 903: OTHER}, gpus=4)
    assert [p.task for p in found] == [900, 901, 903]
    assert [p.cluster for p in found] == [0, 1, 2]
    assert taken == 1
    assert put_first([], {900: KIND}, gpus=4) == ((), 0)


@given(st.data())
def test_the_same_clusters_start_something_and_nobody_twice(data):
    kinds = data.draw(st.lists(st.sampled_from([KIND, OTHER]), min_size=1, max_size=8))
    waiting = {900 + i: kind for i, kind in enumerate(kinds)}
    chosen = data.draw(st.lists(st.sampled_from(sorted(waiting)), unique=True))
    starts = [Placement(task, n, R((1, 1))) for n, task in enumerate(chosen)]
    found, taken = put_first(starts, waiting, data.draw(st.integers(0, 4)))
    assert [p.cluster for p in found] == [p.cluster for p in starts]
    assert len({p.task for p in found}) == len(found)
    changed = [(old, new) for old, new in zip(starts, found, strict=True) if old != new]
    assert len(changed) == taken
    for old, new in changed:
        assert waiting[old.task] is OTHER
        assert waiting[new.task] is KIND


@pytest.mark.parametrize("more", [0, 1])
def test_in_a_long_queue_late_tasks_are_started_and_no_cluster_is_held_for_them(more):
    state, lateness = site(capacity=(4, 4))
    ageing = Ageing(site_of(state), 1000.0, lateness=lateness)
    count = int(SHORT_QUEUE) + more
    play(state, *arrive(*(make_task(900 + i, KIND, arrival=state.slot) for i in range(count))))
    wait(state, lateness, 2)
    placements, rest = ageing.start(state.snapshot())
    # One of them is late; in a short queue that is left to whoever decides.
    assert [p.task for p in placements] == [900][:more]
    assert all(cluster.up for cluster in rest.clusters)
    assert ageing.counters["holds"] == 0
    # It does not fit: again nothing is held.
    play(state, place(901, 0, 1, 4))
    placements, rest = ageing.start(state.snapshot())
    assert not placements
    assert all(cluster.up for cluster in rest.clusters)


def test_a_cluster_is_held_for_a_task_that_is_far_too_late():
    state, lateness = site(waits=4, capacity=(4, 4))  # six slots are usual
    ageing = Ageing(site_of(state), 1000.0, lateness=lateness)
    play(state, *arrive(*(make_task(900 + i, KIND, arrival=state.slot) for i in range(4))), place(903, 0, 1, 4))
    for waited in range(9):
        assert ageing.start(state.snapshot())[1].clusters[0].up == (waited + 2 <= FAR_TOO_LATE * 6), waited
        wait(state, lateness, 1)


def test_overdue_tasks_are_still_held_for_in_a_long_queue():
    state, lateness = site(capacity=(4, 4))
    ageing = Ageing(site_of(state), 2.0, lateness=lateness)
    play(state, *arrive(*(make_task(900 + i, KIND, arrival=state.slot) for i in range(4))), place(903, 0, 1, 4))
    wait(state, lateness, 20)
    assert not ageing.start(state.snapshot())[1].clusters[0].up
    assert ageing.counters["holds"] == 1


def test_the_scheduler_counts_and_models_of_one_scenario_do_as_before():
    world = build_world(load_scenario("multi-3"))
    counts = {}
    cases = {
        "universal": {},
        "off": {"late_first": False},
        "bounded": {"max_wait": 10.0},
        "own": {"model": "multi-3"},
        "told": {"model": "multi-3", "late_first": True},
    }
    for name, options in cases.items():
        scheduler = TapFinger(**{"model": "universal", **options})
        run_scheduler(world, scheduler, 51)
        counts[name] = scheduler.counters["late_starts"]
    assert counts["universal"] > 0
    assert counts["told"] > 0
    assert counts["bounded"] > 0
    assert counts["off"] == counts["own"] == 0
