"""Figures that describe a workload, on draws whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.workloads.describe import TASKS_PER_INTERVAL, summarise
from tapfinger.workloads.files import WorkloadFile, to_file
from tapfinger.workloads.world import build_world, draw_workload


def of_times(times):
    count = len(times)
    return WorkloadFile("times", np.asarray(times, dtype=np.float64), ("a",) * count, ("*",) * count, (1,) * count)


def of_scenario(*overrides):
    world = build_world(load_scenario("multi-3", ["tasks=20000", *overrides]))
    return to_file(world, draw_workload(world, 0))


@pytest.mark.parametrize("slot_seconds", [10.0, 0.1])
@pytest.mark.parametrize("rate", [0.02, 0.7, 4.0, 30.0])
def test_poisson_in_whole_slots_has_burstiness_one(rate, slot_seconds):
    found = summarise(of_scenario(f"arrivals.rate={rate}", f"slot_seconds={slot_seconds}")).burstiness
    slots = found.interval / slot_seconds
    assert slots == pytest.approx(round(slots))
    assert slots * rate == pytest.approx(max(TASKS_PER_INTERVAL, rate), rel=0.7)
    intervals = 20_000 / (slots * rate)
    assert found.dispersion == pytest.approx(1.0, abs=4 * np.sqrt(2 / intervals))


def test_poisson_in_continuous_time_has_burstiness_one():
    times = np.cumsum(np.random.default_rng(0).exponential(37.0, size=20_000))
    found = summarise(of_times(times)).burstiness
    assert found.interval == pytest.approx(37.0 * TASKS_PER_INTERVAL, rel=0.02)
    assert found.dispersion == pytest.approx(1.0, abs=4 * np.sqrt(2 / 4000))


def test_bursts_have_more_and_a_beat_has_none():
    bursty = of_scenario("arrivals={kind='bursty', rate=2.0, burst_factor=20.0}")
    assert summarise(bursty).burstiness.dispersion > 3
    assert summarise(of_times(np.arange(1000) * 60.0)).burstiness.dispersion == pytest.approx(0.0)


def test_counts_by_hand():
    # Five tasks per interval: (10 s) 10 in the first, none in the second; the last one ends the workload.
    found = summarise(of_times([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20])).burstiness
    assert found.interval == pytest.approx(10.0)
    assert found.dispersion == pytest.approx(50.0 / 5.0)


@pytest.mark.parametrize("times", [[0], [0, 0, 0], [0, 1800, 3600]])
def test_too_few_tasks_have_no_burstiness(times):
    assert summarise(of_times(times)).burstiness is None
