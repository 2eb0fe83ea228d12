"""Changes of speed are noticed soon, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from helpers import R, constant_type

from tapfinger.core.model import NO_NOISE, Resources
from tapfinger.profiles.beliefs import Belief, Timed
from tapfinger.profiles.drift import Drift, Tracked

PLAIN = constant_type((1, 1), (4, 4), 10.0, "any")
TOLD = replace(PLAIN, profile=replace(PLAIN.profile, doubt=(0.5,) * 16))
#: Log rates that have nothing to do with what is told.
SURFACE = np.random.default_rng(7).normal(-3.0, 1.0, (5, 5))
#: Log rates as tasks have them.
SMOOTH = -3.0 + 0.4 * np.log(np.maximum(1, np.arange(5)))[:, None] - 0.3 * np.log(np.maximum(1, np.arange(5)))


def tracked() -> Tracked:
    return Tracked(Belief(TOLD, NO_NOISE))


def noise(rng: np.random.Generator, kind: str, scatter: float) -> float:
    if kind == "heavy":
        return scatter * float(rng.standard_t(3))
    hangs = math.log(3.0) if kind == "hanging" and rng.random() < 0.05 else 0.0
    return scatter * float(rng.normal()) + hangs


def runs(
    rng: np.random.Generator,
    count: int,
    scatter: float,
    kind: str = "normal",
    factor: float = 1.0,
    surface: npt.NDArray[np.float64] = SURFACE,
) -> list[Timed]:
    """Of seconds times ``factor``, at eight sizes."""
    found = []
    for _ in range(count):
        size = int(rng.integers(1, 5)), int(rng.integers(1, 3))
        log_rate = float(surface[size]) - noise(rng, kind, scatter) - math.log(factor)
        found.append(Timed(Resources(size), log_rate, 1.0))
    return found


@pytest.mark.parametrize("kind", ["normal", "heavy", "hanging"])
@pytest.mark.parametrize("scatter", [0.01, 0.1, 0.5])
def test_thousands_of_runs_that_do_not_change_raise_no_alarm(kind: str, scatter: float) -> None:
    rng = np.random.default_rng(20_001)
    one = tracked()
    assert [one.take(run) for run in runs(rng, 4000, scatter, kind)] == [None] * 4000
    for _ in range(20):  # beginnings are the most doubtful
        new = tracked()
        assert not any(new.take(run) for run in runs(rng, 40, scatter, kind))


@pytest.mark.parametrize("factor", [0.6, 1.3, 2.0, 5.0])
def test_a_change_is_noticed_within_ten_runs_and_its_factor_is_told(factor: float) -> None:
    rng = np.random.default_rng(20_002)
    belief = tracked()
    assert not any(belief.take(run) for run in runs(rng, 100, 0.05))
    alarms = [(n, found) for n, run in enumerate(runs(rng, 60, 0.05, factor=factor)) if (found := belief.take(run))]
    ((noticed, drift),) = alarms
    assert noticed < 10
    assert drift == Drift(pytest.approx(factor, rel=0.1), noticed + 1)


def test_after_a_change_sizes_compare_as_before_and_all_are_slower() -> None:
    rng = np.random.default_rng(20_003)
    belief = tracked()
    for run in runs(rng, 200, 0.03, surface=SMOOTH):
        belief.take(run)
    slower = [run for run in runs(rng, 400, 0.03, factor=2.0, surface=SMOOTH) if run.allocation == (1, 1)][:12]
    assert any([belief.take(run) for run in slower])
    found = belief.belief.believed().profile
    for size in ((1, 1), (4, 2), (2, 1)):  # only the first was seen since
        assert math.log(found.rate(size)) == pytest.approx(SMOOTH[size] - math.log(2.0), abs=0.1)
    assert found.doubt is not None
    assert found.doubt[found.index((4, 2))] > found.doubt[found.index((1, 1))]


def test_what_is_kept_goes_on_as_if_nothing_had_happened() -> None:
    rng = np.random.default_rng(20_004)
    first, seen = tracked(), [*runs(rng, 60, 0.1), *runs(rng, 20, 0.1, factor=3.0)]
    for run in seen[:-8]:
        first.take(run)
    second = tracked()
    second.restore(json.loads(json.dumps(first.state())))
    for run in seen[-8:]:
        assert first.take(run) == second.take(run)
    assert first.belief.believed() == second.belief.believed()


def test_a_run_that_is_taken_back_leaves_no_trace() -> None:
    one, other = Belief(TOLD, NO_NOISE), Belief(TOLD, NO_NOISE)
    for belief in (one, other):
        belief.see_run(R((2, 2)), 8.0)
    one.add(one.see_run(R((2, 2)), 30.0, 0.0, 0.4), -1.0)
    one.add(one.see_run(R((3, 3)), 3.0), -1.0)
    assert one.believed().profile.rates == pytest.approx(other.believed().profile.rates)
    assert one.runs == {other.believed().profile.index((2, 2)): pytest.approx(1.0)}


def test_runs_that_differ_much_are_believed_less() -> None:
    calm, wild = Belief(TOLD, NO_NOISE), Belief(TOLD, NO_NOISE)
    for n in range(20):
        calm.see_run(R((2, 2)), 20.0 * math.exp(0.02 * (-1) ** n))
        wild.see_run(R((2, 2)), 20.0 * math.exp(0.8 * (-1) ** n))
    assert (calm.scatter, wild.scatter) == (pytest.approx(0.05, abs=0.02), pytest.approx(0.74, abs=0.05))
    cell = PLAIN.profile.index((2, 2))
    assert (calm.believed().profile.doubt or ())[cell] < 0.02 < 0.1 < (wild.believed().profile.doubt or ())[cell]


def test_part_of_a_run_says_less_than_all_of_it_and_the_same_rate() -> None:
    part, whole = Belief(TOLD, NO_NOISE), Belief(TOLD, NO_NOISE)
    part.see_run(R((2, 2)), 5.0, 0.5, 0.75)
    whole.see_run(R((2, 2)), 20.0)
    cell, truth = PLAIN.profile.index((2, 2)), math.log(1 / 20)
    far = [abs(math.log(b.believed().profile.rates[cell]) - truth) for b in (part, whole)]
    assert far[1] < far[0] < 0.15
