"""Lending in rollouts must do to tasks what the readable Lending does, making room apart.

Kernels that are compared with what they mirror:

- `tapfinger.schedulers.lending.Lending._give`
"""

from __future__ import annotations

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.profiles.greedy_options import GREEDY_DEFAULTS
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.making_room import MakingRoom
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.kernels import end_slot, reset
from tapfinger.sim.layout import GreedyPlan, make_sizes
from tapfinger.sim.lend_kernels import lend_round
from tapfinger.sim.plan_kernels import greedy_round
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world, draw_workload


@pytest.mark.parametrize("name", ["multi-3", "hetero-6"])
def test_shipped_scenarios(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MakingRoom, "find", lambda self, snapshot: [])
    world = build_world(load_scenario(name))
    workload = draw_workload(world, 7)
    sim = BatchSim(world, [workload])
    sizes = make_sizes(EfficientSizes(world.context(0)), world.task_types)
    tables, draws, worlds = sim.tables, sim.draws, sim.worlds
    plan, b, key = GreedyPlan(**GREEDY_DEFAULTS), np.int64(0), np.uint64(0)
    reset(b, tables, draws, worlds)
    total = 0
    while worlds.next_arrival[0] < draws.tasks[0] or worlds.queue_length[0] + worlds.running_count[0] > 0:
        greedy_round(b, b, tables, sizes, plan, key, draws, worlds)
        lend_round(b, tables, sizes, worlds)
        total += end_slot(b, b, tables, draws, worlds)
    assert total == run_scheduler(world, Greedy(lend=True), 7, workload=workload).total_completion_time
    assert total < run_scheduler(world, Greedy(), 7, workload=workload).total_completion_time
