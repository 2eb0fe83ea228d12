"""Repeated runs of the same allocations: their combined result, and how far one run can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Assumed standard deviation of a run's log seconds; it counts as much as one repeated allocation.
USUAL: Final = 0.03

#: Minimum standard deviation of a run's log seconds.
FLOOR: Final = 0.001

#: Weight of the common noise against an allocation's own spread, in repeats.
OTHERS: Final = 2.0

#: Shrinkage of what all n-th runs have in common: the weight of no effect, in allocations.
_SHY: Final = 2.0


@dataclass(frozen=True)
class Repeats:
    """Result of the repeats, allocation by allocation."""

    #: (cells,) logarithm of the mean seconds, as profiles average them.
    log_seconds: Floats
    #: (cells,) variance of the log seconds due to noise.
    variance: Floats
    #: Variance of the log seconds of one typical run.
    noise: float


def summarise(cells: Sequence[Sequence[float]]) -> Repeats:
    """Combine the seconds of each repeat of each cell, in the order in which they were run.

    A difference between all first and all second runs (cold caches, disks that spin up) is not noise: it is the same
    for every cell. Noise is the median spread, so that a few runs that went wrong do not make all the others doubtful;
    cells whose own repeats disagree are trusted less.
    """
    logs = [np.log(np.asarray(seconds, dtype=np.float64)) for seconds in cells]
    counts = np.array([len(runs) for runs in logs], dtype=np.float64)
    turn = _turns(logs)
    rest = [runs - turn[: len(runs)] for runs in logs]
    squares = np.array([float(np.square(r - r.mean()).sum()) for r in rest])
    free = counts - 1.0
    repeated = free > 0
    noise = USUAL**2
    if repeated.any():
        # The median of a chi-square over its degrees of freedom (Wilson and Hilferty) makes the median comparable.
        typical = np.median(squares[repeated] / free[repeated] / (1.0 - 2.0 / (9.0 * free[repeated])) ** 3)
        seen = float(repeated.sum())
        logarithm = (math.log(noise) + seen * math.log(max(float(typical), FLOOR**2))) / (1.0 + seen)
        noise = math.exp(logarithm)
    variance = (OTHERS * noise + squares) / (OTHERS + free) / counts
    means = [math.log(float(np.mean(np.exp(runs)))) for runs in logs]
    return Repeats(np.array(means), variance, noise)


def _turns(logs: Sequence[Floats]) -> Floats:
    """What the first, second, ... runs of all cells have in common, in log seconds."""
    most = max(map(len, logs), default=0)
    turn = np.zeros(most)
    many = [runs for runs in logs if len(runs) > 1]
    counts = np.array([sum(len(runs) > i for runs in many) for i in range(most)], dtype=np.float64)
    if not counts.any():
        return turn
    for _ in range(20):  # cells and turns explain each other; this settles in a few passes
        rest = [(runs, float(np.mean(runs - turn[: len(runs)]))) for runs in many]
        turn = np.array([float(np.median([runs[i] - m for runs, m in rest if len(runs) > i])) for i in range(most)])
        turn *= counts / (counts + _SHY)
        turn -= np.average(turn, weights=counts)
    return turn
