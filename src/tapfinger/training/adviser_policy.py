"""A policy that follows an adviser."""

from __future__ import annotations

import numpy as np

from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.encoding.profile_features import adviser_columns
from tapfinger.training.rollout import BatchActions


class Follower:
    """The policy that does what one adviser says; its decisions are the first examples for a network."""

    def __init__(self, adviser: int) -> None:
        """``adviser``: index into profiles.greedy_options.ADVISERS."""
        self._pair, self._menu = (adviser_columns(kind)[adviser] for kind in ("pair", "menu"))

    def __call__(self, inputs: Inputs) -> BatchActions:
        """The first advised task of each cluster, at the advised size."""
        flags = inputs.pair[..., self._pair] > 0.5
        flags &= inputs.startable
        place = np.where(flags.any(axis=2), flags.argmax(axis=2), flags.shape[2])
        there = np.minimum(place, flags.shape[2] - 1)
        rows, agents = np.arange(len(place))[:, None], np.arange(place.shape[1])[None, :]
        size = inputs.menu[rows, agents, there][..., self._menu].argmax(axis=2)
        amounts = np.where(place < flags.shape[2], size, 0)[..., None]
        return BatchActions(place, amounts, np.ones(place.shape))
