"""Whatever is timed, taken back, changed and restored, beliefs remain usable profiles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import R
from hypothesis import given, settings
from hypothesis import strategies as st

from tapfinger.core.model import MAX_SLOTS, NO_NOISE, SpeedProfile, TaskType
from tapfinger.profiles.beliefs import Belief
from tapfinger.profiles.drift import Tracked

BOX = R((0, 1)), R((3, 4))
CELLS = 16

rates = st.floats(1.1 / MAX_SLOTS, 10.0)
places = st.tuples(st.integers(0, 3), st.integers(1, 4))
shares = st.tuples(st.floats(0.0, 0.9), st.floats(0.001, 0.1))
runs = st.tuples(places, st.floats(1e-9, 1e7), shares)


def belief(told: list[float], offset: float | None) -> Belief:
    return Belief(TaskType("any", *BOX, SpeedProfile(*BOX, tuple(told), offset, (0.7,) * CELLS)), NO_NOISE)


@given(
    st.lists(rates, min_size=CELLS, max_size=CELLS),
    st.sampled_from([None, 1.001, 1.2]),
    st.lists(runs, max_size=60),
)
@settings(deadline=None, max_examples=50)
def test_beliefs_are_profiles_whatever_is_timed(told: list[float], offset: float | None, seen: list) -> None:
    tracked = Tracked(belief(told, offset))
    for n, (place, slots, (begin, share)) in enumerate(seen):
        timed = tracked.belief.see_run(R(place), slots, begin, begin + share)
        tracked.belief.add(timed, -1.0)
        if n % 3:
            tracked.take(timed)
        if n % 5 == 0:
            tracked.belief.revised()
    found = tracked.belief.believed().profile
    assert np.isfinite(found.rates).all()
    assert min(found.rates) > 1.0 / MAX_SLOTS
    again = Tracked(belief(told, offset))
    again.restore(json.loads(json.dumps(tracked.state())))
    assert again.belief.believed().profile.rates == pytest.approx(found.rates, rel=1e-6)


@given(st.lists(st.tuples(places, st.floats(1e-3, 1e4)), min_size=1, max_size=40), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_runs_does_not_matter(seen: list, shuffler) -> None:
    other = list(seen)
    shuffler.shuffle(other)
    results = []
    for order in (seen, other):
        one = belief([0.1] * CELLS, None)
        for place, slots in order:
            one.see_run(R(place), slots)
        results.append(one.believed().profile.rates)
    assert results[0] == pytest.approx(results[1], rel=1e-6)
