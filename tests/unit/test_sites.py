"""The distribution of sites: every site is a good scenario, and together they cover what docs/universal.md says."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import tomli_w
from helpers import make_world
from hypothesis import given, settings
from hypothesis import strategies as st

from tapfinger.config import ArrivalsConfig, load_scenario, parse_scenario
from tapfinger.core.model import MAX_SLOTS
from tapfinger.errors import ConfigError
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.workloads.sites import MOST_CELLS, draw_site, offered_load, rate_for, sustainable_rate
from tapfinger.workloads.world import World, build_world, draw_workload

STEADY = {
    "name": "steady",
    "minimum": {"cpu": 2, "gpu": 1},
    "maximum": {"cpu": 16, "gpu": 16},
    "speed": {"kind": "constant", "slots": 4},
}
THREE = [{"name": "edge", "count": 3, "capacity": {"cpu": 16, "gpu": 16}}]


@settings(max_examples=25)
@given(st.integers(0, 2**63))
def test_every_site_is_a_scenario_that_can_be_written_built_and_drawn_from(seed: int) -> None:
    site = draw_site(seed, tasks=40)
    assert draw_site(seed, tasks=40) == site
    again = parse_scenario(tomllib.loads(tomli_w.dumps(site.written())))
    assert again.resolved() == site.resolved()
    world = build_world(again)
    workload = draw_workload(world, 0)
    assert len(workload.slot) == 40
    assert workload.slot[-1] < MAX_SLOTS
    for kind in world.task_types:
        assert len(kind.profile.rates) <= MOST_CELLS
        assert any(kind.maximum.fits(cluster.capacity) for cluster in world.clusters)
        assert 0.9 <= min(o.slots for o in EfficientSizes(world.context(0)).of[kind.name]) <= 160


def test_the_number_of_tasks_changes_nothing_else_but_the_length_of_phases() -> None:
    for seed in range(12):
        short, long = (draw_site(seed, tasks).resolved() for tasks in (100, 1000))
        for data in (short, long):
            del data["tasks"]
            data["arrivals"] = {k: v for k, v in data["arrivals"].items() if k not in ("burst_slots", "period")}
        assert short == long


@pytest.mark.slow
def test_ideal_durations_of_a_site_are_mostly_alike_and_differ_much_between_sites() -> None:
    shortest, factors = [], []
    for seed in range(100):
        world = build_world(draw_site(seed))
        options = EfficientSizes(world.context(0))
        ideals = [min(o.slots for o in options.of[kind.name]) for kind in world.task_types]
        shortest.append(min(ideals))
        factors.append(max(ideals) / min(ideals))
    assert max(shortest) / min(shortest) > 50
    assert np.mean(np.array(factors) <= 20) > 0.85
    assert max(factors) > 20


def rate(world: World) -> float:
    return float(world.scenario.arrivals.options()["rate"])


def loaded(world: World, load: float) -> World:
    arrivals = ArrivalsConfig.model_validate({"kind": "poisson", "rate": rate_for(world, load)})
    return build_world(world.scenario.model_copy(update={"arrivals": arrivals}))


@given(st.integers(0, 10_000), st.floats(0.3, 0.94))
@settings(max_examples=20)
def test_the_rate_for_a_load_offers_that_load(seed: int, load: float) -> None:
    assert offered_load(loaded(build_world(draw_site(seed)), load)) == pytest.approx(load, rel=1e-3)


def test_the_sustainable_rate_of_a_site_worked_out_by_hand() -> None:
    # 4 slots of 2 of 16 cpus are half a cluster for a slot: 3 clusters can finish 6 tasks per slot, but start only 3.
    multi, single = (make_world(mode=mode, clusters=THREE, task_types=[STEADY]) for mode in ("multi", "single"))
    assert sustainable_rate(multi) == pytest.approx(6.0)
    assert sustainable_rate(single) == pytest.approx(3.0)
    assert rate_for(multi, 1.1) == pytest.approx(6.6)
    assert rate_for(single, 1.1) == pytest.approx(0.95 * 3)


def test_the_load_is_a_mean_by_weight() -> None:
    other = {**STEADY, "name": "long", "speed": {"kind": "constant", "slots": 20}, "weight": 3}
    # Costs are 0.5 and 2.5 of a cluster's slots, in a quarter and in three quarters of the tasks.
    assert sustainable_rate(make_world(mode="multi", clusters=THREE, task_types=[STEADY, other])) == pytest.approx(
        3 / (0.125 + 1.875)
    )


def test_what_has_no_load_is_said() -> None:
    with pytest.raises(ConfigError, match="'trace' have no rate"):
        offered_load(build_world(load_scenario("multi-3", ['arrivals={kind="trace", file="w.csv"}'])))
    with pytest.raises(ConfigError, match="seed -1 must be 0 or more"):
        draw_site(-1)
