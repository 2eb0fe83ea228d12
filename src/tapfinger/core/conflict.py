"""Who gets a task that several clusters want: Bayes' rule (Eq. 8 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tapfinger.core.contract import Decision, Placement, Proposal
from tapfinger.core.model import Resources
from tapfinger.core.spans import pooled
from tapfinger.errors import InvalidDecision


def posterior(scores: Sequence[float], copies: Sequence[int]) -> list[float]:
    """Pr(n|j) for the competitors, from Pr(j|n) and how many copies of j's minimum fit in n's free resources."""
    weights = [score * count for score, count in zip(scores, copies, strict=True)]
    total = sum(weights)
    if total <= 0.0:
        return [1.0 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


@dataclass(frozen=True, slots=True)
class Contest:
    """Clusters that want the same task."""

    #: Proposals for the task, in order of cluster.
    rivals: tuple[Proposal, ...]
    #: How many copies of the task's minimum fit in each rival's free resources.
    copies: tuple[int, ...]

    @property
    def winner(self) -> Proposal:
        """The rival with the largest posterior; a tie goes to the lowest cluster index."""
        # All rivals have the same denominator in Bayes' rule, so weights are compared instead of rounded quotients.
        return max(zip(self.rivals, self.copies, strict=True), key=lambda rival: rival[0].score * rival[1])[0]

    @property
    def prior(self) -> list[float]:
        """Pr(n) of each rival: its posterior if all wanted the task equally."""
        return posterior([1.0] * len(self.rivals), self.copies)

    @property
    def posterior(self) -> list[float]:
        """Pr(n|j) of each rival."""
        return posterior([rival.score for rival in self.rivals], self.copies)


def contest(rivals: Iterable[Proposal], free: Sequence[Resources], minimum: Resources) -> Contest:
    """The contest between these rivals for one task with this minimum."""
    ordered = tuple(sorted(rivals, key=lambda p: p.cluster))
    return Contest(ordered, tuple(free[p.cluster].copies_of(minimum) for p in ordered))


def resolve(
    proposals: Iterable[Proposal],
    free: Sequence[Resources],
    minimum: Mapping[int, Resources],
    spans: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> Decision:
    """Grant each wanted task to the competitor with the largest posterior; the others are void this turn.

    ``free`` is what each cluster has left, ``minimum`` each wanted task's minimum. A tie goes to the
    lowest cluster index, so there is always exactly one winner. Winners are listed in order of cluster.

    ``spans``: the nodes of each span (``Snapshot.spans``). A span is void as well if what its nodes start themselves
    leaves too little.
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
        best = rivals[0]
        if len(rivals) > 1:
            best = contest(rivals, free, minimum[task]).winner
            lost += [p for p in rivals if p is not best]
        winners.append(best)
    crowded = crowded_out(winners, free, spans)
    lost += crowded
    winners = [p for p in winners if p not in crowded]
    winners.sort(key=lambda p: p.cluster)
    return Decision(
        placements=tuple(Placement(p.task, p.cluster, p.allocation) for p in winners),
        lost=tuple(sorted(lost, key=lambda p: p.cluster)),
    )


Start = TypeVar("Start", Proposal, Placement)


def crowded_out(
    starts: Iterable[Start], free: Sequence[Resources], spans: Mapping[int, tuple[int, ...]]
) -> list[Start]:
    """The starts on spans, one for each cluster at most, for which the others leave too little on their nodes."""
    if not spans:
        return []
    left = list(free)
    found = sorted(starts, key=lambda start: start.cluster in spans)
    for start in found:
        left[start.cluster] = left[start.cluster] - start.allocation
    return [
        start
        for start in found
        if start.cluster in spans and not start.allocation.fits(pooled([left[n] for n in spans[start.cluster]]))
    ]
