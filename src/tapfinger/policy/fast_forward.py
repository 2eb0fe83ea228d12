"""The network with less work, for training: no padding, no agents without a choice, amounts of chosen tasks only.

Modules and answers are the same as in ``network(inputs)``. That form suits a runtime with one state at a time, where
the number of kernels dominates the cost; with many states and wide layers, the number of multiplications does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.actor_critic import Actor, Answers, amounts_of
from tapfinger.policy.allocation import Amounts
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import Edges, HanEncoder, HanLayer, Nodes, edges_of
from tapfinger.policy.pointer import Pointer
from tapfinger.policy.ragged import Rows

#: Fields of Inputs that start with the axes state, cluster and place.
_OF_PLACES = Inputs._fields[Inputs._fields.index("node") :]


def answer(network: nn.Module, inputs: Inputs) -> Answers:
    """The network's answers for a batch of tensors; amounts are computed on demand."""
    actor: Any = getattr(network, "actor", None)
    if not isinstance(actor, Actor) or not inputs.startable.any():
        whole: Answers = network(inputs)
        return whole
    encoder: Any = network.encoder
    critic: Any = network.critic
    if not isinstance(encoder, HanEncoder):
        encoded = encoder(inputs)
        logits, tasks = actor.chooser(encoded.places, encoded.clusters, inputs)
        return Deferred(logits, critic(encoded.summary).squeeze(1), tasks, _all_agents(inputs), actor, inputs)
    graph = PackedGraph(edges_of(inputs), Rows.of(inputs.pending_mask), Rows.of(inputs.running_mask))
    nodes = _encode(encoder, inputs, graph)
    mean = graph.pending.mean(nodes.pending)
    value = critic(torch.cat([mean, nodes.cluster.mean(dim=1)], dim=1)).squeeze(1)
    return _choose(encoder, actor, nodes, value, inputs, graph)


class PackedGraph(NamedTuple):
    """The nodes in use, and the edges between them."""

    edges: Edges
    pending: Rows  # of (B, M)
    running: Rows  # of (B, N, S)


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


def _encode(encoder: HanEncoder, inputs: Inputs, graph: PackedGraph) -> Nodes:
    """As in HanEncoder.nodes."""
    nodes = Nodes(
        cluster=torch.relu(encoder.enter["cluster"](inputs.cluster)),
        pending=torch.relu(encoder.enter["pending"](graph.pending.pack(inputs.pending))),
        running=torch.relu(encoder.enter["running"](graph.running.pack(inputs.running))),
        shortcut=inputs.cluster.new_zeros(1, 1, encoder.hidden),
    )
    for layer in encoder.layers:
        nodes = _through(layer, nodes, graph)  # type: ignore[arg-type]
    return nodes


def _through(layer: HanLayer, nodes: Nodes, graph: PackedGraph) -> Nodes:
    """As in HanLayer.forward, with rows (tasks, H) of pending and running tasks.

    Tasks are many and clusters are few, so tasks are not projected: their scores are products with projected
    attention vectors, and the messages to a cluster are mixed first and projected afterwards.
    """
    edges, pending, running, scorers = graph.edges, graph.pending, graph.running, layer._scorers()
    cluster, shortcut = layer.project["cluster"](nodes.cluster), layer.project["shortcut"](nodes.shortcut)
    (given, wanted), (back, asking) = scorers["pending-cluster"], scorers["cluster-pending"]
    scores = pending.pad(_scores(layer, "pending", nodes.pending, torch.cat([given, asking], dim=1)))
    of_pending, to_cluster = scores.transpose(1, 2).unsqueeze(1).chunk(2, dim=2)  # (B, 1, heads, M) each
    weights = _attention(of_pending, cluster @ wanted, edges.pending_bias, 3)
    from_pending = _mix(layer, "pending", weights, pending.pad(nodes.pending)) * edges.has_pending

    given, wanted = scorers["running-cluster"]
    of_running = running.pad(_scores(layer, "running", nodes.running, given)).transpose(2, 3)
    weights = _attention(of_running, cluster @ wanted, edges.running_bias, 3)
    from_running = _mix(layer, "running", weights, running.pad(nodes.running).flatten(0, 1)) * edges.has_running
    from_shortcut = torch.relu(shortcut).expand_as(from_pending)
    to_clusters = layer._weigh(torch.stack([from_running, from_pending, from_shortcut], dim=1))

    weights = _attention(to_cluster, cluster @ back, edges.pending_bias, 1) * edges.has_cluster
    by_head = (cluster.unsqueeze(2) * layer.share).flatten(1, 2)  # (B, N * heads, H)
    to_pending = torch.relu(pending.pack(weights.flatten(1, 2).transpose(1, 2) @ by_head))
    new = nodes._replace(
        cluster=layer._join("cluster", nodes.cluster, to_clusters),
        pending=layer._join("pending", nodes.pending, to_pending),
    )
    if not layer.final:
        to_running = torch.relu(cluster).flatten(0, 1).index_select(0, running.parents())
        to_shortcut = layer._meet(scorers["cluster-shortcut"], cluster.unsqueeze(1), shortcut)
        new = new._replace(
            running=layer._join("running", nodes.running, to_running),
            shortcut=layer._join("shortcut", nodes.shortcut, to_shortcut),
        )
    return new


def _scores(layer: HanLayer, kind: str, rows: Tensor, vectors: Tensor) -> Tensor:
    """``project(rows) @ vectors``, multiplied in another order."""
    project: Any = layer.project[kind]
    return torch.addmm(project.bias @ vectors, rows, project.weight.T @ vectors)


def _attention(of_tasks: Tensor, of_clusters: Tensor, bias: Tensor, dim: int) -> Tensor:
    """(B, N, heads, tasks): weights that sum to one over tasks (``dim`` 3) or over clusters (``dim`` 1)."""
    scores = f.leaky_relu(of_tasks + of_clusters.unsqueeze(3), 0.2) + bias.unsqueeze(2)
    return torch.softmax(scores, dim=dim)


def _mix(layer: HanLayer, kind: str, weights: Tensor, rows: Tensor) -> Tensor:
    """Messages to clusters (B, N, H). ``rows``: padded, per state (B, M, H) or per cluster (B * N, S, H)."""
    project: Any = layer.project[kind]
    batch, clusters, heads, tasks = weights.shape
    mixed = (weights.reshape(len(rows), -1, tasks) @ rows).reshape(batch * clusters, heads, -1)
    by_head = mixed.transpose(0, 1) @ project.weight.unflatten(0, (heads, -1)).transpose(1, 2)
    return torch.relu(by_head.transpose(0, 1).reshape(batch, clusters, -1) + project.bias)
