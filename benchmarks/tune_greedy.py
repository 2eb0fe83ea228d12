"""The search behind Greedy's defaults: a grid of options on tuning seeds, with the compiled greedy."""

from __future__ import annotations

import itertools

import numpy as np

from tapfinger.config import load_scenario
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.sim import plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan, make_sizes
from tapfinger.workloads.world import build_world, draw_workload

#: Scenario, number of seeds from 20000 on, overrides.
SETTINGS: tuple[tuple[str, int, list[str]], ...] = (
    ("multi-3", 100, []),
    ("hetero-6", 60, []),
    ("short-long-3", 60, []),
    ("synthetic-3", 100, []),
    ("synthetic-6", 60, []),
    ("testbed-3", 6, ["tasks=600"]),
    ("testbed-6", 4, ["tasks=800"]),
    ("testbed-3", 6, ["tasks=600", "arrivals.rate=2.2"]),
    ("multi-3", 40, ["arrivals.rate=4"]),
    ("synthetic-3", 40, ["arrivals.rate=2.7"]),
)

GRID = {
    "short_first": (0.0, 1.0, 1.5, 2.0, 4.0),
    "patience": (1.7, 2.2, 3.0),
    "queue_price": (2.0, 4.0, 6.0),
    "calm": (0.0, 1.0, 1.5),
    "max_wait": (10.0,),
}


def main() -> None:
    """Print every combination, best mean log completion time last."""
    sims, sizes = [], []
    for name, count, overrides in SETTINGS:
        world = build_world(load_scenario(name, overrides))
        sims.append(BatchSim(world, [draw_workload(world, seed) for seed in range(20_000, 20_000 + count)]))
        sizes.append(make_sizes(EfficientSizes(world.context(0)), world.task_types))
    rows = []
    for values in itertools.product(*GRID.values()):
        plan = GreedyPlan(**dict(zip(GRID, values, strict=True)))
        means = []
        for sim, table in zip(sims, sizes, strict=True):
            plan_kernels.play_greedy(sim.tables, table, plan, sim.draws, sim.worlds)
            means.append(float((sim.worlds.total / sim.draws.tasks).mean()))
        rows.append((float(np.log(means).mean()), plan, means))
    for score, plan, means in sorted(rows, key=lambda row: -row[0]):
        options = " ".join(f"{name}={getattr(plan, name):g}" for name in GRID)
        print(f"{score:.4f}  {options}  " + " ".join(f"{mean:.3f}" for mean in means))


if __name__ == "__main__":
    main()
