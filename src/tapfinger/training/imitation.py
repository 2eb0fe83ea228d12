"""Learns from a teacher's examples: maximum likelihood of its actions, agent by agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tapfinger.training.batches import Chunk, add_gradients, chunks, evaluate_rows
from tapfinger.training.teacher import Examples

#: Called with step, total steps and loss.
Report = Callable[[int, int, float], None]


def imitation_step(
    network: nn.Module, examples: Examples, rows: np.ndarray, accelerator: int, threads: int = 1
) -> float:
    """Add the gradient of minus the mean log-probability of the teacher's action, over agents that had a choice."""
    void = examples.inputs.startable.shape[2]
    # An agent without a choice is void with probability one; its terms are zero but must not be counted.
    count = max(1, int(examples.decidable[rows].sum()))

    def lose(chunk: Chunk) -> tuple[Tensor, dict[str, float]]:
        _, terms = evaluate_rows(network, chunk, examples.choice, examples.amounts, void, accelerator)
        mask = torch.from_numpy(examples.decidable[chunk.rows])
        loss = -(terms.task + terms.amounts)[mask].sum() / count
        return loss, {"loss": float(loss.detach())}

    return add_gradients(network, chunks(network, examples.inputs, rows), lose, threads)["loss"]


def imitate(
    network: nn.Module,
    examples: Examples,
    accelerator: int,
    epochs: int,
    seed: int,
    report: Report | None = None,
    threads: int = 1,
) -> None:
    """Learn from the examples of one scenario; reports step, total steps and loss."""
    imitate_in_turn(network, [examples], accelerator, epochs, seed, report, threads=threads)


class Pace(NamedTuple):
    """Steps of the optimizer."""

    #: Examples per step.
    batch: int = 256
    #: Learning rate at the start.
    learning_rate: float = 2e-3


USUAL_PACE = Pace()


def imitate_in_turn(
    network: nn.Module,
    sites: Sequence[Examples],
    accelerator: int,
    epochs: int,
    seed: int,
    report: Report | None = None,
    threads: int = 1,
    pace: Pace = USUAL_PACE,
) -> None:
    """Take each step on examples of one of several sites, drawn in proportion to its number of examples.

    Uses Adam with a learning rate that falls to zero along a half cosine.
    """
    rng = np.random.default_rng(seed)
    counts = np.array([len(examples) for examples in sites])
    steps = epochs * max(1, int(counts.sum()) // pace.batch)
    optimizer = torch.optim.Adam(network.parameters(), lr=pace.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        examples = sites[int(rng.choice(len(sites), p=counts / counts.sum()))] if len(sites) > 1 else sites[0]
        rows = rng.integers(0, len(examples), size=pace.batch)
        optimizer.zero_grad()
        loss = imitation_step(network, examples, rows, accelerator, threads)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if report is not None:
            report(step, steps, loss)
