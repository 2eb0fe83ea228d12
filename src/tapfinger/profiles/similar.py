"""Expected speed of a task type about which nothing is known: like the other types of its site.

Each known type has a level (its log rate at its minimum) and a shape (how its log rate changes from there with the
logarithm of the allocation). The new type gets the means of both, and a doubt that is as large as the known types
differ. A few types say little about how much types differ, so the doubt assumed without known types counts as one more
type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tapfinger.core.estimates import work
from tapfinger.core.model import SpeedProfile, TaskType
from tapfinger.profiles.beliefs import Floats, bounded_rates, log_axes
from tapfinger.profiles.initial_knowledge import DISTRUST, usual_profile

#: Minimum doubt before a task of the type has run.
LEAST_DOUBT: Final = 0.3


def similar_profile(box: TaskType, known: Sequence[TaskType]) -> SpeedProfile:
    """A profile for a type of which only minimum and maximum are known; without other types, ``usual_profile``."""
    if not known:
        return usual_profile(box, ())
    surfaces = np.array([_stretched(box, other) for other in known])  # (types, cells)
    mean = surfaces.mean(axis=0)
    # One more type, as far off as any type may be, stands for all types never seen.
    variance = (((surfaces - mean) ** 2).sum(axis=0) + DISTRUST**2) / len(known)
    doubt = np.clip(np.sqrt(variance * (1.0 + 1.0 / len(known))), LEAST_DOUBT, 2.0 * DISTRUST)
    return SpeedProfile(box.minimum, box.maximum, bounded_rates(mean), None, tuple(doubt.tolist()))


def _stretched(box: TaskType, known: TaskType) -> Floats:
    """(cells of the box,) log rates of a known type at the same multiples of its minimum."""
    profile = known.profile
    table = np.log(profile.rates).reshape(profile.extent) - math.log(work(profile.shape_offset))
    pairs = zip(log_axes(box.minimum, box.maximum), log_axes(known.minimum, known.maximum), strict=True)
    for axis, (wanted, given) in enumerate(pairs):
        # Beyond its maximum a type is as fast as at its maximum.
        place = np.interp(wanted, given, np.arange(len(given)))
        low = np.minimum(place.astype(np.int64), max(0, len(given) - 2))
        share = (place - low).reshape([-1 if a == axis else 1 for a in range(table.ndim)])
        high = np.minimum(low + 1, len(given) - 1)
        table = (1.0 - share) * table.take(low, axis) + share * table.take(high, axis)
    return np.asarray(table.ravel())
