"""From a network's scores to actions: the best ones, and the probability of each allocation. numpy only.

``policy.distributions`` does the same in torch, for training; tests/policy/test_export.py and test_explain.py check
that the two agree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import Resources
from tapfinger.policy.encoding.inputs import Inputs


def chain_order(accelerator: int, resources: int) -> list[int]:
    """Order in which a task's amounts are decided: the accelerator first; each depends on those before it."""
    return [accelerator, *(r for r in range(resources) if r != accelerator)]


class Scores(NamedTuple):
    """The network's outputs needed to act; shapes as in policy.actor_critic.Outputs."""

    task_logits: Any
    amount_logits: Any
    amount_keys: Any
    amount_queries: Any


class ClusterActions(NamedTuple):
    """What every cluster wants to do."""

    place: npt.NDArray[np.int64]  # (B, N): the pending place, K for void
    amounts: npt.NDArray[np.int64]  # (B, N, R): zero when void
    score: npt.NDArray[np.float64]  # (B, N): Pr(place)


def best_actions(
    scores: Scores | Any, inputs: Inputs, accelerator: int, rng: np.random.Generator | None = None
) -> ClusterActions:
    """The most likely action of every cluster: ``policy.distributions.draw`` in numpy.

    ``rng``: samples the task instead (for a network with a random task by design); amounts are still the best ones.
    A cluster for which the network returns NaN is void, and its score is NaN.
    """
    batch, clusters, places = inputs.startable.shape
    agent = np.arange(batch * clusters)  # (B * N): one axis is faster to index than two
    logits = scores.task_logits.reshape(len(agent), places + 1)
    probabilities = softmax(logits)
    place = _draw(probabilities, rng) if rng is not None else logits.argmax(axis=1)
    score = probabilities[agent, place]
    # A faulty network must not choose a task that is not there, nor give a score that is not finite.
    at = agent * places + np.minimum(place, places - 1)
    placed = inputs.startable.reshape(-1)[at] & (place < places) & np.isfinite(score)
    amounts, numbers = _best_amounts(
        Scores(logits, *(_rows(array, at) for array in scores[1:4])),
        _rows(inputs.minimum, at),
        _rows(inputs.largest, at),
        accelerator,
    )
    score[placed & ~numbers] = np.nan
    placed &= np.isfinite(score)
    place[~placed] = places
    amounts *= placed[:, None]
    return ClusterActions(
        place.reshape(batch, clusters), amounts.reshape(batch, clusters, -1), score.reshape(batch, clusters)
    )


def _rows(array: Any, at: Any) -> Any:
    """Entries of an array (B, N, K, ...) at the flat places ``at``."""
    return array.reshape(-1, *array.shape[3:]).take(at, axis=0)


def _best_amounts(scores: Scores, low: Any, high: Any, accelerator: int) -> tuple[Any, Any]:
    """Amounts (agents, R) of the chosen tasks, and whether their scores are numbers (agents,)."""
    agent, column = np.arange(len(low)), np.arange(scores.amount_logits.shape[2])
    legal = (column >= low[..., None]) & (column <= high[..., None])  # (agents, R, A)
    earlier = np.zeros_like(scores.amount_keys[:, 0, 0])  # (agents, r): sum of the keys of the chosen amounts
    amounts = np.empty_like(low)
    numbers = np.ones(len(low), dtype=np.bool_)
    for r in chain_order(accelerator, low.shape[1]):
        given = scores.amount_logits[:, r] + (scores.amount_queries[:, r] @ earlier[..., None])[..., 0]
        chosen = np.where(legal[:, r], given, -np.inf).argmax(axis=1)
        numbers &= ~np.isnan(given[agent, chosen])
        amounts[:, r] = chosen
        earlier = earlier + scores.amount_keys[agent, r, chosen]
    # A head with too few columns for this range has no legal one; take the nearest legal amount.
    return np.minimum(np.maximum(amounts, low), high), numbers


def softmax(logits: Any) -> npt.NDArray[np.float64]:
    """Probabilities along the last axis."""
    wide = np.asarray(logits, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # infinite scores become NaN, which best_actions treats as void
        weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _draw(probabilities: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Sample one index of the last axis, never one with probability zero."""
    steps = probabilities.cumsum(axis=-1)
    at = rng.random(steps.shape[:-1])[..., None] * steps[..., -1:]
    return np.asarray(np.minimum((steps <= at).sum(axis=-1), steps.shape[-1] - 1))


@dataclass(frozen=True, slots=True)
class Share:
    """An allocation and its probability given the task: the product of the probabilities of its amounts."""

    allocation: Resources
    probability: float


class AmountChain:
    """The amounts of one task on one cluster: the accelerator first; each depends on those before it."""

    def __init__(self, scores: Scores, inputs: Inputs, cluster: int, place: int, accelerator: int) -> None:
        """``scores`` and ``inputs``: a batch of one."""
        at = (0, cluster, place)
        self._logits: Any = scores.amount_logits[at].astype(np.float64)  # (R, A)
        self._keys: Any = scores.amount_keys[at].astype(np.float64)  # (R, A, r)
        self._queries: Any = scores.amount_queries[at].astype(np.float64)  # (R, A, r)
        self._low, self._high = inputs.minimum[at].tolist(), inputs.largest[at].tolist()
        self._order = chain_order(accelerator, len(self._low))

    def top(self, count: int) -> list[Share]:
        """The ``count`` most likely allocations, best first.

        Partial chains are extended in order of probability. No extension can be more likely than its beginning, so the
        chain completed first is the most likely one, for any number of resources.
        """
        heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # -log Pr, amounts so far in the chain's order
        found: list[Share] = []
        while heap and len(found) < count:
            cost, begun = heapq.heappop(heap)
            if len(begun) == len(self._order):
                found.append(Share(self._in_order(begun), math.exp(-cost)))
                continue
            for amount, probability in self._next(begun):
                if probability > 0.0:
                    heapq.heappush(heap, (cost - math.log(probability), (*begun, amount)))
        return found

    def probability(self, allocation: Resources) -> float:
        """Probability of exactly these amounts; zero if they are illegal."""
        chain = [allocation[r] for r in self._order]
        return math.prod(dict(self._next(tuple(chain[:i]))).get(amount, 0.0) for i, amount in enumerate(chain))

    def _next(self, begun: Sequence[int]) -> Iterator[tuple[int, float]]:
        """The legal amounts of the next resource with their probabilities."""
        resource = self._order[len(begun)]
        columns = self._logits.shape[1]
        low, high = self._low[resource], min(self._high[resource], columns - 1)
        if low > high:  # a head with too few columns: best_actions then takes the nearest legal amount
            return iter([(low, 1.0)])
        earlier = sum(
            (self._keys[r, a if a < columns else 0] for r, a in zip(self._order, begun, strict=False)),
            start=np.zeros(self._keys.shape[2]),
        )
        given = self._logits[resource] + self._queries[resource] @ earlier
        odds: npt.NDArray[np.float64] = softmax(given[low : high + 1])
        return zip(range(low, high + 1), odds.tolist(), strict=True)

    def _in_order(self, chain: Sequence[int]) -> Resources:
        amounts = dict(zip(self._order, chain, strict=True))
        return Resources(amounts[r] for r in range(len(chain)))
