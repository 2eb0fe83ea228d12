"""The stage ``waiting``, without any network: who is overdue, who starts, and which clusters are reserved."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from helpers import R, arrive, constant_type, make_state, make_task, play, running

from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.events import ClusterLost, TaskFinished
from tapfinger.core.model import ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.stages.base import Plan
from tapfinger.schedulers.stages.waiting import Waiting
from tapfinger.schedulers.tapfinger import TapFinger

SMALL = constant_type((1, 1), (2, 2), slots=2, name="small")
LARGE = constant_type((6, 6), (8, 8), slots=5, name="large")

#: 1 gpu: 8 slots, 2: 4, 4: 2. The ideal duration on a cluster of 4 is 2 slots.
HALVING = TaskType("halving", R((1, 1)), R((1, 4)), SpeedProfile(R((1, 1)), R((1, 4)), (1 / 8, 1 / 4, 1 / 4, 1 / 2)))


def ready(state: EdgeState, *types: TaskType, max_wait: float = 2.0) -> Waiting:
    stage = Waiting(max_wait)
    context = SchedulerContext(ResourceTypes(), state.clusters, types or (SMALL, LARGE), state.mode)
    stage.reset(SiteTables(context), dict.fromkeys(TapFinger.COUNTERS, 0))
    return stage


def after(state: EdgeState, slots: int) -> EdgeState:
    for _ in range(slots):
        state.end_slot({})
    return state


def planned(stage: Waiting, state: EdgeState) -> Plan:
    return stage.apply(Plan(state.snapshot()))


def started(plan: Plan) -> list[tuple[int, int]]:
    """(task, cluster) of each start."""
    return [(p.task, p.cluster) for p in plan.placements]


def full(state: EdgeState, clusters: Iterable[int], amount: int = 2) -> None:
    """Two small tasks on each of these clusters, so that no large one fits."""
    for n in clusters:
        for i in (80 + n, 90 + n):
            running(state, make_task(i, SMALL, eligible=(n,)), n, amount, amount)


def test_nobody_is_overdue_before_the_time() -> None:
    state = make_state((8, 8), (8, 8))
    stage = ready(state)
    play(state, *arrive(make_task(0, SMALL, eligible=(0,)), make_task(1, LARGE, eligible=(1,))))
    due: dict[int, int] = {}
    for slot in range(12):
        before = Plan(state.snapshot())
        plan = stage.apply(before)
        assert (plan is before) == (slot < 4)
        for task, _ in started(plan):
            due.setdefault(task, slot)
        state.end_slot({})
    assert due == {0: 4, 1: 7}  # twice its 2 slots; twice 3.5, the mean of the two, since longer ones wait no longer
    assert stage.counters["reserved"] == 0


def test_the_unit_of_waiting_counts_only_clusters_that_the_task_may_use() -> None:
    state = make_state((4, 2), (4, 4))
    stage = ready(state, HALVING)
    play(state, *arrive(make_task(0, HALVING, eligible=(0,)), make_task(1, HALVING, eligible=(1,))))
    units = [stage.unit(task) for task in state.snapshot().queue]
    assert units == pytest.approx([4.0, 2.0], abs=0.5)
    assert units[0] == 2 * units[1]


def test_a_start_names_the_stage_and_is_booked() -> None:
    state = after(make_state((8, 8)), 20)
    stage = ready(state)
    play(state, *arrive(make_task(0, SMALL), make_task(1, SMALL, arrival=19)))
    plan = planned(stage, state)
    assert [(start.placement.task, start.because) for start in plan.starts] == [(0, ("waiting",))]
    assert [task.id for task in plan.snapshot.queue] == [1], "task 1 is left to the network"
    assert plan.snapshot.free[0] == R((8, 8)) - plan.placements[0].allocation
    assert not plan.reserved


@pytest.mark.parametrize("overdue", [1, 4])
def test_an_overdue_task_starts_at_any_size(overdue: int) -> None:
    """Also at one that is four times as slow as its best: waiting longer would break the bound."""
    state = make_state((4, 4))
    running(state, make_task(90, SMALL), 0, 1, 1)
    running(state, make_task(91, SMALL), 0, 2, 2)
    after(state, 20)
    stage = ready(state, HALVING)
    play(state, *arrive(*(make_task(i, HALVING) for i in range(overdue))))
    plan = planned(stage, state)
    assert [(p.task, p.allocation) for p in plan.placements] == [(0, R((1, 1)))]
    assert plan.reserved == ({0} if overdue > 1 else set()), "for task 1, which is next"


def test_oldest_first_and_in_single_task_mode_one_start_per_cluster() -> None:
    state = after(make_state((8, 8), mode=Mode.SINGLE), 20)
    stage = ready(state)
    play(state, *arrive(*[make_task(i, SMALL, arrival=a) for i, a in enumerate((3, 5, 19))]))
    plan = planned(stage, state)
    assert started(plan) == [(0, 0)]
    assert [task.id for task in plan.snapshot.queue] == [1, 2]
    (cluster,) = plan.snapshot.clusters
    assert (cluster.free, cluster.starts_left) == (R((7, 7)), 0)
    assert plan.reserved == {0}  # for task 1
    assert stage.counters["reserved"] == 1


def test_a_cluster_is_reserved_for_what_does_not_fit() -> None:
    state = make_state((8, 8), (8, 8))
    for n in (0, 1):
        running(state, make_task(90 + n, SMALL, eligible=(n,)), n, 1 + n, 1 + n)
        running(state, make_task(80 + n, SMALL, eligible=(n,)), n, 2, 2)
    after(state, 20)
    stage = ready(state)
    late = make_task(2, LARGE, arrival=9, eligible=(0, 1))
    play(
        state,
        *arrive(make_task(0, LARGE, arrival=1, eligible=(0, 1)), make_task(1, LARGE, arrival=2, eligible=(0,)), late),
    )
    for _ in range(2):  # once reserved, it stays so
        plan = planned(stage, state)
        assert not plan.starts
        # Task 0 takes the emptier cluster; task 1 may not use the other one, task 2 may.
        assert plan.reserved == {0, 1}
        assert stage.counters["reserved"] == 2
    play(state, TaskFinished(20, 91, 1), TaskFinished(20, 81, 1))
    plan = planned(stage, state)
    # Task 0 is older, but cluster 1 was promised to task 2.
    assert started(plan) == [(2, 1)]
    assert plan.reserved == {0}
    assert [cluster.up for cluster in plan.open.clusters] == [False, True]
    assert [cluster.up for cluster in plan.snapshot.clusters] == [True, True], "reserved is said, not faked"


def test_a_cluster_that_is_lost_is_reserved_no_longer() -> None:
    state = make_state((8, 8), (8, 8))
    for n in (0, 1):
        running(state, make_task(90 + n, SMALL, eligible=(n,)), n, 2, 2)
        running(state, make_task(80 + n, SMALL, eligible=(n,)), n, 1, 1 + n)
    after(state, 20)
    stage = ready(state)
    play(state, *arrive(make_task(0, LARGE, arrival=1, eligible=(0, 1))))
    assert planned(stage, state).reserved == {0}
    play(state, ClusterLost(20, 0))
    assert planned(stage, state).reserved == {1}


def test_a_cluster_is_released_when_its_task_starts_elsewhere() -> None:
    state = make_state((8, 8), (8, 8))
    full(state, (0, 1))
    after(state, 20)
    stage = ready(state)
    play(state, *arrive(make_task(0, LARGE, arrival=1, eligible=(0, 1))))
    assert planned(stage, state).reserved == {0}
    play(state, TaskFinished(20, 91, 1), TaskFinished(20, 81, 1))
    plan = planned(stage, state)
    assert started(plan) == [(0, 1)]
    assert not plan.reserved


def test_a_cluster_that_could_never_run_the_task_is_not_reserved() -> None:
    state = make_state((8, 8), (5, 5))
    full(state, (0,))
    after(state, 20)
    stage = ready(state)
    play(state, *arrive(*(make_task(i, LARGE, arrival=i, eligible=(0, 1)) for i in range(2))))
    plan = planned(stage, state)
    assert (plan.starts, plan.reserved) == ((), {0}), "cluster 1 is too small for either task"


def test_small_tasks_do_not_wait_for_a_cluster_reserved_elsewhere() -> None:
    state = make_state((8, 8), (8, 8))
    full(state, (0,))
    after(state, 20)
    stage = ready(state)
    play(state, *arrive(make_task(0, LARGE, eligible=(0,)), make_task(1, SMALL, arrival=3, eligible=(0, 1))))
    plan = planned(stage, state)
    assert started(plan) == [(1, 1)]
    assert plan.reserved == {0}


def test_a_new_run_begins_with_nothing_reserved() -> None:
    state = make_state((8, 8))
    full(state, (0,))
    after(state, 20)
    stage = ready(state)
    play(state, *arrive(make_task(0, LARGE, arrival=1)))
    assert planned(stage, state).reserved == {0}
    site = SiteTables(SchedulerContext(ResourceTypes(), state.clusters, (SMALL, LARGE), state.mode))
    stage.learn(site)  # profiles may change during a run: what is reserved stays so
    planned(stage, state)
    assert stage.counters["reserved"] == 1
    stage.reset(site, dict.fromkeys(TapFinger.COUNTERS, 0))
    planned(stage, state)
    assert stage.counters["reserved"] == 1
