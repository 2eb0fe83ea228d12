"""What schedulers are told of speed profiles, and what is refused in a scenario's [knowledge]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import R, constant_type, make_scenario

from tapfinger.config import KnowledgeConfig, load_scenario
from tapfinger.core.model import SpeedProfile, TaskType
from tapfinger.errors import ConfigError
from tapfinger.profiles.initial_knowledge import DISTRUST, USUAL_SLOTS, told_types, usual_profile
from tapfinger.workloads.world import build_world

TYPES = build_world(load_scenario("multi-3")).task_types


def told(seed: int = 0, of: tuple[TaskType, ...] = TYPES, **knowledge: Any) -> tuple[TaskType, ...]:
    return told_types(of, KnowledgeConfig(**knowledge), seed)


def logs(task_type: TaskType) -> npt.NDArray[np.float64]:
    return np.log(task_type.profile.rates)


def test_exact_is_the_very_same_and_nobody_doubts_it() -> None:
    world = build_world(load_scenario("multi-3"))
    assert world.context(3).task_types is world.task_types
    assert [t.profile.doubt for t in world.task_types] == [None, None]


def test_noise_is_of_the_amount_asked_for_and_half_common_to_a_type() -> None:
    off = np.array([logs(told(seed, kind="noisy", amount=0.4)[1]) - logs(TYPES[1]) for seed in range(400)])
    assert off.std() == pytest.approx(0.4, rel=0.1)
    common = off.mean(axis=1)  # of all cells; their own parts average out
    assert common.std() == pytest.approx(0.4 * math.sqrt(0.5), rel=0.1)
    assert (off - common[:, None]).std() == pytest.approx(0.4 * math.sqrt(0.5), rel=0.05)


def test_told_profiles_are_a_function_of_the_seed() -> None:
    assert told(5, kind="noisy") == told(5, kind="noisy")
    assert told(5, kind="noisy") != told(6, kind="noisy")
    # What one type's profile is told as does not depend on which others are.
    assert told(5, kind="noisy", types=("sensitive",))[1] == told(5, kind="noisy")[1]


def test_types_not_meant_are_told_exactly() -> None:
    for kind in ("noisy", "missing"):
        insensitive, sensitive = told(kind=kind, types=("sensitive",))
        assert insensitive is TYPES[0]
        assert sensitive.profile.rates != TYPES[1].profile.rates


@pytest.mark.parametrize("factor", [3.0, 0.25])
def test_wrong_is_a_factor_on_the_first_type_or_on_those_named(factor: float) -> None:
    for names, expected in (((), [factor, 1.0]), (("sensitive",), [1.0, factor])):
        found = told(kind="wrong", factor=factor, types=names)
        for task_type, true, wrong in zip(found, TYPES, expected, strict=True):
            assert np.allclose(logs(task_type) - logs(true), math.log(wrong))
            assert task_type.profile.shape_offset == true.profile.shape_offset
            # Nobody can tell which one is wrong.
            assert set(task_type.profile.doubt or ()) == {DISTRUST}


def test_a_missing_profile_gives_nothing_of_the_truth_away() -> None:
    true = TYPES[1]
    other = replace(true, profile=SpeedProfile(true.minimum, true.maximum, tuple(0.5 for _ in true.profile.rates)))
    for hidden in (true, other):
        for names in ((), ("sensitive",)):
            found = told(of=(TYPES[0], hidden), kind="missing", types=names)
            assert found == told(kind="missing", types=names)
            assert found[1].profile.shape_offset is None


def test_an_unknown_type_is_assumed_to_be_like_the_known_ones() -> None:
    box = constant_type((1, 1), (8, 8))
    known = [constant_type(slots=2.0), constant_type(slots=18.0)]
    profile = usual_profile(box, known)
    assert np.mean(np.log(profile.rates)) == pytest.approx(-math.log(6.0))
    assert profile.rate((8, 8)) / profile.rate((4, 4)) == pytest.approx(math.sqrt(2.0)), "less than in proportion"
    assert profile.rate((8, 1)) > profile.rate((1, 1))
    assert np.mean(np.log(usual_profile(box, []).rates)) == pytest.approx(-math.log(USUAL_SLOTS))


def test_the_pace_of_a_known_type_with_a_shape_is_that_of_its_duration() -> None:
    sensitive = TYPES[1]
    profile = usual_profile(constant_type((1, 1), (1, 1)), [sensitive])
    slots = [sensitive.profile.slots(allocation) for allocation in sensitive.profile.allocations()]
    # Whole slots are rounded up, by half a slot on average.
    assert 1.0 / profile.rates[0] == pytest.approx(math.exp(np.mean(np.log(slots))), rel=0.2)
    assert 1.0 / profile.rates[0] < math.exp(np.mean(np.log(slots)))


def test_no_told_rate_is_out_of_bounds() -> None:
    slow = constant_type((1, 1), (2, 2), slots=900_000.0)
    for knowledge in ({"kind": "wrong", "factor": 0.001}, {"kind": "noisy", "amount": 2.0}, {"kind": "missing"}):
        for seed in range(20):
            told(seed, (slow,), **knowledge)  # or SpeedProfile would refuse it


@pytest.mark.parametrize(
    ("knowledge", "message"),
    [
        ({"kind": "noisy", "amount": -0.1}, r"knowledge.amount: must be greater than or equal to 0 \(got -0.1\)"),
        ({"kind": "wrong", "factor": 0.0}, r"knowledge.factor: must be greater than or equal to 0.001 \(got 0.0\)"),
        ({"kind": "wrong", "factor": -3}, r"knowledge.factor: must be greater .* \(got -3\)"),
        (
            {"kind": "missing", "types": ["stedy"]},
            "there is no task type 'stedy'. Did you mean 'steady'. Known: steady",
        ),
        ({"kind": "vague"}, "knowledge.kind: must be 'exact', 'noisy', 'wrong' or 'missing'"),
        ({"kind": "missing", "amount": 0.5}, "amount has no effect with kind 'missing'; set another kind, or remove"),
        ({"kind": "noisy", "factor": 2}, "factor has no effect with kind 'noisy'"),
        ({"types": ["steady"]}, "types has no effect with kind 'exact'"),
        ({"learn": False}, "learn has no effect with kind 'exact'"),
        ({"kind": "wrong", "amounts": 3}, "unknown key 'knowledge.amounts'. Did you mean 'amount'"),
    ],
)
def test_bad_knowledge_is_refused(knowledge: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_scenario(knowledge=knowledge)


def test_a_resolved_scenario_is_read_again() -> None:
    scenario = make_scenario(knowledge={"kind": "wrong", "factor": 0.5, "types": ["steady"], "learn": False})
    data = scenario.resolved()
    assert make_scenario(**data) == scenario


def test_doubt_is_checked_like_rates() -> None:
    box = R((1, 1)), R((1, 2))
    SpeedProfile(*box, (0.1, 0.2), None, (0.0, 3.0))
    with pytest.raises(ConfigError, match="has 2 doubts, got 3"):
        SpeedProfile(*box, (0.1, 0.2), None, (0.1, 0.1, 0.1))
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="every doubt of a profile must be finite, zero or more"):
            SpeedProfile(*box, (0.1, 0.2), None, (0.1, bad))
