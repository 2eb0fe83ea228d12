"""The compiled greedy round must decide exactly as the readable Greedy does.

Kernels that are compared with what they mirror:

- `tapfinger.core.estimates.staging_pays`
- `tapfinger.core.staging.Staging.wait`
- `tapfinger.core.staging.Staging._brought`
- `tapfinger.core.staging.begins`
- `tapfinger.profiles.efficient_sizes.EfficientSizes.durations`
- `tapfinger.schedulers.greedy.Greedy._rank`
- `tapfinger.schedulers.greedy.Greedy.decide`
- `tapfinger.schedulers.greedy.carried_over`
"""

from __future__ import annotations

import inspect

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import spanning_world, stocked_world, worlds

from tapfinger.config import load_scenario
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lookahead import BASE
from tapfinger.sim import plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan, make_sizes
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import World, build_world, draw_workload


def compare(world: World, seed: int, plan: GreedyPlan) -> None:
    workloads = [draw_workload(world, seed), draw_workload(world, seed + 1)]
    batch = BatchSim(world, workloads)
    sizes = make_sizes(EfficientSizes(world.context(seed)), world.task_types)
    plan_kernels.play_greedy(batch.tables, sizes, plan, batch.draws, batch.worlds)
    for b, workload in enumerate(workloads):
        log: list[object] = []
        known = inspect.signature(Greedy).parameters
        greedy = Greedy(**{name: value for name, value in plan._asdict().items() if name in known})
        run_scheduler(world, greedy, seed, [log.append], workload)
        assert batch.events(b) == log


@pytest.mark.parametrize("name", ["synthetic-3", "multi-3", "hetero-6", "short-long-3", "testbed-3"])
def test_shipped_scenarios(name: str) -> None:
    compare(build_world(load_scenario(name, ["tasks=120"])), 5, BASE)


@pytest.mark.parametrize("links", ["uniform", "fixed"])
@pytest.mark.parametrize("mode", ["single", "multi"])
def test_data_sets_and_unknown_memory(mode: str, links: str) -> None:
    for seed in range(3):
        compare(stocked_world(mode, links), seed, BASE)


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_tasks_that_span_nodes(mode: str) -> None:
    for seed in range(4):
        compare(spanning_world(mode), seed, BASE)


plans = st.builds(
    GreedyPlan,
    queue_price=st.sampled_from([0.0, 0.5, 2.0, 7.0]),
    calm=st.sampled_from([0.0, 1.5]),
    patience=st.sampled_from([1.0, 1.5, 2.2, 6.0]),
    max_wait=st.sampled_from([1.0, 3.0, 10.0]),
    short_first=st.sampled_from([0.0, 0.5, 1.5, 9.0, -1.0]),
    emptiest=st.just(1.0),
    jitter=st.just(0.0),
    hold=st.just(0.0),
    choosy_first=st.sampled_from([0.0, 1.0, 3.0, -1.0]),
    room_price=st.sampled_from([0.0, 0.1, 1.0]),
    crowd_price=st.sampled_from([0.0, 0.5, 2.0]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(worlds(), st.integers(0, 2**20), plans)
def test_random_scenarios(world: World, seed: int, plan: GreedyPlan) -> None:
    compare(world, seed, plan)
