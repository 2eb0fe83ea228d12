"""The matrix of unseen sites that universal policies are judged on."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tapfinger.workloads.sites import offered_load
from tapfinger.workloads.world import build_world, draw_workload


@pytest.fixture
def at_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other by their plain names."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def unseen(at_benchmarks: None) -> ModuleType:
    return import_module("unseen_sites")


@pytest.fixture
def report(at_benchmarks: None) -> ModuleType:
    return import_module("sites")


def test_the_matrix_is_whole(unseen: ModuleType) -> None:
    cells = Counter((s.clusters, s.capacities, s.load) for s in unseen.SITES if s.mix != "testbed")
    assert set(cells) == {(n, c, x) for n in (3, 8, 20) for c in ("equal", "unequal") for x in (0.6, 0.8, 1.1)}
    assert set(cells.values()) == {1}
    testbed = Counter((s.clusters, s.load) for s in unseen.SITES if s.mix == "testbed")
    assert testbed == {(n, x): 1 for n in (3, 8) for x in (0.6, 0.8, 1.1)}
    assert len({s.name for s in unseen.SITES}) == len(unseen.SITES) == 24
    assert {s.mix for s in unseen.SITES} == set(unseen.MIXES)
    modes = Counter((s.clusters, s.mode) for s in unseen.SITES)
    assert min(modes.values()) >= 3


def test_every_site_has_the_load_and_the_clusters_it_is_named_after(unseen: ModuleType) -> None:
    for site in unseen.SITES:
        world = build_world(unseen.scenario_of(site))
        assert offered_load(world) == pytest.approx(site.load, rel=1e-3), site.name
        assert len(world.clusters) == site.clusters
        assert (len({c.capacity for c in world.clusters}) == 1) == (site.capacities == "equal")
        assert len(draw_workload(world, 1000).slot) == max(200, 40 * site.clusters)


def found(mean: float, p99: float) -> dict[str, object]:
    return {"mean": mean, "p99": p99, "difference": {"mean": 0.0, "ci95": (0.0, 0.0)}}


def test_the_summary_counts_what_it_says(unseen: ModuleType, report: ModuleType) -> None:
    first, second, third = unseen.SITES[:3]
    rivals = {
        "greedy": found(10, 30),
        "optimus-static@admission=oldest": found(12, 20),
        "fluid@resize=false": found(8, 25),
    }
    results = {
        first: {"mine": found(6, 31), **rivals},
        second: {"mine": found(9, 30), **rivals},
        third: {"mine": found(8, 29), **rivals},
    }
    better, relative, tail = report.summary("mine", results)
    assert "on 1 of 3 sites" in better  # as good as the best is not better
    assert "-4.2 % on average; at worst +12.5 %, on " + second.name in relative
    assert "on 2 of 3 sites" in tail


def test_a_row_shows_every_scheduler(unseen: ModuleType, report: ModuleType) -> None:
    rivals = {
        "greedy": found(10, 30),
        "optimus-static@admission=oldest": found(12, 20),
        "fluid@resize=false": found(8, 25),
    }
    row = report._row(unseen.SITES[0], ["mine", *rivals], {"mine": found(6, 31), **rivals})
    for text in ("**6.00**", "10.00", "12.00", "8.00", "-25.0 %", "31.0", "25.0"):
        assert f" {text} " in row


def test_thedifference_of_one_seed_has_no_interval(report: ModuleType) -> None:
    assert report.difference({"mean": -1.5, "ci95": (-2.0, -1.0)}) == "-1.50 (-2.00 to -1.00)"
    assert report.difference({"mean": -1.5, "ci95": None}) == "-1.50"
