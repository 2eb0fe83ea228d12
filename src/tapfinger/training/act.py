"""A network as the policy of rollouts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tapfinger.policy.distributions import draw
from tapfinger.policy.inputs import Inputs
from tapfinger.training.batches import chunks
from tapfinger.training.rollout import Acts

#: Columns of ``Acts.extra``: log-probability of the task, of its amounts, and the critic's value.
TASK, AMOUNTS, VALUE = range(3)


class NetworkPolicy:
    """Samples if it has a seed; otherwise takes the most likely task and amounts."""

    def __init__(self, network: nn.Module, accelerator: int, seed: int | None = None) -> None:
        """``seed``: None is the deterministic policy."""
        self._network = network
        self._accelerator = accelerator
        self._amounts = None if seed is None else torch.Generator().manual_seed(seed)
        # A network whose task is random by design draws it in any case.
        random_task = any(getattr(part, "random_task", False) for part in network.modules())
        self._tasks = torch.Generator().manual_seed(0) if random_task and seed is None else self._amounts

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> Acts:
        """What every cluster does, with scores for conflicts and what the loss will need."""
        batch, clusters, void = inputs.startable.shape
        choice = np.empty((batch, clusters), dtype=np.int64)
        amounts = np.empty((batch, clusters, inputs.largest.shape[3]), dtype=np.int64)
        extra = np.empty((batch, clusters, 3), dtype=np.float32)
        for rows, some in chunks(self._network, inputs, np.arange(batch)):
            outputs = self._network(some)
            actions, terms = draw(outputs, some, self._accelerator, self._tasks, self._amounts)
            place = actions.place.numpy()
            choice[rows] = np.where(place == some.startable.shape[2], void, place)
            amounts[rows] = actions.amounts.numpy()
            extra[rows, :, TASK] = terms.task.numpy()
            extra[rows, :, AMOUNTS] = terms.amounts.numpy()
            extra[rows, :, VALUE] = outputs.value.numpy()[:, None]
        return Acts(choice, amounts, np.exp(extra[..., TASK], dtype=np.float64), extra)
