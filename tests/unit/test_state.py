"""The state as lists of events and decisions -> commands; every invariant is checked after each."""

from dataclasses import replace
from typing import Any

import pytest
from helpers import STEADY, R, arrive, constant_type, make_state, make_task, place, play, resize, running

from tapfinger.core.contract import VOID, Decision, Mode, Phase, Placement, Proposal, Resize
from tapfinger.core.events import (
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    ResizeTask,
    StartTask,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskRequeued,
    TaskResized,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.model import Cluster
from tapfinger.core.state import EdgeState
from tapfinger.errors import (
    AboveMaximum,
    BelowMinimum,
    CapacityExceeded,
    ConfigError,
    InvalidDecision,
    InvalidTransition,
    NotEligible,
    NotPending,
    TooManyStarts,
)

# ------------------------------------------------------------- a task's life


def test_a_task_lives_through_its_phases() -> None:
    state, task = make_state((16, 16)), make_task(0)
    play(state, *arrive(task))
    assert [(t.id, t.phase, t.cluster) for t in state.snapshot().queue] == [(0, Phase.QUEUED, None)]

    commands = play(state, place(0, 0, 4, 2))
    assert commands == [StartTask(task, 0, R([4, 2]))]
    (cluster,) = state.snapshot().clusters
    assert cluster.free == (12, 14)
    assert [(t.phase, t.cluster, t.allocation) for t in cluster.running] == [(Phase.PLACED, 0, (4, 2))]
    assert state.snapshot().queue == ()

    play(state, TaskStarted(0, 0, 0, R([4, 2])))
    assert state.snapshot().clusters[0].running[0].phase is Phase.RUNNING
    play(state, TaskFinished(0, 0, 0))
    assert state.snapshot().clusters[0].free == (16, 16)
    assert state.tasks_in_system == 0


def test_a_failed_task_leaves_and_frees_its_resources() -> None:
    state = running(make_state((16, 16)), make_task(0), 0, 4, 2)
    play(state, TaskFailed(0, 0, 0, "out of memory"))
    assert state.tasks_in_system == 0
    assert state.snapshot().clusters[0].free == (16, 16)


def test_resize_pause_and_resume() -> None:
    task = make_task(0)
    state = running(make_state((16, 16)), task, 0, 4, 2)
    assert play(state, resize(0, 8, 8), TaskResized(0, 0, 0, R([8, 8]))) == [ResizeTask(task, 0, R([8, 8]))]
    assert state.snapshot().clusters[0].free == (8, 8)

    play(state, resize(0, 0, 0))
    (cluster,) = state.snapshot().clusters
    assert cluster.free == (16, 16)
    assert cluster.running == ()
    assert [(t.phase, t.allocation) for t in cluster.paused] == [(Phase.PAUSED, (0, 0))]
    assert state.tasks_in_system == 1

    play(state, resize(0, 2, 1))
    (cluster,) = state.snapshot().clusters
    assert (cluster.paused, [t.phase for t in cluster.running]) == ((), [Phase.RUNNING])


def test_resizes_make_room_for_placements_of_the_same_decision() -> None:
    state = running(make_state((16, 16)), make_task(0), 0, 16, 16)
    play(state, *arrive(make_task(1)))
    decision = Decision(placements=(Placement(1, 0, R([8, 8])),), resizes=(Resize(0, R([8, 8])),))
    assert [type(c) for c in play(state, decision)] == [ResizeTask, StartTask]


def test_two_tasks_can_swap_their_sizes_on_a_full_cluster() -> None:
    state = make_state((16, 16))
    running(state, make_task(0), 0, 12, 12)
    running(state, make_task(1), 0, 4, 4)
    play(state, Decision(resizes=(Resize(1, R([12, 12])), Resize(0, R([4, 4])))))
    assert [t.allocation for t in state.snapshot().clusters[0].running] == [(4, 4), (12, 12)]


# --------------------------------------------------------------- age and time


def test_only_running_tasks_age_and_service_adds_up() -> None:
    state = make_state((16, 16))
    running(state, make_task(0), 0, 4, 3)
    running(state, make_task(1), 0, 4, 2)
    play(state, resize(1, 0, 0))
    state.end_slot({0: 0.25})
    state.end_slot({})
    cluster = state.snapshot().clusters[0]
    assert [(t.elapsed, t.service, t.progress) for t in cluster.running] == [(2, (8, 6), 0.25)]
    assert [(t.elapsed, t.service, t.progress) for t in cluster.paused] == [(0, None, None)]
    assert (state.slot, state.turn) == (2, 0)


def test_progress_of_a_task_that_has_left_is_ignored() -> None:
    state = make_state((16, 16))
    state.end_slot({5: 0.5})
    state.validate()


def test_turns_count_within_a_slot() -> None:
    state = make_state((16, 16))
    play(state, VOID, VOID)
    assert state.snapshot().turn == 2
    state.end_slot({})
    assert state.snapshot().turn == 0


def test_a_snapshot_does_not_change_afterwards_and_shares_what_did_not_change() -> None:
    state = make_state((16, 16), (16, 16))
    play(state, *arrive(make_task(0)))
    before = state.snapshot()
    play(state, place(0, 0, 2, 1))
    after = state.snapshot()
    assert (before.clusters[0].free, len(before.queue)) == ((16, 16), 1)
    assert (after.clusters[0].free, len(after.queue)) == ((14, 15), 0)
    assert after.clusters[1] is before.clusters[1]


def test_pending_is_the_oldest_part_of_a_clusters_queue_and_backlog_the_rest() -> None:
    state = make_state((16, 16), (16, 16))
    play(state, *arrive(*(make_task(i, eligible=(0, 1) if i % 2 else (0,)) for i in range(6))))
    snapshot = state.snapshot()
    assert [t.id for t in snapshot.pending(1, 2)] == [1, 3]
    assert (snapshot.backlog(1, 2), snapshot.backlog(0, 2), snapshot.backlog(1, 10)) == (1, 4, 0)
    assert snapshot.tasks_in_system == state.tasks_in_system == 6


# ------------------------------------------------------------------- outages


def test_a_lost_cluster_returns_its_tasks_to_the_queue_in_order_of_arrival() -> None:
    state = make_state((16, 16), (16, 16))
    both = (0, 1)
    tasks = [make_task(i, arrival=i // 2, eligible=both) for i in range(5)]
    play(state, *arrive(*tasks), place(3, 0, 2, 1), place(0, 0, 2, 1), place(1, 1, 2, 1))
    play(state, *(TaskStarted(0, i, n, R([2, 1])) for i, n in ((3, 0), (0, 0), (1, 1))))
    state.end_slot({0: 0.25, 3: 0.25, 1: 0.25})
    play(state, ClusterLost(1, 0))
    snapshot = state.snapshot()
    assert [t.id for t in snapshot.queue] == [0, 2, 3, 4]
    assert {(t.elapsed, t.progress, t.phase) for t in snapshot.queue} == {(0, None, Phase.QUEUED)}
    assert (snapshot.clusters[0].up, snapshot.clusters[0].free) == (False, (16, 16))
    assert [t.id for t in snapshot.clusters[1].running] == [1]
    play(state, ClusterJoined(5, 0))
    assert state.snapshot().clusters[0].up
    play(state, place(0, 0, 2, 1))


# -------------------------------------------------- illegal decisions and events


def crowded(mode: Mode = Mode.MULTI) -> EdgeState:
    """Cluster 0 full but for (4, 4), cluster 1 down, cluster 2 with a task just placed; 1, 2, 3 wait."""
    state = make_state((16, 16), (16, 16), (16, 16), mode=mode)
    running(state, make_task(0), 0, 12, 12)
    play(state, *arrive(make_task(1, eligible=(0, 1)), make_task(2, eligible=(0,)), make_task(3, eligible=(0, 2))))
    play(state, ClusterLost(0, 1), *arrive(make_task(4, eligible=(2,))), place(4, 2, 2, 1))
    return state


def both(*parts: Decision) -> Decision:
    return Decision(
        placements=tuple(p for part in parts for p in part.placements),
        resizes=tuple(r for part in parts for r in part.resizes),
    )


FAULTS: dict[str, tuple[Any, type[InvalidDecision], str]] = {
    "over capacity": (
        place(1, 0, 5, 1),
        CapacityExceeded,
        r"cluster 0 \(c0\) has \(4, 4\) free .*task 1 asks \(5, 1\)",
    ),
    "over capacity together": (
        both(place(1, 0, 4, 4), place(2, 0, 2, 1)),
        CapacityExceeded,
        r"task 1 asks \(4, 4\); task 2 asks \(2, 1\)",
    ),
    "below minimum": (place(1, 0, 1, 1), BelowMinimum, r"task 1 .*\(1, 1\) is below its minimum \(2, 1\)"),
    "nothing at all": (place(1, 0, 0, 0), BelowMinimum, r"task 1 .*\(0, 0\)"),
    "negative": (place(1, 0, 2, -1), BelowMinimum, r"\(2, -1\)"),
    "above maximum": (place(1, 0, 17, 1), AboveMaximum, r"task 1 .*\(17, 1\) is above its maximum \(16, 16\)"),
    "already running": (place(0, 0, 2, 1), NotPending, "task 0 is running on cluster 0"),
    "already placed": (place(4, 2, 2, 1), NotPending, "task 4 is placed on cluster 2"),
    "unknown task": (place(99, 0, 2, 1), NotPending, "task 99 is not in the system"),
    "twice in one decision": (both(place(3, 0, 2, 1), place(3, 2, 2, 1)), NotPending, "task 3 .*twice"),
    "not eligible": (place(2, 2, 2, 1), NotEligible, r"cluster 2 is not among its eligible clusters \[0\]; choose"),
    "no such cluster": (place(2, 7, 2, 1), NotEligible, "cluster 7"),
    "negative cluster": (place(2, -3, 2, 1), NotEligible, "cluster -3"),
    "cluster as a float": (place(2, 0.0, 2, 1), NotEligible, "cluster 0.0"),  # type: ignore[arg-type]
    "cluster down": (place(1, 1, 2, 1), NotEligible, r"cluster 1 \(c1\) is down; choose one of \[0\]"),
    "resize of an unknown task": (resize(99, 2, 1), NotPending, "task 99 is not in the system"),
    "resize of a waiting task": (resize(1, 2, 1), NotPending, "task 1 waits since slot 0"),
    "resize before it started": (resize(4, 4, 4), NotPending, "has not started yet"),
    "resize twice": (both(resize(0, 4, 4), resize(0, 5, 5)), NotPending, "twice"),
    "resize below minimum": (resize(0, 1, 1), BelowMinimum, "task 0"),
    "resize above maximum": (resize(0, 17, 1), AboveMaximum, "task 0"),
    "too few amounts": (place(1, 0, 2), BelowMinimum, "has 1 amounts, there are 2"),
    "too many amounts": (place(1, 0, 2, 1, 1), BelowMinimum, "has 3 amounts, there are 2"),
    "pause with too few amounts": (resize(0, 0), BelowMinimum, "has 1 amounts"),
    "pause with no amounts": (resize(0), BelowMinimum, "has 0 amounts"),
    "half a unit": (place(1, 0, 2, 1.5), InvalidDecision, "holds a float"),  # type: ignore[arg-type]
    "a list": (Decision(placements=(Placement(1, 0, [2, 1]),)), InvalidDecision, "is a list"),  # type: ignore[arg-type]
    "no decision": (None, InvalidDecision, "must return a Decision, got None"),
    "good and bad": (both(resize(0, 4, 4), place(1, 0, 2, 1), place(2, 2, 2, 1)), NotEligible, "task 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_illegal_decision_raises_and_changes_nothing(fault: str) -> None:
    decision, error, words = FAULTS[fault]
    state = crowded()
    before = state.snapshot()
    with pytest.raises(error, match=words) as caught:
        state.commit(decision)
    assert type(caught.value) is error
    assert decision is None or str(caught.value).startswith(f"slot {state.slot}: ")
    state.validate()
    assert state.snapshot() == before
    # The state still works: what is legal is still accepted.
    play(state, both(resize(0, 4, 4), place(1, 0, 12, 12)))


def test_a_decision_may_give_amounts_as_a_plain_tuple() -> None:
    assert Placement(1, 0, (2, 1)) == Placement(1, 0, R((2, 1)))
    assert Resize(0, (4, 4)) == Resize(0, R((4, 4)))
    placement, resized = Placement(1, 0, (2, 1)), Resize(0, (4, 4))
    given = (placement, resized, Proposal(0, 1, (2, 1)), replace(resized, task=2))
    assert all(type(one.allocation) is R for one in given)
    state = crowded()
    play(state, Decision((placement,), (resized,)))
    assert state.snapshot().clusters[0].running[-1].allocation == (2, 1)


def test_a_resize_over_capacity_names_old_and_new() -> None:
    state = make_state((16, 16))
    running(state, make_task(0), 0, 12, 12)
    running(state, make_task(1), 0, 4, 4)
    before = state.snapshot()
    with pytest.raises(CapacityExceeded, match=r"task 1 asks \(5, 4\) instead of \(4, 4\)\. Ask for at most \(4, 4\)"):
        state.commit(resize(1, 5, 4))
    assert state.snapshot() == before


def test_single_task_mode_allows_one_start_per_cluster_and_slot() -> None:
    state = make_state((16, 16), (16, 16), mode=Mode.SINGLE)
    play(state, *arrive(*(make_task(i, eligible=(0, 1)) for i in range(5))))
    before = state.snapshot()
    with pytest.raises(TooManyStarts, match="slot 0: placement of task 1: cluster 0 already starts a task"):
        state.commit(both(place(0, 0, 2, 1), place(1, 0, 2, 1)))
    assert state.snapshot() == before

    play(state, both(place(0, 0, 2, 1), place(1, 1, 2, 1)))
    assert [c.starts_left for c in state.snapshot().clusters] == [0, 0]
    with pytest.raises(TooManyStarts):
        state.commit(place(2, 0, 2, 1))
    state.end_slot({})
    assert [c.starts_left for c in state.snapshot().clusters] == [1, 1]
    play(state, place(2, 0, 2, 1))


def test_multi_task_mode_has_no_limit_but_capacity() -> None:
    state = make_state((16, 16))
    play(state, *arrive(*(make_task(i) for i in range(8))))
    play(state, both(*(place(i, 0, 2, 1) for i in range(8))))
    assert state.snapshot().clusters[0].starts_left is None
    assert state.snapshot().clusters[0].free == (0, 8)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (TaskStarted(0, 0, 0, R([2, 1])), "task 0 should be placed, but: task 0 is running on cluster 0"),
        (TaskStarted(0, 1, 0, R([2, 1])), "task 1 should be placed, but: task 1 waits since slot 0"),
        (TaskFinished(0, 1, 0), "task 1 should be running or paused, but: task 1 waits"),
        (TaskFinished(0, 4, 2), "task 4 is placed on cluster 2"),
        (TaskFailed(0, 99, 0), "task 99 is not in the system"),
        (TaskResized(0, 1, 0, R([2, 1])), "task 1 waits"),
        (TaskArrived(0, make_task(0)), "task 0 arrived twice: task 0 is running"),
        (TaskArrived(0, make_task(1)), "task 1 arrived twice: task 1 waits"),
    ],
)
def test_an_impossible_event_raises_with_the_tasks_story(event: Any, words: str) -> None:
    state = crowded()
    before = state.snapshot()
    with pytest.raises(InvalidTransition, match=words):
        state.apply(event)
    state.validate()
    assert state.snapshot() == before


def test_a_task_that_fits_nowhere_cannot_arrive() -> None:
    state = make_state((16, 16))
    with pytest.raises(ConfigError, match=r"minimum \(20, 1\) fits none"):
        play(state, *arrive(make_task(0, constant_type((20, 1), (20, 1)))))
    assert state.tasks_in_system == 0


# ------------------------------------------------------------------- validate


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s._free.__setitem__(0, R([5, 5])), "do not add up"),
        (lambda s: s._waiting.pop(1), "queue differ"),
        (lambda s: s._on[0].clear(), "do not add up"),
        (lambda s: s._up.__setitem__(0, False), "down but holds"),
        (lambda s: setattr(s._held[0], "phase", Phase.PAUSED), "paused with resources"),
        (lambda s: setattr(s._held[0], "cluster", 2), "wrong cluster"),
        (lambda s: s._waiting.update({2: s._waiting.pop(2), 1: s._waiting.pop(1)}), "order of arrival"),
        (lambda s: s._held.update({1: s._held[0]}), "both waits and is on"),
        (lambda s: s._alike.clear(), "kinds are not the queue"),
    ],
)
def test_validate_notices_damage(damage: Any, words: str) -> None:
    state = crowded()
    state.validate()
    damage(state)
    with pytest.raises(AssertionError, match=words):
        state.validate()


