"""Learning from simulated deviations: each cluster's other actions, tried out while everything else stays the same.

At a turn, several actions of each cluster are drawn from its policy. Each is played in a copy of the world: the other
clusters act as they did, and a greedy plan plays on into the world's own future, so the difference in cost is due to
that action alone. An action that loses a conflict shows as a start that did not happen. The loss is the expected cost
under the policy restricted to the actions tried. It is linear in the costs, so the luck of one future averages out,
and it is right for any distribution that the actions were drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.schedulers.lookahead import horizon_for
from tapfinger.sim import plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import DeviatedTurns, GreedyPlan, empty_worlds, make_sizes
from tapfinger.training.batches import Chunk, add_gradients, chunks
from tapfinger.training.config import DeviationConfig
from tapfinger.training.rollout import Bools, Deviations, Floats, Ints, RolloutResult, Turns

#: Bound on gains, in multiples of their spread.
_MOST = 3.0


class Effort(NamedTuple):
    """How much is tried out; large sites have more states and agents than needed."""

    #: Share of the states that are tried.
    states: float = 1.0
    #: Clusters per state, drawn from those that have a choice; 0: all.
    agents: int = 0


EVERYTHING = Effort()


class DeviationJudge:
    """Tries out alternative actions in the worlds of a simulator."""

    def __init__(
        self, sim: BatchSim, bases: Sequence[GreedyPlan], horizon: int = 0, effort: Effort = EVERYTHING, seed: int = 0
    ) -> None:
        """``bases``: the greedy plan that plays on, per world; ``horizon``: see DeviationConfig.

        ``effort``: how much of what could be tried is tried, drawn with ``seed``.
        """
        world = sim.world
        self._sizes = make_sizes(EfficientSizes(world.context(0)), world.task_types)
        self._horizon = horizon or horizon_for(self._sizes.least_slots)
        self._bases = np.array(bases, dtype=np.float64)
        self._scratch = empty_worlds(len(sim.done), sim.draws, sim.tables)
        self._effort, self._rng = effort, np.random.default_rng(seed)

    def worth_trying(self, states: int) -> Ints:
        """As in rollout.TurnJudge. What is left out is random, so that what is tried is representative."""
        if self._effort.states >= 1.0:
            return np.arange(states)
        return np.flatnonzero(self._rng.random(states) < self._effort.states)

    def leave_out(self, inputs: Inputs, others: Deviations) -> None:
        """As in rollout.TurnJudge."""
        can = inputs.startable.any(axis=2)
        if self._effort.agents and can.shape[1] > self._effort.agents:
            lot = np.where(can, self._rng.random(can.shape), 2.0).argsort(axis=1).argsort(axis=1)
            idle = lot >= self._effort.agents
            for array in (others.choice, others.amounts, others.score):
                array[idle] = array[idle][:, :1]

    def __call__(self, sim: BatchSim, live: Ints, others: Deviations, allocation: Ints) -> Deviations:
        """Fill in the costs, and which clusters got their task."""
        tasks = sim.observations.task[live]
        place = np.minimum(others.choice, tasks.shape[2] - 1)
        task = np.where(others.choice == sim.pending, -1, np.take_along_axis(tasks, place, axis=2))
        cost, granted = np.zeros(task.shape), np.zeros(task.shape, dtype=np.bool_)
        plan_kernels.judge_deviations(
            sim.tables,
            self._sizes,
            self._bases,
            self._horizon,
            sim.draws,
            sim.worlds,
            self._scratch,
            live,
            DeviatedTurns(task, allocation, others.score),
            cost,
            granted,
        )
        return others._replace(cost=cost, granted=granted)


class _Tried(NamedTuple):
    """One episode's turns, with everything that stays fixed during an update."""

    turns: Turns
    others: Deviations
    different: Bools  # (E, N, A)
    gain: npt.NDArray[np.float32]  # (E, N, A)
    rows: Ints  # turns in which some cluster's actions differ


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[RolloutResult],
    config: DeviationConfig,
    accelerator: int,
    rng: np.random.Generator,
    threads: int = 1,
) -> dict[str, float]:
    """Make one or more passes over the turns in which some cluster's actions differ; return the metrics.

    Episodes may be of different sites: every minibatch has its share of each, and gains are scaled per site.
    """
    tried = [_prepare(episode) for episode in episodes]
    logged: dict[str, list[float]] = {"loss": [], "entropy": [], "gradient": []}
    batches = max(1, math.ceil(sum(len(t.rows) for t in tried) / config.batch))
    for _ in range(config.epochs):
        shuffled = [np.array_split(rng.permutation(t.rows), batches) for t in tried]
        for batch in range(batches):
            mine = [(t, s[batch]) for t, s in zip(tried, shuffled, strict=True)]
            sums = _step(network, optimizer, mine, config, accelerator, threads)
            for name, value in sums.items():
                logged[name].append(value)
    known = {name: float(np.mean(values)) if values else 0.0 for name, values in logged.items()}
    return {**known, "regret": float(np.mean([_regret(t) for t in tried]))}


