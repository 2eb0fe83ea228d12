"""The distribution of sites covers what docs/universal.md says."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tapfinger.config import Scenario
from tapfinger.workloads.sites import draw_site, offered_load
from tapfinger.workloads.world import World, build_world


def rate(world: World) -> float:
    return float(world.scenario.arrivals.options()["rate"])


def ratio(site: Scenario, resource: str) -> float:
    amounts = [cluster.capacity[resource] for cluster in site.clusters]
    return max(amounts) / min(amounts)


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
