"""How a network learns from rollouts: one class per algorithm, with what it must remember between updates."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tapfinger.training import deviations, group, mappo
from tapfinger.training.config import TrainConfig
from tapfinger.training.gae import ReturnScale
from tapfinger.training.rollout import Episode


class Learner(Protocol):
    """One algorithm in the middle of a run."""

    learning_rate: float

    def update(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, episode: Episode, rng: np.random.Generator
    ) -> dict[str, float]:
        """Learn from a batch of episodes; returns what is logged."""

    def remembered(self) -> dict[str, float]:
        """What a resumed run needs beside weights and optimizer."""

    def remember(self, values: dict[str, Any]) -> None:
        """Go on from there."""


class GroupLearner:
    """Rollouts of one workload are compared with each other; nothing to remember."""

    def __init__(self, config: group.GroupConfig, accelerator: int) -> None:
        """``accelerator``: the resource that is decided first."""
        self._config, self._accelerator = config, accelerator
        self.learning_rate = config.learning_rate

    def update(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, episode: Episode, rng: np.random.Generator
    ) -> dict[str, float]:
        """As Learner."""
        return group.update(network, optimizer, episode, self._config, self._accelerator, rng)

    def remembered(self) -> dict[str, float]:
        """As Learner."""
        return {}

    def remember(self, values: dict[str, Any]) -> None:
        """As Learner."""


class DeviationLearner:
    """Actions are compared with others in the same state; nothing to remember."""

    def __init__(self, config: deviations.DeviationConfig, accelerator: int) -> None:
        """``accelerator``: the resource that is decided first."""
        self._config, self._accelerator = config, accelerator
        self.learning_rate = config.learning_rate

    def update(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, episode: Episode, rng: np.random.Generator
    ) -> dict[str, float]:
        """As Learner."""
        return deviations.update(network, optimizer, episode, self._config, self._accelerator, rng)

    def remembered(self) -> dict[str, float]:
        """As Learner."""
        return {}

    def remember(self, values: dict[str, Any]) -> None:
        """As Learner."""


class MappoLearner:
    """PPO with a centralised critic, whose scale of returns goes on with the run."""

    def __init__(self, config: mappo.MappoConfig, accelerator: int) -> None:
        """``accelerator``: the resource that is decided first."""
        self._config, self._accelerator = config, accelerator
        self._scale = ReturnScale()
        self.learning_rate = config.learning_rate

    def update(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, episode: Episode, rng: np.random.Generator
    ) -> dict[str, float]:
        """As Learner."""
        return mappo.update(network, optimizer, episode, self._config, self._accelerator, rng, self._scale)

    def remembered(self) -> dict[str, float]:
        """As Learner."""
        return asdict(self._scale)

    def remember(self, values: dict[str, Any]) -> None:
        """As Learner."""
        self._scale = ReturnScale(**values)


def make_learner(config: TrainConfig, accelerator: int) -> Learner:
    """The learner of a run."""
    if config.algorithm == "mappo":
        return MappoLearner(config.mappo, accelerator)
    return GroupLearner(config.group, accelerator)
