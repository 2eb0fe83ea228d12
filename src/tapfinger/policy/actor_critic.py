"""The network: encoder, actor (pointer and allocation) and centralised critic, assembled from a config."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.policy.allocation import Amounts, FactoredAllocation, JointAllocation, MenuAllocation
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import Encoded, HanEncoder
from tapfinger.policy.pointer import Pointer


class Answers(Protocol):
    """What a distribution over actions is built from."""

    @property
    def task_logits(self) -> Any:
        """(B, N, K + 1): pending places, then void; -inf where not startable."""

    @property
    def value(self) -> Any:
        """State value, (B, 1), or (B, N): one for each agent."""

    def chosen(self, rows: tuple[Tensor, ...], placed: Tensor) -> Amounts:
        """Scores of the amounts of the chosen tasks: without the axis K, and with C columns of choices in place of N.

        ``rows``: indices of state, cluster and place that broadcast to (B, C). ``placed`` (B, C): whether a task was
        chosen; the scores of the other columns are meaningless.
        """


class Outputs(NamedTuple):
    """The network's outputs for a batch; see distributions for the actions they stand for."""

    task_logits: Any  # (B, N, K + 1): pending places, then void; -inf where not startable
    amount_logits: Any  # (B, N, K, R, A)
    amount_keys: Any  # (B, N, K, R, A, r)
    amount_queries: Any  # (B, N, K, R, A, r)
    value: Any  # (B, 1), or (B, N): one for each agent

    def chosen(self, rows: tuple[Tensor, ...], placed: Tensor) -> Amounts:  # noqa: ARG002 - all are there anyway
        """As in Answers."""
        return Amounts(self.amount_logits[rows], self.amount_keys[rows], self.amount_queries[rows])


ALLOCATIONS = ("factored", "joint", "menu")

#: ours: any number of clusters, told more than the paper's agents are. paper: ``policy.paper_form``.
FORMS = ("ours", "paper")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the network; the numbers of features follow from the inputs."""

    cluster_features: int
    pending_features: int
    running_features: int
    pair_features: int
    #: Number of resource types, and the index of the one decided first.
    resources: int
    accelerator: int
    hidden: int = 32
    heads: int = 4
    #: Number of HAN layers, and of transformer layers over the pending set.
    layers: int = 2
    transformer_layers: int = 1
    #: Size of the pending set.
    pending: int = 10
    #: Rows of running tasks; matters only to the vanilla network, which stacks them.
    running: int = 8
    #: "factored": any resources and capacities; "joint": the paper's box of two resources; "menu": one size from a
    #: list, which counts as a single resource.
    allocation: str = "factored"
    #: Most units of a resource that the joint head can give.
    units: int = 16
    #: Rank of the factored head's interaction between amounts.
    rank: int = 4
    #: How often clusters reconsider their task after seeing what the others want; separate actors never do.
    rounds: int = 0
    #: Number of features of a size on the menu; 0 without a menu.
    menu_features: int = 0
    #: 0: all clusters share one actor; N: each of exactly N clusters has its own.
    separate_actors: int = 0
    form: str = "ours"

    def __post_init__(self) -> None:
        """Reject configurations that cannot be built."""
        if self.hidden % self.heads:
            raise ConfigError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}; choose one that is")
        if self.allocation not in ALLOCATIONS:
            raise UnknownNameError("allocation head", self.allocation, ALLOCATIONS)
        if (self.allocation == "menu") != (self.menu_features > 0):
            raise ConfigError(f"allocation = {self.allocation!r} and menu_features = {self.menu_features} do not agree")
        if self.allocation == "joint" and self.resources != 2:
            raise ConfigError(f"the joint head needs 2 resources, not {self.resources}; take allocation = 'factored'")
        if self.form not in FORMS:
            raise UnknownNameError("form", self.form, FORMS)
        if self.form == "paper" and (self.allocation != "joint" or not self.separate_actors):
            raise ConfigError(
                f"form = 'paper' needs allocation = 'joint', not {self.allocation!r}, and separate_actors = the number "
                f"of clusters, not {self.separate_actors}"
            )
        if not 0 <= self.accelerator < self.resources:
            raise ConfigError(f"accelerator = {self.accelerator} is not an index of {self.resources} resources")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint's card; ``NetworkConfig(**values)`` restores the config."""
        return asdict(self)


