"""How likely each allocation of one task is, from the exported network's scores of its amounts. numpy only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import Resources
from tapfinger.policy.exported import Scores, softmax
from tapfinger.policy.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Share:
    """An allocation and its probability, given the task: the product of those of its amounts."""

    allocation: Resources
    probability: float


class AmountChain:
    """The amounts of one task on one cluster: the accelerator first, each of the others given those before it."""

    def __init__(self, scores: Scores, inputs: Inputs, cluster: int, place: int, accelerator: int) -> None:
        """``scores`` and ``inputs``: a batch of one."""
        at = (0, cluster, place)
        self._logits: Any = scores.amount_logits[at].astype(np.float64)  # (R, A)
        self._keys: Any = scores.amount_keys[at].astype(np.float64)  # (R, A, r)
        self._queries: Any = scores.amount_queries[at].astype(np.float64)  # (R, A, r)
        self._low, self._high = inputs.minimum[at].tolist(), inputs.largest[at].tolist()
        self._order = [accelerator, *(r for r in range(len(self._low)) if r != accelerator)]

    def top(self, count: int) -> list[Share]:
        """The ``count`` most likely allocations, best first.

        Beginnings of the chain are followed in order of their probability, which no continuation can exceed,
        so what is complete first is the most likely, whatever the number of resources.
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
        """Of exactly these amounts; zero if they are not legal."""
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
