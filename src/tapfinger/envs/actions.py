"""Actions and observations as Gymnasium spaces.

An agent's action is (place, amount of each resource): a place in its cluster's pending set, or the
number after the last place for void, and the allocation in smallest units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tapfinger.core.model import Resources
from tapfinger.errors import InvalidDecision
from tapfinger.observation import GraphObs
from tapfinger.workloads.world import World

Ints = npt.NDArray[np.int64]
Masks = tuple[npt.NDArray[np.int8], ...]

#: Upper bound of otherwise unbounded counts (backlog, slots run): float32 holds all integers up to it exactly.
MANY = 2.0**24


class ActionCoding:
    """Spaces, masks and parsing of the actions of every cluster of one world."""

    def __init__(self, world: World, pending: int) -> None:
        """``pending``: size of the pending set an agent chooses from."""
        self.pending = pending
        self.names = world.resources.names
        most = [max(amounts) for amounts in zip(*(t.maximum for t in world.task_types), strict=True)]
        #: Per cluster, the largest amount of each resource that any task could get there.
        self.most = [Resources(most).at_most(c.capacity) for c in world.clusters]

    def sizes(self, n: int) -> list[int]:
        """Number of values of each component of cluster n's action."""
        return [self.pending + 1, *(amount + 1 for amount in self.most[n])]

    def masks(self, obs: GraphObs, minimum: Ints) -> list[Masks]:
        """Masks per cluster, as ``MultiDiscrete.sample`` takes them; void is always open, so no component is fully
        masked.

        Which amounts are legal depends on the place; an amount is open if it is legal for some startable task.
        """
        places = np.ones((len(self.most), self.pending + 1), dtype=np.int8)
        places[:, :-1] = obs.startable
        amounts = []
        for r in range(len(self.names)):
            value = np.arange(max(most[r] for most in self.most) + 1)
            low, high = minimum[:, :, r, None], obs.largest[:, :, r, None]  # (N, K, 1)
            legal = (low <= value) & (value <= high) & obs.startable[:, :, None]
            mask: npt.NDArray[np.int8] = np.asarray(legal.any(axis=1), dtype=np.int8)  # (N, values)
            mask[~obs.startable.any(axis=1), 0] = 1
            amounts.append(mask)
        return [
            (places[n], *(mask[n, : most[r] + 1] for r, mask in enumerate(amounts))) for n, most in enumerate(self.most)
        ]

    def read(self, n: int, action: Any) -> list[int]:
        """Cluster n's action as plain integers; anything that is not an action raises an error."""
        numbers = np.asarray(action)
        if numbers.shape != (1 + len(self.names),) or not np.issubdtype(numbers.dtype, np.integer):
            raise InvalidDecision(
                f"the action of cluster {n} must be {1 + len(self.names)} integers (place, {', '.join(self.names)}), "
                f"got {action!r}"
            )
        return cast(list[int], numbers.tolist())


def minimum_of(obs: GraphObs) -> Ints:
    """(N, K, R) minimum of every pending task that may start now, 0 elsewhere."""
    resources = obs.largest.shape[2]
    amounts = obs.pending_features[obs.node][:, :, :resources] * obs.startable[:, :, None]
    return amounts.astype(np.int64)


def feature_box(amounts: Sequence[int], width: int, *rows: int, last: float) -> spaces.Box:
    """Space of rows, ``width`` wide: amounts, then values up to 1, then a number up to ``last``."""
    high = np.ones(width, dtype=np.float32)
    high[: len(amounts)] = np.maximum(1, amounts)  # a bound of 0 would look like a mistake to checkers
    high[-1] = last
    return spaces.Box(0.0, np.broadcast_to(high, (*rows, width)).copy(), dtype=np.float32)


def amount_box(amounts: Sequence[int], *rows: int) -> spaces.Box:
    """Space of rows of allocations."""
    high = np.broadcast_to(np.maximum(1, amounts), (*rows, len(amounts))).astype(np.int64)
    return spaces.Box(np.zeros_like(high), high, dtype=np.int64)


def mask_box(size: int) -> spaces.Box:
    """Space of one component's mask."""
    return spaces.Box(0, 1, (size,), dtype=np.int8)
