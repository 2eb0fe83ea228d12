"""Menus of sizes: short, honest, and always with the minimum."""

from __future__ import annotations

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.core.model import Resources
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.profiles.size_menus import BUCKETS, NOWHERE, PLACES, into_buckets
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world


@pytest.mark.parametrize("seed", range(12))
def test_menus_of_random_sites(seed: int) -> None:
    world = build_world(draw_site(seed))
    menus = SiteTables(world.context(0)).menus
    assert menus.places <= PLACES
    first = 0
    for kind, t in enumerate(world.task_types):
        options = menus.options.of[t.name]
        real = np.isfinite(menus.slots[kind])
        sizes = [tuple(row) for row in menus.allocation[kind][real].tolist()]
        assert len(set(sizes)) == len(sizes)
        assert set(sizes) <= {tuple(o.allocation) for o in options}
        assert tuple(t.minimum) in sizes  # what can start has a size that fits
        assert (menus.allocation[kind][~real] == NOWHERE).all()
        slowest = [max(row[np.isfinite(row)], default=0.0) for row in menus.slots[kind]]
        fastest = [min(row[np.isfinite(row)], default=np.inf) for row in menus.slots[kind]]
        assert all(low <= high for low, high in zip(slowest[:-1], fastest[1:], strict=True))  # buckets do not overlap
        for o, place in zip(options, menus.place[first : first + len(options)], strict=True):
            assert menus.place_of(kind, 0, o.allocation) == place
            row = menus.slots[kind, place - 1]
            assert (
                o.allocation in [Resources(a) for a in menus.allocation[kind, place - 1].tolist()]
                or real[place - 1].all()
            )
            assert np.isfinite(row[0])
        first += len(options)


def test_few_durations_have_a_place_each() -> None:
    assert into_buckets([1.0, 1.0, 2.0, 5.0]).tolist() == [0, 0, 1, 2]
    many = into_buckets(np.geomspace(2.0, 200.0, 400).tolist())
    assert many.max() < BUCKETS
    assert (np.diff(many) >= 0).all()
    assert set(many.tolist()) == set(range(many.max() + 1))


def test_what_is_left_of_a_running_task() -> None:
    world = build_world(load_scenario("multi-3"))
    menus = SiteTables(world.context(0)).menus
    kind = np.array([0, 0, 1, 1])
    allocation = np.array([[2, 1], [2, 1], [2, 5], [2, 5]])
    predicted = menus.predicted(kind, allocation, np.array([True, True, True, False]))
    assert predicted.tolist() == [4.0, 4.0, 4.0, 1.0]
    left = menus.left(kind, predicted, np.array([1, 3, 2, 0]), np.array([-1.0, 0.75, -1.0, -1.0]))
    assert left.tolist() == [3.0, 1.0, 2.0, 1.0]
    # A task that slows down is further along than its progress says: at half of it more than half the time is left.
    half = menus.left(np.array([1]), np.array([10.0]), np.array([4]), np.array([0.5]))
    assert 5.0 < half[0] < 8.0
    # Overdue by its profile: it still runs, so this slot at least is left.
    assert menus.left(np.array([0]), np.array([4.0]), np.array([9]), np.array([-1.0])).tolist() == [1.0]
