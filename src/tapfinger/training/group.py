"""Policy gradient with the group's mean as baseline: several rollouts of one workload, compared slot by slot.

Arrivals are exogenous and the same within a group, so the mean return-to-go at the same slot removes most of the
variance; there is no critic to learn. The ratio is clipped as in PPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tapfinger.training.batches import Chunk, add_gradients, chunks, evaluate_rows
from tapfinger.training.config import GroupConfig
from tapfinger.training.network_policy import AMOUNTS, TASK
from tapfinger.training.rollout import Floats, RolloutResult


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[RolloutResult],
    config: GroupConfig,
    accelerator: int,
    rng: np.random.Generator,
    threads: int = 1,
) -> dict[str, float]:
    """Make one or more passes over the turns of a single batch of worlds; return the metrics."""
    (episode,) = episodes
    turns = episode.turns
    if turns is None:
        raise ValueError("play with keep=True")
    advantage = advantages(episode, config.group, config.discount)[turns.world, turns.slot].astype(np.float32)
    old = (turns.extra[..., TASK] + np.where(turns.granted, turns.extra[..., AMOUNTS], 0.0)).astype(np.float32)
    void = turns.inputs.startable.shape[2]

    def lose(chunk: Chunk, count: int) -> tuple[Tensor, dict[str, float]]:
        _, terms = evaluate_rows(network, chunk, turns.choice, turns.amounts, void, accelerator)
        granted, mask = (torch.from_numpy(array[chunk.rows]) for array in (turns.granted, turns.decidable))
        change = (terms.log_prob(granted) - torch.from_numpy(old[chunk.rows]))[mask]
        ratio = change.exp()
        gain = torch.from_numpy(advantage[chunk.rows])[:, None].expand(mask.shape)[mask]
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        entropy = terms.entropy(granted)[mask].sum() / count
        loss = -torch.minimum(ratio * gain, clipped * gain).sum() / count - config.entropy * entropy
        return loss, {
            "loss": float(loss.detach()),
            "clipped": float((ratio != clipped).sum()) / count,
            "entropy": float(entropy.detach()),
            "kl": float((ratio - 1.0 - change).detach().sum()) / count,
        }

    logged: dict[str, list[float]] = {name: [] for name in ("loss", "clipped", "entropy", "kl", "gradient")}
    for _ in range(config.epochs):
        order = rng.permutation(len(turns.choice))
        for begin in range(0, len(order), config.batch):
            batch = order[begin : begin + config.batch]
            count = int(turns.decidable[batch].sum())
            optimizer.zero_grad()
            sums = add_gradients(network, chunks(network, turns.inputs, batch), partial(lose, count=count), threads)
            sums["gradient"] = float(nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm))
            optimizer.step()
            for name, value in sums.items():
                logged[name].append(value)
    return {name: float(np.mean(values)) for name, values in logged.items()}


def advantages(episode: RolloutResult, group: int, discount: float) -> Floats:
    """(B, slots) minus the discounted tasks in system to come, relative to the group's mean at the same slot.

    Worlds b*group .. (b+1)*group share a workload: arrivals are the same, so the mean removes most
    of the variance and no critic is needed. Each group is scaled by its own spread, so that workloads
    with a heavy load do not drown out those with a light one.
    """
    cost = episode.cost
    to_go = np.zeros_like(cost)
    running = np.zeros(len(cost))
    for t in range(cost.shape[1] - 1, -1, -1):
        running = cost[:, t] + discount * running
        to_go[:, t] = running
    grouped = to_go.reshape(-1, group, cost.shape[1])
    apart = grouped.mean(axis=1, keepdims=True) - grouped
    alive = (grouped > 0).any(axis=1, keepdims=True)  # slots after the end must not shrink the spread
    spread = np.sqrt((apart**2).sum(axis=(1, 2), keepdims=True) / (group * alive.sum(axis=2, keepdims=True).clip(1)))
    return np.asarray((apart / (spread + 1e-8)).reshape(cost.shape))
