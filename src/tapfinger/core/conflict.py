"""Who gets a task that several clusters want: Bayes' rule (Eq. 8 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tapfinger.core.contract import Decision, Placement, Proposal
from tapfinger.core.model import Resources
from tapfinger.errors import InvalidDecision


def posterior(scores: Sequence[float], copies: Sequence[int]) -> list[float]:
    """Pr(n|j) for the competitors, from Pr(j|n) and how many copies of j's minimum fit in n's free resources."""
    weights = [score * count for score, count in zip(scores, copies, strict=True)]
    total = sum(weights)
    if total <= 0.0:
        return [1.0 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def resolve(proposals: Iterable[Proposal], free: Sequence[Resources], minimum: Mapping[int, Resources]) -> Decision:
    """Grant each wanted task to the competitor with the largest posterior; the others are void this turn.

    ``free`` is what each cluster has left, ``minimum`` each wanted task's minimum. A tie goes to the
    lowest cluster index, so there is always exactly one winner. Winners are listed by cluster.
    """
    wanted: dict[int, list[Proposal]] = {}
    for proposal in proposals:
        if not (math.isfinite(proposal.score) and proposal.score >= 0.0):
            raise InvalidDecision(
                f"proposal of cluster {proposal.cluster} for task {proposal.task}: score {proposal.score} must be a "
                "probability, finite and zero or more"
            )
        wanted.setdefault(proposal.task, []).append(proposal)
    winners: list[Proposal] = []
    lost: list[Proposal] = []
    for task, rivals in wanted.items():
        # The denominator of Bayes' rule is the same for all rivals: weights are compared, not rounded quotients.
        best = rivals[0]
        if len(rivals) > 1:
            rivals.sort(key=lambda p: p.cluster)
            best = max(rivals, key=lambda p: p.score * free[p.cluster].copies_of(minimum[task]))
            lost += [p for p in rivals if p is not best]
        winners.append(best)
    winners.sort(key=lambda p: p.cluster)
    return Decision(
        placements=tuple(Placement(p.task, p.cluster, p.allocation) for p in winners),
        lost=tuple(sorted(lost, key=lambda p: p.cluster)),
    )
