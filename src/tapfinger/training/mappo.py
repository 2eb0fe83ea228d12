"""MAPPO as in the paper: PPO with one actor for all clusters and a centralised critic.

Each detail and each logged metric is explained in docs/training.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tapfinger.policy.paper_form import PaperActors
from tapfinger.sim.batch import BatchSim
from tapfinger.training.batches import Chunk, add_gradients, chunks, evaluate_rows
from tapfinger.training.config import MappoConfig
from tapfinger.training.gae import ReturnScale, agent_costs, estimate, normalised, relative_costs, to_go
from tapfinger.training.network_policy import AMOUNTS, TASK, VALUE
from tapfinger.training.rollout import Bools, Floats, RolloutResult, Turns


def finish(episode: RolloutResult, sim: BatchSim, reward: str) -> RolloutResult:
    """Prepare an episode for ``update``.

    With reward "own" its costs are (B, slots, N). Worlds that were cut off have an infinite mean: it is unknown.
    """
    cost = agent_costs(sim, episode.cost.shape[1]) if reward == "own" else episode.cost
    return episode._replace(mean=np.where(sim.done, episode.mean, np.inf), cost=cost)


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    episode: RolloutResult,
    config: MappoConfig,
    accelerator: int,
    rng: np.random.Generator,
    scale: ReturnScale,
    threads: int = 1,
) -> dict[str, float]:
    """Make several passes over the turns of a batch of episodes; return the metrics. ``scale`` outlives the update."""
    turns = episode.turns
    if turns is None:
        raise ValueError("play with keep=True")
    batch, known = _prepare(network, episode, turns, config, scale)
    logged: dict[str, list[float]] = {}
    for _ in range(config.epochs):
        order = rng.permutation(np.flatnonzero(batch.usable))
        for begin in range(0, len(order), config.batch):
            rows = order[begin : begin + config.batch]
            optimizer.zero_grad()
            sums = batch.backward(network, rows, config, accelerator, threads)
            if isinstance(network.actor, PaperActors):
                network.actor.share_gradients(config.sharing)
            sums["gradient"] = float(nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm))
            optimizer.step()
            for name, value in sums.items():
                logged.setdefault(name, []).append(value)
    return {**{name: float(np.mean(values)) for name, values in logged.items()}, **known}


@dataclass(frozen=True)
class _Batch:
    """The turns of an update, with everything that stays fixed during it."""

    turns: Turns
    usable: Bools  # (E,)
    old: Floats  # (E, N) log-probabilities at the time of play
    advantage: Floats  # (E, N), normalised
    value: Floats  # (E, V) the critic's values at the time of play, in its present units; V is 1 or N
    target: Floats  # (E, V) targets of the critic

    def backward(
        self, network: nn.Module, rows: np.ndarray, config: MappoConfig, accelerator: int, threads: int = 1
    ) -> dict[str, float]:
        """Add the gradient of a minibatch."""
        turns = self.turns
        agents = max(1, int(turns.decidable[rows].sum()))
        void = turns.inputs.startable.shape[2]

        def lose(chunk: Chunk) -> tuple[Tensor, dict[str, float]]:
            answers, terms = evaluate_rows(network, chunk, turns.choice, turns.amounts, void, accelerator)
            granted, mask = _at(turns.granted, chunk), _at(turns.decidable, chunk)
            # Losers of a conflict keep their task's term but have no amounts term (m of the paper).
            change = (terms.log_prob(granted) - _at(self.old, chunk))[mask]
            ratio, gain = change.exp(), _at(self.advantage, chunk)[mask]
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            policy_loss = -torch.minimum(ratio * gain, clipped * gain).sum() / agents
            entropy = terms.entropy(granted)[mask].sum() / agents
            value_loss = self._value_loss(answers.value, chunk, config) / (len(rows) * self.target.shape[1])
            return policy_loss + config.value_weight * value_loss - config.entropy * entropy, {
                "policy_loss": float(policy_loss.detach()),
                "value_loss": float(value_loss.detach()),
                "entropy": float(entropy.detach()),
                "kl": float((ratio - 1.0 - change).detach().sum()) / agents,
                "clipped": float((ratio != clipped).sum()) / agents,
            }

        return add_gradients(network, chunks(network, turns.inputs, rows), lose, threads)

    def _value_loss(self, said: Tensor, chunk: Chunk, config: MappoConfig) -> Tensor:
        target, old = _at(self.target, chunk), _at(self.value, chunk)
        error = (said - target) ** 2
        if config.value_clip:
            error = torch.maximum(error, (old + (said - old).clamp(-config.clip, config.clip) - target) ** 2)
        return error.sum()


def _prepare(
    network: nn.Module, episode: RolloutResult, turns: Turns, config: MappoConfig, scale: ReturnScale
) -> tuple[_Batch, dict[str, float]]:
    """Advantages and targets of all turns; updates the scale of returns."""
    paid = episode.cost if episode.cost.ndim == 3 else episode.cost[:, :, None]
    cost = relative_costs(paid, config.group)
    agents, judged = cost.shape[2], _values(network)
    if not scale.square:
        # Before its first update the critic's output has no unit: map it to the scale of the returns at hand.
        whole = -to_go(cost, config.discount)[turns.world, turns.slot]
        scale.follow(whole if judged > 1 else whole.mean(axis=1), 1.0)
    # One value for all stands for each; one reward for all is judged by their mean.
    value = scale.restore(turns.extra[..., VALUE])
    value = value if agents > 1 else value.mean(axis=1, keepdims=True)
    ended = np.isfinite(episode.mean)
    advantage, usable = estimate(turns, cost, value, ended, config.discount, config.trace)
    returns = advantage + value
    if judged != agents:
        returns = np.broadcast_to(returns.mean(axis=1, keepdims=True), (len(returns), judged))
        value = np.broadcast_to(value.mean(axis=1, keepdims=True), returns.shape)
    _rescale(network, *scale.follow(returns[usable], config.scale_rate))
    old = turns.extra[..., TASK] + np.where(turns.granted, turns.extra[..., AMOUNTS], 0.0)
    batch = _Batch(
        turns=turns,
        usable=usable,
        old=old.astype(np.float32),
        advantage=normalised(advantage, turns.decidable & usable[:, None]).astype(np.float32),
        value=scale.normalise(value).astype(np.float32),
        target=scale.normalise(returns).astype(np.float32),
    )
    spread = float(np.var(returns[usable]))
    known = {
        "return": -float(paid.mean(axis=2).sum(axis=1).mean()),
        "explained_variance": 1.0 - float(np.var((returns - value)[usable])) / max(spread, 1e-12),
        "return_mean": scale.mean,
        "return_spread": scale.spread,
    }
    return batch, known


def _values(network: nn.Module) -> int:
    """1, or the number of agents if the critic has a value for each."""
    critic: Any = network.critic
    return int(critic[-1].out_features)


@torch.no_grad()
def _rescale(network: nn.Module, factor: float, summand: float) -> None:
    """Change the critic's last layer so that its output, in new units, equals the old output in old units (PopArt)."""
    critic: Any = network.critic
    critic[-1].weight.mul_(factor)
    critic[-1].bias.mul_(factor).add_(summand)


def _at(array: np.ndarray, chunk: Chunk) -> Tensor:
    return torch.from_numpy(array[chunk.rows])
