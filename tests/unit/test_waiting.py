"""Ageing and the time budget, without any network."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers import R, arrive, constant_type, make_state, make_task, play, running

from tapfinger.core.contract import Mode, Proposal, SchedulerContext
from tapfinger.core.events import ClusterLost, TaskFinished, TaskWithdrawn
from tapfinger.core.model import ResourceTypes, SpeedProfile, TaskType
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.guards import Ageing, SizeLimit, TimeBudget
from tapfinger.schedulers.lateness import MIN_SAMPLES

SMALL = constant_type((1, 1), (2, 2), slots=2, name="small")
LARGE = constant_type((6, 6), (8, 8), slots=5, name="large")


def guard_for(state, max_wait=2.0, **more):
    return Ageing(site_of(state, SMALL, LARGE), max_wait, **more)


def site_of(state, *types):
    return SiteTables(SchedulerContext(ResourceTypes(), state.clusters, types, state.mode))


def pass_slots(state, count):
    for _ in range(count):
        state.end_slot({})
    return state


def test_nobody_is_overdue_before_the_time():
    state = make_state((8, 8), (8, 8))
    ageing = guard_for(state)
    play(state, *arrive(make_task(0, SMALL, eligible=(0,)), make_task(1, LARGE, eligible=(1,))))
    due = {}
    for slot in range(12):
        snapshot = state.snapshot()
        placements, rest = ageing.start(snapshot)
        assert (rest is snapshot) == (not placements and slot < 4)
        due.update((p.task, slot) for p in placements if p.task not in due)
        state.end_slot({})
    assert due == {0: 4, 1: 7}  # twice its 2 slots; twice 3.5, the mean of the two, since longer ones wait no longer
    assert ageing.counters["holds"] == 0


@pytest.mark.parametrize(("waiting", "due"), [(1, 4), (5, 4), (6, 6)])
def test_while_few_wait_tasks_are_overdue_earlier(waiting, due):
    # Small tasks take 2 slots: 2 of them are enough as long as at most five wait for the one cluster, else 3.
    state = make_state((8, 8))
    ageing = guard_for(state, max_wait=3.0, calm_wait=2.0)
    play(state, *arrive(*(make_task(i, SMALL) for i in range(waiting))))
    for slot in range(due):
        assert not ageing.start(state.snapshot())[0], slot
        state.end_slot({})
    assert len(ageing.start(state.snapshot())[0]) == waiting


@pytest.mark.parametrize(("adapt", "due"), [(False, 2), (True, 3)])
def test_where_tasks_wait_long_a_task_is_overdue_early_only_if_it_is_late_for_the_site(adapt, due):
    state = make_state((8, 8))
    ageing = guard_for(state, max_wait=20.0, calm_wait=1.0, adapt=adapt)  # a small task's 2 slots
    for i in range(MIN_SAMPLES):
        play(state, *arrive(make_task(i, SMALL, arrival=4 * i)))
        for _ in range(4):
            ageing.start(
                state.snapshot()
            )  # what it would start is not started: the task waits, for 3 slots when last seen
            state.end_slot({})
        play(state, TaskWithdrawn(state.slot, i))
    begin = state.slot
    play(state, *arrive(make_task(MIN_SAMPLES, SMALL, arrival=begin)))
    for slot in range(due):
        assert not ageing.start(state.snapshot())[0], slot
        state.end_slot({})
    assert ageing.start(state.snapshot())[0]


def test_the_calm_bound_never_makes_tasks_wait_longer():
    state = make_state((8, 8))
    ageing = guard_for(state, max_wait=2.0, calm_wait=5.0)
    play(state, *arrive(make_task(0, SMALL)))
    pass_slots(state, 4)
    assert ageing.start(state.snapshot())[0]


#: 1 gpu: 8 slots, 2: 4, 4: 2. The ideal on a cluster of 4 is 2 slots.
HALVING = TaskType("halving", R((1, 1)), R((1, 4)), SpeedProfile(R((1, 1)), R((1, 4)), (1 / 8, 1 / 4, 1 / 4, 1 / 2)))


def nearly_full(overdue):
    """A cluster of 4 with 1 unit free, so many overdue tasks that would rather have more, and their guard."""
    state = make_state((4, 4))
    running(state, make_task(90, SMALL), 0, 1, 1)
    running(state, make_task(91, SMALL), 0, 2, 2)
    pass_slots(state, 20)
    ageing = Ageing(site_of(state, HALVING), 2.0)
    play(state, *arrive(*(make_task(i, HALVING) for i in range(overdue))))
    return state, ageing


def test_a_cluster_is_held_rather_than_a_slow_size_given():
    state, ageing = nearly_full(1)
    placements, rest = ageing.start(state.snapshot())
    assert (placements, rest.clusters[0].up, ageing.counters["holds"]) == ((), False, 1)  # 8 slots instead of 2
    play(state, TaskFinished(state.slot, 91, 0))
    placements, _ = ageing.start(state.snapshot())
    assert [(p.task, p.allocation) for p in placements] == [(0, R((1, 2)))]  # 4 slots will do


def test_in_a_crowd_of_overdue_tasks_any_size_will_do():
    state, ageing = nearly_full(4)
    placements, _ = ageing.start(state.snapshot())
    assert [(p.task, p.allocation) for p in placements] == [(0, R((1, 1)))]


def test_oldest_first_and_what_is_left_is_told():
    state = pass_slots(make_state((8, 8), mode=Mode.SINGLE), 20)
    ageing = guard_for(state)
    play(state, *arrive(*[make_task(i, SMALL, arrival=a) for i, a in enumerate((3, 5, 19))]))
    placements, rest = ageing.start(state.snapshot())
    assert [p.task for p in placements] == [0]  # one start per slot
    assert [t.id for t in rest.queue] == [1, 2]
    (cluster,) = rest.clusters
    assert (cluster.free, cluster.starts_left) == (R((7, 7)), 0)
    assert not cluster.up  # held for task 1
    assert (ageing.counters["forced"], ageing.counters["holds"]) == (1, 1)


def test_a_cluster_is_held_for_what_does_not_fit():
    state = make_state((8, 8), (8, 8))
    for n in (0, 1):
        running(state, make_task(90 + n, SMALL, eligible=(n,)), n, 1 + n, 1 + n)
        running(state, make_task(80 + n, SMALL, eligible=(n,)), n, 2, 2)
    pass_slots(state, 20)
    ageing = guard_for(state)
    late = make_task(2, LARGE, arrival=9, eligible=(0, 1))
    play(
        state,
        *arrive(make_task(0, LARGE, arrival=1, eligible=(0, 1)), make_task(1, LARGE, arrival=2, eligible=(0,)), late),
    )
    for _ in range(2):  # once held, it stays so
        placements, rest = ageing.start(state.snapshot())
        assert not placements
        # Task 0 takes the emptier cluster; task 1 may not have the other one, task 2 may.
        assert [c.up for c in rest.clusters] == [False, False]
        assert ageing._held == {0: 0, 1: 2}
    play(state, TaskFinished(20, 91, 1), TaskFinished(20, 81, 1))
    placements, rest = ageing.start(state.snapshot())
    # Task 0 is older, but cluster 1 was promised.
    assert [(p.task, p.cluster) for p in placements] == [(2, 1)]
    assert [c.up for c in rest.clusters] == [False, True]
    assert rest.clusters[1].free.fits(R((2, 2)))


def test_a_cluster_that_is_lost_is_held_no_longer():
    state = make_state((8, 8), (8, 8))
    for n in (0, 1):
        running(state, make_task(90 + n, SMALL, eligible=(n,)), n, 2, 2)
        running(state, make_task(80 + n, SMALL, eligible=(n,)), n, 1, 1 + n)
    pass_slots(state, 20)
    ageing = guard_for(state)
    play(state, *arrive(make_task(0, LARGE, arrival=1, eligible=(0, 1))))
    ageing.start(state.snapshot())
    assert ageing._held == {0: 0}
    play(state, ClusterLost(20, 0))
    ageing.start(state.snapshot())
    assert ageing._held == {1: 0}


def test_small_tasks_do_not_wait_for_a_held_cluster_elsewhere():
    state = make_state((8, 8), (8, 8))
    running(state, make_task(90, SMALL, eligible=(0,)), 0, 2, 2)
    running(state, make_task(91, SMALL, eligible=(0,)), 0, 2, 2)
    pass_slots(state, 20)
    ageing = guard_for(state)
    play(state, *arrive(make_task(0, LARGE, eligible=(0,)), make_task(1, SMALL, arrival=3, eligible=(0, 1))))
    placements, rest = ageing.start(state.snapshot())
    assert [(p.task, p.cluster) for p in placements] == [(1, 1)]
    assert [c.up for c in rest.clusters] == [False, True]


# --------------------------------------------------------------- time budget


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def budget_of(ms):
    return TimeBudget(ms, Clock())


def one_pass(budget, slot, ms):
    """Whether it was allowed."""
    if not budget.allows(slot):
        return False
    begin = budget.begin()
    budget._clock.now += ms / 1e3
    budget.end(begin)
    return True


def test_passes_of_one_slot_share_the_budget():
    budget = budget_of(10.0)
    assert [one_pass(budget, 0, 4.0) for _ in range(5)] == [True, True, True, False, False]
    assert budget.counters["over_budget"] == 1
    assert one_pass(budget, 1, 4.0)  # the next slot begins anew


def test_a_slow_network_is_asked_ever_less_often():
    budget = budget_of(10.0)
    asked = [slot for slot in range(400) if one_pass(budget, slot, 11.0)]
    assert [b - a - 1 for a, b in pairwise(asked)] == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64]
    assert budget.counters["over_budget"] == len(asked)


def test_a_pass_in_time_ends_the_rests():
    budget = budget_of(10.0)
    took = {0: 20.0, 2: 20.0, 5: 1.0, 6: 20.0}
    asked = [slot for slot in range(9) if one_pass(budget, slot, took.get(slot, 1.0))]
    assert asked == [0, 2, 5, 6, 8]


@pytest.mark.parametrize("ms", [0, 0.0])
def test_no_budget_no_limit(ms):
    budget = budget_of(ms)
    assert all(one_pass(budget, slot, 1e6) for slot in range(5))
    assert budget.counters["over_budget"] == 0


def test_far_slower_sizes_are_refused():
    state = make_state((4, 4), (4, 4))
    play(state, *arrive(make_task(0, HALVING), make_task(1, HALVING)))
    limit = SizeLimit(site_of(state, HALVING), 3.0)
    slow, fair = Proposal(0, 0, R((1, 1)), 0.9), Proposal(0, 1, R((1, 2)), 0.8)
    assert limit.keep([slow, fair], state.snapshot()) == [fair]
    assert limit.counters["refused"] == 1
    off = SizeLimit(site_of(state, HALVING), 0.0)
    assert off.keep([slow, fair], state.snapshot()) == [slow, fair]
    play(state, *arrive(make_task(2, HALVING), make_task(3, HALVING)))
    assert limit.keep([slow, fair], state.snapshot()) == [fair], "two per cluster: still short"
    play(state, *arrive(make_task(4, HALVING)))
    assert limit.keep([slow, fair], state.snapshot()) == [slow, fair], "any start counts"


@pytest.mark.parametrize(("waiting", "kept"), [(5, False), (10, False), (11, True)])
def test_the_slowest_sizes_are_refused_in_longer_queues_too(waiting, kept):
    # Two clusters: the queue is short up to four waiting tasks, long from eleven on.
    # 8 slots are four times the ideal, 2.5 x 1.4 the limit.
    state = make_state((4, 4), (4, 4))
    play(state, *arrive(*(make_task(i, HALVING) for i in range(waiting))))
    limit = SizeLimit(site_of(state, HALVING), 2.5)
    slow = Proposal(0, 0, R((1, 1)), 0.9)
    assert limit.keep([slow], state.snapshot()) == ([slow] if kept else [])
