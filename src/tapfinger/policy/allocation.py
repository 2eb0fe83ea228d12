"""The actor's second choice: how much of each resource the task gets.

Each head answers for all pending tasks at once. It gives scores f_r(a) of ``a`` units of resource r, and keys and
queries; their products say how amounts chosen earlier change later ones. The heads do not check which amounts are
legal: the distribution masks the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import MASKED, regroup

#: Amounts with a score of their own; scores are interpolated between them and extrapolated beyond.
_KNOTS = (*range(17), 20, 24, 28, 32, 40, 48, 64, 96, 128)
_FEATURES = len(_KNOTS) + 3
_RELATIVE = 4  # features of an amount within its legal range


class Amounts(NamedTuple):
    """Scores of all amounts. A columns: 0..A-1 units; r: rank of the interaction."""

    logits: Tensor  # (B, N, K, R, A)
    keys: Tensor  # (B, N, K, R, A, r)
    queries: Tensor  # (B, N, K, R, A, r)


def amount_features(amounts: Tensor, knots: Tensor) -> Tensor:
    """(A,) float units -> (A, features): one hat per knot, and smooth scales that reach beyond the last knot."""
    left = torch.cat([knots[:1] - 1.0, knots[:-1]])
    right = torch.cat([knots[1:], knots[-1:] + 1.0])
    rows = amounts.unsqueeze(1)
    above = (rows - left) / (knots - left)
    below = (right - rows) / (right - knots)
    hats = torch.minimum(above, below).clamp(0.0, 1.0)
    return torch.cat([hats, rows / 16.0, torch.log1p(rows) / math.log(17.0), 1.0 / (1.0 + rows)], dim=1)


def relative_features(amounts: Tensor, minimum: Tensor, largest: Tensor) -> list[Tensor]:
    """Features of each amount within the legal range of its task: four tensors (B, N, K, R, A)."""
    low, high = minimum.unsqueeze(4).to(amounts.dtype), largest.unsqueeze(4).to(amounts.dtype)
    return [
        (amounts == low).to(amounts.dtype),
        (amounts == high).to(amounts.dtype),
        (amounts / high.clamp(min=1.0)).clamp(max=1.0),
        torch.floor(high / amounts.clamp(min=1.0)).clamp(max=8.0) / 8.0,  # number of such tasks that fit
    ]


class FactoredAllocation(nn.Module):
    """Resource by resource, for any number of resources and any capacity.

    The task goes through a two-layer perceptron; f_r(a) is its product with a table of learned functions of
    ``a``, plus its product with the features of ``a`` within its legal range. The table is shared by all tasks, so
    no tensor of tasks x amounts x hidden is ever created.
    """

    def __init__(self, hidden: int, resources: int, rank: int = 4) -> None:
        """``rank``: of the interaction between amounts."""
        super().__init__()
        self.hidden, self.resources, self.rank, self.gates = hidden, resources, rank, resources * rank
        self.task = nn.Sequential(
            nn.Linear(hidden, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden + resources * _RELATIVE + self.gates),
        )
        self.knots: Tensor
        self.register_buffer("knots", torch.tensor(_KNOTS, dtype=torch.float32), persistent=False)
        self.score = nn.Linear(_FEATURES, hidden * resources)
        self.key = nn.Linear(_FEATURES, resources * rank)
        self.query = nn.Linear(_FEATURES, self.gates * resources * rank)

    def forward(self, tasks: Tensor, inputs: Inputs, amounts: Tensor) -> Amounts:
        """``tasks`` (B, N, K, H); ``amounts`` = 0..A-1 as floats."""
        features, wanted = amount_features(amounts, self.knots), self.task(tasks)
        of_amount, of_range, gate = wanted.split([self.hidden, self.resources * _RELATIVE, self.gates], dim=3)
        table = regroup(self.score(features), 0, -1, self.resources).permute(1, 2, 0)  # (H, R, A)
        logits = regroup(of_amount @ table.flatten(1), 0, 0, 0, self.resources, -1)
        weights = regroup(of_range, 0, 0, 0, self.resources, -1).split_with_sizes([1] * _RELATIVE, dim=4)
        for feature, weight in zip(relative_features(amounts, inputs.minimum, inputs.largest), weights, strict=True):
            logits = torch.addcmul(logits, feature, weight)
        mixes = regroup(self.query(features), 0, self.gates, -1, self.rank).permute(1, 2, 0, 3)
        queries = regroup(gate @ mixes.flatten(1), 0, 0, 0, self.resources, -1, self.rank)  # from all gates
        keys = regroup(self.key(features), 0, self.resources, -1).transpose(0, 1)  # (R, A, rank)
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

    def forward(self, tasks: Tensor, inputs: Inputs, amounts: Tensor) -> Amounts:  # noqa: ARG002 - it has its own columns
        """As in the factored head, but always with its own columns."""
        return self.amounts(self.table(tasks), inputs.minimum, inputs.largest)

    def table(self, tasks: Tensor) -> Tensor:
        """(..., H) -> (..., columns, columns): the score of every pair of amounts (second, first)."""
        joint: Tensor = self.task(tasks).reshape(*tasks.shape[:-1], self.columns, self.columns)
        return joint

    def within(self, minimum: Tensor, largest: Tensor, resource: int) -> Tensor:
        """(..., R) -> (..., columns): which amounts of a resource are legal."""
        columns = torch.arange(self.columns, device=minimum.device)
        return (columns >= minimum[..., resource : resource + 1]) & (columns <= largest[..., resource : resource + 1])

    def amounts(self, joint: Tensor, minimum: Tensor, largest: Tensor) -> Amounts:
        """The table in the form of Amounts, without the column of void."""
        second = self.within(minimum, largest, 1 - self.first)
        marginal = joint.masked_fill(~second.unsqueeze(-1), MASKED).logsumexp(dim=-2)
        identity = torch.eye(self.columns, dtype=joint.dtype, device=joint.device).expand_as(joint)
        nothing = torch.zeros_like(joint)
        axis = joint.dim() - 2  # of the resources
        return Amounts(
            logits=self._order(marginal, torch.zeros_like(marginal), axis),
            keys=self._order(identity, nothing, axis),
            queries=self._order(nothing, joint, axis),
        )

    def _order(self, first: Tensor, second: Tensor, axis: int) -> Tensor:
        return torch.stack([first, second] if self.first == 0 else [second, first], dim=axis)


class SharedJointAllocation(JointAllocation):
    """The same distributions, learnt faster: each score also has a part for the first amount and one for the second.

    A two-layer perceptron can say nothing more with them than without. But what is learnt about one amount then holds
    for all amounts of the other resource, where hundreds of separate scores would each need their own examples.
    """

    def __init__(self, hidden: int, units: int, first: int) -> None:
        """As in JointAllocation."""
        super().__init__(hidden, units, first)
        self.task[-1] = nn.Linear(2 * hidden, self.columns**2 + 2 * self.columns)

    def table(self, tasks: Tensor) -> Tensor:
        """As in JointAllocation."""
        each, first, second = self.task(tasks).split([self.columns**2, self.columns, self.columns], dim=-1)
        pairs = each.reshape(*tasks.shape[:-1], self.columns, self.columns)
        joint: Tensor = pairs + first.unsqueeze(-2) + second.unsqueeze(-1)
        return joint


class MenuAllocation(nn.Module):
    """One choice from the menu of sizes that fit, each described by its features; any resources and capacities."""

    def __init__(self, hidden: int, features: int) -> None:
        """``features``: number of features of a size."""
        super().__init__()
        self.task = nn.Linear(hidden, hidden)
        self.size = nn.Linear(features, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, tasks: Tensor, inputs: Inputs, amounts: Tensor) -> Amounts:  # noqa: ARG002 - as the others
        """As in the factored head, with as many columns as the menu has."""
        inside = self.task(tasks).unsqueeze(3) + self.size(inputs.menu)
        logits = self.score(torch.relu(inside)).squeeze(4).unsqueeze(3)  # (B, N, K, 1, C)
        nothing = torch.zeros_like(logits).unsqueeze(5)
        return Amounts(logits=logits, keys=nothing, queries=nothing)
