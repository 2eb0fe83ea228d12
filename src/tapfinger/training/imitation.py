"""Learning from a teacher's examples: maximum likelihood of what it did, agent by agent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tapfinger.policy.actor_critic import as_tensors
from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.policy.inputs import Inputs
from tapfinger.training.teacher import Examples


def rows_of(inputs: Inputs, rows: np.ndarray) -> Inputs:
    """A selection of states."""
    return Inputs(*(array[rows] for array in inputs))


def imitation_loss(network: nn.Module, examples: Examples, rows: np.ndarray, accelerator: int) -> Tensor:
    """Minus the mean log-probability of the teacher's action over agents that had a choice."""
    inputs = as_tensors(rows_of(examples.inputs, rows))
    actions = Actions(torch.from_numpy(examples.choice[rows]), torch.from_numpy(examples.amounts[rows]))
    terms = evaluate(network(inputs), inputs, actions, accelerator)
    mask = torch.from_numpy(examples.decidable[rows])
    # An agent without a choice is void with probability one; its terms are zero but must not be counted.
    return -(terms.task + terms.amounts)[mask].mean()


def imitate(
    network: nn.Module,
    examples: Examples,
    accelerator: int,
    epochs: int,
    seed: int,
    batch: int = 256,
    learning_rate: float = 2e-3,
    report: Callable[[int, float], None] | None = None,
) -> None:
    """Adam with a learning rate that falls to zero along a half cosine."""
    rng = np.random.default_rng(seed)
    steps = epochs * max(1, len(examples) // batch)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = rng.integers(0, len(examples), size=batch)
        loss = imitation_loss(network, examples, rows, accelerator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if report is not None:
            report(step, float(loss.detach()))
