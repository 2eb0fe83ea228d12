"""Ablations, the paper's and our own: the same network with one part removed or replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from tapfinger.errors import UnknownNameError
from tapfinger.policy.actor_critic import (
    Actor,
    ActorCritic,
    NetworkConfig,
    make_allocation,
    make_encoder,
    make_network,
)
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import TYPES
from tapfinger.policy.han import Encoded, masked_mean, pick_nodes
from tapfinger.policy.paper_form import paper, paper_no_han, paper_no_pointer, paper_vanilla, perceptron
from tapfinger.policy.pointer import Pointer, VoidHead
from tapfinger.profiles.greedy_options import ADVISERS


class PerceptronEncoder(nn.Module):
    """No-HAN: a four-layer perceptron on each [task, its cluster]; no cluster sees another.

    The exception is ``hints``: it keeps the features that tell a cluster about the others (``Feature.of_others``).
    """

    def __init__(self, config: NetworkConfig, hints: bool) -> None:
        """Sizes from ``config``."""
        super().__init__()
        widths = []
        for kind, columns in columns_of(config, hints).items():
            # Derived from the schema, so checkpoints need not hold it.
            self.register_buffer(f"own_{kind}", torch.tensor(columns), persistent=False)
            widths.append(len(columns))
        self.task = perceptron(sum(widths), config.hidden, 4)
        self.cluster = perceptron(widths[0], config.hidden, 4)
        self.summary_width = 2 * config.hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """As in HanEncoder."""
        tasks = pick_nodes(inputs.pending.index_select(2, self.own_pending), inputs.node)
        own = inputs.cluster.index_select(2, self.own_cluster)
        around = own.unsqueeze(2).expand(-1, -1, tasks.shape[2], -1)
        places = self.task(torch.cat([tasks, around, inputs.pair.index_select(3, self.own_pair)], dim=3))
        clusters = self.cluster(own)
        mean = masked_mean(places.flatten(1, 2), inputs.place_mask.flatten(1, 2))
        return Encoded(places, clusters, torch.cat([mean, clusters.mean(dim=1)], dim=1))


def columns_of(config: NetworkConfig, hints: bool) -> dict[str, list[int]]:
    """Columns of clusters, waiting tasks and pairs, by kind; without ``hints``, only those about a single cluster."""
    schema = PROFILES if config.menu_features else TYPES
    sizes = {"resource": config.resources, "task type": 0, "adviser": len(ADVISERS)}
    sizes["task type"] = config.running_features - schema.tables["running"].width(sizes)
    found = {}
    for kind in ("cluster", "pending", "pair"):
        table = schema.tables[kind]
        columns = table.columns(sizes)
        found[kind] = [c for f in table.features if hints or not f.of_others for c in columns[f.name]]
    return found


class StackedEncoder(nn.Module):
    """Vanilla: the cluster's whole state in one row, in the order of its places; all sizes are fixed."""

    #: Inputs must keep their padding.
    fixed_sizes = True

    def __init__(self, config: NetworkConfig) -> None:
        """Sizes from ``config``, including those of the pending set and the running tasks."""
        super().__init__()
        place = config.pending_features + config.pair_features + 1
        running = config.running_features + 1
        width = config.cluster_features + config.pending * place + config.running * running
        self.state = perceptron(width, 2 * config.hidden, 2)
        self.out = perceptron(2 * config.hidden, config.hidden, 1)
        self.summary_width = config.hidden

    def forward(self, inputs: Inputs) -> Encoded:
        """As in HanEncoder, but every place of a cluster has the cluster's embedding."""
        real = inputs.place_mask.unsqueeze(3).to(inputs.pair.dtype)
        there = inputs.running_mask.unsqueeze(3).to(inputs.pair.dtype)
        places = torch.cat([pick_nodes(inputs.pending, inputs.node) * real, inputs.pair * real, real], dim=3)
        running = torch.cat([inputs.running * there, there], dim=3)
        clusters = self.out(self.state(torch.cat([inputs.cluster, places.flatten(2), running.flatten(2)], dim=2)))
        same = clusters.unsqueeze(2).expand(-1, -1, places.shape[2], -1)
        return Encoded(same, clusters, clusters.mean(dim=1))


