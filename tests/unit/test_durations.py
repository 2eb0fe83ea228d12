from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import constant_type
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.model import NO_NOISE, Noise, Resources, SpeedProfile, TaskType
from tapfinger.profiles.durations import _played, efficient_sizes, mean_slots
from tapfinger.workloads.world import build_world


def table_type(seconds: list[list[float]]) -> TaskType:
    """cpu from 1 down the rows, gpu from 1 along the columns; seconds in slots."""
    low, high = Resources((1, 1)), Resources((len(seconds), len(seconds[0])))
    rates = tuple(1.0 / s for row in seconds for s in row)
    return TaskType("table", low, high, SpeedProfile(low, high, rates))


def test_sizes_of_the_sensitive_type_are_found_not_listed() -> None:
    world = build_world(load_scenario("multi-3"))
    sizes = efficient_sizes(world.task_types[1], NO_NOISE)
    assert [(tuple(s.allocation), s.slots) for s in sizes] == [
        ((2, 10), 2),
        ((2, 7), 3),
        ((2, 5), 4),
        ((2, 4), 5),
        ((2, 3), 7),
        ((2, 2), 10),
        ((2, 1), 21),
    ]


def test_an_insensitive_type_has_one_size() -> None:
    assert [tuple(s.allocation) for s in efficient_sizes(constant_type(), NO_NOISE)] == [(2, 1)]


def test_a_rebound_is_never_worth_having() -> None:
    # More GPUs on one CPU are slower; (2, 2) is faster than everything smaller; (2, 3) is slower again.
    sizes = efficient_sizes(table_type([[8.0, 10.0, 20.0], [8.0, 4.0, 6.0]]), NO_NOISE)
    assert [(tuple(s.allocation), s.slots) for s in sizes] == [((2, 2), 4.0), ((1, 1), 8.0)]


@given(st.lists(st.lists(st.floats(1.0, 40.0), min_size=3, max_size=3), min_size=1, max_size=4))
def test_every_size_is_matched_by_a_kept_one(seconds: list[list[float]]) -> None:
    kind = table_type(seconds)
    slots = mean_slots(kind.profile, NO_NOISE)
    kept = efficient_sizes(kind, NO_NOISE)
    for allocation, duration in zip(kind.profile.allocations(), slots, strict=True):
        rivals = [s for s in kept if s.allocation.fits(allocation)]
        assert min(s.slots for s in rivals) * 0.99 <= duration
    assert list(kept) == sorted(kept, key=lambda s: s.slots)


def test_mean_slots_without_noise_are_the_profile_s_own() -> None:
    kind = table_type([[3.0, 2.5], [2.2, 1.0]])
    assert mean_slots(kind.profile, NO_NOISE).tolist() == [3, 3, 3, 1]


def test_noise_lengthens_a_task_that_would_just_end() -> None:
    # Four gains of 0.25 end a task exactly: with +-0.1 on each, half of the runs need a fifth slot.
    slots = mean_slots(constant_type().profile, Noise("additive", 0.1))[0]
    assert slots == pytest.approx(4.5, abs=0.06)
    assert math.isclose(slots, mean_slots(constant_type().profile, Noise("additive", 0.1))[0])


@given(
    st.lists(st.floats(0.02, 2.0), min_size=1, max_size=12),
    st.sampled_from(["additive", "relative"]),
    st.floats(0.01, 0.9),
)
def test_steady_speeds_need_not_be_played_out(rates: list[float], kind: str, amplitude: float) -> None:
    """Thresholds give what playing every sampled run gives, to the last bit; also where noise stops some rates."""
    noise = Noise(kind, amplitude)
    low, high = Resources((1,)), Resources((len(rates),))
    order = np.argsort(rates, kind="stable")
    played = np.empty(len(rates))
    played[order] = _played(np.asarray(rates)[order], None, noise)
    assert mean_slots(SpeedProfile(low, high, tuple(rates)), noise).tolist() == played.tolist()
