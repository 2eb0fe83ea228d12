"""The paper's own network: graph, one actor per cluster, masked joint allocation, critic on flattened embeddings.

An actor is given the graph's embeddings of its pending tasks and nothing else. A pointer chooses one of them; the
allocation of that task, or void, is one distribution over the box of legal amounts and void. What is drawn is written
as everywhere in this package, as one choice among the tasks and void:

    Pr(task j, not void) = Pr(j|n) (1 - Pr(void|j, n))        Pr(void) = sum over j of Pr(j|n) Pr(void|j, n)
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.actor_critic import ActorCritic, NetworkConfig, SeparateActors, graph_features
from tapfinger.policy.allocation import Amounts, SharedJointAllocation
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import MASKED, Encoded, Graph, masked_mean, pick_nodes
from tapfinger.policy.pointer import EncoderBlock
from tapfinger.policy.ragged import Rows


def perceptron(inside: int, hidden: int, layers: int) -> nn.Sequential:
    """``layers`` linear layers, each followed by ReLU."""
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts += [nn.Linear(hidden if layer else inside, hidden), nn.ReLU()]
    return nn.Sequential(*parts)


class GraphEncoder(Graph):
    """The graph's embeddings of pending tasks, the same for every cluster that has the task in its pending set."""

    def __init__(self, config: NetworkConfig) -> None:
        """Sizes from ``config``."""
        super().__init__(graph_features(config), config.hidden, config.heads, config.layers)
        self.slots = config.separate_actors * config.pending
        self.summary_width = self.slots * config.hidden
        # Only where the network is told more than the paper's: see FEATURES of training.config.
        self.pair_view = nn.Linear(config.pair_features, config.hidden) if config.pair_features else None

    def forward(self, inputs: Inputs) -> Encoded:
        """As in HanEncoder; the summary is all pending embeddings side by side."""
        nodes, attention = self.nodes(inputs)
        places = pick_nodes(nodes.pending, inputs.node)
        if self.pair_view is not None:
            places = places + self.pair_view(inputs.pair)
        pending = nodes.pending * inputs.pending_mask.unsqueeze(2).to(nodes.pending.dtype)
        return Encoded(places, nodes.cluster, side_by_side(pending, self.slots), attention)


def side_by_side(rows: Tensor, slots: int) -> Tensor:
    """(B, rows, H) -> (B, slots * H), with zeros where there are fewer rows."""
    return f.pad(rows, (0, 0, 0, slots - rows.shape[1])).flatten(1)


class PlainEncoder(nn.Module):
    """No-HAN: a four-layer perceptron on each [task, its cluster's free resources and backlog]."""

    def __init__(self, config: NetworkConfig) -> None:
        """Sizes from ``config``."""
        super().__init__()
        self.task = perceptron(
            config.pending_features + config.cluster_features + config.pair_features, config.hidden, 4
        )
        self.pending = config.pending
        self.summary_width = config.separate_actors * config.pending * config.hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """As in GraphEncoder; a task has another embedding in every pending set."""
        tasks = pick_nodes(inputs.pending, inputs.node)
        around = inputs.cluster.unsqueeze(2).expand(-1, -1, tasks.shape[2], -1)
        places = self.task(torch.cat([tasks, around, inputs.pair], dim=3))
        mine = places * inputs.place_mask.unsqueeze(3).to(places.dtype)
        summary = f.pad(mine, (0, 0, 0, self.pending - mine.shape[2])).flatten(1)
        return Encoded(places, inputs.cluster, summary)


class StackedState(nn.Module):
    """Vanilla: the cluster's whole state in one row, in the order of its places; all sizes are fixed."""

    #: Inputs must keep their padding.
    fixed_sizes = True

    def __init__(self, config: NetworkConfig) -> None:
        """Sizes from ``config``, including those of the pending set and the running tasks."""
        super().__init__()
        place = config.pending_features + config.pair_features + 1
        running = config.running_features + 1
        width = config.cluster_features + config.pending * place + config.running * running
        self.state = perceptron(width, config.hidden, 4)
        self.summary_width = config.separate_actors * config.hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """As in GraphEncoder, but every place of a cluster has the cluster's embedding."""
        real = inputs.place_mask.unsqueeze(3).to(inputs.cluster.dtype)
        there = inputs.running_mask.unsqueeze(3).to(inputs.cluster.dtype)
        places = torch.cat([pick_nodes(inputs.pending, inputs.node) * real, inputs.pair * real, real], dim=3)
        running = torch.cat([inputs.running * there, there], dim=3)
        clusters = self.state(torch.cat([inputs.cluster, places.flatten(2), running.flatten(2)], dim=2))
        return Encoded(clusters.unsqueeze(2).expand(-1, -1, places.shape[2], -1), clusters, clusters.flatten(1))


