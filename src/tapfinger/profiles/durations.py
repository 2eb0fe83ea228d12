"""Mean durations of a profile's sizes, as repeated runs would show them, and its efficient sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import DONE, Noise, Resources, SpeedProfile, TaskType

#: Sampled runs per rate when progress is noisy; the standard error of a mean is then below 2 %.
_SAMPLES = 1024

#: Number of cached results: enough for all types of a comparison; results of old beliefs must not pile up.
_KEPT = 256

#: A larger size is kept only if its duration is at most this share of that of every smaller one.
_WORTH_HAVING = 0.99


@dataclass(frozen=True, slots=True)
class TimedSize:
    """One allocation of a task type and the mean number of slots the task takes with it."""

    allocation: Resources
    slots: float


@lru_cache(maxsize=_KEPT)
def mean_slots(profile: SpeedProfile, noise: Noise) -> npt.NDArray[np.float64]:
    """Mean whole slots from start to end for every allocation of the profile; (cells,) in its order."""
    rates, cell_of = np.unique(np.asarray(profile.rates), return_inverse=True)
    if noise.kind == "none":
        slots = np.array([profile.slots(allocation) for allocation in _one_cell_each(profile, cell_of, len(rates))])
        return np.asarray(slots[cell_of], dtype=np.float64)
    if profile.shape_offset is not None:
        return _played(rates, profile.shape_offset, noise)[cell_of]
    # If progress can stand still for a slot, thresholds are not a simple function of the draws.
    clipped = int(np.searchsorted(rates, noise.amplitude)) if noise.kind == "additive" else 0
    slots = np.concatenate([_played(rates[:clipped], None, noise), _by_threshold(rates[clipped:], noise)])
    return np.asarray(slots[cell_of], dtype=np.float64)


def _draws(noise: Noise) -> Iterator[npt.NDArray[np.float64]]:
    """(samples,) deviations, slot after slot, without end; the same for every rate."""
    rng = np.random.default_rng(20230201)  # fixed: the estimate is part of the profile, not of a run
    while True:
        yield rng.uniform(-noise.amplitude, noise.amplitude, _SAMPLES)


def _played(rates: npt.NDArray[np.float64], offset: float | None, noise: Noise) -> npt.NDArray[np.float64]:
    """Mean slots at ascending rates, by playing every sampled run slot by slot."""
    progress = np.zeros((len(rates), _SAMPLES))
    count = np.zeros((len(rates), _SAMPLES))
    left = len(rates)  # the fastest end first and are no longer played
    for u in _draws(noise):
        going = progress[:left] < DONE
        left = int(np.flatnonzero(going.any(axis=1))[-1]) + 1 if going.any() else 0
        if not left:
            break
        going, now = going[:left], progress[:left]
        gain = np.broadcast_to(rates[:left, None], now.shape)
        if offset is not None:
            gain = gain * np.sqrt(np.maximum(0.0, offset - now))
        gain = np.maximum(0.0, gain + u) if noise.kind == "additive" else gain * (1.0 + u)
        np.add(now, gain, out=now, where=going)
        count[:left] += going
    return np.asarray(count.mean(axis=1))


def _by_threshold(rates: npt.NDArray[np.float64], noise: Noise) -> npt.NDArray[np.float64]:
    """The same for speeds that do not change with progress and never stand still, without playing each rate.

    After k slots a run has made k * rate + sum of u (additive) or rate * (k + sum of u) (relative). So each sample has
    a least rate that is done by then, and a rate is still running in every sample whose least rate is higher.
    """
    going = np.zeros(len(rates))  # summed over slots and samples
    total = np.zeros(_SAMPLES)
    least = np.full(_SAMPLES, np.inf)
    for k, u in enumerate(_draws(noise), start=1):
        total += u
        # A run may have been done earlier and then slip back: hence the minimum.
        least = np.minimum(least, (DONE - total) / k if noise.kind == "additive" else DONE / (k + total))
        some = int(np.searchsorted(rates, least.max()))
        every = int(np.searchsorted(rates, least.min()))
        going[:every] += _SAMPLES
        if some > every:
            going[every:some] += _SAMPLES - np.searchsorted(np.sort(least), rates[every:some], side="right")
        if not some:
            break
    return 1.0 + going / _SAMPLES


def _one_cell_each(profile: SpeedProfile, cell_of: npt.NDArray[np.int64], rates: int) -> list[Resources]:
    """One allocation for each distinct rate."""
    first = np.full(rates, -1)
    first[cell_of[::-1]] = np.arange(len(cell_of))[::-1]
    corner = np.unravel_index(first, profile.extent)
    return [Resources(np.add(cell, profile.minimum).tolist()) for cell in zip(*corner, strict=True)]


@lru_cache(maxsize=_KEPT)
def efficient_sizes(task_type: TaskType, noise: Noise) -> tuple[TimedSize, ...]:
    """The sizes that no smaller one (in every resource) matches in speed, fastest first.

    Works on any table: never assumes that more is faster.
    """
    profile = task_type.profile
    slots = mean_slots(profile, noise).reshape(profile.extent)
    best = slots.copy()  # least slots among all sizes at most as large, the size itself included
    for axis in range(slots.ndim):
        best = np.minimum.accumulate(best, axis=axis)
    smaller = np.full_like(slots, np.inf)  # the same without the size itself
    for axis in range(slots.ndim):
        shifted = np.roll(best, 1, axis=axis)
        shifted[(slice(None),) * axis + (0,)] = np.inf
        smaller = np.minimum(smaller, shifted)
    cells = np.argwhere(slots < smaller)  # (candidates, resources), lexicographic: smaller sizes come first
    durations = slots[tuple(cells.T)]
    kept = np.zeros(len(cells), dtype=np.bool_)
    for i, (cell, duration) in enumerate(zip(cells, durations.tolist(), strict=True)):
        rivals = kept[:i] & (cells[:i] <= cell).all(axis=1)
        kept[i] = duration <= _WORTH_HAVING * durations[:i][rivals].min(initial=np.inf)
    sizes = [
        TimedSize(Resources(cell) + profile.minimum, duration)
        for cell, duration in zip(cells[kept].tolist(), durations[kept].tolist(), strict=True)
    ]
    return tuple(sorted(sizes, key=lambda size: (size.slots, size.allocation)))