_PAPER: dict[str, Any] = {"heads": 4, "transformer_layers": 2, "allocation": "joint", "form": "paper"}

#: Networks by name: ``cpu`` is ours, ``paper`` is the paper's, and ``paper-small`` the paper's in the size of ours.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {"hidden": 32, "heads": 4, "layers": 2, "transformer_layers": 1, "rounds": 2},
    "paper": {"hidden": 256, "layers": 6, **_PAPER},
    "paper-small": {"hidden": 32, "layers": 2, **_PAPER},
}


def config_for(inputs: Inputs, accelerator: int, preset: str = "cpu", **changes: Any) -> NetworkConfig:
    """A config with the preset's sizes for such inputs (arrays or tensors); ``changes`` replaces single values."""
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    values: dict[str, Any] = {
        "cluster_features": inputs.cluster.shape[-1],
        "pending_features": inputs.pending.shape[-1],
        "running_features": inputs.running.shape[-1],
        "pair_features": inputs.pair.shape[-1],
        "resources": inputs.largest.shape[-1],
        "accelerator": accelerator,
        "pending": inputs.node.shape[-1],
        "running": inputs.running.shape[-2],
    }
    if inputs.menu.shape[-1]:
        values |= {"allocation": "menu", "menu_features": inputs.menu.shape[-1], "accelerator": 0}
    values = {**values, **PRESETS[preset], **changes}
    if values.get("form") == "paper":
        values.setdefault("separate_actors", inputs.cluster.shape[-2])
    return NetworkConfig(**values)


def as_tensors(inputs: Inputs) -> Inputs:
    """Arrays -> tensors, without copying."""
    return Inputs(*(torch.from_numpy(array) for array in inputs))


def amounts_of(inputs: Inputs, columns: int | None = None) -> Tensor:
    """(A,) 0..A-1 as floats. ``columns``: A; without it, one more than the largest legal amount."""
    top: Any = inputs.largest.amax() + 1 if columns is None else columns
    return torch.arange(top, device=inputs.cluster.device).to(inputs.cluster.dtype)


class Actor(nn.Module):
    """Chooses a task, then its amounts. Any chooser with the pointer's interface works."""

    def __init__(self, chooser: nn.Module, allocation: nn.Module) -> None:
        """``chooser`` gives task logits and encoded tasks; ``allocation`` scores their amounts."""
        super().__init__()
        self.chooser, self.allocation = chooser, allocation

    def forward(self, places: Tensor, clusters: Tensor, inputs: Inputs, amounts: Tensor) -> tuple[Tensor, Amounts]:
        """Task logits and amount scores of every cluster."""
        logits, tasks = self.chooser(places, clusters, inputs)
        return logits, self.score(tasks, inputs, amounts)

    def score(self, tasks: Tensor, inputs: Inputs, amounts: Tensor) -> Amounts:
        """Scores of the amounts of tasks (B, N, K, H) that the chooser has encoded."""
        scores: Amounts = self.allocation(tasks, inputs, amounts)
        return scores


class SeparateActors(nn.Module):
    """One actor per cluster, as in the paper; works only for the number of clusters it was made for."""

    def __init__(self, actors: list[nn.Module]) -> None:
        """``actors[n]`` acts for cluster n."""
        super().__init__()
        self.actors = nn.ModuleList(actors)

    def forward(self, places: Tensor, clusters: Tensor, inputs: Inputs, amounts: Tensor) -> tuple[Tensor, Amounts]:
        """As in Actor."""
        logits, parts = [], []
        for n, actor in enumerate(self.actors):
            one = slice(n, n + 1)
            mine = inputs._replace(
                place_mask=inputs.place_mask[:, one],
                startable=inputs.startable[:, one],
                minimum=inputs.minimum[:, one],
                largest=inputs.largest[:, one],
                copies=inputs.copies[:, one],
                menu=inputs.menu[:, one],
            )
            logit, part = actor(places[:, one], clusters[:, one], mine, amounts)
            logits.append(logit)
            parts.append(part)
        return torch.cat(logits, dim=1), Amounts(*(torch.cat(column, dim=1) for column in zip(*parts, strict=True)))


