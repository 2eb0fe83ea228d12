"""The distribution ``wide``: every site can be played, and together they cover what docs/universal.md says."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import tomli_w

from tapfinger.config import Scenario, parse_scenario
from tapfinger.errors import ConfigError
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads import wide_sites
from tapfinger.workloads.distributions import DISTRIBUTIONS
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.wide_sites import HARDWARE, MOST_CELLS, MOST_NODES, draw_wide_site
from tapfinger.workloads.world import World, build_world, draw_workload


@cache
def world(seed: int) -> World:
    return build_world(draw_wide_site(seed, tasks=40))


def test_every_site_is_possible() -> None:
    for seed in range(300):
        assert len(draw_workload(world(seed), seed)) == 40
        assert len(world(seed).clusters) <= MOST_NODES
        assert all(len(t.profile.rates) <= MOST_CELLS for t in world(seed).task_types)


def test_a_written_site_loads_again_as_the_same_world() -> None:
    for seed in range(40):
        again = build_world(parse_scenario(tomllib.loads(tomli_w.dumps(world(seed).scenario.written()))))
        assert again.scenario.resolved() == world(seed).scenario.resolved()
        assert again.resources == world(seed).resources
        assert again.clusters == world(seed).clusters
        assert again.task_types == world(seed).task_types


def gpus(of: World) -> list[int]:
    """GPUs of every node; empty if the site has none at all."""
    names = of.resources.names
    return [c.capacity[names.index("gpu")] for c in of.clusters] if "gpu" in names else []


#: Property -> how many of 100 sites have it at least.
SHARES: dict[str, tuple[int, Callable[[World], bool]]] = {
    "only CPUs": (5, lambda w: w.resources.names == ("cpu",)),
    "only GPUs": (3, lambda w: w.resources.names == ("gpu",)),
    "memory": (22, lambda w: "memory" in w.resources.names),
    "three resources": (15, lambda w: len(w.resources.names) == 3),
    "some clusters without GPUs": (15, lambda w: 0 in gpus(w) and max(gpus(w)) > 0),
    "1 to 3 GPUs": (30, lambda w: not set(gpus(w)).isdisjoint((1, 2, 3))),
    "no GPUs at all": (15, lambda w: not gpus(w)),
    "nodes": (37, lambda w: any(c.part_of for c in w.clusters)),
    "unlike hardware": (15, lambda w: len({c.hardware for c in w.clusters}) > 1),
    "bursts of others": (10, lambda w: any(one.kind == "bursty" for one in w.scenario.others)),
    "others by day": (10, lambda w: any(one.kind == "day-night" for one in w.scenario.others)),
    "bursts of arrivals": (15, lambda w: w.scenario.arrivals.kind == "bursty"),
    "strong bursts": (5, lambda w: w.scenario.arrivals.options().get("burst_factor", 0) > 8),
    "data": (25, lambda w: bool(w.scenario.data)),
    "small caches": (10, lambda w: any(c.cache_gb is not None for c in w.scenario.clusters)),
    "drawn links": (5, lambda w: w.scenario.links.kind == "uniform"),
    "memory that nobody knows": (5, lambda w: bool(w.ladders)),
    "single": (25, lambda w: w.scenario.mode == "single"),
    "multi": (25, lambda w: w.scenario.mode == "multi"),
}


def test_the_distribution_is_as_wide_as_it_says() -> None:
    found = {name: sum(has(world(seed)) for seed in range(100)) for name, (_, has) in SHARES.items()}
    assert not {name: found[name] for name, (least, _) in SHARES.items() if found[name] < least}


def test_new_hardware_is_faster_for_most_tasks() -> None:
    faster = []
    for seed in range(100):
        for task_type in world(seed).task_types:
            rates = {kind: profile.rate(task_type.minimum) for kind, profile in task_type.profiles}
            if {"t4", "a100"} <= rates.keys():
                faster.append(rates["a100"] > rates["t4"])
    assert len(faster) > 20
    assert np.mean(faster) > 0.8
    assert HARDWARE[True]["a100"] > HARDWARE[True]["t4"]


@pytest.mark.parametrize("seed", [10, 12, 31, 56])
def test_sites_that_others_use_can_be_played_to_the_end(seed: int) -> None:
    assert world(seed).scenario.others
    assert run_scheduler(world(seed), create("scheduler", "greedy", {}), 0).tasks == 40


@pytest.mark.parametrize("scheduler", ["greedy", "min"])
def test_sites_with_data_or_unknown_memory_can_be_played_to_the_end(scheduler: str) -> None:
    with_data = [seed for seed in range(100) if world(seed).scenario.data][:6]
    with_needs = [seed for seed in range(100) if world(seed).ladders][:4]
    for seed in (*with_data, *with_needs):
        assert run_scheduler(world(seed), create("scheduler", scheduler, {}), 0).tasks == 40


def test_a_further_part_changes_nothing_about_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(rng: np.random.Generator, draft: wide_sites.Draft) -> None:
        draft.data["slot_seconds"] = float(rng.integers(20, 30))

    before = draw_wide_site(7)
    monkeypatch.setattr(wide_sites, "PARTS", {"slower": slower, **wide_sites.PARTS})
    after = draw_wide_site(7)
    assert after.slot_seconds >= 20
    assert [t.minimum for t in after.task_types] == [t.minimum for t in before.task_types]
    assert after.clusters == before.clusters
    assert after.others == before.others


def digest(draw: Callable[[int, int], Scenario]) -> str:
    found = hashlib.sha256()
    for seed in range(40):
        found.update(json.dumps(draw(seed, 60).resolved(), sort_keys=True).encode())
    return found.hexdigest()


def test_pools_are_the_sites_that_models_were_trained_on() -> None:
    assert digest(draw_site) == "1be1a223fd99d2bf779c94f8c60fecff32f28948c2b5e367861bcbb44bfa8fb1"
    assert DISTRIBUTIONS["pools"] is draw_site


def test_a_seed_gives_the_same_wide_site_on_every_machine() -> None:
    # Changes only with a deliberate change of what is drawn.
    assert digest(draw_wide_site) == "1cede89eff734dc389c17990f262688a4cdcd8a2a2e7770cb54378c96f835eb2"


def test_bad_seed() -> None:
    with pytest.raises(ConfigError, match="site seed -1 must be 0 or more"):
        draw_wide_site(-1)
