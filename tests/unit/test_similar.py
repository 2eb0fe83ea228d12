"""A type of which nothing is known is like the others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import R, constant_type

from tapfinger.core.model import SpeedProfile, TaskType
from tapfinger.profiles.beliefs import log_sizes
from tapfinger.profiles.initial_knowledge import usual_profile
from tapfinger.profiles.similar import LEAST_DOUBT, similar_profile


def power(name: str, minimum: tuple[int, int], maximum: tuple[int, int], slots: float, *exponents: float) -> TaskType:
    logs = -math.log(slots) + log_sizes(R(minimum), R(maximum)) @ np.array(exponents)
    rates = tuple(np.exp(logs).tolist())
    return TaskType(name, R(minimum), R(maximum), SpeedProfile(R(minimum), R(maximum), rates))


def test_without_others_it_is_the_usual_guess() -> None:
    box = constant_type((1, 1), (4, 4), 3.0, "new")
    assert similar_profile(box, ()) == usual_profile(box, ())


def test_it_takes_level_and_shape_of_the_others_also_over_another_box() -> None:
    known = [power("one", (1, 1), (8, 8), 20.0, 0.5, 0.1), power("other", (2, 1), (16, 8), 5.0, 0.3, 0.1)]
    found = similar_profile(constant_type((2, 2), (8, 8), 1.0, "new"), known)
    assert 1.0 / found.rate((2, 2)) == pytest.approx(10.0), "the geometric mean at the minimum"
    assert found.rate((8, 2)) / found.rate((2, 2)) == pytest.approx(4.0**0.4)
    assert found.rate((2, 8)) / found.rate((2, 2)) == pytest.approx(4.0**0.1)


def test_a_resource_that_it_has_more_of_than_the_others_extends() -> None:
    found = similar_profile(constant_type((1, 1), (9, 1), 1.0, "new"), [power("one", (1, 1), (3, 1), 4.0, 1.0, 0.0)])
    assert found.rate((9, 1)) == found.rate((3, 1)) == pytest.approx(0.75)


def test_types_that_agree_leave_less_doubt_than_types_that_do_not() -> None:
    box = constant_type((1, 1), (4, 4), 1.0, "new")
    alike = [constant_type((1, 1), (4, 4), 10.0, f"t{n}") for n in range(30)]
    unlike = [constant_type((1, 1), (4, 4), 10.0 * 4.0 ** (n % 3), f"t{n}") for n in range(30)]
    few, many, apart = (similar_profile(box, types).doubt for types in (alike[:1], alike, unlike))
    assert few is not None
    assert many is not None
    assert apart is not None
    assert min(many) == pytest.approx(LEAST_DOUBT, abs=0.01)
    assert min(few) > 1.0
    assert min(apart) > 1.0


def test_a_narrowed_type_has_the_speeds_and_doubts_of_its_base() -> None:
    base = power("base", (1, 0), (4, 3), 7.0, 0.5, 0.2)
    base = replace(base, profile=replace(base.profile, doubt=tuple(0.01 * n for n in range(16))))
    found = base.narrowed(R((2, 1)), R((4, 2)))
    assert (found.name, found.base, found.family) == ("base[2,1:4,2]", "base", "base")
    assert found.narrowed(R((3, 1)), R((4, 1))) == base.narrowed(R((3, 1)), R((4, 1)))
    assert found.profile.doubt is not None
    for size in found.profile.allocations():
        at = base.profile.index(size)
        assert found.profile.rate(size) == base.profile.rates[at]
        assert found.profile.doubt[found.profile.index(size)] == (base.profile.doubt or ())[at]