class UniformTask(nn.Module):
    """No-pointer: all startable tasks are equally likely; only whether to start one is learnt."""

    random_task = True

    def __init__(self, hidden: int) -> None:
        """``hidden``: width of the embeddings."""
        super().__init__()
        self.void = VoidHead(hidden, 2)

    def forward(self, places: Tensor, clusters: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """As in Pointer; all startable tasks together have weight one against void."""
        startable = inputs.startable
        count = startable.sum(dim=2, keepdim=True).clamp(min=1).to(places.dtype)
        equal = -count.log().expand_as(places[..., 0]).masked_fill(~startable, float("inf"))
        return torch.cat([equal, self.void(clusters, masked_mean(places, inputs.place_mask))], dim=2), places


class FirstTask(nn.Module):
    """Vanilla: the oldest startable task, or void."""

    def __init__(self, hidden: int) -> None:
        """``hidden``: width of the embeddings."""
        super().__init__()
        self.void = VoidHead(hidden, 1)

    def forward(self, places: Tensor, clusters: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """As in Pointer."""
        startable = inputs.startable
        first = startable & (startable.long().cumsum(dim=2) == 1)
        oldest = torch.zeros_like(places[..., 0]).masked_fill(~first, float("-inf"))
        return torch.cat([oldest, self.void(clusters)], dim=2), places


def no_han(config: NetworkConfig, hints: bool = False) -> ActorCritic:
    """Perceptron instead of the graph; pointer and allocation as in the full network."""
    pointer = Pointer(config.hidden, config.heads, config.transformer_layers)
    return ActorCritic(PerceptronEncoder(config, hints), Actor(pointer, make_allocation(config)), config.hidden)


def hints_only(config: NetworkConfig) -> ActorCritic:
    """No-HAN plus what we tell each cluster about the others: shows what is left for the graph to add."""
    return no_han(config, hints=True)


def no_pointer(config: NetworkConfig) -> ActorCritic:
    """Random task; sample it with a generator, as its probabilities are all equal."""
    return ActorCritic(make_encoder(config), Actor(UniformTask(config.hidden), make_allocation(config)), config.hidden)


def vanilla(config: NetworkConfig) -> ActorCritic:
    """Stacked state and oldest task: only the allocation is learnt."""
    actor = Actor(FirstTask(config.hidden), make_allocation(config))
    return ActorCritic(StackedEncoder(config), actor, config.hidden)


def no_self(config: NetworkConfig) -> ActorCritic:
    """The graph as in the published code: a node sees its neighbours but not itself."""
    return make_network(config, self_term=False)


def joint_head(config: NetworkConfig) -> ActorCritic:
    """The paper's allocation head, over the box of two resources."""
    return make_network(replace(config, allocation="joint"))


#: Every network, by its name in a config or checkpoint.
NETWORKS: dict[str, Callable[[NetworkConfig], ActorCritic]] = {
    "full": make_network,
    "no-han": no_han,
    "hints-only": hints_only,
    "no-pointer": no_pointer,
    "vanilla": vanilla,
    "no-self": no_self,
    "joint-head": joint_head,
}


#: The same in the paper's own form (``NetworkConfig.form``).
PAPER_NETWORKS: dict[str, Callable[[NetworkConfig], ActorCritic]] = {
    "full": paper,
    "no-han": paper_no_han,
    "no-pointer": paper_no_pointer,
    "vanilla": paper_vanilla,
}


def build(name: str, config: NetworkConfig) -> ActorCritic:
    """The network of that name, in the form of the config."""
    networks = PAPER_NETWORKS if config.form == "paper" else NETWORKS
    if name not in networks:
        raise UnknownNameError("network", name, networks)
    return networks[name](config)
