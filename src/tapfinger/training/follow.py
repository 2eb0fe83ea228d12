"""Doing what an adviser says, as a policy."""

from __future__ import annotations

import numpy as np

from tapfinger.policy.inputs import Inputs
from tapfinger.policy.profile_inputs import ADVISERS
from tapfinger.training.rollout import Acts


class Follower:
    """The policy that does what one adviser says; its decisions are the examples a network begins with."""

    def __init__(self, adviser: int) -> None:
        """``adviser``: which of schedulers.advice.ADVISERS."""
        self._adviser = adviser

    def __call__(self, inputs: Inputs) -> Acts:
        """The first advised task of each cluster, at the advised size."""
        flags = inputs.pair[..., self._adviser - ADVISERS] > 0.5
        flags &= inputs.startable
        place = np.where(flags.any(axis=2), flags.argmax(axis=2), flags.shape[2])
        there = np.minimum(place, flags.shape[2] - 1)
        rows, agents = np.arange(len(place))[:, None], np.arange(place.shape[1])[None, :]
        size = inputs.menu[rows, agents, there][..., self._adviser - ADVISERS].argmax(axis=2)
        amounts = np.where(place < flags.shape[2], size, 0)[..., None]
        return Acts(place, amounts, np.ones(place.shape))
