"""Heterogeneous graph attention (HAN): clusters, pending and running tasks and the shortcut node see each other.

Two levels, as in Wang et al. 2019: within a relation, a node attends to its neighbours with several heads;
then the relations that end in the same kind of node are weighed against each other, per graph. The node's
own features are part of the sum, so two tasks with the same neighbours keep different embeddings. Graphs are
dense padded arrays with masks; padding never takes part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.encoding.inputs import Inputs

#: Added to masked scores: far below any real score, and finite, so that no row becomes NaN.
MASKED = -1e9

#: The relations in which a target can have several neighbours and so has something to attend to.
ATTENDING = ("running-cluster", "pending-cluster", "cluster-pending", "cluster-shortcut")


#: Attention vectors of a relation's sources and targets, one column per head: (H, heads) each.
Scorer = tuple[Tensor, Tensor]


class Nodes(NamedTuple):
    """Features or embeddings of all nodes of B graphs."""

    cluster: Tensor  # (B, N, H)
    pending: Tensor  # (B, M, H)
    running: Tensor  # (B, N, S, H)
    shortcut: Tensor  # (B, 1, H), or (1, 1, H) for all


class Edges(NamedTuple):
    """The edges of the graph; running tasks belong to their row's cluster, the shortcut to every cluster.

    A bias is added to attention scores: 0 where there is an edge, MASKED elsewhere. The other fields are 1
    for nodes with a neighbour and 0 for nodes without.
    """

    pending_bias: Tensor  # (B, N, M)
    running_bias: Tensor  # (B, N, S)
    has_pending: Tensor  # (B, N, 1)
    has_running: Tensor  # (B, N, 1)
    has_cluster: Tensor  # (B, 1, 1, M)


class Attention(NamedTuple):
    """Attention between clusters and pending nodes in one layer, as used there.

    Zero where there is no edge, except in the row of a cluster without any pending task, which is meaningless.
    """

    of_clusters: Tensor  # (B, heads, N, M): of each cluster over its pending nodes, sums to one over M
    of_tasks: Tensor  # (B, heads, N, M): of each pending node over its clusters, sums to one over N


class Encoded(NamedTuple):
    """An encoder's output for the actor and the critic."""

    places: Tensor  # (B, N, K, H) each pending task as its cluster sees it
    clusters: Tensor  # (B, N, H)
    summary: Tensor  # (B, summary width) the whole state, for the critic
    #: One per layer, for explanations only; empty without a graph.
    attention: tuple[Attention, ...] = ()


