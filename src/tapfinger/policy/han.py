"""Heterogeneous graph attention (HAN): clusters, pending and running tasks and the shortcut node see each other.

Two levels, as in Wang et al. 2019: inside a relation a node attends to its neighbours with several heads;
then the relations that end in the same kind of node are weighed, per graph, against each other. The node's
own features are part of the sum, so two tasks with the same neighbours keep different embeddings. Graphs are
dense padded arrays with masks; padding never takes part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.inputs import Inputs

#: Added to the score of what is masked: far below any real score, and finite, so that no row becomes NaN.
MASKED = -1e9

#: The relations in which a target can have several neighbours, so that there is something to attend to.
_ATTENDING = ("running-cluster", "pending-cluster", "cluster-pending", "cluster-shortcut")


class Nodes(NamedTuple):
    """Features or embeddings of all nodes of B graphs."""

    cluster: Tensor  # (B, N, H)
    pending: Tensor  # (B, M, H)
    running: Tensor  # (B, N, S, H)
    shortcut: Tensor  # (B, 1, H)


class Edges(NamedTuple):
    """Who is joined to whom; running tasks belong to their row's cluster, the shortcut to every cluster."""

    pending: Tensor  # bool (B, N, M)
    running: Tensor  # bool (B, N, S)


class Encoded(NamedTuple):
    """What an encoder hands to the actor and the critic."""

    places: Tensor  # (B, N, K, H) each pending task as its cluster sees it
    clusters: Tensor  # (B, N, H)
    summary: Tensor  # (B, summary width) the whole state, for the critic