class TaskPointer(nn.Module):
    """u_j = v . tanh(W1 h_j + W2 mean(h)) over the encoded pending tasks."""

    def __init__(self, config: NetworkConfig) -> None:
        """Sizes from ``config``."""
        super().__init__()
        hidden = config.hidden
        self.blocks = nn.ModuleList([EncoderBlock(hidden, config.heads) for _ in range(config.transformer_layers)])
        self.norm = nn.LayerNorm(hidden)
        self.task = nn.Linear(hidden, hidden)  # W1
        self.context = nn.Linear(hidden, hidden, bias=False)  # W2
        self.score = nn.Linear(hidden, 1, bias=False)  # v

    def forward(self, places: Tensor, inputs: Inputs, there: Rows | None = None) -> Tensor:
        """(B, N, K) scores; ``places`` may also hold only the rows ``there`` of (B, K), and N is then 1."""
        rows = places.flatten(0, 1) if there is None else places
        bias = ((1.0 - inputs.place_mask.to(rows.dtype)) * MASKED).flatten(0, 1)[:, None, None, :]
        for block in self.blocks:
            rows = block(rows, bias, there)
        encoded = self.norm(rows)
        encoded = encoded.reshape_as(places) if there is None else there.pad(encoded).unsqueeze(1)
        mean = masked_mean(encoded, inputs.place_mask)
        pointed: Tensor = self.score(torch.tanh(self.task(encoded) + self.context(mean).unsqueeze(2))).squeeze(3)
        return pointed


class AnyTask(nn.Module):
    """No-pointer: all tasks that can start are equally likely."""

    random_task = True

    def forward(self, places: Tensor, inputs: Inputs, there: Rows | None = None) -> Tensor:  # noqa: ARG002 - as others
        """As in TaskPointer."""
        return torch.zeros_like(inputs.startable, dtype=places.dtype)


class OldestTask(nn.Module):
    """Vanilla: the oldest task that can start."""

    def forward(self, places: Tensor, inputs: Inputs, there: Rows | None = None) -> Tensor:  # noqa: ARG002 - as others
        """As in TaskPointer."""
        first = inputs.startable & (inputs.startable.long().cumsum(dim=2) == 1)
        return torch.zeros_like(first, dtype=places.dtype).masked_fill(~first, MASKED)


class PaperActor(nn.Module):
    """One cluster's actor: a task by the chooser, then an allocation of it, or void, from its embedding."""

    def __init__(self, chooser: nn.Module, config: NetworkConfig) -> None:
        """``chooser``: a TaskPointer, or what replaces it in an ablation."""
        super().__init__()
        self.chooser = chooser
        self.allocation = SharedJointAllocation(config.hidden, config.units, config.accelerator)

    def forward(self, places: Tensor, clusters: Tensor, inputs: Inputs, amounts: Tensor) -> tuple[Tensor, Amounts]:  # noqa: ARG002 - as other actors
        """Logits (B, N, K + 1) of tasks and void, and the amounts of every task."""
        joint = self.allocation.table(places)
        start, stay = self.start_or_void(joint, inputs.minimum, inputs.largest)
        logits = choice_logits(self.chooser(places, inputs), start, stay, inputs.startable)
        return logits, self.allocation.amounts(joint, inputs.minimum, inputs.largest)

    def start_or_void(self, joint: Tensor, minimum: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
        """log Pr(not void|j, n) and log Pr(void|j, n) from tables (..., columns, columns)."""
        head = self.allocation
        first, second = (head.within(minimum, largest, r) for r in (head.first, 1 - head.first))
        legal = second.unsqueeze(-1) & first.unsqueeze(-2)
        odds = joint.masked_fill(~legal, MASKED).logsumexp(dim=(-2, -1)) - joint[..., 0, 0]
        return f.logsigmoid(odds), f.logsigmoid(-odds)


def choice_logits(pointed: Tensor, start: Tensor, stay: Tensor, startable: Tensor) -> Tensor:
    """(B, N, K) each -> (B, N, K + 1): log-probabilities of starting each task, and of void last."""
    chance = torch.log_softmax(pointed.masked_fill(~startable, MASKED), dim=2)
    void = (chance + stay.masked_fill(~startable, 0.0)).logsumexp(dim=2, keepdim=True)
    return torch.cat([(chance + start).masked_fill(~startable, float("-inf")), void], dim=2)


class PaperActors(SeparateActors):
    """The actors of all clusters; all begin with the same weights."""

    @torch.no_grad()
    def share_gradients(self, weight: float) -> None:
        """Add, to the gradient of every actor, the sum of all actors' gradients times ``weight``.

        As if an actor's weights were the sum of a part that all have in common and one of its own: what one has
        learnt, the others learn too, and still each can become whatever it could alone. Gradients are zero together.
        """
        for same in zip(*(actor.parameters() for actor in self.actors), strict=True):
            known = [each.grad for each in same if each.grad is not None]
            if len(known) == len(same):
                whole = torch.stack(known).sum(dim=0)
                for gradient in known:
                    gradient.add_(whole, alpha=weight)


def _assemble(encoder: nn.Module, config: NetworkConfig, chooser: Any) -> ActorCritic:
    first = PaperActor(chooser(), config)
    actors = [first, *(deepcopy(first) for _ in range(config.separate_actors - 1))]
    return ActorCritic(encoder, PaperActors(cast(list[nn.Module], actors)), config.hidden, len(actors))


def paper(config: NetworkConfig) -> ActorCritic:
    """The paper's network."""
    return _assemble(GraphEncoder(config), config, lambda: TaskPointer(config))


def paper_no_han(config: NetworkConfig) -> ActorCritic:
    """The paper's No-HAN: a perceptron in place of the graph."""
    return _assemble(PlainEncoder(config), config, lambda: TaskPointer(config))


def paper_no_pointer(config: NetworkConfig) -> ActorCritic:
    """The paper's No-pointer: a random task; sample it with a generator."""
    return _assemble(GraphEncoder(config), config, AnyTask)


def paper_vanilla(config: NetworkConfig) -> ActorCritic:
    """The paper's vanilla network: stacked state and oldest task."""
    return _assemble(StackedState(config), config, OldestTask)