def test_the_state_keeps_nothing_of_tasks_that_ended() -> None:
    state = make_state((16, 16))
    for i in range(200):
        running(state, make_task(i, STEADY, arrival=i), 0, 2, 1)
        play(state, TaskFinished(i, i, 0))
        state.end_slot({})
    held = (state._held, state._tasks, state._waiting, *state._on)
    assert [len(part) for part in held] == [0] * len(held)


@pytest.mark.parametrize(
    "decision",
    [
        Decision(p for p in [Placement(0, 0, R((2, 1)))]),  # type: ignore[arg-type]
        Decision(Placement(0, 0, R((2, 1)))),  # type: ignore[arg-type]
        Decision(None),  # type: ignore[arg-type]
        Decision((1, 2)),  # type: ignore[arg-type]
        Decision((Resize(0, R((2, 1))),)),  # type: ignore[arg-type]
        Decision((Placement(0.0, 0, R((2, 1))),)),  # type: ignore[arg-type]
        Decision(resizes=(7,)),  # type: ignore[arg-type]
    ],
)
def test_what_only_looks_like_a_decision_is_refused_and_changes_nothing(decision: Decision) -> None:
    state = make_state()
    play(state, *arrive(make_task(0)))
    before = state.snapshot()
    with pytest.raises(InvalidDecision):
        state.commit(decision)
    state.validate()
    assert state.snapshot() == before


