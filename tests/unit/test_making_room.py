"""Making room: for whom others step aside, who does, and when it does not pay."""

from __future__ import annotations

import pytest
from helpers import R, arrive, make_state, make_task, place, play, running

from tapfinger.core.contract import VOID, Mode, Placement, Resize, SchedulerContext
from tapfinger.core.events import TaskFinished, TaskStarted
from tapfinger.core.model import Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.lending import Lending
from tapfinger.schedulers.making_room import MakingRoom


def by_gpus(name: str, slots: float, most: int = 8) -> TaskType:
    """Takes ``slots`` divided by its gpus."""
    low, high = R((1, 1)), R((1, most))
    rates = tuple((gpus + 0.01) / slots for gpus in range(1, most + 1))
    return TaskType(name, low, high, SpeedProfile(low, high, rates))


LONG, SHORT = by_gpus("long", 400.0), by_gpus("short", 4.0, most=2)


def site(state: EdgeState, cost: float = 0.0) -> SiteTables:
    clusters = tuple(Cluster(c.name, c.capacity) for c in state.clusters)
    return SiteTables(SchedulerContext(ResourceTypes(), clusters, (LONG, SHORT), state.mode, switching_cost=cost))


def ready(state: EdgeState, cost: float = 0.0) -> MakingRoom:
    return MakingRoom(site(state, cost))


def full(mode: Mode = Mode.MULTI) -> EdgeState:
    """A cluster of 8 gpus that a long task has to itself for 50 slots, and a short one that waits."""
    state = make_state((16, 8), mode=mode)
    running(state, make_task(0, LONG), 0, 1, 8)
    play(state, *arrive(make_task(1, SHORT)))
    return state


def test_a_long_task_steps_aside_for_a_short_one():
    state = full()
    (room,) = ready(state).find(state.snapshot())
    assert room.placement.task == 1
    (step,) = room.steps
    assert step.task == 0
    assert step.size.fits(R((1, 7)))


def test_no_room_is_made_on_a_cluster_that_is_reserved():
    state = full()
    lending = Lending(site(state))
    assert lending.lend(state.snapshot(), VOID, reserved={0}).void
    assert lending.lend(state.snapshot(), VOID, reserved={1}).placements


def test_not_if_changes_cost_more_than_the_wait():
    state = full()
    assert ready(state, cost=2.0).find(state.snapshot())
    assert not ready(state, cost=30.0).find(state.snapshot())


def test_not_if_it_ends_soon_anyway():
    state = full()
    state.end_slot({0: 0.97})
    assert not ready(state).find(state.snapshot())


def test_not_for_a_task_that_fits_and_was_left_waiting():
    state = make_state((16, 8), (16, 8))
    running(state, make_task(0, LONG), 0, 1, 8)
    play(state, *arrive(make_task(1, SHORT, eligible=(0, 1))))
    assert not ready(state).find(state.snapshot())


def test_not_for_a_long_task():
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 8)
    play(state, *arrive(make_task(1, LONG)))
    assert not ready(state).find(state.snapshot())


def test_nobody_steps_aside_who_is_only_just_starting_or_has_the_least_already():
    state = make_state((16, 8))
    play(state, *arrive(make_task(0, LONG)), place(0, 0, 1, 8), *arrive(make_task(1, SHORT)))
    assert not ready(state).find(state.snapshot())
    state = make_state((16, 2))
    running(state, make_task(0, LONG), 0, 1, 1)
    running(state, make_task(1, LONG), 0, 1, 1)
    play(state, *arrive(make_task(2, SHORT)))
    assert not ready(state).find(state.snapshot())


def test_one_task_per_cluster_and_slot_and_only_where_a_start_is_left():
    state = full()
    play(state, *arrive(make_task(2, SHORT)))
    assert len(ready(state).find(state.snapshot())) == 1
    single = full(Mode.SINGLE)
    assert not ready(single).find(single.snapshot())  # the long one was started in this very slot
    single.end_slot({0: 0.02})
    assert ready(single).find(single.snapshot())


def test_who_stepped_aside_has_its_size_again_as_soon_as_there_is_room():
    state = full()
    lending = Lending(site(state))
    decision = lending.lend(state.snapshot(), VOID)
    (placement,), (resize,) = decision.placements, decision.resizes
    assert isinstance(placement, Placement)
    assert isinstance(resize, Resize)
    assert resize.allocation[1] + placement.allocation[1] <= 8
    play(state, decision)
    play(state, TaskStarted(0, 1, 0, placement.allocation))
    state.end_slot({0: 0.1, 1: 0.5})
    seen = lending.returned(state.snapshot())
    assert next(t for t in seen.clusters[0].running if t.id == 0).allocation != R((1, 8))
    play(state, TaskFinished(1, 1, 0))
    state.end_slot({0: 0.2})
    seen = lending.returned(state.snapshot())
    assert next(t for t in seen.clusters[0].running if t.id == 0).allocation == R((1, 8))
    assert seen.free[0][1] == 0
    play(state, lending.lend(state.snapshot(), VOID))
    assert state.snapshot().clusters[0].running[0].allocation == R((1, 8))


@pytest.mark.parametrize("done", [None, 0.5])
def test_progress_that_is_not_reported_is_guessed(done):
    state = full()
    state.end_slot({} if done is None else {0: done})
    assert ready(state).find(state.snapshot())
