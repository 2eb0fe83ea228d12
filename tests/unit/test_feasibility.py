from typing import Any

import pytest
from helpers import STEADY, R, arrive, make_state, make_task, place, play, resize, running
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.core.contract import Mode, Placement
from tapfinger.core.events import ClusterLost
from tapfinger.core.feasibility import (
    can_start,
    can_start_with,
    check_size,
    ever_fits,
    largest_allocation,
    resizable,
    room,
    within_bounds,
)
from tapfinger.errors import AboveMaximum, BelowMinimum, InvalidDecision


def test_largest_allocation_is_bounded_by_the_type_and_by_what_is_free() -> None:
    assert largest_allocation(STEADY, R([32, 5])) == (16, 5)
    assert largest_allocation(STEADY, R([3, 32])) == (3, 16)
    assert largest_allocation(STEADY, R([2, 1])) == (2, 1)
    assert largest_allocation(STEADY, R([1, 16])) is None
    assert largest_allocation(STEADY, R([16, 0])) is None


@given(st.integers(0, 20), st.integers(0, 20))
def test_what_is_called_legal_is_accepted_by_the_state(cpu: int, gpu: int) -> None:
    state = make_state((cpu, gpu), (16, 16))
    play(state, *arrive(make_task(0, eligible=(0, 1))))
    top = largest_allocation(STEADY, state.snapshot().clusters[0].free)
    if top is not None:
        play(state, place(0, 0, *top))


def test_can_start_needs_all_four_conditions() -> None:
    state = make_state((16, 16), (16, 16), mode=Mode.SINGLE)
    play(state, *arrive(make_task(0), make_task(1), make_task(2, eligible=(0, 1))))

    def may(task: int, cluster: int) -> bool:
        snapshot = state.snapshot()
        return can_start(next(t for t in snapshot.queue if t.id == task), snapshot.clusters[cluster])

    assert may(1, 0)
    assert not may(1, 1), "not eligible"
    play(state, place(0, 0, 2, 1))
    assert not may(1, 0), "no start left in this slot"
    assert may(2, 1)
    play(state, ClusterLost(0, 1))
    assert not may(2, 1), "down"


def test_can_start_needs_the_minimum_to_fit() -> None:
    state = make_state((5, 16))
    play(state, *arrive(make_task(0), make_task(1)), place(0, 0, 4, 1))
    snapshot = state.snapshot()
    assert not can_start(snapshot.queue[0], snapshot.clusters[0])


@pytest.mark.parametrize(
    ("allocation", "error", "words"),
    [
        (R([1, 1]), BelowMinimum, r"\(1, 1\) is below its minimum \(2, 1\)"),
        (R([2, 17]), AboveMaximum, r"\(2, 17\) is above its maximum \(16, 16\)"),
        (R([2]), BelowMinimum, "has 1 amounts, there are 2"),
        (R([2, 1, 1]), BelowMinimum, "has 3 amounts, there are 2"),
        (R([2, 1.5]), InvalidDecision, "holds a float"),
        ((2, 1), InvalidDecision, "is a tuple"),
        (None, InvalidDecision, "is a NoneType"),
    ],
)
def test_sizes_outside_the_box_are_refused_with_numbers(allocation: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=rf"task 9 \(steady\).*{words}"):
        check_size(9, STEADY, allocation)


def test_a_start_with_a_size_needs_room_bounds_and_a_cluster_that_may_start() -> None:
    state = make_state((16, 8), (4, 4), mode=Mode.SINGLE)
    play(state, *arrive(make_task(0, eligible=(0,)), make_task(1, eligible=(0, 1))))
    snapshot = state.snapshot()
    first, second = snapshot.queue
    here, there = snapshot.clusters
    assert can_start_with(first, here, R((16, 8)))
    assert not can_start_with(first, here, R((16, 9)))  # more than is free
    assert not can_start_with(first, here, R((1, 1)))  # below its minimum
    assert not can_start_with(first, there, R((2, 1)))  # not eligible
    assert can_start_with(second, there, R((4, 4)))
    assert (room(here), room(there)) == ((16, 8), (4, 4))
    after = snapshot.after([Placement(0, 0, (2, 1))])
    assert not can_start_with(second, after.clusters[0], R((2, 1)))  # it has started one already
    assert room(after.clusters[0]) is None
    assert room(snapshot.closed({1}).clusters[1]) is None


def test_sizes_of_a_type_and_clusters_that_hold_it() -> None:
    assert within_bounds(STEADY, (2, 1))
    assert within_bounds(STEADY, (16, 16))
    assert not within_bounds(STEADY, (17, 16))
    assert not within_bounds(STEADY, (2, 0))
    assert not within_bounds(STEADY, (2,))
    assert ever_fits(STEADY.minimum, R((2, 1)))
    assert not ever_fits(STEADY.minimum, R((16, 0)))


def test_a_task_can_be_resized_once_it_has_started() -> None:
    state = make_state((16, 16))
    running(state, make_task(0), 0, 2, 1)
    play(state, *arrive(make_task(1)), place(1, 0, 2, 1))
    assert [resizable(task) for task in state.snapshot().running()] == [True, False]
    play(state, resize(0, 0, 0))
    assert [resizable(task) for task in state.snapshot().on_clusters()] == [False, True]
