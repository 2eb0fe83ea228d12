"""The distribution of sites: every site is a good scenario, and together they cover what docs/universal.md says."""

from __future__ import annotations

import tomllib
from collections import Counter

import numpy as np
import pytest
from helpers import make_world
from hypothesis import given, settings
from hypothesis import strategies as st

from tapfinger.config import ArrivalsConfig, Scenario, load_scenario, parse_scenario
from tapfinger.core.model import MAX_SLOTS
from tapfinger.errors import ConfigError
from tapfinger.profiles.options import Options
from tapfinger.workloads.importers.toml import to_toml
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
    again = parse_scenario(tomllib.loads(to_toml(site.written())))
    assert again.resolved() == site.resolved()
    world = build_world(again)
    workload = draw_workload(world, 0)
    assert len(workload.slot) == 40
    assert workload.slot[-1] < MAX_SLOTS
    for kind in world.task_types:
        assert len(kind.profile.rates) <= MOST_CELLS
        assert any(kind.maximum.fits(cluster.capacity) for cluster in world.clusters)
        assert 0.9 <= min(o.slots for o in Options(world.context(0)).of[kind.name]) <= 160


def test_the_number_of_tasks_changes_nothing_else_but_the_length_of_phases() -> None:
    for seed in range(12):
        short, long = (draw_site(seed, tasks).resolved() for tasks in (100, 1000))
        for data in (short, long):
            del data["tasks"]
            data["arrivals"] = {k: v for k, v in data["arrivals"].items() if k not in ("burst_slots", "period")}
        assert short == long


def ratio(site: Scenario, resource: str) -> float:
    amounts = [cluster.capacity[resource] for cluster in site.clusters]
    return max(amounts) / min(amounts)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_hundred_sites_cover_the_distribution() -> None:
    sites = [draw_site(seed) for seed in range(300)]
    worlds = [build_world(site) for site in sites]
    counts = np.array([len(world.clusters) for world in worlds])
    assert (counts.min(), counts.max()) == (1, 24)
    assert 4.5 <= counts.mean() <= 7.0
    assert np.mean(counts == 1) < 0.25
    assert 0.4 < np.mean([site.mode == "single" for site in sites]) < 0.6
    gpus, cpus = ([c.capacity[r] for s in sites for c in s.clusters] for r in ("gpu", "cpu"))
    assert (min(gpus), max(gpus)) == (4, 64)
    assert (min(cpus), max(cpus)) == (4, 128)
    assert any(round(amount) & (round(amount) - 1) for amount in gpus)
    spreads = [max(ratio(site, "cpu"), ratio(site, "gpu")) for site in sites]
    assert 5.0 < max(spreads) <= 9.0  # capacities are rounded
    assert 0.3 < np.mean(np.array(spreads) == 1.0) < 0.7
    types = [kind for site in sites for kind in site.task_types]
    assert {len(site.task_types) for site in sites} >= {1, 2, 3, 6, 12}
    kinds = Counter(kind.speed.kind for kind in types)
    assert set(kinds) == {"constant", "power", "tanh", "amdahl", "rebound", "grid"}
    assert min(kinds.values()) > 0.08 * len(types)
    offsets = [kind.speed.shape_offset is None for kind in types if kind.speed.kind == "tanh"]
    assert 0.3 < np.mean(offsets) < 0.7
    assert {kind.minimum["gpu"] for kind in types} == {0, 1, 2, 3, 4}
    assert {kind.minimum["cpu"] for kind in types} == {1, 2, 3, 4}
    assert {site.eligibility.kind for site in sites} == {"subset", "bandwidth", "all"}
    assert {site.noise.kind for site in sites} == {"none", "additive", "relative"}
    assert {site.arrivals.kind for site in sites} == {"poisson", "bursty", "day-night"}
    loads = [offered_load(world) for world in worlds]
    assert 0.29 < min(loads) < 0.35
    assert 1.1 < max(loads) < 1.16
    for world in worlds:
        assert world.scenario.mode == "multi" or rate(world) <= 0.95 * len(world.clusters) + 1e-9


@pytest.mark.slow
def test_ideal_durations_of_a_site_are_mostly_alike_and_differ_much_between_sites() -> None:
    shortest, factors = [], []
    for seed in range(100):
        world = build_world(draw_site(seed))
        options = Options(world.context(0))
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