class ActorCritic(nn.Module):
    """An encoder, an actor on its embeddings and a critic on its summary."""

    def __init__(self, encoder: nn.Module, actor: nn.Module, hidden: int, values: int = 1) -> None:
        """``encoder`` returns Encoded and has a ``summary_width``; ``values``: 1, or one for each agent."""
        super().__init__()
        self.encoder, self.actor = encoder, actor
        width: Any = encoder.summary_width
        # The last layer is linear: returns are negative.
        self.critic = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, values))

    def forward(self, inputs: Inputs, columns: int | None = None) -> Outputs:
        """Outputs for a batch of tensors. ``columns``: A; without it, one more than the largest legal amount."""
        return self.judge(self.encoder(inputs), inputs, columns)

    def judge(self, encoded: Encoded, inputs: Inputs, columns: int | None = None) -> Outputs:
        """Apply actor and critic to the encoder's output."""
        logits, scores = self.actor(encoded.places, encoded.clusters, inputs, amounts_of(inputs, columns))
        return Outputs(logits, scores.logits, scores.keys, scores.queries, self.worth(encoded.summary))

    def worth(self, summary: Tensor) -> Tensor:
        """(B, 1), or (B, N) with a value for each agent, from an encoder's summary."""
        value: Tensor = self.critic(summary)
        return value


class Positional(nn.Module):
    """The network with the fields of Inputs as arguments and plain tensors as results: the form exporters accept."""

    def __init__(self, network: nn.Module) -> None:
        """``network``: an ActorCritic."""
        super().__init__()
        self.network = network

    def forward(self, *fields: Tensor) -> tuple[Tensor, ...]:
        """Outputs as a tuple; for a network with a graph, also the tensors of each layer's Attention.

        The network computes these values anyway, so a runtime that returns all outputs does no extra work.
        """
        inputs, network = Inputs(*fields), cast(ActorCritic, self.network)
        encoded: Encoded = network.encoder(inputs)
        return (*network.judge(encoded, inputs), *(weights for layer in encoded.attention for weights in layer))


def graph_features(config: NetworkConfig) -> dict[str, int]:
    """Number of features of each kind of node, and of pairs."""
    return {
        "cluster": config.cluster_features,
        "pending": config.pending_features,
        "running": config.running_features,
        "pair": config.pair_features,
    }


def make_encoder(config: NetworkConfig, self_term: bool = True) -> HanEncoder:
    """The graph encoder of a config; ``self_term``: whether nodes see their own features."""
    return HanEncoder(graph_features(config), config.hidden, config.heads, config.layers, self_term)


def make_allocation(config: NetworkConfig) -> nn.Module:
    """The allocation head of a config."""
    if config.allocation == "joint":
        return JointAllocation(config.hidden, config.units, config.accelerator)
    if config.allocation == "menu":
        return MenuAllocation(config.hidden, config.menu_features)
    return FactoredAllocation(config.hidden, config.resources, config.rank)


def make_network(config: NetworkConfig, self_term: bool = True) -> ActorCritic:
    """The full network: HAN, pointer, allocation, critic."""

    def actor() -> nn.Module:
        rounds = 0 if config.separate_actors else config.rounds
        pointer = Pointer(config.hidden, config.heads, config.transformer_layers, rounds)
        return Actor(pointer, make_allocation(config))

    separate = [actor() for _ in range(config.separate_actors)]
    chooser = SeparateActors(separate) if separate else actor()
    return ActorCritic(make_encoder(config, self_term), chooser, config.hidden)