def _prepare(episode: RolloutResult) -> _Tried:
    turns = episode.turns
    if turns is None or turns.others is None:
        raise ValueError("play with keep=True and a judge")
    different = distinct(turns.others)
    rows = np.flatnonzero((different.sum(axis=2) > 1).any(axis=1))
    return _Tried(turns, turns.others, different, gains(turns.others.cost, different).astype(np.float32), rows)


def _step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[tuple[_Tried, Ints]],
    config: DeviationConfig,
    accelerator: int,
    threads: int,
) -> dict[str, float]:
    """Take one step on some turns of every episode."""
    count = max(1, sum(int((t.different[rows].sum(axis=2) > 1).sum()) for t, rows in batch))

    def lose(chunk: Chunk, t: _Tried) -> tuple[Tensor, dict[str, float]]:
        void = t.turns.inputs.startable.shape[2]
        log_probs, entropy = _evaluate(network, chunk, t.others, void, accelerator)
        tried = torch.from_numpy(t.different[chunk.rows])
        chosen = tried.sum(dim=2) > 1
        among = log_probs.masked_fill(~tried, float("-inf"))
        weights = torch.softmax(among, dim=2)
        worth = -(weights * torch.from_numpy(t.gain[chunk.rows])).sum(dim=2)[chosen].sum() / count
        spread = entropy[chosen].sum() / count
        known = torch.logsumexp(among, dim=2)[chosen].sum() / count
        loss = worth - config.entropy * spread - config.restraint * known
        return loss, {"loss": float(worth.detach()), "entropy": float(spread.detach())}

    sums = {"loss": 0.0, "entropy": 0.0}
    optimizer.zero_grad()
    for t, rows in batch:
        if len(rows):
            found = add_gradients(network, chunks(network, t.turns.inputs, rows), partial(lose, t=t), threads)
            sums = {name: value + found[name] for name, value in sums.items()}
    sums["gradient"] = float(nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm))
    optimizer.step()
    return sums


def _regret(t: _Tried) -> float:
    """How much more the actions taken cost than the best ones tried, on average."""
    cost = t.others.cost
    return float((cost[..., 0] - cost.min(axis=2))[t.turns.decidable].mean()) if len(cost) else 0.0


def _evaluate(
    network: nn.Module, chunk: Chunk, others: Deviations, void: int, accelerator: int
) -> tuple[Tensor, Tensor]:
    """(rows, N, A) log-probabilities, with amounts only where the task was granted, and the first action's entropy."""
    outputs, places = network(chunk.inputs), chunk.inputs.startable.shape[2]
    rows, shape = chunk.rows, others.choice[chunk.rows].shape
    place = torch.from_numpy(others.choice[rows]).flatten(1)
    place = torch.where(place == void, places, place)
    granted = torch.from_numpy(others.granted[rows]).flatten(1)
    actions = Actions(place, torch.from_numpy(others.amounts[rows]).flatten(1, 2))
    terms = evaluate(outputs, chunk.inputs, actions, accelerator)
    return terms.log_prob(granted).reshape(shape), terms.entropy(granted).reshape(shape)[..., 0]


def distinct(others: Deviations) -> Bools:
    """(E, N, A) whether an action is the first of its equals; tasks not granted are equal whatever their amounts."""
    amounts = np.where(others.granted[..., None], others.amounts, 0)
    actions = np.concatenate([others.choice[..., None], amounts], axis=3)
    same = (actions[:, :, :, None] == actions[:, :, None]).all(axis=4)  # (E, N, A, A)
    return np.asarray(~np.tril(same, k=-1).any(axis=3))


def gains(cost: Floats, different: Bools) -> Floats:
    """(E, N, A) how much cheaper an action is than the mean of those tried, scaled by the spread of all.

    Clipped, so that a few actions that change everything afterwards do not drown out the others.
    """
    count = different.sum(axis=2, keepdims=True)
    mean = (cost * different).sum(axis=2, keepdims=True) / count
    gain = np.where(different, mean - cost, 0.0)
    spread = np.sqrt((gain**2).sum() / max(1, different[np.broadcast_to(count > 1, different.shape)].sum()))
    return np.asarray(np.clip(gain / (spread + 1e-8), -_MOST, _MOST))
