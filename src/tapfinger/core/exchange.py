"""What agents are asked for a turn when each of them infers its own proposal, and what one of them answers.

The paper's agents exchange observations, and each computes its own proposal. Here the coordinator holds the queue, so
it makes the observation of all clusters; agents get it whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

#: Version of observations and choices; an agent is asked only if it has the same.
EXCHANGE = 1
#: Most bytes of an observation; a larger one is not exchanged.
MOST_OBSERVED = 256 * 1024


@dataclass(frozen=True, slots=True)
class SharedObservation:
    """What every agent sees in one turn: the observation of all clusters, as the network takes it."""

    slot: int
    #: The network: its shipped name or the path of its file, and the SHA-256 of its graph.
    model: str
    digest: str
    #: The network's inputs, packed (``policy.encoding.packing``).
    data: bytes


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """What one cluster's agent wants, before the coordinator has checked it."""

    #: Place of the task in the cluster's pending set; None: void.
    place: int | None = None
    #: The amounts that the network chose for it.
    amounts: tuple[int, ...] = ()
    #: Pr(j|n): the agent's probability of choosing this task.
    score: float = 0.0


class AsksAgents(Protocol):
    """Asks the agents of clusters, and waits for a bounded time."""

    def __call__(self, observation: SharedObservation, clusters: Collection[int]) -> Mapping[int, AgentChoice] | None:
        """Choice by cluster, of the agents that have answered; None if no agent can be asked at all."""
        ...


@runtime_checkable
class InfersByAgents(Protocol):
    """A scheduler whose proposals can be computed by agents."""

    def infer_by(self, ask: AsksAgents) -> None:
        """Ask agents for their proposals from the next reset on."""
        ...
