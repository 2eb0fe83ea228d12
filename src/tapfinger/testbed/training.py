"""Training until the validation loss reaches its target."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from tapfinger.reporting import report
from tapfinger.testbed.common import DONE, MISSED, RunOptions, say
from tapfinger.testbed.parallel import Workers

#: Largest reported progress while the target is not reached.
ALMOST = 0.99


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained, on which data, and until when."""

    model: nn.Module
    #: Sum, not mean, of the losses of some samples.
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    #: Inputs and labels: first for training, then for validation.
    inputs: torch.Tensor
    labels: torch.Tensor
    seen: torch.Tensor
    wanted: torch.Tensor
    #: Samples per batch, over all workers together.
    batch: int
    learning_rate: float
    #: Steps between validations.
    every: int
    epochs: int
    #: Validation loss to reach, the smallest possible loss, and how the loss falls.
    target: float
    floor: float
    curve: LossCurve


@dataclass(frozen=True, slots=True)
class LossCurve:
    """How a loss falls over time: its excess over the smallest possible loss, to the power of ``bend``, falls evenly.

    1: the loss itself falls evenly. 0: its logarithm does, so the loss falls ever more slowly.
    """

    bend: float

    def level(self, above: float) -> float:
        """The quantity that falls evenly."""
        above = max(above, 1e-9)
        return math.log(above) if self.bend == 0.0 else above**self.bend

    def share(self, first: float, last: float, now: float) -> float:
        """Completed share of the way from ``first`` to ``last``."""
        return (self.level(first) - self.level(now)) / (self.level(first) - self.level(last))

    def at(self, first: float, last: float, share: float) -> float:
        """Excess over the smallest possible loss at that completed share."""
        level = self.level(first) + share * (self.level(last) - self.level(first))
        return math.exp(level) if self.bend == 0.0 else max(level, 0.0) ** (1.0 / self.bend)


@dataclass
class Approach:
    """How far a validation loss has fallen: an estimate of the completed share of training.

    The estimate uses the task's loss curve, which was chosen on earlier runs; ``benchmarks/testbed.py`` shows how well
    it agrees with the time of other runs. It never decreases, and stays below 1 until the target is reached.
    """

    target: float
    floor: float
    curve: LossCurve
    first: float | None = None
    best: float = 0.0

    def take(self, loss: float) -> float:
        """Take in another validation loss; return the progress."""
        if self.first is None:
            self.first = loss - self.floor
        if loss <= self.target:
            self.best = 1.0
        elif self.first > self.target - self.floor:
            share = self.curve.share(self.first, self.target - self.floor, loss - self.floor)
            self.best = max(self.best, min(share, ALMOST))
        return self.best


def batches(count: int, size: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
    """Indices of an epoch's batches: the same for all workers, full batches only."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1000 + epoch))
    return (order[begin : begin + size] for begin in range(0, count - size + 1, size))


def train(workers: Workers, options: RunOptions, plan: TrainingPlan) -> int:
    """Train until the target is reached or the last epoch is over; return the exit code."""
    model = plan.model.to(workers.device)
    optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate)
    approach = Approach(plan.target, plan.floor, plan.curve)
    step, loss = 0, math.nan
    for epoch in range(plan.epochs):
        for batch in batches(len(plan.inputs), plan.batch, options.seed, epoch):
            if step % plan.every == 0 and _validated(workers, plan, approach, step, loss):
                return DONE
            loss = _step(workers, plan, optimizer, batch)
            step += 1
    if _validated(workers, plan, approach, step, loss):
        return DONE
    if workers.first:
        sys.stderr.write(
            f"error: after {plan.epochs} epochs the validation loss is still above its target of {plan.target:.4f}; "
            "another --seed or a smaller --scale may reach it\n"
        )
    return MISSED


def _step(workers: Workers, plan: TrainingPlan, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    mine = workers.mine(batch)
    optimizer.zero_grad()
    loss = plan.loss(plan.model, plan.inputs[mine].to(workers.device), plan.labels[mine].to(workers.device))
    loss.backward()  # type: ignore[no-untyped-call]
    workers.join_gradients(plan.model, len(batch))
    optimizer.step()
    return float(workers.add(loss.detach())) / len(batch)


def _validated(workers: Workers, plan: TrainingPlan, approach: Approach, step: int, loss: float) -> bool:
    """Whether the target is reached; all workers agree, since all have the same sum."""
    plan.model.eval()
    with torch.no_grad():
        seen, wanted = workers.mine(plan.seen), workers.mine(plan.wanted)
        total = plan.loss(plan.model, seen.to(workers.device), wanted.to(workers.device))
        found = float(workers.add(total)) / len(plan.seen)
    plan.model.train()
    progress = approach.take(found)
    if workers.first:
        last = {} if math.isnan(loss) else {"loss": loss}
        report(progress, **last, val_loss=found, step=step)
        say(f"step {step}: val_loss {found:.4f} of {plan.target:.4f}{f', loss {loss:.4f}' if last else ''}")
    return progress >= 1.0
