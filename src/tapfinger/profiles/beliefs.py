"""Beliefs about a task type's speed, and how observed tasks change them.

A Gaussian process on the logarithm of the rate, over all allocations x of the type:

    log rate(x) = log told(x) + doubt(x) * (a + f(x) + e(x))

a is one number for the whole type (a common factor), f is smooth in the logarithm of the allocation relative to the
minimum, e is independent for each allocation. Their variances sum to one, so that the standard deviation begins at the
``doubt`` of the profile as told. On another kind of hardware a + f is another one, correlated by ``ACROSS``: what is
learned on one kind is believed of the others too, until they have been seen themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapfinger.core.estimates import work
from tapfinger.core.model import DONE, MAX_SLOTS, Noise, Resources, SpeedProfile, TaskType

Floats = npt.NDArray[np.float64]

#: Shares of the variance: common to the whole type, smooth over allocations, independent for each allocation.
WHOLE: Final = 0.8
SMOOTH: Final = 0.18
OWN: Final = 0.02

#: Correlation between kinds of hardware: half of the variance of what is not known is common to all kinds.
ACROSS: Final = 0.5

#: Correlation length of f in log allocation: a factor of four.
LENGTH: Final = math.log(4.0)

#: Minimum standard deviation of an observed log rate, whatever it is based on.
FLOOR: Final = 0.005

#: Assumed difference between runs under equal conditions (standard deviation of the logarithm of their seconds), and
#: its weight in runs.
SCATTER: Final = 0.1
SCATTER_RUNS: Final = 4.0

#: Maximum number of timed runs that count per allocation, the latest with full weight, so that slow changes are
#: followed.
MEMORY: Final = 100.0

#: After a change of speed: remaining doubt about the factor, and about each allocation seen before the change.
CHANGED: Final = 0.2
CHANGED_OWN: Final = 0.05

#: Standard deviations, of at most ``FLOOR`` each, by which log rates are given too high. Schedulers round durations up
#: to whole slots: a task that takes four must not be believed to take five because of an error too small to be seen.
HAIR: Final = 2.0

#: Beliefs count as changed when, at an observed allocation, the log rate has moved by ``NEWS`` or the doubt has fallen
#: by more than ``LESS_DOUBT`` of its initial value.
NEWS: Final = 0.05
LESS_DOUBT: Final = 0.25

#: Maximum number of allocations used for inference, those observed most: its cost grows with their cube.
MOST_SEEN: Final = 100

#: Number of allocations predicted at a time, so that memory stays small however large the box is.
_CHUNK = 4096

#: Number of runs below which the sum is a rounding error.
_NEXT_TO_NOTHING = 1e-6

#: Stands for an amount of 0, which has no logarithm.
_HALF_UNIT = 0.5

#: Bounds of log rates: a duration just below MAX_SLOTS, as profiles demand, and a millionth of a slot.
_SLOWEST, _FASTEST = -math.log(MAX_SLOTS) + 1e-6, math.log(1e6)


def bounded_rates(log_rates: Floats) -> tuple[float, ...]:
    """Rates that a profile accepts, whatever the logarithms are."""
    return tuple(np.exp(np.clip(log_rates, _SLOWEST, _FASTEST)).tolist())


def log_axes(minimum: Resources, maximum: Resources) -> list[Floats]:
    """For each resource, the logarithms of its amounts relative to the minimum."""
    axes = []
    for low, high in zip(minimum, maximum, strict=True):
        amounts = np.maximum(np.arange(low, high + 1), _HALF_UNIT)
        axes.append(np.log(amounts / amounts[0]))
    return axes


def log_sizes(minimum: Resources, maximum: Resources) -> Floats:
    """(cells, resources) log of each allocation of the box relative to the minimum, in the order of a profile."""
    axes = log_axes(minimum, maximum)
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


@dataclass(slots=True)
class _Seen:
    """Observations of one allocation, as sums that do not depend on their order (up to ``MEMORY`` timed runs)."""

    #: Slots with reported progress; their progress; the same slots, each times its shape and the share not lost.
    slots: int = 0
    gain: float = 0.0
    work: float = 0.0
    #: Runs seen to end; their log rates; variances of the log rates, by rounding to slots and by noise.
    ends: int = 0
    log_rate: float = 0.0
    rounding: float = 0.0
    spread: float = 0.0
    #: Runs timed to the second, each counted by the share of it that was seen; their log rates, and the squares of the
    #: log rates.
    runs: float = 0.0
    timed: float = 0.0
    squares: float = 0.0

    @property
    def weight(self) -> float:
        """Amount of observations."""
        return self.slots + self.ends + self.runs

    def time(self, log_rate: float, share: float) -> None:
        """Add a run; a negative share removes one."""
        if self.runs + share > MEMORY:
            kept = (MEMORY - share) / self.runs
            self.runs, self.timed, self.squares = kept * self.runs, kept * self.timed, kept * self.squares
        self.runs, self.timed = max(0.0, self.runs + share), self.timed + share * log_rate
        self.squares += share * log_rate**2
        if self.runs < _NEXT_TO_NOTHING:
            self.runs = self.timed = self.squares = 0.0

    def estimate(self, noise: Noise, scatter: float = SCATTER) -> tuple[float, float]:
        """Log rate and its variance; the variance is infinite if nothing is known yet."""
        found: list[tuple[float, float]] = []
        if self.runs:
            found.append((self.timed / self.runs, scatter**2 / self.runs + FLOOR**2))
        if self.gain * MAX_SLOTS > self.slots and self.work * MAX_SLOTS > self.slots:
            gain = _without_noise(self.gain / self.slots, noise)
            found.append((math.log(gain * self.slots / self.work), _spread(gain, noise) ** 2 / self.slots + FLOOR**2))
        if self.ends:
            # Equal runs are rounded alike, so more runs reduce the noise but not the rounding error.
            variance = self.rounding / self.ends + self.spread / self.ends**2 + FLOOR**2
            found.append((self.log_rate / self.ends, variance))
        if not found:
            return 0.0, math.inf
        precision = sum(1.0 / variance for _, variance in found)
        return sum(value / variance for value, variance in found) / precision, 1.0 / precision


@dataclass(frozen=True, slots=True)
class Timed:
    """A timed run, or a part of one, at one allocation."""

    allocation: Resources
    log_rate: float
    #: Share of the task that was run.
    share: float
    #: Where it ran; None: on the usual hardware.
    hardware: str | None = None


class Belief:
    """Posterior belief about the speed of one task type."""

    def __init__(self, told: TaskType, noise: Noise) -> None:
        """``told``: the type as described, with its doubt; ``noise``: noise of progress, for weighing observations."""
        self._type = told
        self._noise = noise
        profiles = [told.on(kind).profile for kind, _ in told.profiles] or [told.profile]
        self._cells = len(told.profile.rates)  # of one kind of hardware
        #: Where the cells of a kind of hardware begin.
        self._first = {kind: n * self._cells for n, kind in enumerate(dict(told.profiles) or [told.hardware])}
        self._prior = np.concatenate([np.log(p.rates) for p in profiles])  # (cells of all kinds,)
        self._doubt = np.concatenate([np.zeros(self._cells) if p.doubt is None else p.doubt for p in profiles])
        self._sizes = np.tile(log_sizes(told.minimum, told.maximum), (len(profiles), 1))  # (cells, resources)
        self._seen: dict[int, _Seen] = {}
        #: Observations before the speed changed, and the change of the log rate.
        self._before: dict[int, _Seen] = {}
        self._shift = 0.0
        self._news = False
        #: Log rates and doubt as last returned; (cells,).
        self._given = (self._prior, self._doubt)

    def see_progress(
        self, allocation: Resources, before: float, gain: float, lost: float = 0.0, hardware: str | None = None
    ) -> None:
        """A task made this much progress in one slot; ``lost``: the share of the slot that a resize cost it.

        ``hardware``: where, here and below; the usual one if left out.
        """
        seen = self._at(self.cell(allocation, hardware))
        seen.slots += 1
        seen.gain += gain
        seen.work += self._on(hardware).shape(before) * (1.0 - lost)

    def see_end(self, allocation: Resources, slots: int, hardware: str | None = None) -> None:
        """A task that had this allocation from start to end took this many slots, the last perhaps in part."""
        offset = self._on(hardware).shape_offset
        slowest = least_rate(slots, offset)
        # A task of one slot may be arbitrarily fast: at least half a slot is assumed, as less makes no difference.
        fastest = least_rate(slots - 1, offset) if slots > 1 else 2.0 * slowest
        mean_gain = 1.0 / slots
        gain = _without_noise(mean_gain, self._noise)
        seen = self._at(self.cell(allocation, hardware))
        seen.ends += 1
        seen.log_rate += 0.5 * math.log(slowest * fastest) + math.log(gain / mean_gain)
        seen.rounding += math.log(fastest / slowest) ** 2 / 12.0  # uniform between the two
        seen.spread += _spread(gain, self._noise) ** 2 / slots

    def see_run(
        self, allocation: Resources, slots: float, begin: float = 0.0, end: float = 1.0, hardware: str | None = None
    ) -> Timed:
        """A run took ``slots``, timed to the second, from progress ``begin`` to ``end``; ``add`` can take it back."""
        whole = work(self._on(hardware).shape_offset, begin, end)
        timed = Timed(allocation, math.log(whole / max(slots, 1.0 / MAX_SLOTS)), end - begin, hardware)
        self.add(timed)
        return timed

    def add(self, timed: Timed, times: float = 1.0) -> None:
        """Count a timed run; ``times`` = -1 takes it back."""
        self._at(self.cell(timed.allocation, timed.hardware)).time(timed.log_rate, times * timed.share)

    def deviation(self, timed: Timed) -> float | None:
        """Log rate of a run minus the mean of the other runs at its allocation; None if there are none."""
        seen = self._seen.get(self.cell(timed.allocation, timed.hardware))
        return None if seen is None or seen.runs < 1.0 else timed.log_rate - seen.timed / seen.runs

    def surprise(self, timed: Timed) -> float | None:
        """``deviation`` of a run, in standard deviations of such runs.

        As long as the speed does not change, the surprises of successive runs are independent and standard normal.
        """
        off = self.deviation(timed)
        if off is None:
            return None
        others = self._seen[self.cell(timed.allocation, timed.hardware)].runs
        return off / (self.scatter * math.sqrt(1.0 / timed.share + 1.0 / others))

    @property
    def scatter(self) -> float:
        """How much runs under equal conditions differ: standard deviation of the logarithm of their seconds."""
        total, count = SCATTER_RUNS * SCATTER**2, SCATTER_RUNS
        for seen in (*self._seen.values(), *self._before.values()):
            if seen.runs > 1.0:
                total += max(0.0, seen.squares - seen.timed**2 / seen.runs)
                count += seen.runs - 1.0
        return max(FLOOR, math.sqrt(total / count))

    @property
    def runs(self) -> dict[int, float]:
        """Position in the profile -> timed runs since the speed last changed."""
        return {cell: seen.runs for cell, seen in self._seen.items() if seen.runs}

    def changed(self, shift: float) -> None:
        """From now on log rates are higher by about ``shift``: how sizes compare is kept, the rest is learned again."""
        self._before, self._seen, self._shift = self._seen, {}, shift
        self._news = True

    def state(self) -> dict[str, Any]:
        """All timed runs as plain data, for ``restore``."""
        both = {"seen": self._seen, "before": self._before}
        sums = {
            name: {str(cell): [s.runs, s.timed, s.squares] for cell, s in sorted(seen.items()) if s.runs}
            for name, seen in both.items()
        }
        return {**sums, "shift": self._shift}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned for the same profile."""
        self._seen, self._before = (
            {int(cell): _Seen(runs=r, timed=t, squares=q) for cell, (r, t, q) in state[name].items()}
            for name in ("seen", "before")
        )
        self._shift, self._news = float(state["shift"]), True

    def cell(self, allocation: Resources, hardware: str | None = None) -> int:
        """Position of an allocation in the profile, counted through the profiles of all kinds of hardware."""
        return self._first[self._kind(hardware)] + self._type.profile.index(allocation)

    def _kind(self, hardware: str | None) -> str:
        return self._type.hardware if hardware is None else hardware

    def _on(self, hardware: str | None) -> SpeedProfile:
        return self._type.on(self._kind(hardware)).profile

    def _at(self, cell: int) -> _Seen:
        self._news = True
        return self._seen.setdefault(cell, _Seen())

    def revised(self) -> TaskType | None:
        """The type as it is believed now; None if that has hardly changed since the last time."""
        if not self._news:
            return None
        self._news = False
        solved = self._solve()
        if solved is None:
            return None
        # Beliefs elsewhere only follow those at observed allocations, so it is enough to look at these.
        (mean, doubt), cells = self._predict(solved, solved.cells), solved.cells
        moved = np.abs(mean - self._given[0][cells]) >= NEWS
        surer = self._given[1][cells] - doubt > LESS_DOUBT * self._doubt[cells]
        return self.believed() if (moved | surer).any() else None

    def believed(self) -> TaskType:
        """The type with the posterior mean as its rates, and the remaining doubt."""
        solved = self._solve()
        if solved is None:
            return self._type
        cells = np.arange(len(self._prior))
        parts = [self._predict(solved, cells[i : i + _CHUNK]) for i in range(0, len(cells), _CHUNK)]
        mean, doubt = (np.concatenate(part) for part in zip(*parts, strict=True))
        self._given = (mean, doubt)
        log_rates, begins = mean + HAIR * np.minimum(doubt, FLOOR), iter(self._first.values())

        def learned(told: SpeedProfile) -> SpeedProfile:
            begin = next(begins)
            here = slice(begin, begin + self._cells)
            return replace(told, rates=bounded_rates(log_rates[here]), doubt=tuple(doubt[here].tolist()))

        return self._type.with_profiles(learned)

    def _solve(self) -> _Solved | None:
        """Inference at the observed allocations; None if there are none."""
        found = self._observed(self._seen, False) + self._observed(self._before, True)
        if not found:
            return None
        cells = np.array([row[0] for row in found])
        value, variance, before = (np.array([float(row[n]) for row in found]) for n in (1, 2, 3))
        # Observations before a change share one error: the size of the change is not known exactly.
        together = CHANGED**2 * np.outer(before, before)
        covariance = self._covariance(cells, cells) + np.diag(variance) + together
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        return _Solved(cells, root, root.T @ (root @ (value - self._prior[cells])))

    def _observed(self, seen: Mapping[int, _Seen], before: bool) -> list[tuple[int, float, float, bool]]:
        """(cell, log rate, its variance, whether before the change) for the allocations observed most."""
        scatter = self.scatter if any(s.runs for s in seen.values()) else SCATTER
        estimates = {cell: s.estimate(self._noise, scatter) for cell, s in seen.items()}
        usable = [cell for cell, (_, variance) in estimates.items() if math.isfinite(variance)]
        usable.sort(key=lambda cell: (-seen[cell].weight, cell))
        shift, more = (self._shift, CHANGED_OWN**2) if before else (0.0, 0.0)
        return [(c, estimates[c][0] + shift, estimates[c][1] + more, before) for c in sorted(usable[:MOST_SEEN])]

    def _predict(self, solved: _Solved, cells: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log rate at these cells."""
        shared = self._covariance(cells, solved.cells)
        left = self._doubt[cells] ** 2 - ((shared @ solved.root.T) ** 2).sum(axis=1)
        return self._prior[cells] + shared @ solved.weight, np.sqrt(np.maximum(left, 0.0))

    def _covariance(self, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Floats:
        """(one, other) prior covariance of log rates."""
        apart = self._sizes[one][:, None, :] - self._sizes[other][None, :, :]
        alike = WHOLE + SMOOTH * np.exp(-0.5 * (apart**2).sum(axis=2) / LENGTH**2)
        if len(self._first) > 1:
            alike *= np.where((one // self._cells)[:, None] == other // self._cells, 1.0, ACROSS)
        alike += OWN * (one[:, None] == other)
        return np.asarray(self._doubt[one][:, None] * self._doubt[other] * alike)


@dataclass(frozen=True, slots=True)
class _Solved:
    """What prediction needs. S observed allocations."""

    cells: npt.NDArray[np.int64]  # (S,)
    root: Floats  # (S, S) inverse of the lower Cholesky factor of the observations' covariance
    weight: Floats  # (S,) of each deviation from the prior


def _without_noise(mean_gain: float, noise: Noise) -> float:
    """Noise-free gain per slot that would show this mean under noise.

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


def least_rate(slots: float, shape_offset: float | None) -> float:
    """The smallest rate that ends a task within this many slots."""
    if shape_offset is None:
        return DONE / slots
    # Within a slot a task keeps the speed it had at the beginning of the slot, so it ends earlier than the integral
    # says: by half the log of the first over the last shape (exact to 2 % in one slot with an offset of 1.2, and to
    # 0.3 % in two).
    return work(shape_offset) / (slots + 0.25 * math.log(shape_offset / (shape_offset - 1.0)))
