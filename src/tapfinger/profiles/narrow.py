"""A task type over a smaller box of sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tapfinger.core.model import Resources, SpeedProfile, TaskType


def narrowed(base: TaskType, name: str, minimum: Resources, maximum: Resources) -> TaskType:
    """The same speeds, and doubts, between other bounds that lie within its own."""
    profile = base.profile
    within = tuple(slice(lo - b, hi - b + 1) for lo, hi, b in zip(minimum, maximum, base.minimum, strict=True))

    def cut(table: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(np.asarray(table).reshape(profile.extent)[within].ravel().tolist())

    doubt = None if profile.doubt is None else cut(profile.doubt)
    smaller = SpeedProfile(minimum, maximum, cut(profile.rates), profile.shape_offset, doubt)
    return replace(base, name=name, minimum=minimum, maximum=maximum, profile=smaller)
