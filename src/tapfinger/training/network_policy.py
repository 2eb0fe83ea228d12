"""A network as a policy for rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tapfinger.policy.actor_critic import Answers, Outputs
from tapfinger.policy.distributions import draw, draw_several
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.exported import NetworkGraph
from tapfinger.policy.fast_forward import answer
from tapfinger.training.batches import chunks
from tapfinger.training.rollout import BatchActions, Deviations, Ints, Policy, picked

#: Columns of ``BatchActions.extra``: log-probability of the task, of its amounts, and the critic's value.
TASK, AMOUNTS, VALUE = range(3)

#: Temperature for sampling other actions: a confident policy would otherwise name only what it does anyway.
TEMPERATURE = 2.0


class NetworkPolicy:
    """Samples if it has a seed; otherwise takes the most likely task and amounts."""

    def __init__(
        self,
        network: nn.Module,
        accelerator: int,
        seed: int | None = None,
        deviations: int = 0,
        explore: bool = True,
        suggest: Sequence[Policy] = (),
    ) -> None:
        """``seed``: None for the deterministic policy.

        ``deviations``: number of actions to name for each agent, including those of the policies in ``suggest``; the
        others are sampled. Without ``explore``, the action taken is the most likely one.
        """
        self._suggest = tuple(suggest)
        self._network = network
        self._accelerator = accelerator
        self._amounts = None if seed is None or not explore else torch.Generator().manual_seed(seed)
        # A network with a random task by design samples it in any case.
        random_task = any(getattr(part, "random_task", False) for part in network.modules())
        self._tasks = torch.Generator().manual_seed(0) if random_task and self._amounts is None else self._amounts
        self._deviations = deviations
        self._other = torch.Generator().manual_seed(seed or 0)

    @torch.inference_mode()
    def __call__(self, inputs: Inputs, deviate: Ints | None = None) -> BatchActions:
        """Every cluster's action, with scores for conflicts and everything the loss will need.

        ``deviate``: the states in which other actions are named as well; None: all.
        """
        batch, clusters, void = inputs.startable.shape
        choice = np.empty((batch, clusters), dtype=np.int64)
        amounts = np.empty((batch, clusters, inputs.largest.shape[3]), dtype=np.int64)
        extra = np.empty((batch, clusters, 3), dtype=np.float32)
        deviate = np.arange(batch) if deviate is None else deviate
        others = _room(inputs, len(deviate), self._deviations) if self._deviations else None
        told = [policy(picked(inputs, deviate)) for policy in self._suggest[: max(0, self._deviations - 1)]]
        for rows, some in chunks(self._network, inputs, np.arange(batch)):
            # Where many actions are named, most tasks are chosen by at least one of them.
            outputs: Answers = self._network(some) if self._deviations else answer(self._network, some)
            actions, terms = draw(outputs, some, self._accelerator, self._tasks, self._amounts)
            place = actions.place.numpy()
            choice[rows] = np.where(place == some.startable.shape[2], void, place)
            amounts[rows] = actions.amounts.numpy()
            extra[rows, :, TASK] = terms.task.numpy()
            extra[rows, :, AMOUNTS] = terms.amounts.numpy()
            extra[rows, :, VALUE] = outputs.value.numpy()
            if others is not None and isinstance(outputs, Outputs):
                here, there = np.intersect1d(rows, deviate, assume_unique=True, return_indices=True)[1:]
                if len(here):
                    named = Outputs(*(part[here] for part in outputs)), Inputs(*(part[here] for part in some))
                    self._name_others(others, there, *named, void)
                    _name_suggested(others, there, told, outputs.task_logits[here], void)
        score = np.exp(extra[..., TASK], dtype=np.float64)
        if others is not None:
            others.choice[..., 0], others.amounts[:, :, 0] = choice[deviate], amounts[deviate]
            others.score[..., 0] = score[deviate]
        return BatchActions(choice, amounts, score, extra, others)

    def _name_others(self, others: Deviations, rows: Ints, outputs: Answers, some: Inputs, void: int) -> None:
        """Sampled actions of each agent, in addition to the first."""
        count, shape = self._deviations - 1, (len(rows), others.choice.shape[1], self._deviations - 1)
        actions, logs = draw_several(outputs, some, self._accelerator, self._other, count, TEMPERATURE)
        place = actions.place.numpy().reshape(shape)
        others.choice[rows, :, 1:] = np.where(place == some.startable.shape[2], void, place)
        others.amounts[rows, :, 1:] = actions.amounts.numpy().reshape(*shape, -1)
        others.score[rows, :, 1:] = logs.exp().numpy().reshape(shape)


def _name_suggested(
    others: Deviations, rows: Ints, told: Sequence[BatchActions], task_logits: Tensor, void: int
) -> None:
    """Actions that the suggesting policies would take, in place of the first sampled ones."""
    chances = torch.softmax(task_logits, dim=2)
    for column, acts in enumerate(told, start=1):
        choice = acts.choice[rows]
        others.choice[rows, :, column] = choice
        others.amounts[rows, :, column] = acts.amounts[rows]
        place = torch.from_numpy(np.where(choice == void, chances.shape[2] - 1, choice))
        others.score[rows, :, column] = chances.gather(2, place.unsqueeze(2)).squeeze(2).numpy()


class FastNetwork(nn.Module):
    """A network as an exported graph: several times faster than torch on many small batches. It has no critic."""

    def __init__(self, graph: bytes) -> None:
        """``graph``: from policy.export.graph_of."""
        super().__init__()
        self.encoder = nn.Identity()
        self._graph = NetworkGraph(graph, "the network in training")

    def forward(self, inputs: Inputs) -> Outputs:
        """As in the exported network; the value is unknown and zero."""
        scores = self._graph.run(Inputs(*(tensor.numpy() for tensor in inputs)))
        tensors = [torch.from_numpy(array) for array in scores]
        return Outputs(tensors[0], tensors[1], tensors[2], tensors[3], torch.zeros(len(inputs.cluster), 1))


def _room(inputs: Inputs, states: int, actions: int) -> Deviations:
    shape = (states, inputs.startable.shape[1], actions)
    return Deviations(
        choice=np.empty(shape, dtype=np.int64),
        amounts=np.empty((*shape, inputs.largest.shape[3]), dtype=np.int64),
        score=np.empty(shape),
        cost=np.zeros(shape),
        granted=np.zeros(shape, dtype=np.bool_),
    )
