"""Inputs of one state, of many, and without padding: the same numbers, bit by bit."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Snapshot
from tapfinger.observation import GraphObs, Observer
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.policy.encoding.inputs import Inputs, batch_of_one, trim
from tapfinger.schedulers.greedy import Greedy
from tapfinger.sim.run import run_scheduler
from tapfinger.training.simulators import make_encoder
from tapfinger.workloads.world import World, build_world


class Recorder(Greedy):
    """Greedy, which remembers what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.seen.append(snapshot)
        return super().decide(snapshot)


def states(world: World, count: int = 60) -> list[Snapshot]:
    recorder = Recorder()
    run_scheduler(world, recorder, 0)
    return recorder.seen[:count]


def equal(mine: Inputs, other: Inputs) -> None:
    for name, one, two in zip(Inputs._fields, mine, other, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape), name
        np.testing.assert_array_equal(one, two, err_msg=name)


@pytest.mark.parametrize("pending", [3, 10])
@pytest.mark.parametrize(("scenario", "changes"), [("multi-3", ["arrivals.rate=6"]), ("hetero-6", [])])
def test_without_padding_and_in_a_batch_the_same(scenario, changes, pending):
    world = build_world(load_scenario(scenario, changes))
    observer, maker, seen = Observer(world.clusters, world.task_types, pending), make_encoder(world), states(world)
    padded = [observer.observe(snapshot) for snapshot in seen]
    batch = GraphObs(**{f.name: np.stack([getattr(obs, f.name) for obs in padded]) for f in fields(GraphObs)})
    together = maker.make(batch)
    sizes = set()
    for b, (snapshot, obs) in enumerate(zip(seen, padded, strict=True)):
        alone = maker.make(batch_of_one(obs))
        equal(alone, Inputs(*(array[b : b + 1] for array in together)))
        tight = maker.make(batch_of_one(observer.observe(snapshot, padded=False)))
        equal(tight, trim(alone))
        sizes.add((tight.pending.shape[1], tight.node.shape[2], tight.running.shape[2]))
    assert len(sizes) > 5  # empty and full ones


def logits_of_the_first(name: str, batch: GraphObs, world: World) -> torch.Tensor:
    inputs = make_encoder(world).make(batch)
    torch.manual_seed(0)
    net = build(name, config_for(inputs, world.resources.accelerator, hidden=16))
    with torch.no_grad():
        out = net(as_tensors(inputs), 17)
    return torch.cat([out.task_logits[:, 0].flatten(1), out.amount_logits[:, 0].flatten(1)], dim=1)


def test_without_the_graph_and_hints_a_cluster_knows_nothing_of_the_others():
    world = build_world(load_scenario("multi-3", ["arrivals.rate=6"]))
    observer = Observer(world.clusters, world.task_types, 5)
    padded = [observer.observe(snapshot) for snapshot in states(world)]
    busy = GraphObs(**{f.name: np.stack([getattr(obs, f.name) for obs in padded]) for f in fields(GraphObs)})
    # The same states, but that the other clusters are full and nothing waits for them.
    cluster, task, startable, largest = (
        getattr(busy, name).copy() for name in ("cluster_features", "task", "startable", "largest")
    )
    cluster[:, 1:], task[:, 1:], startable[:, 1:], largest[:, 1:] = 0.0, -1, False, 0
    alone = replace(busy, cluster_features=cluster, task=task, startable=startable, largest=largest)
    one, two = (logits_of_the_first("no-han", batch, world) for batch in (busy, alone))
    torch.testing.assert_close(one, two, rtol=0.0, atol=1e-6)
    for name in ("hints-only", "full"):
        one, two = (logits_of_the_first(name, batch, world) for batch in (busy, alone))
        finite = torch.isfinite(one)
        assert (one[finite] - two[finite]).abs().max() > 1e-3, name


def test_inputs_by_hand():
    # The first cluster sees two tasks and is the emptier one, the second sees only the older of them, and runs one.
    world = build_world(load_scenario("multi-3", ["clusters.edge.count=2"]))
    capacity, minimum = np.array(world.clusters[0].capacity), np.array([t.minimum for t in world.task_types])
    gpu, types = world.resources.accelerator, len(minimum)
    free = np.stack([capacity, capacity - minimum[0]]).astype(np.float32)
    kinds = np.eye(types, dtype=np.float32)
    obs = GraphObs(
        cluster_features=np.concatenate([free, np.zeros((2, 1), dtype=np.float32)], axis=1),
        pending_features=np.array([[*minimum[0], *kinds[0], 0], [*minimum[1], *kinds[1], 0]], dtype=np.float32),
        running_features=np.array([[[0] * (3 + types)], [[*minimum[0], *kinds[0], 5]]], dtype=np.float32),
        running_count=np.array([0, 1]),
        task=np.array([[7, 9], [7, -1]]),
        node=np.array([[0, 1], [0, -1]]),
        startable=np.array([[True, True], [True, False]]),
        largest=np.array([[minimum[0], minimum[1]], [minimum[0], 0 * minimum[0]]]),
        waiting=np.array([2, 1]),
        age=np.array([4, 100]),
        running_progress=np.full((2, 1), -1.0, dtype=np.float32),
        others=np.zeros((2, 2), dtype=np.float32),
        others_lately=np.zeros((2, 2), dtype=np.float32),
        staging=np.zeros((2, 2), dtype=np.int64),
    )
    made = make_encoder(world).make(batch_of_one(obs))
    near = np.testing.assert_allclose
    for n, count in enumerate((0, 1)):
        rank = int(minimum[0][gpu] > 0) * n  # strictly emptier, or first by index
        expected = [*free[n] / 16, *capacity / 16, *free[n] / capacity, (2 - n) / 10, 0, count / 10, max(rank, n) / 2]
        near(made.cluster[0, n], expected, rtol=1e-6)
    near(made.pending[0, 0], [*minimum[0] / 16, *kinds[0], 0.4, 1.0], rtol=1e-6)
    near(made.pending[0, 1], [*minimum[1] / 16, *kinds[1], 3.0, 0.5], rtol=1e-6)
    near(made.running[0, 1, 0], [*minimum[0] / 16, *kinds[0], 0.5], rtol=1e-6)
    assert made.running_mask[0].tolist() == [[False], [True]]
    assert made.minimum[0].tolist() == [minimum.tolist(), [minimum[0].tolist(), [0] * len(capacity)]]
    assert made.node[0].tolist() == [[0, 1], [0, 0]]
