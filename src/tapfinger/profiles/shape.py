"""The shape of progress: how far a task is after each part of its time, from measured curves.

In the paper's model of training towards a loss, speed falls as sqrt(offset - progress). The offset is fitted here; for
curves that no offset describes, speed is taken as constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Offsets to try: from a task that all but stops at its end to one that hardly slows down.
OFFSETS: Final = tuple(float(1.0 + x) for x in np.geomspace(0.005, 5.0, 120))

#: The fit is used if it misses the curves by at most ``GOOD`` (root of the mean square), and a constant speed misses
#: them by at least ``BETTER`` times as much.
GOOD: Final = 0.05
BETTER: Final = 1.5

#: Parts of the time at which curves are compared; and the minimum number of points of a curve that is used.
_AT = np.linspace(0.0, 1.0, 21)
LEAST_POINTS: Final = 4

#: (seconds, progress) of one run.
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Shape:
    """Result of fitting the curves of one task type."""

    #: None: speed is nearly constant, or no offset describes the curves.
    offset: float | None
    #: How far the best offset, and a constant speed, miss the curves.
    missed: float
    missed_constant: float
    #: Number of curves that could be used.
    curves: int

    def describe(self) -> str:
        """Description for people to read."""
        if not self.curves:
            return "no curves of progress, so its speed is taken as constant"
        constant = f"a constant speed misses its {self.curves} curves by {self.missed_constant:.3f}"
        if self.offset is not None:
            return f"shape_offset {self.offset:g} misses its {self.curves} curves by {self.missed:.3f}; {constant}"
        return f"{constant}, the best shape_offset by {self.missed:.3f}: its speed is taken as constant"


def from_losses(points: Sequence[tuple[float, float]]) -> Curve:
    """(seconds, loss) until the target is reached -> share of the way from the first loss to the last."""
    (begin, first), (_, last) = points[0], points[-1]
    if not first > last:
        return ()
    return [(seconds - begin, (first - loss) / (first - last)) for seconds, loss in points]


def fit_shape(curves: Sequence[Curve]) -> Shape:
    """Fit one offset to all curves of a task type; curves that do not go from 0 to 1 are not used."""
    usable = [at for at in map(_resampled, curves) if at is not None]
    if not usable:
        return Shape(None, math.nan, math.nan, 0)
    seen = np.stack(usable)
    misses = [_missed(seen, _progress(offset)) for offset in OFFSETS]
    best = int(np.argmin(misses))
    constant = _missed(seen, _AT)
    good = misses[best] <= GOOD and constant >= BETTER * misses[best]
    return Shape(float(f"{OFFSETS[best]:.3g}") if good else None, misses[best], constant, len(usable))


def _resampled(curve: Curve) -> Floats | None:
    if len(curve) < LEAST_POINTS:
        return None
    seconds, progress = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
    progress = np.maximum.accumulate(progress)  # a loss may rise for a moment
    if not (np.isfinite(seconds).all() and (np.diff(seconds) >= 0).all() and seconds[-1] > 0.0):
        return None
    if progress[0] < -1e-6 or not 0.99 <= progress[-1] <= 1.01:
        return None
    there = np.interp(_AT, np.append(0.0, seconds) / seconds[-1], np.append(0.0, progress))
    return np.asarray(there, dtype=np.float64)


def _progress(offset: float) -> Floats:
    """Progress after each part of the time."""
    first, last = math.sqrt(offset), math.sqrt(offset - 1.0)
    return np.asarray(offset - np.square(first - _AT * (first - last)), dtype=np.float64)


def _missed(seen: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.square(seen - expected).mean()))