def edges_of(inputs: Inputs) -> Edges:
    """The graph of the inputs."""
    nodes = torch.arange(inputs.pending.shape[1], device=inputs.node.device)
    here = (inputs.node.unsqueeze(3) == nodes) & inputs.place_mask.unsqueeze(3)  # (B, N, K, M)
    return Edges(pending=(here.sum(dim=2) > 0) & inputs.pending_mask.unsqueeze(1), running=inputs.running_mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the last axis but one, of the rows in ``mask`` only; zero where there is none."""
    weights = mask.unsqueeze(-1).to(values.dtype)
    return (values * weights).sum(dim=-2) / weights.sum(dim=-2).clamp(min=1.0)


class HanLayer(nn.Module):
    """One layer of two-level attention over the four kinds of node."""

    def __init__(self, inside: dict[str, int], hidden: int, heads: int, self_term: bool = True) -> None:
        """``inside``: width of each kind's input. Without ``self_term`` the layer is HANConv."""
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.project = nn.ModuleDict({kind: nn.Linear(size, hidden) for kind, size in inside.items()})
        self.source = nn.ParameterDict({name: _scores(heads, self.width) for name in _ATTENDING})
        self.target = nn.ParameterDict({name: _scores(heads, self.width) for name in _ATTENDING})
        self.semantic = nn.Linear(hidden, hidden)
        self.query = nn.Parameter(torch.empty(hidden).normal_(std=hidden**-0.5))
        self.self_term = self_term
        if self_term:
            self.own = nn.ModuleDict({kind: nn.Linear(size, hidden) for kind, size in inside.items()})
            self.norm = nn.ModuleDict({kind: nn.LayerNorm(hidden) for kind in inside})

    def forward(self, nodes: Nodes, edges: Edges) -> tuple[Nodes, Tensor]:
        """New embeddings, and the attention of clusters to pending nodes (B, heads, N, M)."""
        cluster = self._heads("cluster", nodes.cluster)
        pending = self._heads("pending", nodes.pending)
        running = self._heads("running", nodes.running.flatten(0, 1))
        shortcut = self._heads("shortcut", nodes.shortcut)
        everyone = torch.ones_like(nodes.cluster[:, :, :1], dtype=torch.bool).transpose(1, 2)

        alone = cluster.flatten(0, 1).unsqueeze(1)  # each cluster is a graph of its own with its running tasks
        from_running, _ = self._attend("running-cluster", running, alone, edges.running.flatten(0, 1).unsqueeze(1))
        from_pending, attention = self._attend("pending-cluster", pending, cluster, edges.pending)
        to_pending, _ = self._attend("cluster-pending", cluster, pending, edges.pending.transpose(1, 2))
        to_shortcut, _ = self._attend("cluster-shortcut", cluster, shortcut, everyone)
        # Where there is exactly one neighbour, attention gives it weight one.
        from_shortcut = torch.relu(shortcut.flatten(2)).expand_as(from_pending)
        to_running = torch.relu(cluster.flatten(2)).unsqueeze(2)
        to_cluster = self._weigh(
            torch.stack([from_running.reshape(from_pending.shape), from_pending, from_shortcut], 1)
        )
        return Nodes(
            cluster=self._join("cluster", nodes.cluster, to_cluster),
            pending=self._join("pending", nodes.pending, to_pending),
            running=self._join("running", nodes.running, to_running * edges.running.unsqueeze(3)),
            shortcut=self._join("shortcut", nodes.shortcut, to_shortcut),
        ), attention

    def _heads(self, kind: str, features: Tensor) -> Tensor:
        projected: Tensor = self.project[kind](features)
        return projected.unflatten(2, (self.heads, self.width))

    def _attend(self, relation: str, source: Tensor, target: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Node level: message to each target, zero for one without neighbours. ``mask``: (B, targets, sources)."""
        given = (source * self.source[relation]).sum(3).transpose(1, 2).unsqueeze(2)  # (B, heads, 1, sources)
        wanted = (target * self.target[relation]).sum(3).transpose(1, 2).unsqueeze(3)  # (B, heads, targets, 1)
        joined = mask.unsqueeze(1)
        scores = f.leaky_relu(given + wanted, 0.2).masked_fill(~joined, MASKED)
        weights = torch.softmax(scores, dim=3) * joined
        message = weights @ source.transpose(1, 2)  # (B, heads, targets, width)
        return torch.relu(message.transpose(1, 2).flatten(2)), weights

    def _weigh(self, messages: Tensor) -> Tensor:
        """Semantic level: (B, relations, nodes, H) -> (B, nodes, H), with weights of each graph alone."""
        scores = torch.tanh(self.semantic(messages)).mean(dim=2) @ self.query  # (B, relations)
        return (torch.softmax(scores, dim=1)[:, :, None, None] * messages).sum(dim=1)

    def _join(self, kind: str, old: Tensor, message: Tensor) -> Tensor:
        if not self.self_term:
            return message
        joined: Tensor = self.norm[kind](old + torch.relu(self.own[kind](old) + message))
        return joined


def _scores(heads: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(heads, width).normal_(std=width**-0.5))


class HanEncoder(nn.Module):
    """The graph of the state through several HAN layers."""

    def __init__(self, features: dict[str, int], hidden: int, heads: int, layers: int) -> None:
        """``features``: widths of cluster, pending, running and pair features."""
        super().__init__()
        self.enter = nn.ModuleDict(
            {kind: nn.Linear(features[kind], hidden) for kind in ("cluster", "pending", "running")}
        )
        kinds = dict.fromkeys(("cluster", "pending", "running", "shortcut"), hidden)
        self.layers = nn.ModuleList([HanLayer(kinds, hidden, heads) for _ in range(layers)])
        self.cluster_view = nn.Linear(hidden, hidden)
        self.pair_view = nn.Linear(features["pair"], hidden)
        self.summary_width = 2 * hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """Embeddings of pending tasks on their clusters, of clusters, and of the whole state."""
        nodes, _ = self.nodes(inputs)
        places = pick_nodes(nodes.pending, inputs.node)
        places = places + self.cluster_view(nodes.cluster).unsqueeze(2) + self.pair_view(inputs.pair)
        summary = torch.cat([masked_mean(nodes.pending, inputs.pending_mask), nodes.cluster.mean(dim=1)], dim=1)
        return Encoded(places=places, clusters=nodes.cluster, summary=summary)

    def nodes(self, inputs: Inputs) -> tuple[Nodes, list[Tensor]]:
        """Final embeddings of all nodes, and each layer's attention of clusters to pending nodes."""
        edges = edges_of(inputs)
        cluster = torch.relu(self.enter["cluster"](inputs.cluster))
        nodes = Nodes(
            cluster=cluster,
            pending=torch.relu(self.enter["pending"](inputs.pending)),
            running=torch.relu(self.enter["running"](inputs.running)),
            shortcut=torch.zeros_like(cluster[:, :1]),
        )
        attention = []
        for layer in self.layers:
            nodes, weights = layer(nodes, edges)
            attention.append(weights)
        return nodes, attention


def pick_nodes(pending: Tensor, node: Tensor) -> Tensor:
    """(B, M, H) and (B, N, K) indices -> (B, N, K, H)."""
    first = torch.arange(pending.shape[0], device=node.device) * pending.shape[1]
    rows = (node + first[:, None, None]).flatten()
    return pending.flatten(0, 1).index_select(0, rows).reshape(*node.shape, pending.shape[2])
