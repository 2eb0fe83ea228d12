"""How far tasks are and how long they take: one formula for those that report and those that do not."""

from dataclasses import replace

import pytest
from helpers import R

from tapfinger.core.contract import Phase, TaskView
from tapfinger.core.estimates import (
    MOST_PROGRESS,
    advanced,
    duration,
    left_at_pace,
    progress_of,
    share_left,
    slots_left,
    work,
)
from tapfinger.core.model import SpeedProfile, TaskType

STEADY = TaskType("steady", R((1,)), R((3,)), SpeedProfile(R((1,)), R((3,)), (0.01, 0.02, 0.05)))
SLOWING = replace(STEADY, name="slowing", profile=replace(STEADY.profile, shape_offset=1.2))


def running(kind: TaskType, elapsed: int = 0, progress: float | None = None, size: tuple[int, ...] = (2,)) -> TaskView:
    return TaskView(0, kind, 0, (0,), Phase.RUNNING, 0, R(size), elapsed, None, progress)


def test_what_a_task_reports_is_believed() -> None:
    assert progress_of(running(STEADY, 40, 0.25)) == 0.25
    assert slots_left(running(STEADY, 40, 0.25)) == 38
    assert slots_left(running(STEADY, 40, 0.25), R((3,))) == 15


def test_a_task_that_reports_nothing_is_as_far_as_its_profile_says() -> None:
    assert progress_of(running(STEADY, 10)) == pytest.approx(0.2)
    assert progress_of(running(STEADY, 10), R((3,))) == pytest.approx(0.5)
    assert progress_of(running(STEADY, 500)) == MOST_PROGRESS
    assert slots_left(running(STEADY, 500)) == 1
    waiting = replace(running(STEADY), phase=Phase.QUEUED, cluster=None, allocation=None)
    assert progress_of(waiting) == 0.0
    paused = replace(running(STEADY, 10, size=(0,)), phase=Phase.PAUSED)
    assert progress_of(paused) == pytest.approx(0.1)


def test_one_that_slows_down_is_followed_slot_by_slot() -> None:
    """The closed form lies close to what playing each slot gives."""
    profile, played = SLOWING.profile, 0.0
    for slot in range(1, 40):
        played += profile.gain((2,), played)
        assert advanced(profile, R((2,)), slot) == pytest.approx(played, abs=0.01)
    half = advanced(profile, R((2,)), 20)
    assert advanced(profile, R((2,)), 10, half) == pytest.approx(advanced(profile, R((2,)), 30))


@pytest.mark.parametrize("kind", [STEADY, SLOWING])
def test_work_is_rate_times_slots(kind: TaskType) -> None:
    for slots in (1, 7, 20):
        end = advanced(kind.profile, R((2,)), slots, 0.1)
        assert work(kind.profile.shape_offset, 0.1, end) == pytest.approx(kind.profile.rate((2,)) * slots)
    assert duration(kind, R((2,))) == pytest.approx(kind.profile.slots((2,)), abs=1.5)
    assert advanced(kind.profile, R((2,)), duration(kind, R((2,)))) == MOST_PROGRESS


def test_some_work_is_always_left() -> None:
    assert share_left(0.25) == 0.75
    assert share_left(0.999) == pytest.approx(1.0 - MOST_PROGRESS)


def test_real_tasks_go_on_at_their_own_pace() -> None:
    assert left_at_pace(30.0, 100.0, None) == 70.0
    assert left_at_pace(30.0, 100.0, 0.05) == 70.0
    assert left_at_pace(30.0, 100.0, 0.5) == 30.0
    assert left_at_pace(0.0, 100.0, 0.5, least=10.0) == 10.0
    assert left_at_pace(200.0, 100.0, None) == pytest.approx(20.0)