# ------------------------------------------------------------ what only real clusters do


def test_a_closed_cluster_keeps_its_tasks_and_takes_no_new_ones() -> None:
    state = running(make_state((16, 16), (16, 16)), make_task(0, eligible=(0, 1)), 0, 2, 1)
    play(state, ClusterClosed(0, 0), *arrive(make_task(1, eligible=(0, 1))))
    view = state.snapshot().clusters[0]
    assert (view.up, [t.id for t in view.running], view.free) == (False, [0], (14, 15))
    with pytest.raises(NotEligible, match=r"cluster 0 \(c0\) is down; choose one of \[1\]"):
        state.commit(place(1, 0, 2, 1))
    play(state, TaskFinished(0, 0, 0))
    assert state.snapshot().clusters[0].free == (16, 16)
    play(state, ClusterJoined(0, 0), place(1, 0, 2, 1))


def test_a_requeued_task_gives_back_what_it_held_and_waits_at_its_old_place() -> None:
    state = running(make_state(), make_task(0), 0, 2, 1)
    play(state, *arrive(make_task(1), make_task(2)), place(1, 0, 4, 4), TaskRequeued(0, 0, 0), TaskRequeued(0, 1, 0))
    snapshot = state.snapshot()
    assert [t.id for t in snapshot.queue] == [0, 1, 2]
    assert snapshot.free == ((16, 16),)


