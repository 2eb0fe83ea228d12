"""Task types of a live site whose speed is not known: they begin with one that is similar to the others'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tapfinger.config import ConstantSpeed, FactorSpeed, Scenario, TaskTypeConfig, UnknownSpeed
from tapfinger.core.model import SpeedProfile, TaskType
from tapfinger.profiles.beliefs import bounded_rates
from tapfinger.profiles.similar import similar_profile


def with_any_speed(scenario: Scenario) -> Scenario:
    """The scenario with some speed in place of unknown ones.

    It takes one slot, and is as fast on kinds of hardware of which nothing is said: rates tell how kinds differ.
    """
    kinds = {kind for cluster in scenario.clusters for _, nodes in cluster.copies() for *_, kind in nodes if kind}
    alike = {kind: FactorSpeed(kind="factor", factor=1.0) for kind in kinds}
    any_speed = ConstantSpeed(kind="constant", slots=1.0)
    types = tuple(
        config.model_copy(update={"speed": any_speed, "on": {**alike, **config.on}}) if _unknown(config) else config
        for config in scenario.task_types
    )
    return scenario.model_copy(update={"task_types": types})


def with_similar_speeds(scenario: Scenario, task_types: Sequence[TaskType]) -> Iterable[TaskType]:
    """The types of ``with_any_speed``, with a similar speed in place of any."""
    configs = {config.name: config for config in scenario.task_types}
    known = [t for t in task_types if not _unknown(configs[t.name])]
    for t in task_types:
        config = configs[t.name]
        yield _like(t, config, similar_profile(t, known)) if _unknown(config) else t


def _unknown(config: TaskTypeConfig) -> bool:
    return isinstance(config.speed, UnknownSpeed)


def _like(task_type: TaskType, config: TaskTypeConfig, usual: SpeedProfile) -> TaskType:
    if not task_type.profiles:
        return replace(task_type, profile=usual)
    profiles = {kind: _scaled(usual, p) if _rests_on_speed(config, kind) else p for kind, p in task_type.profiles}
    return replace(task_type, profile=profiles[task_type.hardware], profiles=tuple(profiles.items()))


def _scaled(usual: SpeedProfile, factors: SpeedProfile) -> SpeedProfile:
    return replace(usual, rates=bounded_rates(np.log(usual.rates) + np.log(factors.rates)))


def _rests_on_speed(config: TaskTypeConfig, kind: str) -> bool:
    """Whether the speed on a kind is a factor, at last, on what is not known."""
    while kind:
        speed = config.on.get(kind)
        if speed is not None and not isinstance(speed, FactorSpeed):
            return False
        kind = speed.of if speed is not None else ""
    return True
