"""What schedulers are told about speed profiles before the first slot: the truth, an approximation, or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from tapfinger.config import KnowledgeConfig
from tapfinger.core.estimates import work
from tapfinger.core.model import SpeedProfile, TaskType
from tapfinger.profiles.beliefs import Floats, bounded_rates, log_sizes

#: Doubt about a profile that may be anything, as a standard deviation of log rates: a factor of e either way.
DISTRUST: Final = 1.0

#: Assumed duration of an unknown type, in slots, if no type is known.
USUAL_SLOTS: Final = 10.0

#: Assumed speed-up of an unknown type: twice as much of every resource makes it faster by two to this power.
SPEED_UP: Final = 0.5


def told_types(task_types: Sequence[TaskType], knowledge: KnowledgeConfig, seed: int) -> tuple[TaskType, ...]:
    """The task types as told to schedulers; a pure function of the seed."""
    everything = [t.name for t in task_types]
    about = knowledge.types or (everything[:1] if knowledge.kind == "wrong" else everything)
    told: list[TaskType] = []
    for i, true in enumerate(task_types):
        if knowledge.kind == "noisy" and true.name in about:
            rng = np.random.default_rng(np.random.SeedSequence([seed, 5, i]))
            told.append(_noisy(true, knowledge.amount, rng))
        elif knowledge.kind == "wrong":
            # Schedulers do not know which type is wrong, so all are doubted.
            factor = knowledge.factor if true.name in about else 1.0
            told.append(true.with_profiles(partial(_shifted, shift=math.log(factor))))
        elif knowledge.kind == "missing" and true.name in about:
            # Of unknown types, not even the difference between kinds of hardware is known.
            usual = usual_profile(true, [t for t in task_types if t.name not in about])
            told.append(replace(true, profile=usual, profiles=tuple((kind, usual) for kind, _ in true.profiles)))
        else:
            told.append(true)
    return tuple(told)


def _retold(profile: SpeedProfile, log_rates: Floats, doubt: float) -> SpeedProfile:
    return replace(profile, rates=bounded_rates(log_rates), doubt=(doubt,) * len(log_rates))


def _shifted(profile: SpeedProfile, shift: float) -> SpeedProfile:
    return _retold(profile, np.log(profile.rates) + shift, DISTRUST)


def _noisy(true: TaskType, amount: float, rng: np.random.Generator) -> TaskType:
    """Half of the variance is common to a type on one kind of hardware; half is independent for each measurement."""
    part = amount * math.sqrt(0.5)

    def noisy(profile: SpeedProfile) -> SpeedProfile:
        log_rates = np.log(profile.rates)
        shift = part * rng.standard_normal() + part * rng.standard_normal(len(log_rates))
        return _retold(profile, log_rates + shift, amount)

    return true.with_profiles(noisy)


def usual_profile(box: TaskType, known: Iterable[TaskType]) -> SpeedProfile:
    """Assumed profile of a type of which only minimum and maximum are known.

    It takes as long as the known types do in the geometric mean over their allocations. Larger allocations make it
    faster, but less than in proportion.
    """
    pace = [np.mean(np.log(t.profile.rates)) - math.log(work(t.profile.shape_offset)) for t in known]
    sizes = log_sizes(box.minimum, box.maximum).mean(axis=1)  # (cells,)
    middle = float(np.mean(pace)) if pace else -math.log(USUAL_SLOTS)
    rates = bounded_rates(middle + SPEED_UP * (sizes - sizes.mean()))
    return SpeedProfile(box.minimum, box.maximum, rates, None, (DISTRUST,) * len(rates))