def test_of_a_long_queue_the_first_of_each_kind_are_shown() -> None:
    state, brief = make_state((16, 16), (16, 16)), constant_type(slots=1.0, name="brief")
    tasks = [make_task(i) for i in range(6)]
    tasks += [make_task(6, brief), make_task(7, eligible=(1,)), make_task(8, brief), make_task(9, eligible=(1,))]
    play(state, *arrive(*tasks))
    assert [t.id for t in state.kinds()] == [0, 6, 7]
    assert [t.id for t in state.snapshot(window=6).queue] == [0, 1, 6, 7, 8, 9]
    assert [t.id for t in state.snapshot(window=1).queue] == [0, 6, 7]
    assert state.snapshot(window=10) == state.snapshot()
    play(state, place(0, 0, 4, 4), place(7, 1, 4, 4), TaskWithdrawn(0, 6), TaskWithdrawn(0, 8))
    assert [t.id for t in state.kinds()] == [1, 9]
    play(state, TaskRequeued(0, 0, 0))
    assert [t.id for t in state.kinds()] == [0, 9]
    assert [t.id for t in state.snapshot(window=4).queue] == [0, 1, 9]
    assert [t.id for t in state.snapshot().queue] == [0, 1, 2, 3, 4, 5, 9]


def test_a_waiting_task_can_be_withdrawn_and_no_other() -> None:
    state = running(make_state(), make_task(0), 0, 2, 1)
    play(state, *arrive(make_task(1)), TaskWithdrawn(0, 1))
    assert state.tasks_in_system == 1
    with pytest.raises(InvalidTransition, match="task 0 should wait, but: task 0 is running on cluster 0"):
        state.apply(TaskWithdrawn(0, 0))


