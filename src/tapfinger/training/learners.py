"""How a network learns from rollouts: one class per algorithm, with the state it keeps between updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tapfinger.training import deviations, group, mappo
from tapfinger.training.config import MappoConfig, TrainConfig
from tapfinger.training.gae import ReturnScale
from tapfinger.training.rollout import RolloutResult


class Learner(Protocol):
    """One algorithm in the middle of a run."""

    learning_rate: float

    def update(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        episodes: Sequence[RolloutResult],
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """Learn from episodes, one batch of worlds per site; return the metrics to log."""

    def remembered(self) -> dict[str, float]:
        """What a resumed run needs besides weights and optimizer."""

    def remember(self, values: dict[str, Any]) -> None:
        """Restore what ``remembered`` returned."""


class PlainLearner:
    """Compares what was played within one update, whole rollouts or single actions; keeps no state."""

    def __init__(self, update: Callable[..., dict[str, float]], config: Any, accelerator: int, threads: int) -> None:
        """``update`` and ``config``: of group or deviations; ``accelerator``: the resource that is decided first."""
        self._update, self._config, self._accelerator, self._threads = update, config, accelerator, threads
        self.learning_rate: float = config.learning_rate

    def update(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        episodes: Sequence[RolloutResult],
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """As in Learner."""
        return self._update(network, optimizer, episodes, self._config, self._accelerator, rng, self._threads)

    def remembered(self) -> dict[str, float]:
        """As in Learner."""
        return {}

    def remember(self, values: dict[str, Any]) -> None:
        """As in Learner."""


class MappoLearner:
    """PPO with a centralised critic; its scale of returns persists over the run."""

    def __init__(self, config: MappoConfig, accelerator: int, threads: int) -> None:
        """``accelerator``: the resource that is decided first."""
        self._config, self._accelerator, self._threads = config, accelerator, threads
        self._scale = ReturnScale()
        self.learning_rate = config.learning_rate

    def update(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        episodes: Sequence[RolloutResult],
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """As in Learner."""
        (episode,) = episodes
        return mappo.update(
            network, optimizer, episode, self._config, self._accelerator, rng, self._scale, self._threads
        )

    def remembered(self) -> dict[str, float]:
        """As in Learner."""
        return asdict(self._scale)

    def remember(self, values: dict[str, Any]) -> None:
        """As in Learner."""
        self._scale = ReturnScale(**values)


def make_refiner(config: TrainConfig, accelerator: int, threads: int) -> Learner:
    """The learner for a run's deviations."""
    return PlainLearner(deviations.update, config.deviation, accelerator, threads)


def make_learner(config: TrainConfig, accelerator: int, threads: int) -> Learner:
    """The learner for a run's rollouts; the number of ``threads`` does not affect the result."""
    if config.algorithm == "mappo":
        return MappoLearner(config.mappo, accelerator, threads)
    return PlainLearner(group.update, config.group, accelerator, threads)
