"""Sites with many clusters: the same decisions, in bounded time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from helpers import R, constant_type
from hypothesis import given, settings
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.contract import ClusterView, Phase, Snapshot, TaskView
from tapfinger.core.events import TaskArrived
from tapfinger.core.model import Task
from tapfinger.core.state import EdgeState
from tapfinger.registry import create
from tapfinger.schedulers import free_capacity
from tapfinger.schedulers.free_capacity import FreeCapacity
from tapfinger.schedulers.optimus import _Pending
from tapfinger.workloads.world import World, build_world

TYPES = (constant_type((1, 0), (4, 2), 3.0, "small"), constant_type((2, 1), (6, 4), 5.0, "large"))

#: CPU seconds for a decision on 1,000 clusters with 2,000 waiting tasks; normally it is a tenth.
MOST_SECONDS = 20.0


def snapshot(seed: int, clusters: int, tasks: int) -> Snapshot:
    rng = np.random.default_rng(seed)
    views = tuple(
        ClusterView(n, f"c{n}", R((8, 4)), R(rng.integers(0, 6, 2).tolist()), (), (), bool(rng.random() < 0.9), None)
        for n in range(clusters)
    )
    queue = []
    for ident in range(tasks):
        eligible = np.sort(rng.choice(clusters, int(rng.integers(1, clusters + 1)), replace=False)).tolist()
        queue.append(TaskView(ident, TYPES[int(rng.integers(2))], 0, tuple(eligible), Phase.QUEUED))
    return Snapshot(0, 0, views, tuple(queue))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), yields=st.booleans())
def test_arrays_choose_the_same_cluster_as_the_loop(seed: int, yields: bool) -> None:
    seen = snapshot(seed, 12, 15)
    rng = np.random.default_rng(seed)
    yielding = {c.index: R(rng.integers(0, 3, 2).tolist()) for c in seen.clusters} if yields else None
    loop, arrays = FreeCapacity(seen, TYPES), FreeCapacity(seen, TYPES)
    for task in seen.queue:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(free_capacity, "MANY", 1)
            found = arrays.roomiest(task, task.type.minimum, yielding)
        assert found == loop.roomiest(task, task.type.minimum, yielding)
        for free in (loop, arrays):
            if found is not None:
                free.take(task, found, task.type.minimum)
            elif found is None:
                free.close(task.eligible[:2])
    assert loop.left == arrays.left


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_pending_tasks_are_the_first_that_are_not_admitted(seed: int) -> None:
    seen = snapshot(seed, 5, 20)
    pending, admitted = _Pending(seen, 3), set[int]()
    rng = np.random.default_rng(seed)
    for _ in range(20):
        for cluster in range(5):
            expected = [task for task in seen.queue_of(cluster) if task.id not in admitted][:3]
            assert pending.of(cluster, admitted) == expected
        admitted.add(int(rng.integers(20)))


@pytest.fixture(scope="module")
def large() -> tuple[World, Snapshot]:
    """1,000 empty clusters, and 2,000 tasks that may run on all of them."""
    world = build_world(load_scenario("multi-3", ["clusters.edge.count=1000", "arrivals.rate=1000", "tasks=10"]))
    state = EdgeState(world.clusters, world.mode)
    for n in range(2000):
        state.apply(TaskArrived(0, Task(n, world.task_types[n % 2], 0, tuple(range(1000)))))
    return world, state.snapshot()


@pytest.mark.parametrize("name", ["fifo", "tiresias", "optimus", "optimus-central", "lookahead"])
def test_decisions_take_a_bounded_time_on_many_clusters(name: str, large: tuple[World, Snapshot]) -> None:
    world, seen = large
    scheduler = create("scheduler", name, {})
    scheduler.reset(world.context(0))
    began = time.thread_time()
    assert scheduler.decide(seen).placements
    assert time.thread_time() - began < MOST_SECONDS
