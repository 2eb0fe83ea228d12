"""What a profile says about sizes: mean durations as repeated runs would show them, and the sizes worth having."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import DONE, Noise, Resources, SpeedProfile, TaskType

#: Sampled runs per rate when progress is noisy; the standard error of a mean is then below 2 %.
_SAMPLES = 1024

#: Results kept: enough for all types of a comparison; where beliefs change, old ones must not pile up.
_KEPT = 256

#: A larger size is kept only if it is at least this much faster than every smaller one.
_WORTH_HAVING = 0.99


@dataclass(frozen=True, slots=True)
class Size:
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
    rng = np.random.default_rng(20230201)  # fixed: the estimate is part of the profile, not of a run
    progress = np.zeros((len(rates), _SAMPLES))
    count = np.zeros((len(rates), _SAMPLES))
    while True:
        going = progress < DONE
        if not going.any():
            return np.asarray(count.mean(axis=1)[cell_of], dtype=np.float64)
        u = rng.uniform(-noise.amplitude, noise.amplitude, _SAMPLES)  # the same for every rate
        gain = np.broadcast_to(rates[:, None], progress.shape)
        if profile.shape_offset is not None:
            gain = gain * np.sqrt(np.maximum(0.0, profile.shape_offset - progress))
        gain = np.maximum(0.0, gain + u) if noise.kind == "additive" else gain * (1.0 + u)
        progress = np.where(going, progress + gain, progress)
        count += going


def _one_cell_each(profile: SpeedProfile, cell_of: npt.NDArray[np.int64], rates: int) -> list[Resources]:
    """One allocation for each distinct rate."""
    first = np.full(rates, -1)
    first[cell_of[::-1]] = np.arange(len(cell_of))[::-1]
    corner = np.unravel_index(first, profile.extent)
    return [Resources(np.add(cell, profile.minimum).tolist()) for cell in zip(*corner, strict=True)]


@lru_cache(maxsize=_KEPT)
def efficient_sizes(task_type: TaskType, noise: Noise) -> tuple[Size, ...]:
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
    kept: list[tuple[tuple[int, ...], float]] = []
    for index in np.argwhere(slots < smaller):  # lexicographic, so smaller sizes come first
        cell = tuple(int(i) for i in index)
        rival = min((s for k, s in kept if all(a <= b for a, b in zip(k, cell, strict=True))), default=np.inf)
        if slots[cell] <= _WORTH_HAVING * rival:
            kept.append((cell, float(slots[cell])))
    sizes = [Size(Resources(cell) + profile.minimum, s) for cell, s in kept]
    return tuple(sorted(sizes, key=lambda size: (size.slots, size.allocation)))
