"""The actor's second choice: how much of each resource the task gets.

Both heads answer for all pending tasks at once with scores f_r(a) of giving ``a`` units of resource r, and
keys and queries whose products say how the amounts chosen earlier change the later ones. Which amounts are
legal is not their business: the distribution masks them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tapfinger.policy.han import MASKED

#: Amounts with a score of their own; between and beyond them scores are interpolated.
_KNOTS = (*range(17), 20, 24, 28, 32, 40, 48, 64, 96, 128)
_TABLE = 24  # learned functions of an amount
_RELATIVE = 5  # features of an amount in its legal range


class Amounts(NamedTuple):
    """Scores of all amounts. A columns: 0..A-1 units; r: rank of the interaction."""

    logits: Tensor  # (B, N, K, R, A)
    keys: Tensor  # (B, N, K, R, A, r)
    queries: Tensor  # (B, N, K, R, A, r)


def amount_features(amounts: Tensor) -> Tensor:
    """(A,) float units -> (A, features): one hat per knot, and smooth scales that reach beyond the last knot."""
    knots = torch.tensor(_KNOTS, dtype=amounts.dtype, device=amounts.device)
    left = torch.cat([knots[:1] - 1.0, knots[:-1]])
    right = torch.cat([knots[1:], knots[-1:] + 1.0])
    above = (amounts[:, None] - left) / (knots - left)
    below = (right - amounts[:, None]) / (right - knots)
    hats = torch.minimum(above, below).clamp(0.0, 1.0)
    smooth = torch.stack([amounts / 16.0, torch.log1p(amounts) / math.log(17.0), 1.0 / (1.0 + amounts)], dim=1)
    return torch.cat([hats, smooth], dim=1)


def relative_features(amounts: Tensor, minimum: Tensor, largest: Tensor) -> list[Tensor]:
    """Features of each amount in the legal range of its task: five tensors (B, N, K, R, A)."""
    low, high = minimum.unsqueeze(4).to(amounts.dtype), largest.unsqueeze(4).to(amounts.dtype)
    shares = high / amounts.clamp(min=1.0)
    return [
        (amounts == low).to(amounts.dtype),
        (amounts == high).to(amounts.dtype),
        (amounts / high.clamp(min=1.0)).clamp(max=1.0),
        torch.log1p(torch.floor(shares)),  # how many such tasks the room takes
        (shares == torch.floor(shares)).to(amounts.dtype),  # and whether they fill it
    ]


class FactoredAllocation(nn.Module):
    """Resource by resource, for any number of resources and any capacity.

    f_r(a) = <two-layer perceptron of the task, table of a> + <perceptron of the task, a in its legal range>:
    the table is shared by all tasks, so no tensor of tasks x amounts x hidden is ever made.
    """

    def __init__(self, hidden: int, resources: int, rank: int = 8) -> None:
        """``rank``: of the interaction between amounts."""
        super().__init__()
        self.resources, self.rank = resources, rank
        self.table = nn.Sequential(nn.Linear(len(_KNOTS) + 3, _TABLE), nn.Tanh())
        self.partners = nn.Linear(_TABLE, 2 * resources * rank)
        self.task = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, resources * (_TABLE + _RELATIVE + rank))
        )

    def forward(self, tasks: Tensor, minimum: Tensor, largest: Tensor, amounts: Tensor) -> Amounts:
        """``tasks`` (B, N, K, H); ``minimum`` and ``largest`` (B, N, K, R); ``amounts`` = 0..A-1 as floats."""
        table = self.table(amount_features(amounts))  # (A, table)
        weights = self.task(tasks).unflatten(3, (self.resources, _TABLE + _RELATIVE + self.rank))
        of_table, of_range, gate = weights.split([_TABLE, _RELATIVE, self.rank], dim=4)
        logits = of_table @ table.transpose(0, 1)
        for feature, weight in zip(relative_features(amounts, minimum, largest), of_range.unbind(4), strict=True):
            logits = logits + feature * weight.unsqueeze(4)
        pairs = self.partners(table).unflatten(1, (2, self.resources, self.rank))
        keys, queries = pairs.permute(1, 2, 0, 3).unbind(0)  # each (R, A, rank)
        queries = gate.unsqueeze(4) * queries
        return Amounts(logits=logits, keys=keys.expand_as(queries), queries=queries)


class JointAllocation(nn.Module):
    """One distribution over the box of two resources, as in the paper; up to ``units`` of each.

    The chain rule turns it exactly into the form of Amounts: the first resource gets the marginal, and the
    key of an amount is one-hot, so that its product with a query is the joint score itself.
    """

    def __init__(self, hidden: int, units: int, first: int) -> None:
        """``first``: index of the resource that is decided first."""
        super().__init__()
        self.columns, self.first = units + 1, first
        self.task = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, self.columns**2))

    def forward(self, tasks: Tensor, minimum: Tensor, largest: Tensor, amounts: Tensor) -> Amounts:
        """As the factored head, but always with its own columns; ``amounts`` gives only the number type."""
        columns = torch.arange(self.columns, dtype=amounts.dtype, device=tasks.device)
        joint = self.task(tasks).unflatten(3, (self.columns, self.columns))  # (..., second, first)
        low, high = minimum[..., 1 - self.first], largest[..., 1 - self.first]
        legal = (columns >= low.unsqueeze(3)) & (columns <= high.unsqueeze(3))  # of the second
        marginal = joint.masked_fill(~legal.unsqueeze(4), MASKED).logsumexp(dim=3)
        identity = torch.eye(self.columns, dtype=joint.dtype, device=joint.device).expand_as(joint)
        nothing = torch.zeros_like(joint)
        return Amounts(
            logits=self._order(marginal, torch.zeros_like(marginal)),
            keys=self._order(identity, nothing),
            queries=self._order(nothing, joint),
        )

    def _order(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([first, second] if self.first == 0 else [second, first], dim=3)
