"""What a cluster can foresee of the contest for a task: how much the others want it, and who wins by Bayes' rule.

All clusters are asked at once, so two of them may want the same task, and one of them then starts nothing. By
seeing each other's first choices, they can keep out of each other's way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import at_nodes, rows_of

#: Columns of ``rivalry``.
COLUMNS = 3


def rivalry(logits: Tensor, inputs: Inputs) -> Tensor:
    """(B, N, K, 3) from task logits (B, N, K + 1): own wish, the wishes of all others, own share of the best weight.

    A wish is Pr(j|n); a weight is the wish times the copies of the minimum that fit, as in Bayes' rule: the last column
    is 1 for the cluster that would win.
    """
    wish = torch.softmax(logits, dim=2)[:, :, :-1]
    weight = wish * inputs.copies
    rows = rows_of(inputs.node, inputs.pending)
    wanted = at_nodes(wish, inputs).sum(dim=1).reshape(-1)[rows]
    best = at_nodes(weight, inputs).amax(dim=1).reshape(-1)[rows]
    return torch.stack([wish, wanted - wish, weight / best.clamp(min=1e-9)], dim=3)
