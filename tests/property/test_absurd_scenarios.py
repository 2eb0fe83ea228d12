"""Scenarios with absurd values: loading works within bounded work, or raises an error that says what is wrong."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapfinger.config import MAX_CLUSTERS, MAX_TASKS, load_scenario, parse_scenario
from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.evaluation.specs import parse_seeds
from tapfinger.overrides import parse_value
from tapfinger.workloads.world import build_world, draw_workload

BASE: dict[str, Any] = {
    "name": "base",
    "mode": "multi",
    "tasks": 20,
    "slot_seconds": 10.0,
    "resources": {"cpu": 1.0, "gpu": 1.0},
    "clusters": [{"name": "a", "count": 2, "capacity": {"cpu": 8, "gpu": 2}}],
    "task_types": [
        {
            "name": "grid",
            "weight": 1.0,
            "minimum": {"cpu": 1, "gpu": 1},
            "maximum": {"cpu": 4, "gpu": 2},
            "speed": {"kind": "grid", "amounts": {"cpu": [1, 2], "gpu": [1, 2]}, "seconds": [60, 40, 30, 20]},
        },
        {
            "name": "amdahl",
            "minimum": {"cpu": 1, "gpu": 0},
            "maximum": {"cpu": 8},
            "speed": {"kind": "amdahl", "seconds": 60, "parallel": {"cpu": 0.9}},
        },
        {"name": "tanh", "minimum": {"cpu": 1, "gpu": 1}, "speed": {"kind": "tanh", "scale": 2.0, "slots": 3.0}},
        {"name": "rebound", "minimum": {"cpu": 1, "gpu": 1}, "speed": {"kind": "rebound", "compute": 9, "feeding": 2}},
    ],
    "arrivals": {"kind": "bursty", "rate": 2.0, "burst_factor": 4.0, "burst_slots": 10.0},
    "eligibility": {"kind": "bandwidth", "maximum_mbps": 10.0, "minimum_mbps": 5.0},
    "noise": {"kind": "relative", "amplitude": 0.1},
    "knowledge": {"kind": "noisy", "amount": 0.3},
    "switching_cost": 0.1,
    "outages": [{"cluster": 0, "start": 3, "end": 5}],
}
ABSURD = (
    *(0, -1, 1e-300, 1e308, -0.0, float("nan"), float("inf"), 10**9, 10**12, 2**63, 10**400, 0.1, 3),
    *("", "x" * 10_000, "\x00", None, True, [], {}, [[]], [1] * 1000, {"kind": "table", "file": "/dev/null"}),
)

#: CPU seconds that any one scenario may take; normally it is a hundredth.
MOST_SECONDS = 30.0


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a scenario that can be replaced."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in inside for found in paths(inner, (*path, key)))]


def replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    twin = copy.copy(data)
    twin[path[0]] = replaced(data[path[0]], path[1:], value)
    return twin


@st.composite
def scenarios(draw: st.DrawFn) -> Any:
    data: Any = BASE
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in paths(data) if path]))
        data = replaced(data, path, draw(st.sampled_from(ABSURD)))
    return data


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=scenarios())
def test_absurd_scenarios_are_refused_or_bounded(data: dict[str, Any]) -> None:
    began = time.thread_time()
    text = ""
    try:
        draw_workload(build_world(parse_scenario(data, "absurd.toml")), 0)
    except TapfingerError as error:
        text = str(error)
    assert not text or "absurd.toml" in text
    assert time.thread_time() - began < MOST_SECONDS


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("clusters.edge.count", 10**10, f"{MAX_CLUSTERS}"),
        ("tasks", 10**12, f"{MAX_TASKS}"),
        ("clusters.edge.capacity.cpu", 1e300, "1000000000"),
        ("slot_seconds", 1e-9, "0.001"),
        ("outages", [{"cluster": 0, "start": 1, "end": 10**15}], "100000000"),
    ],
)
def test_huge_values_are_refused_by_name(key: str, value: Any, limit: str) -> None:
    text = value if isinstance(value, int | float) else "[{cluster=0, start=1, end=1000000000000000}]"
    with pytest.raises(ConfigError, match=limit):
        load_scenario("multi-3", [f"{key}={text}"])


def test_counts_are_bounded_together() -> None:
    clusters = [{"name": f"c{n}", "count": MAX_CLUSTERS // 2, "capacity": {"cpu": 1, "gpu": 1}} for n in range(3)]
    with pytest.raises(ConfigError, match="make 15,000, at most 10,000"):
        parse_scenario({**BASE, "clusters": clusters, "outages": []})
    many = [{"name": "c", "count": MAX_CLUSTERS, "capacity": {"cpu": 1, "gpu": 1}}]
    with pytest.raises(ConfigError, match=r"pairs of a task and a\s+cluster"):
        parse_scenario({**BASE, "clusters": many, "outages": [], "tasks": MAX_TASKS})


@pytest.mark.parametrize("text", ["0:10000000000", "9" * 5000, "0:" + "9" * 5000, "1," * 70_000 + "1"])
def test_huge_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


def test_values_that_cannot_be_parsed_are_text() -> None:
    for text in ("[" * 100_000, "9" * 5000):
        assert parse_value(text) == text
