"""Kinds of speed that are formulas or grids in the scenario, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import make_world

from tapfinger.config import load_scenario
from tapfinger.core.model import SpeedProfile
from tapfinger.errors import ConfigError


def profile(
    speed: dict[str, Any], minimum: tuple[int, int] = (2, 1), maximum: tuple[int, int] = (8, 8)
) -> SpeedProfile:
    low, high = (dict(zip(("cpu", "gpu"), amounts, strict=True)) for amounts in (minimum, maximum))
    kind = {"name": "steady", "minimum": low, "maximum": high, "speed": speed}
    return make_world(task_types=[kind], slot_seconds=10).task_types[0].profile


def seconds(speed: dict[str, Any], cpu: int, gpu: int) -> float:
    return 10.0 / profile(speed).rate((cpu, gpu))


@pytest.mark.parametrize(
    ("speed", "at", "expected"),
    [
        ({"kind": "power", "seconds": 100, "exponent": {"gpu": 0.5}}, (2, 1), 100),
        ({"kind": "power", "seconds": 100, "exponent": {"gpu": 0.5}}, (8, 4), 50),
        ({"kind": "power", "seconds": 100, "exponent": {"gpu": 0.5, "cpu": 1}}, (4, 4), 25),
        ({"kind": "rebound", "fixed": 5, "compute": 80, "feeding": 10}, (2, 1), 5 + 80 + 5),
        ({"kind": "rebound", "fixed": 5, "compute": 80, "feeding": 10}, (2, 8), 5 + 10 + 40),
        ({"kind": "rebound", "compute": 80, "feeding": 10}, (8, 8), 10 + 10),
        ({"kind": "rebound", "compute": 80, "feeding": 10, "resource": "cpu", "feeder": "gpu"}, (8, 2), 10 + 40),
        ({"kind": "tanh", "scale": 8, "slots": 5}, (2, 8), 50 / 0.7615941559557649),
    ],
)
def test_formulas(speed: dict[str, Any], at: tuple[int, int], expected: float) -> None:
    assert seconds(speed, *at) == pytest.approx(expected)


def test_a_rebound_has_its_best_between_the_ends() -> None:
    times = [seconds({"kind": "rebound", "compute": 80, "feeding": 10}, 2, gpu) for gpu in range(1, 9)]
    assert times.index(min(times)) == 3  # sqrt(80 * 2 / 10) = 4 gpus


def test_a_grid_is_met_exactly_and_interpolated_between() -> None:
    grid = {"kind": "grid", "amounts": {"cpu": [2, 8], "gpu": [1, 4]}, "seconds": [90, 40, 80, 10]}
    assert [seconds(grid, *at) for at in ((2, 1), (2, 4), (8, 1), (8, 4))] == pytest.approx([90, 40, 80, 10])
    assert seconds(grid, 2, 2) == pytest.approx(60)  # in the middle by logarithms: the geometric mean
    assert seconds(grid, 8, 8) == pytest.approx(10)  # beyond the grid its edge


def test_the_order_of_resources_in_a_grid_is_its_own() -> None:
    grid = {"kind": "grid", "amounts": {"gpu": [1, 4], "cpu": [2, 8]}, "seconds": [90, 80, 40, 10]}
    assert seconds(grid, 8, 1) == pytest.approx(80)
    assert seconds(grid, 2, 4) == pytest.approx(40)


def test_a_resource_that_a_grid_does_not_name_changes_nothing() -> None:
    grid = {"kind": "grid", "amounts": {"gpu": [1, 4]}, "seconds": [90, 40]}
    assert seconds(grid, 2, 1) == seconds(grid, 8, 1) == pytest.approx(90)


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        ({"kind": "power", "seconds": 9, "exponent": {"tpu": 0.5}}, "exponent: there is no resource 'tpu'"),
        (
            {"kind": "power", "seconds": 9, "exponent": {"gpu": -0.5}},
            "exponent.gpu: must be greater than or equal to 0",
        ),
        ({"kind": "rebound", "compute": 9, "feeding": 1, "feeder": "tpu"}, "there is no resource 'tpu'"),
        ({"kind": "rebound", "compute": 9}, "feeding is missing"),
        ({"kind": "grid", "amounts": {"tpu": [1]}, "seconds": [9]}, "amounts: there is no resource 'tpu'"),
        ({"kind": "grid", "amounts": {"gpu": [1, 2]}, "seconds": [9]}, "2 amounts of gpu need 2 seconds, got 1"),
        (
            {"kind": "grid", "amounts": {"gpu": [2, 2]}, "seconds": [9, 8]},
            r"amounts.gpu = \[2.0, 2.0\] must be at least",
        ),
        ({"kind": "grid", "amounts": {"gpu": []}, "seconds": []}, r"amounts.gpu = \[\] must be at least one amount"),
        ({"kind": "grid", "amounts": {}, "seconds": [9]}, "amounts is empty"),
        ({"kind": "grid", "amounts": {"gpu": [1, 2]}, "seconds": [9, 0]}, "seconds.1: must be greater than 0"),
    ],
)
def test_mistakes_are_named(speed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        profile(speed)


@pytest.mark.parametrize(
    "speed",
    [
        {"kind": "power", "seconds": 9, "exponent": {"gpu": 0.5}},
        {"kind": "rebound", "compute": 9, "feeding": 1},
        {"kind": "amdahl", "seconds": 9, "parallel": {"gpu": 0.5}},
    ],
)
def test_a_time_divided_by_gpus_needs_one(speed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the minimum of each named resource must be above 0"):
        profile(speed, minimum=(2, 0))


def test_one_slot_at_full_speed_is_not_written_down() -> None:
    """Models know the scenario they were trained on word by word."""
    speed = load_scenario("multi-3").resolved()["task_types"][1]["speed"]
    assert speed == {"kind": "tanh", "resource": "gpu", "scale": 16.0, "shape_offset": 1.2}
    longer = load_scenario("multi-3", ["task_types.sensitive.speed.slots=3"])
    assert longer.resolved()["task_types"][1]["speed"]["slots"] == 3.0
