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
ATTENDING = ("running-cluster", "pending-cluster", "cluster-pending", "cluster-shortcut")


#: Attention vectors of a relation's sources and targets, one column per head: (H, heads) each.
Scorer = tuple[Tensor, Tensor]


class Nodes(NamedTuple):
    """Features or embeddings of all nodes of B graphs."""

    cluster: Tensor  # (B, N, H)
    pending: Tensor  # (B, M, H)
    running: Tensor  # (B, N, S, H)
    shortcut: Tensor  # (B, 1, H)


class Edges(NamedTuple):
    """Who is joined to whom; running tasks belong to their row's cluster, the shortcut to every cluster.

    A bias is added to attention scores: 0 where there is an edge, MASKED elsewhere. The other fields are 1
    for nodes with a neighbour and 0 for nodes without.
    """

    pending_bias: Tensor  # (B, N, M)
    running_bias: Tensor  # (B, N, S)
    has_pending: Tensor  # (B, N, 1)
    has_running: Tensor  # (B, N, 1)
    has_cluster: Tensor  # (B, 1, 1, M)


class Attention(NamedTuple):
    """Who looks at whom between clusters and pending nodes in one layer, as it is used there.

    Zero where there is no edge; only the row of a cluster with no pending task at all is not, and means nothing.
    """

    of_clusters: Tensor  # (B, heads, N, M): each cluster's over its pending nodes, sums to one over M
    of_tasks: Tensor  # (B, heads, N, M): each pending node's over its clusters, sums to one over N


class Encoded(NamedTuple):
    """What an encoder hands to the actor and the critic."""

    places: Tensor  # (B, N, K, H) each pending task as its cluster sees it
    clusters: Tensor  # (B, N, H)
    summary: Tensor  # (B, summary width) the whole state, for the critic
    #: One per layer, for explanations only; none where there is no graph.
    attention: tuple[Attention, ...] = ()


