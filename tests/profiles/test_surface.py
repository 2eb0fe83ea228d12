"""The speed model over allocations: exact where measured, sensible between, doubtful elsewhere, and never forced."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles.grids import CELLS, measured, third

from tapfinger.errors import DataError
from tapfinger.profiles.repeats import summarise
from tapfinger.profiles.surface import fit_surface
from tapfinger.profiles.testbed import TESTBED_TYPES, testbed_seconds
from tapfinger.schedulers.optimus import fit_durations

BOTH = ("cpu", "gpu")


def errors(surface, truth, chosen):
    rest = [cell for cell in CELLS if cell not in chosen]
    seconds = np.exp(surface.predict(rest)[0])
    return np.array([abs(s / truth({"cpu": c, "gpu": g}) - 1) for s, (c, g) in zip(seconds, rest, strict=True)])


@pytest.mark.parametrize("task_type", TESTBED_TYPES)
def test_a_third_of_the_grid_tells_the_rest_better_than_optimus(task_type):
    grid, chosen, truth = measured(task_type), third(20000), testbed_seconds(task_type)
    surface = fit_surface(BOTH, {cell: grid[cell] for cell in chosen})
    p, w = np.array(chosen).T
    formula = fit_durations(p, w, np.array([np.mean(grid[cell]) for cell in chosen]))
    rest = [cell for cell in CELLS if cell not in chosen]
    optimus = np.median([abs(formula.slots(c, g) / truth({"cpu": c, "gpu": g}) - 1) for c, g in rest])
    ours = np.median(errors(surface, truth, chosen))
    assert ours < 0.05
    assert ours < optimus + 0.001  # speech recognition is Optimus' formula to the letter


def test_measured_cells_are_met_and_a_rebound_is_kept():
    cells = {(1.0, 1.0): [78.0, 79.0], (1.0, 2.0): [52.0, 52.5], (1.0, 4.0): [90.0, 91.0], (1.0, 8.0): [271.0, 268.0]}
    surface = fit_surface(BOTH, cells)
    for (cpu, gpu), runs in cells.items():
        assert surface.seconds({"cpu": cpu, "gpu": gpu}) == pytest.approx(np.mean(runs), rel=0.03)
    assert surface.seconds({"cpu": 1, "gpu": 6}) > 1.2 * surface.seconds({"cpu": 1, "gpu": 4})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_cells_work_and_say_great_doubt(count):
    truth = testbed_seconds("image-classification")
    cells = {cell: [truth({"cpu": cell[0], "gpu": cell[1]})] for cell in [(2.0, 1.0), (16.0, 1.0), (16.0, 8.0)][:count]}
    surface = fit_surface(BOTH, cells)
    near, far = surface.doubt({"cpu": 2, "gpu": 1}), surface.doubt({"cpu": 1, "gpu": 8})
    assert near < 0.06
    assert far > 0.15
    assert far > 4 * near
    off = abs(math.log(surface.seconds({"cpu": 1, "gpu": 8}) / truth({"cpu": 1, "gpu": 8})))
    assert off < 4 * far


def test_doubt_is_about_as_large_as_the_errors():
    grid, chosen = measured("language-modeling"), third(20001)
    surface = fit_surface(BOTH, {cell: grid[cell] for cell in chosen})
    rest = [cell for cell in CELLS if cell not in chosen]
    mean, doubt = surface.predict(rest)
    truth = testbed_seconds("language-modeling")
    off = np.abs(mean - np.log([truth({"cpu": c, "gpu": g}) for c, g in rest])) / doubt
    assert np.mean(off < 2) > 0.8
    assert np.median(off) > 0.05  # not merely afraid of everything


def test_similar_types_lend_their_shape():
    grid, truth = measured("image-classification"), testbed_seconds("image-classification")
    known = fit_surface(BOTH, {cell: grid[cell] for cell in third(20002)})
    chosen = [(2.0, 1.0), (16.0, 8.0), (4.0, 8.0)]
    slower = {cell: [3.0 * truth({"cpu": cell[0], "gpu": cell[1]})] for cell in chosen}

    def thrice(amounts):
        return 3.0 * truth(amounts)

    alone = np.median(errors(fit_surface(BOTH, slower), thrice, chosen))
    helped = np.median(errors(fit_surface(BOTH, slower, [known]), thrice, chosen))
    assert helped < 0.05
    assert helped < 0.5 * alone


def test_without_a_cell_a_similar_type_is_all_there_is():
    known = fit_surface(("gpu", "cpu"), {(1.0, 2.0): [80.0], (4.0, 2.0): [30.0], (4.0, 8.0): [25.0]})
    guess = fit_surface(BOTH, {}, [known])
    assert guess.doubt({"cpu": 2, "gpu": 1}) > 1.0
    assert 5.0 < guess.seconds({"cpu": 2, "gpu": 1}) < 500.0


def test_none_of_a_resource_is_an_allocation_too():
    surface = fit_surface(BOTH, {(1.0, 0.0): [100.0, 101.0], (1.0, 1.0): [20.0, 20.2], (2.0, 1.0): [11.0, 11.1]})
    assert surface.seconds({"cpu": 1, "gpu": 0}) == pytest.approx(100.5, rel=0.05)
    assert surface.seconds({"cpu": 1, "gpu": 1}) == pytest.approx(20.1, rel=0.05)


def test_other_resources_do_not_matter_and_missing_ones_are_named():
    surface = fit_surface(BOTH, {(1.0, 1.0): [5.0]})
    assert surface.seconds({"cpu": 1, "gpu": 1, "memory": 64}) == pytest.approx(5.0, rel=0.01)
    with pytest.raises(DataError, match="no amount of 'gpu'"):
        surface.seconds({"cpu": 1})


@pytest.mark.parametrize(
    ("resources", "cells", "words"),
    [
        ((), {(): [1.0]}, "one name per resource"),
        (("cpu", "cpu"), {(1.0, 1.0): [1.0]}, "one name per resource"),
        (BOTH, {}, "nothing was measured"),
        (BOTH, {(1.0,): [1.0]}, "an amount of 0 or more for each of cpu, gpu"),
        (BOTH, {(1.0, -1.0): [1.0]}, "0 or more"),
        (BOTH, {(1.0, math.nan): [1.0]}, "0 or more"),
        (BOTH, {(1.0, 1.0): []}, "one for each repeat"),
        (BOTH, {(1.0, 1.0): [1.0, 0.0]}, "numbers above 0"),
        (BOTH, {(1.0, 1.0): [math.inf]}, "numbers above 0"),
    ],
)
def test_nonsense_is_refused(resources, cells, words):
    with pytest.raises(DataError, match=words):
        fit_surface(resources, cells)


@settings(max_examples=25, deadline=None)
@given(
    cells=st.dictionaries(
        st.tuples(st.integers(0, 16).map(float), st.sampled_from([0.0, 0.5, 1.0, 8.0])),
        st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_was_measured_the_answer_is_a_number(cells):
    surface = fit_surface(BOTH, cells)
    mean, doubt = surface.predict([*cells, (3.0, 2.0), (1000.0, 1000.0), (0.0, 0.0)])
    assert np.isfinite(mean).all()
    assert np.isfinite(doubt).all()
    assert (doubt > 0).all()


def test_a_common_offset_between_first_and_second_runs_is_no_noise():
    rng = np.random.default_rng(3)
    base = [20.0 * math.exp(rng.normal(0.0, 0.002)) for _ in range(40)]
    steady = summarise([[b * 1.14, b * math.exp(rng.normal(0.0, 0.002))] for b in base])
    assert math.sqrt(steady.noise) < 0.01
    shaken = summarise([[b, b * math.exp(rng.normal(0.0, 0.1))] for b in base])
    assert 0.04 < math.sqrt(shaken.noise) < 0.12


def test_one_spoilt_cell_is_trusted_less_and_the_others_as_before():
    good = summarise([[10.0, 10.1], [20.0, 19.8], [30.0, 30.3], [15.0, 15.1]])
    spoilt = summarise([[10.0, 10.1], [20.0, 19.8], [30.0, 60.0], [15.0, 15.1]])
    assert spoilt.variance[2] > 30 * spoilt.variance[0]
    assert spoilt.variance[0] < 9 * good.variance[0]