def edges_of(inputs: Inputs) -> Edges:
    """The graph of the inputs."""
    kind = inputs.cluster.dtype
    here = at_nodes(inputs.place_mask.to(kind), inputs)  # places of a cluster have distinct nodes, so 0 or 1
    pending = here * inputs.pending_mask.unsqueeze(1).to(kind)
    running = inputs.running_mask.to(kind)
    return Edges(
        pending_bias=(1.0 - pending) * MASKED,
        running_bias=(1.0 - running) * MASKED,
        has_pending=(pending.sum(dim=2, keepdim=True) > 0).to(kind),
        has_running=(running.sum(dim=2, keepdim=True) > 0).to(kind),
        has_cluster=(pending.sum(dim=1, keepdim=True) > 0).to(kind).unsqueeze(1),
    )


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the second-last axis, of the rows in ``mask`` only; zero where there are none."""
    weights = mask.unsqueeze(-1).to(values.dtype)
    return (values * weights).sum(dim=-2) / weights.sum(dim=-2).clamp(min=1.0)


def at_nodes(values: Tensor, inputs: Inputs) -> Tensor:
    """(B, N, K) of places -> (B, N, M) of nodes, zero where there is no place. Values of empty places must be zero."""
    nowhere = torch.zeros_like(inputs.place_mask[:, :, :1] & inputs.pending_mask.unsqueeze(1), dtype=values.dtype)
    return nowhere.scatter_add(2, inputs.node, values)


def regroup(values: Tensor, *sizes: int) -> Tensor:
    """As reshape, but 0 keeps the existing size, as in ONNX; one of the sizes must be -1.

    In an exported graph it is one kernel. Sizes read from the shape cost four more, and kernels dominate the time of
    a decision.
    """
    if torch.onnx.is_in_onnx_export():
        exported: Tensor = _Regroup.apply(values, sizes)  # type: ignore[no-untyped-call]
        return exported
    return values.reshape([size or values.shape[axis] for axis, size in enumerate(sizes)])


class _Regroup(torch.autograd.Function):
    """Tells the exporter how to write ``regroup``."""

    @staticmethod
    def forward(_: Any, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        return values.reshape([size or values.shape[axis] for axis, size in enumerate(sizes)])

    @staticmethod
    def symbolic(graph: Any, values: Any, sizes: tuple[int, ...]) -> Any:
        return graph.op("Reshape", values, graph.op("Constant", value_t=torch.tensor(sizes)))


class HanLayer(nn.Module):
    """One layer of two-level attention over the four kinds of node."""

    def __init__(
        self, inside: dict[str, int], hidden: int, heads: int, self_term: bool = True, final: bool = False
    ) -> None:
        """``inside``: width of each kind's input. Without ``self_term`` the layer is HANConv.

        A ``final`` layer leaves running tasks and the shortcut unchanged: nothing reads them afterwards.
        """
        super().__init__()
        self.heads, self.width, self.final = heads, hidden // heads, final
        self.project = nn.ModuleDict({kind: nn.Linear(size, hidden) for kind, size in inside.items()})
        size = (len(ATTENDING) - final, heads, self.width)  # a final layer does not use the last relation
        self.source = nn.Parameter(torch.empty(size).normal_(std=self.width**-0.5))
        self.target = nn.Parameter(torch.empty(size).normal_(std=self.width**-0.5))
        self.share: Tensor  # (heads, H): 1 in the columns that belong to the head
        self.register_buffer("share", torch.eye(heads).repeat_interleave(self.width, dim=1), persistent=False)
        self.semantic = nn.Linear(hidden, hidden)
        self.query = nn.Parameter(torch.empty(hidden).normal_(std=hidden**-0.5))
        self.self_term = self_term
        if self_term:
            kinds = ("cluster", "pending") if final else tuple(inside)
            self.own = nn.ModuleDict({kind: nn.Linear(inside[kind], hidden) for kind in kinds})
            self.norm = nn.ModuleDict({kind: nn.LayerNorm(hidden) for kind in kinds})

    def forward(self, nodes: Nodes, edges: Edges) -> tuple[Nodes, Attention]:
        """New embeddings, and the attention weights."""
        cluster = self.project["cluster"](nodes.cluster)
        pending = self.project["pending"](nodes.pending)
        shortcut = self.project["shortcut"](nodes.shortcut)

        scorers = self._scorers()
        running, bias = self.project["running"](nodes.running), edges.running_bias.unsqueeze(3)
        from_running = self._meet(scorers["running-cluster"], running, cluster, bias) * edges.has_running
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
            to_shortcut = self._meet(scorers["cluster-shortcut"], cluster.unsqueeze(1), shortcut)
            new = new._replace(
                running=self._join("running", nodes.running, torch.relu(cluster).unsqueeze(2)),
                shortcut=self._join("shortcut", nodes.shortcut, to_shortcut),
            )
        return new, Attention(of_clusters, of_tasks)

    def _scorers(self) -> dict[str, Scorer]:
        """Each relation's attention vectors of source and target, as (H, heads) matrices.

        A product with such a matrix is several times faster than summing a few numbers head by head.
        """
        sources = (self.source.flatten(1).unsqueeze(2) * self.share.T).unbind(0)
        targets = (self.target.flatten(1).unsqueeze(2) * self.share.T).unbind(0)
        return dict(zip(ATTENDING, zip(sources, targets, strict=True), strict=False))

    def _heads(self, projected: Tensor) -> Tensor:
        """(B, nodes, H) -> (B, heads, nodes, width)."""
        return regroup(projected, 0, 0, self.heads, -1).transpose(1, 2)

    def _meet(self, scorer: Scorer, source: Tensor, target: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """Messages to targets (B, targets, H) that have sources of their own (B, targets, sources, H).

        As _attend, but with so few sources the heads need not be separated. ``bias``: (B, targets, sources, 1).
        """
        scores = f.leaky_relu(source @ scorer[0] + (target @ scorer[1]).unsqueeze(2), 0.2) + bias
        weights = torch.softmax(scores, dim=2)  # (B, targets, sources, heads)
        return torch.relu(((weights @ self.share) * source).sum(dim=2))

    def _attend(self, scorer: Scorer, source: Tensor, target: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Node level: messages to targets that have neighbours, and weights. ``bias``: (B, targets, sources)."""
        given, wanted = scorer[0].T @ source.transpose(1, 2), scorer[1].T @ target.transpose(1, 2)
        scores = f.leaky_relu(given.unsqueeze(2) + wanted.unsqueeze(3), 0.2) + bias.unsqueeze(1)
        weights = torch.softmax(scores, dim=3)  # (B, heads, targets, sources)
        return self._joined(weights @ self._heads(source)), weights

    def _spread(self, scorer: Scorer, cluster: Tensor, pending: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Clusters' messages to pending nodes. As _attend, but with the many targets last, which is much faster."""
        given, wanted = scorer[0].T @ cluster.transpose(1, 2), scorer[1].T @ pending.transpose(1, 2)
        scores = f.leaky_relu(given.unsqueeze(3) + wanted.unsqueeze(2), 0.2) + edges.pending_bias.unsqueeze(1)
        weights = torch.softmax(scores, dim=2) * edges.has_cluster  # (B, heads, sources, targets)
        return self._joined(weights.transpose(2, 3) @ self._heads(cluster)), weights

    def _joined(self, message: Tensor) -> Tensor:
        """(B, heads, nodes, width) -> (B, nodes, H)."""
        return torch.relu(regroup(message.transpose(1, 2), 0, 0, -1))

    def _weigh(self, messages: Tensor) -> Tensor:
        """Semantic level: (B, relations, nodes, H) -> (B, nodes, H), with separate weights for each graph."""
        scores = torch.tanh(self.semantic(messages)).mean(dim=2, keepdim=True) @ self.query.unsqueeze(1)
        return (torch.softmax(scores, dim=1) * messages).sum(dim=1)  # scores: (B, relations, 1, 1)

    def _join(self, kind: str, old: Tensor, message: Tensor) -> Tensor:
        if not self.self_term:
            return message + torch.zeros_like(
                old[..., :1]
            )  # one message may go to many nodes, one shortcut to many graphs
        joined: Tensor = self.norm[kind](old + torch.relu(self.own[kind](old) + message))
        return joined


class Graph(nn.Module):
    """Several HAN layers over the graph of the state."""

    def __init__(self, features: dict[str, int], hidden: int, heads: int, layers: int, self_term: bool = True) -> None:
        """``features``: widths of cluster, pending and running features; ``self_term``: see HanLayer."""
        super().__init__()
        self.enter = nn.ModuleDict(
            {kind: nn.Linear(features[kind], hidden) for kind in ("cluster", "pending", "running")}
        )
        kinds = dict.fromkeys(("cluster", "pending", "running", "shortcut"), hidden)
        self.layers = nn.ModuleList(
            [HanLayer(kinds, hidden, heads, self_term, final=layer == layers - 1) for layer in range(layers)]
        )
        self.hidden = hidden

    def nodes(self, inputs: Inputs) -> tuple[Nodes, tuple[Attention, ...]]:
        """Final embeddings of all nodes, and each layer's attention."""
        edges = edges_of(inputs)
        cluster = torch.relu(self.enter["cluster"](inputs.cluster))
        nodes = Nodes(
            cluster=cluster,
            pending=torch.relu(self.enter["pending"](inputs.pending)),
            running=torch.relu(self.enter["running"](inputs.running)),
            shortcut=cluster.new_zeros(1, 1, self.hidden),  # the same for all states, so its result is a constant
        )
        attention: tuple[Attention, ...] = ()
        for layer in self.layers:
            nodes, looks = layer(nodes, edges)
            attention = (*attention, looks)
        return nodes, attention


class HanEncoder(Graph):
    """Encodes the state: each pending task as its cluster sees it."""

    def __init__(self, features: dict[str, int], hidden: int, heads: int, layers: int, self_term: bool = True) -> None:
        """``features``: widths of cluster, pending, running and pair features; ``self_term``: see HanLayer."""
        super().__init__(features, hidden, heads, layers, self_term)
        self.cluster_view = nn.Linear(hidden, hidden)
        self.pair_view = nn.Linear(features["pair"], hidden)
        self.summary_width = 2 * hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """Embeddings of pending tasks on their clusters, of clusters, and of the whole state."""
        nodes, attention = self.nodes(inputs)
        places = f.embedding(rows_of(inputs.node, inputs.pending), nodes.pending.flatten(0, 1))
        places = places + self.cluster_view(nodes.cluster).unsqueeze(2) + self.pair_view(inputs.pair)
        summary = torch.cat([masked_mean(nodes.pending, inputs.pending_mask), nodes.cluster.mean(dim=1)], dim=1)
        return Encoded(places=places, clusters=nodes.cluster, summary=summary, attention=attention)


def pick_nodes(pending: Tensor, node: Tensor) -> Tensor:
    """(B, M, H) and (B, N, K) indices -> (B, N, K, H)."""
    return f.embedding(rows_of(node, pending), pending.flatten(0, 1))


def rows_of(node: Tensor, pending: Tensor) -> Tensor:
    """(B, N, K): each place's row among the nodes of all states. ``pending`` (B, M, ...) only gives their number.

    Always call it with the same inputs, so that a runtime computes it only once.
    """
    first = torch.arange(pending.shape[0], device=node.device) * pending.shape[1]
    return node + first.reshape(-1, 1, 1)
