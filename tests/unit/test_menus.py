"""Menus of sizes: short, honest, and always with the minimum."""

from __future__ import annotations

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.profiles.menus import MENU, Menus
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world


@pytest.mark.parametrize("seed", range(12))
def test_menus_of_random_sites(seed: int) -> None:
    world = build_world(draw_site(seed))
    menus = Menus(world.context(0))
    assert np.isfinite(menus.types).all()
    assert np.isfinite(menus.static).all()
    for kind, t in enumerate(world.task_types):
        count = menus.count[kind]
        assert 1 <= count <= MENU
        sizes = [tuple(row) for row in menus.allocation[kind, :count].tolist()]
        assert len(set(sizes)) == count
        assert tuple(t.minimum) in sizes
        assert menus.slots[kind, 0] == menus.options.of[t.name][0].slots  # the fastest of all
        assert (np.diff(menus.slots[kind, :count]) >= 0).all()
        # Padding fits nowhere.
        assert (menus.allocation[kind, count:] > menus.capacity.max()).all()
        for option in menus.options.of[t.name]:
            nearest = sizes[menus.nearest(kind, option.allocation)]
            assert all(a <= b for a, b in zip(nearest, option.allocation, strict=True))


def test_what_is_left_of_a_running_task() -> None:
    world = build_world(load_scenario("multi-3"))
    menus = Menus(world.context(0))
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
