"""Compile every kernel in advance, so that processes started together find them compiled.

Each kernel is compiled on its first call. A few small runs call all of them.
"""

from __future__ import annotations

import numpy as np

from tapfinger.config import load_scenario
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.schedulers.greedy_features import ADVISERS
from tapfinger.schedulers.lookahead import Lookahead
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan
from tapfinger.sim.run import run_scheduler
from tapfinger.training.deviations import DeviationJudge
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.rollout import play
from tapfinger.training.universal import greedy_means, open_site
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world, draw_workload


def main() -> None:
    """Play a lookahead scheduler, a batch of worlds, and a network's turns with judged deviations."""
    world = build_world(load_scenario("multi-3", ["tasks=12"]))
    run_scheduler(world, Lookahead(lend=True), 0)
    batch = BatchSim(world, [draw_workload(world, 0)])
    batch.step(np.full((1, 3), -1), np.zeros((1, 3, 2), dtype=np.int64), np.ones((1, 3)))
    batch.restart(np.ones(1, dtype=np.bool_))
    plan = GreedyPlan(**ADVISERS[0])
    encoder, sim = open_site(build_world(draw_site(2, tasks=12)), [7], 10)
    greedy_means(sim, plan)
    sim.play_on(plan, np.full(1, 5), most=10)
    sim.restart(np.ones(1, dtype=np.bool_))
    network = build("full", config_for(encoder.encode_batch(sim, np.arange(1)), 0, hidden=16))
    policy = NetworkPolicy(network, 0, seed=1, deviations=3)
    play(sim, encoder, policy, max_slots=200, judge=DeviationJudge(sim, [plan]), costs=False)


if __name__ == "__main__":
    main()