def test_a_task_that_could_not_be_launched_fails_before_it_runs() -> None:
    state = make_state()
    play(state, *arrive(make_task(0)), place(0, 0, 2, 1), TaskFailed(0, 0, 0, "no such program"))
    assert state.tasks_in_system == 0
    assert state.snapshot().free == ((16, 16),)


def test_a_fork_goes_its_own_way() -> None:
    state = EdgeState((Cluster("c0", R((4, 4))), Cluster("c1", R((4, 4)))), Mode.MULTI)
    kind = constant_type((1, 1), (4, 4))
    for ident in range(3):
        state.apply(TaskArrived(0, make_task(ident, kind, 0, (0, 1))))
    state.commit(Decision((Placement(0, 0, R((2, 2))),)))
    state.apply(TaskStarted(0, 0, 0, R((2, 2))))
    state.apply(ClusterClosed(0, 1))
    before = state.snapshot()
    twin = state.fork()
    assert twin.snapshot() == before
    with pytest.raises(NotEligible):
        twin.commit(Decision((Placement(1, 1, R((1, 1))),)))
    twin.commit(Decision((Placement(1, 0, R((1, 1))),), (Resize(0, R((1, 1))),)))
    twin.end_slot({})
    twin.validate()
    assert state.snapshot() == before
    assert state.waiting == 2
    state.apply(TaskFinished(0, 0, 0))
    state.validate()
    assert [task.id for task in twin.snapshot().clusters[0].running] == [0, 1]


def test_a_task_may_have_run_before() -> None:
    state = EdgeState((Cluster("c0", R((4, 4))),), Mode.MULTI)
    state.apply(TaskArrived(9, make_task(0, constant_type((1, 1), (4, 4)), 0, (0,))))
    state.commit(Decision((Placement(0, 0, R((2, 1))),)))
    with pytest.raises(InvalidTransition):
        state.has_run(0, 3)
    state.apply(TaskStarted(9, 0, 0, R((2, 1))))
    state.has_run(0, 3)
    (view,) = state.snapshot().clusters[0].running
    assert (view.elapsed, view.service) == (3, (6, 3))
