"""Who gets a task that several clusters want: Bayes' rule (Eq. 8 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tapfinger.core.contract import ClusterView, Decision, Placement, Proposal
from tapfinger.core.model import Resources


def posterior(scores: Sequence[float], copies: Sequence[int]) -> list[float]:
    """Pr(n|j) for the competitors, from Pr(j|n) and how many copies of j's minimum fit in n's free resources."""
    weights = [score * count for score, count in zip(scores, copies, strict=True)]
    total = sum(weights)
    if total <= 0.0:
        return [1.0 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def resolve(proposals: Iterable[Proposal], clusters: Sequence[ClusterView], minimum: dict[int, Resources]) -> Decision:
    """Grant each wanted task to the competitor with the largest posterior; the others are void this turn.

    A tie goes to the lowest cluster index, so there is always exactly one winner. ``minimum`` gives
    each wanted task's minimum. Winners are listed by cluster.
    """
    wanted: dict[int, list[Proposal]] = {}
    for proposal in proposals:
        wanted.setdefault(proposal.task, []).append(proposal)
    winners: list[Proposal] = []
    lost: list[Proposal] = []
    for task, rivals in wanted.items():
        if len(rivals) > 1:
            rivals.sort(key=lambda p: p.cluster)
            copies = [clusters[p.cluster].free.copies_of(minimum[task]) for p in rivals]
            shares = posterior([p.score for p in rivals], copies)
            best = max(range(len(rivals)), key=lambda i: (shares[i], -rivals[i].cluster))
            lost += rivals[:best] + rivals[best + 1 :]
            winners.append(rivals[best])
        else:
            winners.append(rivals[0])
    winners.sort(key=lambda p: p.cluster)
    return Decision(
        placements=tuple(Placement(p.task, p.cluster, p.allocation) for p in winners),
        lost=tuple(sorted(lost, key=lambda p: p.cluster)),
    )
