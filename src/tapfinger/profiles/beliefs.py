"""What is believed of a task type's speed, and how tasks that are seen to run change it.

A Gaussian process on the logarithm of the rate, over all allocations x of the type:

    log rate(x) = log told(x) + doubt(x) * (a + f(x) + e(x))

a is one number for the whole type (it is off by a factor), f is smooth in the logarithm of the
allocation relative to the minimum, e is an allocation's own. Their variances are shares of one, so
that ``doubt`` of the profile as told is the standard deviation to begin with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import DONE, MAX_SLOTS, Noise, Resources, TaskType

Floats = npt.NDArray[np.float64]

#: Shares of the variance: the whole type, smooth over allocations, each allocation's own.
WHOLE: Final = 0.8
SMOOTH: Final = 0.18
OWN: Final = 0.02

#: Over which distance in log allocation f forgets: a factor of four.
LENGTH: Final = math.log(4.0)

#: No observation is more exact than this, whatever it rests on (standard deviation of a log rate).
FLOOR: Final = 0.005

#: Rates are given this many standard deviations too high, at most those of the floor. Schedulers round durations up to
#: whole slots: a task that takes four must not be believed to take five for what nobody could have seen.
HAIR: Final = 2.0

#: Beliefs count as changed once, at an allocation that was seen, the log rate has moved by this much, or the doubt by
#: this share of what it was in the beginning.
NEWS: Final = 0.05
LESS_DOUBT: Final = 0.25

#: Inference uses this many allocations at most, those that were seen most: its cost grows with their cube.
MOST_SEEN: Final = 100

#: Predictions are made for this many allocations at a time: memory stays small however large the box.
_CHUNK = 4096

#: Stands for an amount of 0, which has no logarithm.
_HALF_UNIT = 0.5

#: Bounds of log rates: a duration short of MAX_SLOTS, as profiles demand, and a millionth of a slot.
_SLOWEST, _FASTEST = -math.log(MAX_SLOTS) + 1e-6, math.log(1e6)


def bounded_rates(log_rates: Floats) -> tuple[float, ...]:
    """Rates that a profile accepts, whatever the logarithms are."""
    return tuple(np.exp(np.clip(log_rates, _SLOWEST, _FASTEST)).tolist())


def log_sizes(minimum: Resources, maximum: Resources) -> Floats:
    """(cells, resources) log of each allocation of the box relative to the minimum, in the order of a profile."""
    axes = []
    for low, high in zip(minimum, maximum, strict=True):
        amounts = np.maximum(np.arange(low, high + 1), _HALF_UNIT)
        axes.append(np.log(amounts / amounts[0]))
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


@dataclass(slots=True)
class _Seen:
    """All that was seen of one allocation, as sums: in which order it came leaves no trace."""

    #: Slots in which progress was reported; the progress; the same slots, each times its shape and the share not lost.
    slots: int = 0
    gain: float = 0.0
    work: float = 0.0
    #: Runs seen to end; their log rates; variances of these, by rounding to slots and by noise.
    ends: int = 0
    log_rate: float = 0.0
    rounding: float = 0.0
    spread: float = 0.0

    def estimate(self, noise: Noise) -> tuple[float, float]:
        """Log rate and its variance; the latter infinite if nothing can be said yet."""
        found: list[tuple[float, float]] = []
        if self.gain * MAX_SLOTS > self.slots and self.work * MAX_SLOTS > self.slots:
            gain = _without_noise(self.gain / self.slots, noise)
            found.append((math.log(gain * self.slots / self.work), _spread(gain, noise) ** 2 / self.slots + FLOOR**2))
        if self.ends:
            # Equal runs are rounded alike, so their number makes noise smaller but not this.
            variance = self.rounding / self.ends + self.spread / self.ends**2 + FLOOR**2
            found.append((self.log_rate / self.ends, variance))
        if not found:
            return 0.0, math.inf
        precision = sum(1.0 / variance for _, variance in found)
        return sum(value / variance for value, variance in found) / precision, 1.0 / precision


class Belief:
    """The posterior of one task type."""

    def __init__(self, told: TaskType, noise: Noise) -> None:
        """``told``: the type as described, with its doubt; ``noise``: of progress, for weighing what is seen."""
        self._type = told
        self._noise = noise
        profile = told.profile
        self._prior = np.log(profile.rates)  # (cells,)
        self._doubt = np.zeros(len(self._prior)) if profile.doubt is None else np.array(profile.doubt)  # (cells,)
        self._sizes = log_sizes(told.minimum, told.maximum)  # (cells, resources)
        self._seen: dict[int, _Seen] = {}
        self._news = False
        #: Log rates and doubt as last given to anybody; (cells,).
        self._given = (self._prior, self._doubt)

    def see_progress(self, allocation: Resources, before: float, gain: float, lost: float = 0.0) -> None:
        """A task made this much progress in one slot; ``lost``: the share of the slot that a resize cost it."""
        seen = self._at(allocation)
        seen.slots += 1
        seen.gain += gain
        seen.work += self._type.profile.shape(before) * (1.0 - lost)

    def see_end(self, allocation: Resources, slots: int) -> None:
        """A task that had this allocation from start to end took so many slots: the last one perhaps only in part."""
        slowest = least_rate(slots, self._type.profile.shape_offset)
        # A task of one slot may be as fast as it likes: half a slot is assumed at least, the rest makes no difference.
        fastest = least_rate(slots - 1, self._type.profile.shape_offset) if slots > 1 else 2.0 * slowest
        mean_gain = 1.0 / slots
        gain = _without_noise(mean_gain, self._noise)
        seen = self._at(allocation)
        seen.ends += 1
        seen.log_rate += 0.5 * math.log(slowest * fastest) + math.log(gain / mean_gain)
        seen.rounding += math.log(fastest / slowest) ** 2 / 12.0  # uniform between the two
        seen.spread += _spread(gain, self._noise) ** 2 / slots

    def _at(self, allocation: Resources) -> _Seen:
        self._news = True
        return self._seen.setdefault(self._type.profile.index(allocation), _Seen())

    def revised(self) -> TaskType | None:
        """The type as it is believed now; None while that is hardly news since the last time."""
        if not self._news:
            return None
        self._news = False
        solved = self._solve()
        if solved is None:
            return None
        # Elsewhere beliefs only follow those at allocations that were seen, so looking there is enough.
        (mean, doubt), cells = self._predict(solved, solved.cells), solved.cells
        moved = np.abs(mean - self._given[0][cells]) >= NEWS
        surer = self._given[1][cells] - doubt > LESS_DOUBT * self._doubt[cells]
        return self.believed() if (moved | surer).any() else None

    def believed(self) -> TaskType:
        """The type with the mean of the posterior as its rates, and what doubt is left."""
        solved = self._solve()
        if solved is None:
            return self._type
        cells = np.arange(len(self._prior))
        parts = [self._predict(solved, cells[i : i + _CHUNK]) for i in range(0, len(cells), _CHUNK)]
        mean, doubt = (np.concatenate(part) for part in zip(*parts, strict=True))
        self._given = (mean, doubt)
        rates = bounded_rates(mean + HAIR * np.minimum(doubt, FLOOR))
        profile = replace(self._type.profile, rates=rates, doubt=tuple(doubt.tolist()))
        return replace(self._type, profile=profile)

    def _solve(self) -> _Solved | None:
        """Inference at the allocations that were seen; None if nothing was."""
        estimates = {cell: seen.estimate(self._noise) for cell, seen in self._seen.items()}
        usable = [cell for cell, (_, variance) in estimates.items() if math.isfinite(variance)]
        if not usable:
            return None
        usable.sort(key=lambda cell: (-self._seen[cell].slots - self._seen[cell].ends, cell))
        cells = np.array(sorted(usable[:MOST_SEEN]))
        value, variance = np.array([estimates[cell] for cell in cells.tolist()]).T
        covariance = self._covariance(cells, cells) + np.diag(variance)
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        return _Solved(cells, root, root.T @ (root @ (value - self._prior[cells])))

    def _predict(self, solved: _Solved, cells: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log rate at these cells."""
        shared = self._covariance(cells, solved.cells)
        left = self._doubt[cells] ** 2 - ((shared @ solved.root.T) ** 2).sum(axis=1)
        return self._prior[cells] + shared @ solved.weight, np.sqrt(np.maximum(left, 0.0))

    def _covariance(self, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Floats:
        """(one, other) prior covariance of log rates."""
        apart = self._sizes[one][:, None, :] - self._sizes[other][None, :, :]
        alike = WHOLE + SMOOTH * np.exp(-0.5 * (apart**2).sum(axis=2) / LENGTH**2) + OWN * (one[:, None] == other)
        return np.asarray(self._doubt[one][:, None] * self._doubt[other] * alike)


@dataclass(frozen=True, slots=True)
class _Solved:
    """What prediction needs: S allocations seen."""

    cells: npt.NDArray[np.int64]  # (S,)
    root: Floats  # (S, S) inverse of the lower root of the covariance of what was seen
    weight: Floats  # (S,) of each deviation from the prior


def _without_noise(mean_gain: float, noise: Noise) -> float:
    """The gain per slot without noise that shows this mean with it.

    Noise has mean zero, but additive noise never takes a gain below zero: with u uniform on +-A, the
    mean of max(0, g + u) for g < A is (g + A)^2 / 4A, which is solved for g here.
    """
    amplitude = noise.amplitude
    if noise.kind != "additive" or mean_gain >= amplitude:
        return mean_gain
    return max(2.0 * math.sqrt(amplitude * mean_gain) - amplitude, 0.05 * mean_gain)


def _spread(gain: float, noise: Noise) -> float:
    """Standard deviation of one slot's gain, as a share of the gain."""
    if noise.kind == "none":
        return 0.0
    deviation = noise.amplitude / math.sqrt(3.0)  # of a uniform number on +-amplitude
    return deviation if noise.kind == "relative" else deviation / gain


def whole_work(shape_offset: float | None) -> float:
    """Rate times duration, but for rounding: the integral of 1 / shape over all progress."""
    return 1.0 if shape_offset is None else 2.0 * (math.sqrt(shape_offset) - math.sqrt(shape_offset - 1.0))


def least_rate(slots: float, shape_offset: float | None) -> float:
    """The smallest rate that ends a task within so many slots."""
    if shape_offset is None:
        return DONE / slots
    # Within a slot a task keeps the speed it had at its beginning, so it ends before the integral does: by half the
    # log of the first over the last shape (exact to 2 % in one slot with an offset of 1.2, and to 0.3 % in two).
    return whole_work(shape_offset) / (slots + 0.25 * math.log(shape_offset / (shape_offset - 1.0)))
