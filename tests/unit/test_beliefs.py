"""The posterior of a task type's speed: what is seen, in whatever order, and what follows elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from helpers import R, constant_type

from tapfinger.core.model import NO_NOISE, Noise, Resources, SpeedProfile, TaskType
from tapfinger.profiles import beliefs
from tapfinger.profiles.beliefs import FLOOR, HAIR, WHOLE, Belief, log_sizes

BOX = R((1, 1)), R((8, 8))
SIZES = log_sizes(*BOX)
#: Levels off with the second resource, and does not care for the first.
TRUTH = np.log(np.tanh(np.exp(SIZES[:, 1]) / 6.0))
#: How near to what was seen exactly a belief comes, in log rates.
EXACT = 1.1 * HAIR * FLOOR
CORNER, FAR = R((1, 1)), R((8, 8))


def told(log_rates: npt.NDArray[np.float64], doubt: float = 1.0, shape_offset: float | None = None) -> TaskType:
    rates = tuple(np.exp(log_rates).tolist())
    return TaskType("toy", *BOX, SpeedProfile(*BOX, rates, shape_offset, (doubt,) * len(rates)))


def error(belief: Belief, truth: npt.NDArray[np.float64] = TRUTH) -> npt.NDArray[np.float64]:
    return np.abs(np.log(belief.believed().profile.rates) - truth)


def doubt(belief: Belief) -> npt.NDArray[np.float64]:
    return np.array(belief.believed().profile.doubt)


def rate(log_rates: npt.NDArray[np.float64], allocation: Resources) -> float:
    return float(np.exp(log_rates[told(log_rates).profile.index(allocation)]))


def test_it_converges_to_the_truth_from_a_profile_three_times_too_fast() -> None:
    noise, rng = Noise("relative", 0.3), np.random.default_rng(0)
    belief = Belief(told(TRUTH + math.log(3.0)), noise)
    before = error(belief).mean()
    worst = []
    for _ in range(3):
        for _ in range(60):
            allocation = Resources((int(rng.integers(1, 9)), int(rng.integers(1, 9))))
            gain = noise.apply(rate(TRUTH, allocation), int(rng.integers(2**60)), 0)
            belief.see_progress(allocation, 0.0, gain)
        worst.append(float(error(belief).mean()))
    assert before == pytest.approx(math.log(3.0))
    assert worst[0] < 0.12
    assert worst[2] < 0.07
    assert worst[2] < worst[0]


def test_a_generic_curve_bends_to_the_true_one() -> None:
    belief = Belief(told(-1.0 + 0.25 * SIZES.sum(axis=1)), NO_NOISE)
    for amounts in ((1, 1), (1, 4), (1, 8), (4, 2), (8, 8), (8, 1)):
        belief.see_progress(R(amounts), 0.0, rate(TRUTH, R(amounts)))
    assert error(belief).max() < 0.25
    assert error(belief).mean() < 0.1


def test_every_observation_leaves_less_doubt_and_most_where_it_was_made() -> None:
    belief = Belief(told(TRUTH), Noise("relative", 0.2))
    before = doubt(belief)
    for amounts in ((2, 2), (2, 2), (7, 3), (1, 8)):
        belief.see_progress(R(amounts), 0.0, rate(TRUTH, R(amounts)))
        after = doubt(belief)
        assert (after < before).all()
        assert (before - after).argmax() == belief.believed().profile.index(R(amounts)) or amounts == (2, 2)
        before = after
    assert before.min() >= 0.0


def test_allocations_never_seen_move_with_the_whole_type() -> None:
    off = math.log(3.0)
    belief = Belief(told(TRUTH + off), NO_NOISE)
    belief.see_progress(CORNER, 0.0, rate(TRUTH, CORNER))
    corrected = off - error(belief)
    index = belief.believed().profile.index
    assert corrected[index(CORNER)] == pytest.approx(off, abs=EXACT)
    # Too far away for the smooth part: only that the type as a whole is off.
    assert corrected[index(FAR)] == pytest.approx(WHOLE * off, rel=0.05)
    assert corrected[index(R((1, 2)))] > corrected[index(FAR)]


def test_the_order_of_observations_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    seen = [
        (R(rng.integers(1, 9, 2).tolist()), float(rng.uniform(0.01, 0.3)), int(rng.integers(1, 9))) for _ in range(80)
    ]
    results = []
    for order in (range(80), reversed(range(80)), rng.permutation(80)):
        belief = Belief(told(TRUTH, shape_offset=1.2), Noise("additive", 0.1))
        for i in order:
            allocation, gain, slots = seen[i]
            belief.see_progress(allocation, gain, gain)
            belief.see_end(allocation, slots)
            belief.revised()
        results.append((belief.believed().profile.rates, belief.believed().profile.doubt))
    for other in results[1:]:
        assert np.allclose(results[0], other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape_offset", [None, 1.2, 1.01])
@pytest.mark.parametrize("true_rate", [0.003, 0.021, 0.19, 0.26, 0.34, 0.55])
def test_a_run_seen_to_end_is_believed_to_take_as_long(true_rate: float, shape_offset: float | None) -> None:
    truth = told(np.full(len(TRUTH), math.log(true_rate)), shape_offset=shape_offset)
    belief = Belief(told(np.full(len(TRUTH), math.log(0.11)), shape_offset=shape_offset), NO_NOISE)
    belief.see_end(CORNER, truth.profile.slots(CORNER))
    slots = truth.profile.slots(CORNER)
    assert belief.believed().profile.slots(CORNER) == (slots if slots < 50 else pytest.approx(slots, rel=2 * EXACT))


def test_a_duration_is_known_to_the_slot_only_however_often_it_is_seen() -> None:
    belief = Belief(told(TRUTH), NO_NOISE)
    for _ in range(1000):
        belief.see_end(CORNER, 4)
    profile = belief.believed().profile
    assert 1 / 4 < profile.rate(CORNER) < 1 / 3
    # Somewhere between three and four slots, uniform in the logarithm.
    assert doubt(belief)[0] == pytest.approx(math.log(4 / 3) / math.sqrt(12), rel=0.02)


def test_noise_averages_out_where_rounding_does_not() -> None:
    few, many = (Belief(told(TRUTH), Noise("relative", 0.5)) for _ in range(2))
    for belief, runs in ((few, 1), (many, 100)):
        for _ in range(runs):
            belief.see_end(CORNER, 40)
    rounding = math.log(40 / 39) / math.sqrt(12)
    assert doubt(few)[0] > 4 * doubt(many)[0] > 4 * rounding


def test_a_task_of_one_slot_is_not_believed_infinitely_fast() -> None:
    belief = Belief(told(np.full(len(TRUTH), math.log(0.1))), NO_NOISE)
    belief.see_end(CORNER, 1)
    assert 1.0 < belief.believed().profile.rate(CORNER) < 2.0


def test_additive_noise_that_is_cut_off_at_zero_is_seen_through() -> None:
    noise, true_rate = Noise("additive", 0.1), 0.03
    belief = Belief(told(np.full(len(TRUTH), math.log(0.1))), noise)
    gains = [noise.apply(true_rate, 5, slot) for slot in range(20_000)]
    for gain in gains:
        belief.see_progress(CORNER, 0.0, gain)
    assert np.mean(gains) > 1.3 * true_rate, "cutting off must bias the mean, or nothing is tested"
    assert belief.believed().profile.rate(CORNER) == pytest.approx(true_rate, rel=0.05)


def test_shape_and_lost_shares_of_a_slot_are_taken_out() -> None:
    belief = Belief(told(TRUTH, shape_offset=1.2), NO_NOISE)
    shape = belief.believed().profile.shape
    belief.see_progress(CORNER, 0.0, 0.2 * shape(0.0))
    belief.see_progress(CORNER, 0.7, 0.2 * shape(0.7) * 0.25, lost=0.75)
    belief.see_progress(CORNER, 0.8, 0.0, lost=1.0)
    assert belief.believed().profile.rate(CORNER) == pytest.approx(0.2, rel=EXACT)


def test_no_progress_yet_says_nothing() -> None:
    belief = Belief(told(TRUTH), NO_NOISE)
    belief.see_progress(CORNER, 0.0, 0.0)
    assert belief.revised() is None
    assert belief.believed() == told(TRUTH)


def test_only_news_is_given_away() -> None:
    belief = Belief(told(TRUTH + 1.0), NO_NOISE)
    assert belief.revised() is None
    belief.see_progress(CORNER, 0.0, rate(TRUTH, CORNER))
    first = belief.revised()
    assert first is not None
    assert first.profile != told(TRUTH + 1.0).profile
    assert belief.revised() is None
    belief.see_progress(CORNER, 0.0, rate(TRUTH, CORNER))
    assert belief.revised() is None, "the same again is no news"
    belief.see_progress(FAR, 0.0, 0.5 * rate(TRUTH, FAR))
    assert belief.revised() is not None


def test_what_is_certain_stays_as_it_is() -> None:
    certain = Belief(told(TRUTH, doubt=0.0), NO_NOISE)
    undoubted = told(TRUTH)
    plain = Belief(replace(undoubted, profile=replace(undoubted.profile, doubt=None)), NO_NOISE)
    for belief in (certain, plain):
        belief.see_progress(CORNER, 0.0, 0.9)
        assert belief.revised() is None


def test_doubt_may_differ_from_cell_to_cell() -> None:
    base = told(TRUTH)
    doubts = (0.0,) + (1.0,) * (len(TRUTH) - 1)
    belief = Belief(replace(base, profile=replace(base.profile, doubt=doubts)), NO_NOISE)
    belief.see_progress(FAR, 0.0, 0.5 * rate(TRUTH, FAR))
    moved = error(belief)
    assert moved[0] == pytest.approx(0.0, abs=1e-9)
    assert moved[1:].min() > 0.3


def test_more_allocations_than_inference_takes_leave_those_seen_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beliefs, "MOST_SEEN", 2)
    few, all_of_them = (Belief(told(TRUTH), NO_NOISE) for _ in range(2))
    often = [(R((8, 1)), 3), (R((4, 4)), 2)]
    for allocation, times in often:
        for belief in (few, all_of_them):
            for _ in range(times):
                belief.see_progress(allocation, 0.0, 0.1)
    for amounts in ((1, 1), (2, 2), (3, 3)):
        all_of_them.see_progress(R(amounts), 0.0, 0.9)
    assert few.believed() == all_of_them.believed()


def test_large_boxes_are_predicted_in_parts() -> None:
    wide = constant_type((1, 1), (100, 60), slots=8.0)
    belief = Belief(replace(wide, profile=replace(wide.profile, doubt=(1.0,) * 6000)), NO_NOISE)
    for amount in range(1, 61):
        belief.see_progress(R((amount, amount)), 0.0, 0.25)
    found = belief.believed().profile
    assert found.rate((50, 50)) == pytest.approx(0.25, rel=0.02)
    assert found.rate((100, 1)) == pytest.approx(0.25, rel=0.2)
    assert min(found.doubt or ()) < 2 * FLOOR


def test_a_resource_that_may_be_zero_has_a_size_too() -> None:
    sizes = log_sizes(R((0, 2)), R((2, 4)))
    assert np.isfinite(sizes).all()
    assert sizes[0].tolist() == [0.0, 0.0]
    assert (np.diff(sizes.reshape(3, 3, 2)[:, 0, 0]) > 0).all()
