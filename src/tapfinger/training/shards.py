"""Rollouts in independent parts: a part holds everything it needs, so its result does not depend on where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import NetworkConfig
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.sim.advised import AdvisedSim
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import GreedyPlan
from tapfinger.training.adviser_policy import Follower
from tapfinger.training.deviations import EVERYTHING, DeviationJudge, Effort
from tapfinger.training.mappo import finish
from tapfinger.training.network_policy import FastNetwork, NetworkPolicy
from tapfinger.training.rollout import RolloutResult, Turns, joined, play
from tapfinger.training.simulators import make_encoder, make_sim
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, draw_workload

#: Waiting tasks per cluster that are enough to learn from; each further task makes every slot more expensive to play.
_CROWD = 5


class Shard(NamedTuple):
    """Some workloads of an update, each played ``repeats`` times by the same policy."""

    worlds: tuple[World, ...]  # one per load; otherwise identical
    workloads: tuple[int, ...]  # seeds
    repeats: int
    network: str
    sizes: NetworkConfig
    #: Weights by name, or an exported graph.
    weights: dict[str, npt.NDArray[Any]] | bytes
    seed: int
    reward: str  # which tasks count: see MappoConfig
    #: Number of actions per agent that are tried out against ``bases``, one greedy plan per load; 0: none.
    deviations: int = 0
    bases: tuple[GreedyPlan, ...] = ()
    horizon: int = 0
    effort: Effort = EVERYTHING
    #: How the network identifies a task: types or profiles.
    features: str = "types"
    #: Whether the policy samples the action it takes; otherwise it samples only the actions tried out.
    explore: bool = True
    #: Number of arrivals during which the policy plays; the greedy plan of ``bases`` plays up to a random start.
    window: int = 0


def weights_of(network: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """A copy of the network's weights that can be sent to other processes."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


def workload_of(worlds: Sequence[World], seed: int) -> Workload:
    """The workload of a seed; loads take turns."""
    return draw_workload(worlds[seed % len(worlds)], seed)


def roll(shard: Shard) -> RolloutResult:
    """Sampled episodes of a shard; rollouts of one workload are adjacent."""
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    network = _network(shard)
    workloads = [workload_of(shard.worlds, seed) for seed in shard.workloads for _ in range(shard.repeats)]
    world = shard.worlds[0]
    encoder = make_encoder(world, shard.features, shard.sizes.pending)
    sim = make_sim(world, encoder, workloads)
    # The advisers' actions are always tried, so that the network can be compared with them.
    suggest = [Follower(a) for a in range(len(ADVISERS))] if shard.features == PROFILES.name else []
    policy = NetworkPolicy(network, shard.sizes.accelerator, shard.seed, shard.deviations, shard.explore, suggest)
    bases = [shard.bases[seed % len(shard.bases)] for seed in shard.workloads] if shard.bases else []
    judge = DeviationJudge(sim, bases, shard.horizon, shard.effort, shard.seed) if shard.deviations else None
    last = _open_window(shard, sim) if isinstance(sim, AdvisedSim) and shard.window else patience(sim)
    episode = play(sim, encoder, policy, keep=True, max_slots=last, judge=judge, costs=judge is None)
    return finish(episode, sim, shard.reward)


def _network(shard: Shard) -> nn.Module:
    if isinstance(shard.weights, bytes):
        return FastNetwork(shard.weights)
    network = build(shard.network, shard.sizes)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in shard.weights.items()})
    return network.eval()


def _open_window(shard: Shard, sim: AdvisedSim) -> npt.NDArray[np.int64]:
    """Bring every world to the start of its window; return the slots where the windows end."""
    rows, rest = np.arange(len(sim.done)), np.maximum(sim.draws.tasks - shard.window, 0)
    first = np.random.default_rng(shard.seed).integers(rest + 1)
    begin = np.where(first > 0, sim.draws.arrival[rows, first], 0)
    sim.play_on(shard.bases[0], begin, _CROWD * len(sim.world.clusters))
    # Worlds that get crowded earlier begin at that point.
    first = sim.worlds.next_arrival
    end = sim.draws.arrival[rows, np.minimum(first + shard.window, sim.draws.tasks - 1)]
    # Where the workload ends, the queue may run empty.
    return np.where(first < rest, end, patience(sim))


def patience(sim: BatchSim) -> int:
    """Slots after which worlds are abandoned: a policy that never starts anything would never end."""
    return 2 * int(sim.draws.arrival.max()) + 200


def gather(episodes: Sequence[RolloutResult]) -> RolloutResult:
    """Several shards as one batch of worlds."""
    if len(episodes) == 1:
        return episodes[0]
    slots = max(episode.cost.shape[1] for episode in episodes)
    cost = [
        np.pad(e.cost, [(0, slots - e.cost.shape[1] if axis == 1 else 0) for axis in range(e.cost.ndim)])
        for e in episodes
    ]
    first = np.cumsum([0, *(len(episode.mean) for episode in episodes[:-1])])
    turns = [
        episode.turns._replace(world=episode.turns.world + start)
        for episode, start in zip(episodes, first, strict=True)
        if episode.turns is not None
    ]
    nested: dict[str, Any] = {name: joined([getattr(t, name) for t in turns]) for name in ("inputs", "others")}
    plain: dict[str, Any] = {
        name: np.concatenate([getattr(t, name) for t in turns]) for name in Turns._fields if name not in nested
    }
    together = Turns(**nested, **plain)
    means = np.concatenate([episode.mean for episode in episodes])
    return RolloutResult(means, np.concatenate(cost), sum(episode.steps for episode in episodes), together)
