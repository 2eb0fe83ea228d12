"""The network with less work, for training: no padding, no agents without a choice, amounts of chosen tasks only.

Modules and answers are the same as in ``network(inputs)``. That form suits a runtime with one state at a time, where
the number of kernels dominates the cost; with many states and wide layers, the number of multiplications does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.actor_critic import Actor, Answers, amounts_of
from tapfinger.policy.allocation import Amounts
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import HanEncoder, Nodes
from tapfinger.policy.packed_graph import PackedGraph, encode
from tapfinger.policy.paper_form import PaperActors
from tapfinger.policy.paper_forward import answer_paper
from tapfinger.policy.pointer import Pointer
from tapfinger.policy.ragged import Rows

#: Fields of Inputs that start with the axes state, cluster and place.
_OF_PLACES = Inputs._fields[Inputs._fields.index("node") :]


def answer(network: nn.Module, inputs: Inputs) -> Answers:
    """The network's answers for a batch of tensors; amounts are computed on demand."""
    actor: Any = getattr(network, "actor", None)
    if isinstance(actor, PaperActors) and inputs.startable.any():
        return answer_paper(network, inputs)
    if not isinstance(actor, Actor) or not inputs.startable.any():
        whole: Answers = network(inputs)
        return whole
    encoder: Any = network.encoder
    critic: Any = network.critic
    if not isinstance(encoder, HanEncoder):
        encoded = encoder(inputs)
        logits, tasks = actor.chooser(encoded.places, encoded.clusters, inputs)
        return Deferred(logits, critic(encoded.summary), tasks, _all_agents(inputs), actor, inputs)
    graph = PackedGraph.of(inputs)
    nodes = encode(encoder, inputs, graph)
    mean = graph.pending.mean(nodes.pending)
    value = critic(torch.cat([mean, nodes.cluster.mean(dim=1)], dim=1))
    return _choose(encoder, actor, nodes, value, inputs, graph)


class Deferred:
    """Answers that score amounts only once tasks are chosen, and only for those tasks."""

    def __init__(
        self, task_logits: Tensor, value: Tensor, tasks: Tensor, numbers: Tensor, actor: Actor, inputs: Inputs
    ) -> None:
        """``tasks`` (..., K, H): encoded tasks, agent by agent; ``numbers`` (B, N): index of each agent among them."""
        self.task_logits, self.value = task_logits, value
        self._tasks, self._numbers, self._actor, self._inputs = tasks.flatten(0, -3), numbers, actor, inputs

    def chosen(self, rows: tuple[Tensor, ...], placed: Tensor) -> Amounts:
        """As in Answers."""
        if not placed.any():
            placed = torch.ones_like(placed)  # scoring at least one gives the number of columns
        state, cluster, place = (index.expand_as(placed)[placed] for index in rows)
        fields = {name: getattr(self._inputs, name)[state, cluster, place][:, None, None] for name in _OF_PLACES}
        tasks = self._tasks[self._numbers[state, cluster], place][:, None, None]
        scores = self._actor.score(tasks, self._inputs._replace(**fields), amounts_of(self._inputs))
        return Amounts(*(_put(placed, part.flatten(0, 2)) for part in scores))


def _put(mask: Tensor, rows: Tensor) -> Tensor:
    """Rows where the mask is true, zero elsewhere."""
    return rows.new_zeros(*mask.shape, *rows.shape[1:]).index_put((mask,), rows)


def _all_agents(inputs: Inputs) -> Tensor:
    batch, clusters, _ = inputs.startable.shape
    return torch.arange(batch * clusters, device=inputs.startable.device).reshape(batch, clusters)


def _choose(
    encoder: HanEncoder, actor: Actor, nodes: Nodes, value: Tensor, inputs: Inputs, graph: PackedGraph
) -> Deferred:
    """The places as HanEncoder makes them, and the choice among them."""
    numbers, chooser = graph.pending.numbers(), actor.chooser
    if not isinstance(chooser, Pointer) or chooser.rounds:  # reconsidering involves all other agents
        rows = numbers.gather(1, inputs.node.flatten(1)).reshape(inputs.node.shape)
        places = f.embedding(rows, nodes.pending) + encoder.cluster_view(nodes.cluster).unsqueeze(2)
        logits, tasks = chooser(places + encoder.pair_view(inputs.pair), nodes.cluster, inputs)
        return Deferred(logits, value, tasks, _all_agents(inputs), actor, inputs)
    agents = Rows.of(inputs.startable.any(dim=2))
    fields = {name: getattr(inputs, name).flatten(0, 1)[agents.at].unsqueeze(1) for name in _OF_PLACES}
    mine, clusters = inputs._replace(**fields), agents.pack(nodes.cluster)
    there = Rows.of(mine.place_mask.squeeze(1))
    rows = numbers[agents.parents()].gather(1, mine.node.squeeze(1)).flatten()[there.at]
    views = encoder.cluster_view(clusters).index_select(0, there.parents()) + encoder.pair_view(there.pack(mine.pair))
    logits, tasks = chooser(f.embedding(rows, nodes.pending) + views, clusters.unsqueeze(1), mine, there)
    # An agent without a choice is void.
    logits = torch.cat([agents.pad(logits[:, 0, :-1], float("-inf")), agents.pad(logits[:, 0, -1:])], dim=2)
    return Deferred(logits, value, tasks, agents.numbers(), actor, inputs)