def edges_of(inputs: Inputs) -> Edges:
    """The graph of the inputs."""
    kind = inputs.cluster.dtype
    nodes = torch.arange(inputs.pending.shape[1], device=inputs.node.device)
    here = (inputs.node.unsqueeze(3) == nodes) & inputs.place_mask.unsqueeze(3)  # (B, N, K, M)
    pending = (here.any(dim=2) & inputs.pending_mask.unsqueeze(1)).to(kind)
    running = inputs.running_mask.to(kind)
    return Edges(
        pending_bias=(1.0 - pending) * MASKED,
        running_bias=(1.0 - running) * MASKED,
        has_pending=(pending.sum(dim=2, keepdim=True) > 0).to(kind),
        has_running=(running.sum(dim=2, keepdim=True) > 0).to(kind),
        has_cluster=(pending.sum(dim=1) > 0).to(kind)[:, None, None, :],
    )


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the last axis but one, of the rows in ``mask`` only; zero where there is none."""
    weights = mask.unsqueeze(-1).to(values.dtype)
    return (values * weights).sum(dim=-2) / weights.sum(dim=-2).clamp(min=1.0)


class HanLayer(nn.Module):
    """One layer of two-level attention over the four kinds of node."""

    def __init__(
        self, inside: dict[str, int], hidden: int, heads: int, self_term: bool = True, final: bool = False
    ) -> None:
        """``inside``: width of each kind's input. Without ``self_term`` the layer is HANConv.

        A ``final`` layer leaves running tasks and shortcut as they are: nobody looks at them any more.
        """
        super().__init__()
        self.heads, self.width, self.final = heads, hidden // heads, final
        self.project = nn.ModuleDict({kind: nn.Linear(size, hidden) for kind, size in inside.items()})
        size = (len(ATTENDING) - final, heads, self.width)  # a final layer needs none of the last relation
        self.source = nn.Parameter(torch.empty(size).normal_(std=self.width**-0.5))
        self.target = nn.Parameter(torch.empty(size).normal_(std=self.width**-0.5))
        self.apart: Tensor
        self.register_buffer("apart", torch.eye(heads).unsqueeze(1), persistent=False)  # (heads, 1, heads)
        self.semantic = nn.Linear(hidden, hidden)
        self.query = nn.Parameter(torch.empty(hidden).normal_(std=hidden**-0.5))
        self.self_term = self_term
        if self_term:
            kinds = ("cluster", "pending") if final else tuple(inside)
            self.own = nn.ModuleDict({kind: nn.Linear(inside[kind], hidden) for kind in kinds})
            self.norm = nn.ModuleDict({kind: nn.LayerNorm(hidden) for kind in kinds})

    def forward(self, nodes: Nodes, edges: Edges) -> tuple[Nodes, Attention]:
        """New embeddings, and who looked at whom."""
        cluster = self.project["cluster"](nodes.cluster)
        pending = self.project["pending"](nodes.pending)
        shortcut = self.project["shortcut"](nodes.shortcut)

        scorers = self._scorers()
        from_running = self._from_running(scorers, nodes.running, cluster, edges.running_bias) * edges.has_running
        from_pending, of_clusters = self._attend(scorers["pending-cluster"], pending, cluster, edges.pending_bias)
        from_pending = from_pending * edges.has_pending
        # Where there is exactly one neighbour, attention gives it weight one.
        from_shortcut = torch.relu(shortcut).expand_as(from_pending)
        to_cluster = self._weigh(torch.stack([from_running, from_pending, from_shortcut], dim=1))
        to_pending, of_tasks = self._spread(scorers["cluster-pending"], cluster, pending, edges)
        new = nodes._replace(
            cluster=self._join("cluster", nodes.cluster, to_cluster),
            pending=self._join("pending", nodes.pending, to_pending),
        )
        if not self.final:
            everyone = torch.zeros_like(nodes.cluster[:, :, 0]).unsqueeze(1)
            to_shortcut, _ = self._attend(scorers["cluster-shortcut"], cluster, shortcut, everyone)
            to_running = torch.relu(cluster).unsqueeze(2).expand(-1, -1, nodes.running.shape[2], -1)
            new = new._replace(
                running=self._join("running", nodes.running, to_running),
                shortcut=self._join("shortcut", nodes.shortcut, to_shortcut),
            )
        return new, Attention(of_clusters, of_tasks)

    def _from_running(self, scorers: dict[str, Scorer], running: Tensor, cluster: Tensor, bias: Tensor) -> Tensor:
        """Messages of running tasks: each cluster is a graph of its own with its tasks."""
        tasks = self.project["running"](running.flatten(0, 1))
        alone = cluster.flatten(0, 1).unsqueeze(1)
        message, _ = self._attend(scorers["running-cluster"], tasks, alone, bias.flatten(0, 1).unsqueeze(1))
        return message.reshape(cluster.shape)

    def _scorers(self) -> dict[str, Scorer]:
        """Each relation's attention vectors of source and target, as (H, heads) matrices.

        A product with such a matrix is several times faster than summing a few numbers head by head.
        """
        sources = (self.source.unsqueeze(3) * self.apart).flatten(1, 2).unbind(0)
        targets = (self.target.unsqueeze(3) * self.apart).flatten(1, 2).unbind(0)
        return dict(zip(ATTENDING, zip(sources, targets, strict=True), strict=False))

    def _heads(self, projected: Tensor) -> Tensor:
        """(B, nodes, H) -> (B, heads, nodes, width)."""
        return projected.reshape(projected.shape[0], -1, self.heads, self.width).transpose(1, 2)

    def _attend(self, scorer: Scorer, source: Tensor, target: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Node level: messages to targets that have neighbours, and weights. ``bias``: (B, targets, sources)."""
        given, wanted = (source @ scorer[0]).transpose(1, 2), (target @ scorer[1]).transpose(1, 2)
        scores = f.leaky_relu(given.unsqueeze(2) + wanted.unsqueeze(3), 0.2) + bias.unsqueeze(1)
        weights = torch.softmax(scores, dim=3)  # (B, heads, targets, sources)
        return torch.relu((weights @ self._heads(source)).transpose(1, 2).flatten(2)), weights

    def _spread(self, scorer: Scorer, cluster: Tensor, pending: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Clusters' messages to pending nodes. As _attend, but with the many targets last, which is much faster."""
        given, wanted = (cluster @ scorer[0]).transpose(1, 2), (pending @ scorer[1]).transpose(1, 2)
        scores = f.leaky_relu(given.unsqueeze(3) + wanted.unsqueeze(2), 0.2) + edges.pending_bias.unsqueeze(1)
        weights = torch.softmax(scores, dim=2) * edges.has_cluster  # (B, heads, sources, targets)
        return torch.relu((weights.transpose(2, 3) @ self._heads(cluster)).transpose(1, 2).flatten(2)), weights

    def _weigh(self, messages: Tensor) -> Tensor:
        """Semantic level: (B, relations, nodes, H) -> (B, nodes, H), with weights of each graph alone."""
        scores = torch.tanh(self.semantic(messages)).mean(dim=2) @ self.query  # (B, relations)
        return (torch.softmax(scores, dim=1)[:, :, None, None] * messages).sum(dim=1)

    def _join(self, kind: str, old: Tensor, message: Tensor) -> Tensor:
        if not self.self_term:
            return message
        joined: Tensor = self.norm[kind](old + torch.relu(self.own[kind](old) + message))
        return joined


class HanEncoder(nn.Module):
    """The graph of the state through several HAN layers."""

    def __init__(self, features: dict[str, int], hidden: int, heads: int, layers: int) -> None:
        """``features``: widths of cluster, pending, running and pair features."""
        super().__init__()
        self.enter = nn.ModuleDict(
            {kind: nn.Linear(features[kind], hidden) for kind in ("cluster", "pending", "running")}
        )
        kinds = dict.fromkeys(("cluster", "pending", "running", "shortcut"), hidden)
        self.layers = nn.ModuleList(
            [HanLayer(kinds, hidden, heads, final=layer == layers - 1) for layer in range(layers)]
        )
        self.cluster_view = nn.Linear(hidden, hidden)
        self.pair_view = nn.Linear(features["pair"], hidden)
        self.summary_width = 2 * hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """Embeddings of pending tasks on their clusters, of clusters, and of the whole state."""
        nodes, attention = self.nodes(inputs)
        places = pick_nodes(nodes.pending, inputs.node)
        places = places + self.cluster_view(nodes.cluster).unsqueeze(2) + self.pair_view(inputs.pair)
        summary = torch.cat([masked_mean(nodes.pending, inputs.pending_mask), nodes.cluster.mean(dim=1)], dim=1)
        return Encoded(places=places, clusters=nodes.cluster, summary=summary, attention=attention)

    def nodes(self, inputs: Inputs) -> tuple[Nodes, tuple[Attention, ...]]:
        """Final embeddings of all nodes, and each layer's attention."""
        edges = edges_of(inputs)
        cluster = torch.relu(self.enter["cluster"](inputs.cluster))
        nodes = Nodes(
            cluster=cluster,
            pending=torch.relu(self.enter["pending"](inputs.pending)),
            running=torch.relu(self.enter["running"](inputs.running)),
            shortcut=torch.zeros_like(cluster[:, :1]),
        )
        attention: tuple[Attention, ...] = ()
        for layer in self.layers:
            nodes, looks = layer(nodes, edges)
            attention = (*attention, looks)
        return nodes, attention


def pick_nodes(pending: Tensor, node: Tensor) -> Tensor:
    """(B, M, H) and (B, N, K) indices -> (B, N, K, H)."""
    first = torch.arange(pending.shape[0], device=node.device) * pending.shape[1]
    rows = (node + first[:, None, None]).flatten()
    return pending.flatten(0, 1).index_select(0, rows).reshape(*node.shape, pending.shape[2])
