"""Both ways of learning find the known optimum of a toy scenario, from scratch.

One cluster of three gpus. Short tasks take one slot whatever they get; long ones take six slots on one gpu, three
on two, two on three. Four tasks of any mix arrive at once. Best is to start the short ones first and to give the
long ones more than their minimum: neither first come, first served nor the minimum does. The optimum is found by
trying everything, independently of the simulator.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from helpers import make_workload, make_world

from tapfinger.policy.actor_critic import config_for, make_network
from tapfinger.sim.batch import BatchSim
from tapfinger.training import group, mappo
from tapfinger.training.gae import ReturnScale
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.rollout import play
from tapfinger.training.simulators import make_encoder

GPUS, TASKS, REPEATS = 3, 4, 4
#: Slots by type and gpus.
SLOTS = ({1: 6, 2: 3, 3: 2}, {1: 1, 2: 1, 3: 1})
MIXES = list(product((0, 1), repeat=TASKS))


def toy_world():
    size = {"minimum": {"cpu": 1, "gpu": 1}, "maximum": {"cpu": 1, "gpu": GPUS}}
    return make_world(
        clusters=[{"name": "c0", "capacity": {"cpu": GPUS, "gpu": GPUS}}],
        slot_seconds=10,
        task_types=[
            {"name": "long", **size, "speed": {"kind": "amdahl", "seconds": 60, "parallel": {"gpu": 1.0}}},
            {"name": "short", **size, "speed": {"kind": "constant", "slots": 1}},
        ],
    )


@cache
def least_total(waiting: tuple[int, ...], running: tuple[tuple[int, int], ...]) -> int:
    """Least sum of tasks in system. ``waiting``: tasks by type; ``running``: (slots left, gpus)."""
    count = sum(waiting) + len(running)
    if count == 0:
        return 0
    after = set()

    def start_more(left: tuple[int, ...], on: tuple[tuple[int, int], ...]) -> None:
        if on:  # waiting on an empty cluster never helps
            after.add((left, tuple(sorted((slots - 1, gpus) for slots, gpus in on if slots > 1))))
        for kind, gpus in product(range(len(SLOTS)), range(1, GPUS - sum(g for _, g in on) + 1)):
            if left[kind]:
                fewer = tuple(n - (i == kind) for i, n in enumerate(left))
                start_more(fewer, (*on, (SLOTS[kind][gpus], gpus)))

    start_more(waiting, running)
    return count + min(least_total(*state) for state in after)


OPTIMUM = float(np.mean([least_total((mix.count(0), mix.count(1)), ()) / TASKS for mix in MIXES]))


class Learner:
    """A small network that has never seen anything, and the worlds it learns in."""

    def __init__(self, seed: int = 0) -> None:
        self.world = toy_world()
        self.encoder = make_encoder(self.world)
        self.workloads = [make_workload([0] * TASKS, types=mix) for mix in MIXES]
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        inputs = self.encoder.encode_batch(BatchSim(self.world, self.workloads), np.arange(len(MIXES)))
        self.network = make_network(config_for(inputs, 1, hidden=16, layers=1))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)

    def rollouts(self):
        sim = BatchSim(self.world, [w for w in self.workloads for _ in range(REPEATS)])
        policy = NetworkPolicy(self.network, 1, int(self.rng.integers(1 << 31)))
        return play(sim, self.encoder, policy, keep=True, max_slots=40), sim

    def evaluate(self) -> float:
        sim = BatchSim(self.world, self.workloads)
        episode = play(sim, self.encoder, NetworkPolicy(self.network, 1), max_slots=40)
        return float(episode.mean.mean()) if sim.done.all() else float("inf")

    def learn(self, update, most: int) -> float:
        """Up to ``most`` updates; the evaluation at the end, or as soon as nothing is left to learn."""
        for i in range(most):
            update(self)
            if i % 5 == 4 and self.evaluate() <= OPTIMUM + 1e-9:
                break
        return self.evaluate()


def test_the_optimum_needs_order_and_size() -> None:
    assert least_total((2, 2), ()) == 10  # both short at once with one gpu each: 1, 1; then long on all: 3, 5
    assert least_total((4, 0), ()) == 20  # one after the other on all gpus: 2, 4, 6, 8
    assert Learner().evaluate() > 1.2 * OPTIMUM


@pytest.mark.slow
def test_the_group_baseline_learns_the_optimum() -> None:
    config = group.GroupConfig(group=REPEATS, epochs=2, batch=256)

    def update(learner: Learner) -> None:
        episode, _ = learner.rollouts()
        group.update(learner.network, learner.optimizer, [episode], config, 1, learner.rng)

    assert Learner().learn(update, most=100) == pytest.approx(OPTIMUM)


@pytest.mark.slow
def test_mappo_learns_the_optimum() -> None:
    config = mappo.MappoConfig(batch=256)
    scale = ReturnScale()

    def update(learner: Learner) -> None:
        episode, sim = learner.rollouts()
        episode = mappo.finish(episode, sim, config.reward)
        mappo.update(learner.network, learner.optimizer, episode, config, 1, learner.rng, scale)

    assert Learner().learn(update, most=60) == pytest.approx(OPTIMUM)
