"""Policy gradient with the group's mean as baseline: several rollouts of one workload, compared slot by slot.

Arrivals are exogenous and the same within a group, so the mean return-to-go at the same slot removes most of the
variance; there is no critic to learn. The ratio is clipped as in PPO.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tapfinger.policy.actor_critic import as_tensors
from tapfinger.policy.distributions import Actions, draw, evaluate
from tapfinger.policy.inputs import InputMaker, Inputs
from tapfinger.sim.batch import BatchSim
from tapfinger.training.imitation import rows_of
from tapfinger.training.rollout import Acts, Episode, advantages, play
from tapfinger.workloads.base import Workload


@dataclass(frozen=True)
class GroupConfig:
    """Settings of one update."""

    #: Rollouts of the same workload.
    group: int = 16
    #: How much the next slot's tasks in system count.
    discount: float = 0.93
    clip: float = 0.2
    learning_rate: float = 3e-4
    entropy: float = 0.003
    epochs: int = 1
    batch: int = 512
    max_grad_norm: float = 0.5


class NetworkPolicy:
    """A network as a policy for rollouts; samples if it has a generator."""

    def __init__(self, network: nn.Module, accelerator: int, seed: int | None = None) -> None:
        """``seed``: None acts by the most likely choice."""
        self._network = network
        self._accelerator = accelerator
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> Acts:
        """Actions, scores and the log-probabilities (task, amounts) they had."""
        tensors = as_tensors(inputs)
        outputs = self._network(tensors)
        actions, terms = draw(outputs, tensors, self._accelerator, self._generator, self._generator)
        logs = torch.stack([terms.task, terms.amounts], dim=2).numpy()
        score = terms.task.exp().double().numpy()
        return Acts(actions.place.numpy(), actions.amounts.numpy(), score, logs)


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    episode: Episode,
    config: GroupConfig,
    accelerator: int,
    rng: np.random.Generator,
) -> dict[str, float]:
    """One or more passes over the turns of a batch of episodes; returns what is logged."""
    turns = episode.turns
    if turns is None:
        raise ValueError("play with keep=True")
    table = advantages(episode, config.group, config.discount)
    advantage = table[turns.world, turns.slot]
    advantage = (advantage / (advantage.std() + 1e-8)).astype(np.float32)
    old = turns.extra[..., 0] + np.where(turns.granted, turns.extra[..., 1], 0.0)
    logged: dict[str, list[float]] = {"loss": [], "clipped": [], "entropy": [], "kl": []}
    for _ in range(config.epochs):
        order = rng.permutation(len(turns.choice))
        for begin in range(0, len(order), config.batch):
            rows = order[begin : begin + config.batch]
            inputs = as_tensors(rows_of(turns.inputs, rows))
            actions = Actions(torch.from_numpy(turns.choice[rows]), torch.from_numpy(turns.amounts[rows]))
            terms = evaluate(network(inputs), inputs, actions, accelerator)
            granted = torch.from_numpy(turns.granted[rows])
            mask = torch.from_numpy(turns.decidable[rows])
            change = (terms.log_prob(granted) - torch.from_numpy(old[rows].astype(np.float32)))[mask]
            ratio = change.exp()
            gain = torch.from_numpy(advantage[rows])[:, None].expand(mask.shape)[mask]
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            entropy = terms.entropy(granted)[mask].mean()
            loss = -torch.minimum(ratio * gain, clipped * gain).mean() - config.entropy * entropy
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
            optimizer.step()
            logged["loss"].append(float(loss.detach()))
            logged["clipped"].append(float((ratio.detach() != clipped.detach()).float().mean()))
            logged["entropy"].append(float(entropy.detach()))
            logged["kl"].append(float((ratio.detach() - 1.0 - change.detach()).mean()))
    return {name: float(np.mean(values)) for name, values in logged.items()}


def rollouts(sim: BatchSim, maker: InputMaker, network: nn.Module, accelerator: int, seed: int) -> Episode:
    """Sampled episodes on all worlds of the simulator."""
    return play(sim, maker, NetworkPolicy(network, accelerator, seed), keep=True)


def repeat(workloads: list[Workload], group: int) -> list[Workload]:
    """Each workload ``group`` times, side by side."""
    return [workload for workload in workloads for _ in range(group)]
