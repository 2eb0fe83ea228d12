"""The small compiled functions, one by one: random numbers, sizes, legality and remaining work.

Kernels that are compared with what they mirror:

- `tapfinger.core.estimates.work`
- `tapfinger.core.feasibility.can_start`
- `tapfinger.core.feasibility.can_start_with`
- `tapfinger.core.model.Resources.copies_of`
- `tapfinger.core.model.SpeedProfile.slots`
- `tapfinger.core.model.unit_uniform`
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers import R
from strategies import stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.contract import ClusterView, Mode, Phase, TaskView
from tapfinger.core.estimates import work
from tapfinger.core.feasibility import can_start, can_start_with
from tapfinger.core.model import unit_uniform
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.sim import kernels, lend_kernels, move_kernels, plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import make_sizes
from tapfinger.workloads.world import World, build_world, draw_workload

#: One with tasks that slow down as they progress, and one in which a cluster starts one task per slot.
NAMES = ["short-long-3", "synthetic-3"]


def world_of(name: str) -> World:
    return build_world(load_scenario(name, ["tasks=40"]))


def test_random_numbers() -> None:
    for key, counter in product((0, 1, 2**63, 2**64 - 1, 20230201), (0, 1, 7, 10_000)):
        assert kernels.unit_uniform(np.uint64(key), counter) == unit_uniform(key, counter)


@pytest.mark.parametrize("name", NAMES)
def test_whole_slots(name: str) -> None:
    for task_type in world_of(name).task_types:
        profile = task_type.profile
        for size, progress in product((task_type.minimum, task_type.maximum), (0.0, 0.3, 0.999)):
            found = lend_kernels._slots(profile.rate(size), profile.shape_offset or 0.0, progress)
            assert found == profile.slots(size, progress)


@pytest.mark.parametrize("name", NAMES)
def test_legality(name: str) -> None:
    world = world_of(name)
    rng = np.random.default_rng(7)
    sim = BatchSim(world, [draw_workload(world, 7)])
    legal = 0
    for _ in range(400):
        j, n = int(rng.integers(40)), int(rng.integers(len(world.clusters)))
        kind = int(sim.draws.type[0, j])
        task_type, capacity = world.task_types[kind], world.clusters[n].capacity
        sim.worlds.free[0, n] = [rng.integers(0, most + 1) for most in capacity]
        sim.worlds.starts[0, n] = rng.integers(0, 2)
        sim.worlds.kind[0, j] = kind
        eligible = tuple(np.flatnonzero(sim.draws.eligible[0, j]).tolist())
        task = TaskView(j, task_type, 0, eligible, Phase.QUEUED)
        left = 1 - int(sim.worlds.starts[0, n]) if world.mode is Mode.SINGLE else None
        cluster = ClusterView(n, "c", capacity, R(sim.worlds.free[0, n].tolist()), (), (), True, left)
        bounds = zip(task_type.minimum, task_type.maximum, strict=True)
        size = R([int(rng.integers(max(0, lo - 1), lo + (hi - lo) // 2 + 2)) for lo, hi in bounds])
        where = (j, n, np.array([size]), 0, sim.tables, sim.draws, sim.worlds)
        assert move_kernels._legal(0, *where) == can_start_with(task, cluster, size)
        may = kernels.fits(sim.tables, sim.worlds, 0, kind, n) and n in eligible
        assert may == can_start(task, cluster)
        copies = kernels.copies_of_minimum(sim.tables, sim.worlds, 0, kind, n)
        assert copies == cluster.free.copies_of(task_type.minimum)
        legal += can_start_with(task, cluster, size)
    assert 10 < legal < 390


def test_what_waits_for_data_has_more_left() -> None:
    world = stocked_world("multi")
    sizes = make_sizes(SiteTables(world.context(0)).sizes, world.task_types)
    sim, zero = BatchSim(world, [draw_workload(world, 7)]), np.int64(0)
    worlds = sim.worlds
    worlds.running[0, 0], worlds.running_count[0], worlds.queue_length[0] = 0, 1, 0
    kind = worlds.kind[0, 0] = sim.draws.type[0, 0]
    worlds.allocation[0, 0] = world.task_types[kind].minimum
    found = []
    for runs_from in (0.0, 5.0, 9.0):
        worlds.runs_from[0, 0] = runs_from
        worlds.slot[0] = 5
        found.append(plan_kernels._still_to_run(zero, sim.tables, sizes, worlds))
    assert found == pytest.approx([found[0], found[0], found[0] + 4.0])


@pytest.mark.parametrize("name", NAMES)
def test_work_that_is_left(name: str) -> None:
    world = world_of(name)
    tables = SiteTables(world.context(0))
    sizes = make_sizes(tables.sizes, world.task_types)
    sim, menus = BatchSim(world, [draw_workload(world, 7)]), tables.menus
    worlds, zero = sim.worlds, np.int64(0)
    for j, progress in product(range(8), (0.0, 0.2, 0.7)):
        kind = int(sim.draws.type[0, j])
        task_type = world.task_types[kind]
        offset = task_type.profile.shape_offset
        worlds.running[0, 0], worlds.running_count[0], worlds.queue_length[0] = j, 1, 0
        worlds.kind[0, j], worlds.allocation[0, j], worlds.progress[0, j] = kind, task_type.minimum, progress
        left = work(offset, progress) / task_type.profile.rate(task_type.minimum)
        found = plan_kernels._still_to_run(zero, sim.tables, sizes, worlds)
        assert found == pytest.approx(left)
        share = menus.left(np.array([kind]), np.array([100.0]), np.array([5]), np.array([progress]))
        assert share[0] == pytest.approx(max(1.0, 100.0 * work(offset, progress) / work(offset)))
