"""From outputs to actions: sampling, best choice, log-probability and entropy of (task or void, amounts).

The amounts are a chain: the accelerator first, then the other resources in order, each conditioned on those
before it. Illegal choices have probability exactly zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tapfinger.policy.actions import chain_order
from tapfinger.policy.actor_critic import Answers
from tapfinger.policy.encoding.inputs import Inputs


class Actions(NamedTuple):
    """What every cluster wants to do."""

    place: Tensor  # int64 (B, N): the pending place, K for void
    amounts: Tensor  # int64 (B, N, R): zero when void


class Terms(NamedTuple):
    """Log-probabilities and entropies of given actions, each (B, N)."""

    task: Tensor  # log Pr(place): its exponential is the score of a proposal
    amounts: Tensor  # log Pr(amounts | place); zero when void
    task_entropy: Tensor
    amounts_entropy: Tensor  # along the chain actually chosen; zero when void

    def log_prob(self, granted: Tensor) -> Tensor:
        """log Pr(place) + m log Pr(amounts | place); ``granted`` is m: 1 for agents that really placed the task."""
        m = granted.to(self.amounts.dtype)
        return self.task + torch.where(m > 0, m * self.amounts, torch.zeros_like(m))

    def entropy(self, granted: Tensor) -> Tensor:
        """Entropy of the same composite; the amounts count only where they were carried out."""
        return self.task_entropy + granted.to(self.amounts.dtype) * self.amounts_entropy


def draw(
    outputs: Answers,
    inputs: Inputs,
    accelerator: int,
    task_generator: torch.Generator | None = None,
    amount_generator: torch.Generator | None = None,
) -> tuple[Actions, Terms]:
    """Actions of every cluster: sampled where a generator is given, otherwise the most likely one.

    Both generators: exploration. Neither: the deterministic policy. Only the first: a policy with a random task
    by design (no pointer) and the best amounts.
    """
    task_logs = torch.log_softmax(outputs.task_logits, dim=2)
    place = _pick(task_logs, task_generator)
    chain = _Chain(outputs, inputs, place, accelerator)
    amounts: dict[int, Tensor] = {}
    for resource in chain.order:
        amounts[resource] = _pick(chain.log_probs(resource), amount_generator)
        chain.choose(resource, amounts[resource])
    chosen = torch.stack([amounts[resource] for resource in range(len(amounts))], dim=2)
    actions = Actions(place, chosen * chain.placed.unsqueeze(2))
    return actions, chain.terms(task_logs)


def draw_several(
    outputs: Answers, inputs: Inputs, accelerator: int, generator: torch.Generator, count: int, temperature: float
) -> tuple[Actions, Tensor]:
    """``count`` sampled actions of every cluster, side by side (B, N * count), and the log-probability of each task.

    A ``temperature`` above one also finds unlikely actions; the log-probabilities are the policy's own.
    """
    task_logs = torch.log_softmax(outputs.task_logits, dim=2)
    batch, clusters = task_logs.shape[:2]
    wide = torch.softmax(outputs.task_logits / temperature, dim=2).flatten(0, 1)
    place = torch.multinomial(wide, count, replacement=True, generator=generator).reshape(batch, clusters * count)
    chain = _Chain(outputs, inputs, place, accelerator)
    amounts: dict[int, Tensor] = {}
    for resource in chain.order:
        amounts[resource] = _pick(torch.log_softmax(chain.log_probs(resource) / temperature, dim=2), generator)
        chain.choose(resource, amounts[resource])
    chosen = torch.stack([amounts[resource] for resource in range(len(amounts))], dim=2)
    return Actions(place, chosen * chain.placed.unsqueeze(2)), chain.terms(task_logs).task


def evaluate(outputs: Answers, inputs: Inputs, actions: Actions, accelerator: int) -> Terms:
    """Terms of actions chosen earlier; minus infinity for an illegal action.

    Several actions per cluster may be given side by side: (B, N * count).
    """
    chain = _Chain(outputs, inputs, actions.place, accelerator)
    for resource in chain.order:
        chain.choose(resource, actions.amounts[:, :, resource])
    return chain.terms(torch.log_softmax(outputs.task_logits, dim=2))


def amount_log_probs(
    outputs: Answers, inputs: Inputs, place: Tensor, earlier: dict[int, Tensor], resource: int
) -> Tensor:
    """(B, N, A) log-probabilities of the amounts of ``resource`` for the task at ``place``, given earlier amounts."""
    chain = _Chain(outputs, inputs, place, resource)
    for other, amount in earlier.items():
        chain.choose(other, amount)
    return chain.log_probs(resource)


class _Chain:
    """The amounts of the chosen tasks, resource by resource."""

    def __init__(self, outputs: Answers, inputs: Inputs, place: Tensor, accelerator: int) -> None:
        batch, clusters, places = inputs.startable.shape
        self.place, self.placed = place, place < places
        at = place.clamp(max=places - 1)
        #: Agent of each column's action.
        self.agent = torch.arange(clusters, device=place.device).repeat_interleave(place.shape[1] // clusters)
        rows = (torch.arange(batch, device=place.device)[:, None], self.agent[None, :], at)
        self.logits, self.keys, self.queries = outputs.chosen(rows, self.placed)
        column = torch.arange(self.logits.shape[3], device=place.device)
        low, high = inputs.minimum[rows].unsqueeze(3), inputs.largest[rows].unsqueeze(3)
        legal = (column >= low) & (column <= high) & self.placed[:, :, None, None]
        # A void agent has no amounts; it gets zero with certainty, so that everything stays defined.
        self.legal = legal | ((column == 0) & ~legal.any(dim=3, keepdim=True))  # (B, N, R, A)
        resources = self.logits.shape[2]
        self.order = chain_order(accelerator, resources)
        self.earlier = torch.zeros_like(self.keys[:, :, 0, 0])  # (B, N, r): sum of the keys of the chosen amounts
        zero = torch.zeros_like(self.logits[:, :, 0, 0])
        self.log_prob, self.entropy = zero, zero

    def log_probs(self, resource: int) -> Tensor:
        """(B, N, A) log-probabilities, given the amounts chosen so far."""
        influence = (self.queries[:, :, resource] @ self.earlier.unsqueeze(3)).squeeze(3)
        scores = self.logits[:, :, resource] + influence
        return torch.log_softmax(scores.masked_fill(~self.legal[:, :, resource], float("-inf")), dim=2)

    def choose(self, resource: int, amount: Tensor) -> None:
        """Fix an amount (B, N) of a resource."""
        log_probs = self.log_probs(resource)
        index = amount.clamp(0, log_probs.shape[2] - 1).unsqueeze(2)
        chosen = log_probs.gather(2, index).squeeze(2)
        self.log_prob = self.log_prob + chosen.masked_fill(amount != index.squeeze(2), float("-inf"))
        self.entropy = self.entropy + _entropy(log_probs)
        keys = self.keys[:, :, resource]
        self.earlier = self.earlier + keys.gather(2, index.unsqueeze(3).expand(-1, -1, 1, keys.shape[3])).squeeze(2)

    def terms(self, task_logs: Tensor) -> Terms:
        """All terms, once every resource is chosen."""
        nothing = torch.zeros_like(self.log_prob)
        task_logs = task_logs[:, self.agent]
        return Terms(
            task=task_logs.gather(2, self.place.unsqueeze(2)).squeeze(2),
            amounts=torch.where(self.placed, self.log_prob, nothing),
            task_entropy=_entropy(task_logs),
            amounts_entropy=torch.where(self.placed, self.entropy, nothing),
        )


def _pick(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index of the last axis of (B, N, choices)."""
    if generator is None:
        return log_probs.argmax(dim=2)
    drawn = torch.multinomial(log_probs.detach().exp().flatten(0, 1), 1, generator=generator)
    return drawn.reshape(log_probs.shape[:2])


def _entropy(log_probs: Tensor) -> Tensor:
    """Entropy over the last axis; impossible choices add nothing, not even to the gradient."""
    finite = log_probs.masked_fill(log_probs == float("-inf"), 0.0)
    return -(log_probs.exp() * finite).sum(dim=-1)
