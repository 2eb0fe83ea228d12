"""The graph without padding: rows of the tasks that are there, for training (``fast_forward``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as f

from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import Edges, Graph, HanLayer, Nodes, edges_of
from tapfinger.policy.ragged import Rows


class PackedGraph(NamedTuple):
    """The nodes in use, and the edges between them."""

    edges: Edges
    pending: Rows  # of (B, M)
    running: Rows  # of (B, N, S)

    @classmethod
    def of(cls, inputs: Inputs) -> PackedGraph:
        """The graph of the inputs."""
        return cls(edges_of(inputs), Rows.of(inputs.pending_mask), Rows.of(inputs.running_mask))


def encode(encoder: Graph, inputs: Inputs, graph: PackedGraph) -> Nodes:
    """As in Graph.nodes."""
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
