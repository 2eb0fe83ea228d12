"""Shares over sites, by hand."""

from __future__ import annotations

import pytest

from tapfinger.errors import TapfingerError
from tapfinger.evaluation.ratios import best_single, ratio


def test_every_site_counts_by_its_ratio() -> None:
    found = ratio([1.0, 200.0, 30.0], [2.0, 100.0, 30.0])
    assert found.mean == pytest.approx(1.0)  # a half, twice and the same
    assert (found.better, found.no_worse) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (found.worst, found.worst_at) == (pytest.approx(2.0), 1)
    assert found.low < 1.0 < found.high


def test_equal_ratios_have_an_interval_without_width() -> None:
    found = ratio([9.0, 90.0, 900.0], [10.0, 100.0, 1000.0])
    assert (found.low, found.mean, found.high) == pytest.approx((0.9, 0.9, 0.9))


def test_the_interval_is_that_of_the_mean_of_logarithms() -> None:
    values = [1.1, 0.9] * 200
    found = ratio(values, [1.0] * 400)
    # Standard error of the mean: 0.1003 / sqrt(400); two of them on either side, within a tenth.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.1003 / 20, rel=0.1)


def test_the_same_results_give_the_same_interval() -> None:
    assert ratio([1.0, 2.0, 3.0], [1.5, 1.5, 1.5]) == ratio([1.0, 2.0, 3.0], [1.5, 1.5, 1.5])


def test_no_site_is_an_error() -> None:
    with pytest.raises(TapfingerError, match="no site is left"):
        ratio([], [])


def test_the_best_single_one_need_not_be_best_anywhere() -> None:
    assert best_single({"first": [1.0, 100.0], "second": [100.0, 1.0], "steady": [2.0, 2.0]}) == "steady"
