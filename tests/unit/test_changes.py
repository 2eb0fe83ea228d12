"""Snapshots after a change, and who came and left between two of them."""

from helpers import R, arrive, make_state, make_task, place, play, running

from tapfinger.core.changes import TaskTracker
from tapfinger.core.contract import Mode, Placement, Snapshot


def two_running() -> Snapshot:
    """Tasks 0 and 1 run on cluster 0, task 2 waits, cluster 1 is empty."""
    state = make_state((16, 16), (8, 8))
    running(state, make_task(0), 0, 4, 4)
    running(state, make_task(1), 0, 2, 2)
    play(state, *arrive(make_task(2, eligible=(0, 1))))
    return state.snapshot()


def ids(tasks: object) -> list[int]:
    return [task.id for task in tasks]  # type: ignore[attr-defined]


def test_tasks_of_a_snapshot() -> None:
    snapshot = two_running()
    assert ids(snapshot.running()) == ids(snapshot.on_clusters()) == [0, 1]
    assert ids(snapshot.tasks()) == [0, 1, 2]
    arrival = snapshot.queue[0].arrival
    assert ids(snapshot.arrived_since(arrival - 1)) == [2]
    assert ids(snapshot.arrived_since(arrival)) == []


def test_with_other_sizes() -> None:
    snapshot = two_running()
    other = snapshot.with_sizes({0: R((10, 1)), 99: R((1, 1))})
    assert other.clusters[0].free == (4, 13)
    assert [task.allocation for task in other.running()] == [(10, 1), (2, 2)]
    assert other.clusters[1] is snapshot.clusters[1]
    assert snapshot.clusters[0].free == (10, 10)
    # More than there is: nothing is free of it.
    assert snapshot.with_sizes({0: R((16, 1))}).clusters[0].free == (0, 13)
    assert snapshot.clusters[0].free_with({0: R((16, 1))}) == (-2, 13)


def test_with_clusters_closed_and_another_queue() -> None:
    snapshot = two_running()
    assert snapshot.closed(()) is snapshot
    assert [c.up for c in snapshot.closed({1}).clusters] == [True, False]
    assert snapshot.with_queue([]).queue == ()


def test_after_placements() -> None:
    state = make_state((16, 16), (8, 8), mode=Mode.SINGLE)
    play(state, *arrive(make_task(0), make_task(1, eligible=(0, 1))))
    before = state.snapshot()
    after = before.after([Placement(1, 1, (2, 1))])
    play(state, place(1, 1, 2, 1))
    assert after == state.snapshot()
    assert before.after([]) is before


def test_who_came_and_who_left() -> None:
    tracker = TaskTracker()
    state = make_state((16, 16))
    play(state, *arrive(make_task(0), make_task(1)))
    first = tracker.observe(state.snapshot())
    assert first is not None
    assert (ids(first.came), ids(first.left), first.slots) == ([0, 1], [], 0)
    assert tracker.observe(state.snapshot()) is None
    state.end_slot({})
    state.end_slot({})
    play(state, *arrive(make_task(2, arrival=2)))
    later = tracker.observe(state.snapshot().with_queue(state.snapshot().queue[1:]))
    assert later is not None
    assert (ids(later.came), ids(later.left), later.slots) == ([2], [0], 2)
    assert sorted(tracker.there) == [1, 2]


def test_only_some_tasks_may_be_tracked() -> None:
    tracker = TaskTracker(Snapshot.running)
    found = tracker.observe(two_running())
    assert found is not None
    assert ids(found.came) == [0, 1]


def test_booked_placements_take_room_and_leave_the_queue_but_do_not_run() -> None:
    state = make_state((16, 16), (16, 16))
    play(state, *arrive(make_task(1, eligible=(0, 1)), make_task(2, eligible=(0, 1))))
    before = state.snapshot()
    booked = before.booked([Placement(1, 1, (2, 1))])
    assert booked.free == (before.free[0], (14, 15))
    assert [task.id for task in booked.queue] == [2]
    assert booked.turn == before.turn
    assert not list(booked.running())
    assert before.booked([]) is before
