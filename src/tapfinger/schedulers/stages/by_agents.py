"""The pass of the network as agents make it: each computes its own cluster's choice from the same observation."""

from __future__ import annotations

import math

import numpy as np

from tapfinger.core.exchange import MOST_OBSERVED, AgentChoice, AsksAgents, SharedObservation
from tapfinger.errors import AgentUnavailable, ConfigError, DataError
from tapfinger.policy.actions import ClusterActions
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.encoding.packing import pack
from tapfinger.policy.exported import ExportedNetwork


class AgentsPass:
    """Asks agents for their choices and checks each of them: what cannot be used is void this turn."""

    def __init__(self, network: ExportedNetwork, model: str, ask: AsksAgents) -> None:
        """``model``: how agents find the network, a shipped name or the path of a file."""
        if network.card.network == "no-pointer":
            raise ConfigError(
                f"model {network.card.name!r} draws its tasks at random, so agents would not draw the same ones; use "
                'another model, or live.inference = "central"'
            )
        self._network, self._model, self._ask = network, model, ask

    def act(self, inputs: Inputs, slot: int, counters: dict[str, int]) -> ClusterActions:
        """What every cluster wants to do; raises a TapfingerError if nobody can be asked."""
        data = pack(inputs, self._network.takes)
        if len(data) > MOST_OBSERVED:
            raise DataError(f"an observation of {len(data)} bytes is not exchanged, {MOST_OBSERVED} are possible")
        # The others are void whatever their agents would say.
        able = np.flatnonzero(inputs.startable[0].any(axis=1)).tolist()
        choices = self._ask(SharedObservation(slot, self._model, self._network.digest, data), able)
        if choices is None:
            raise AgentUnavailable("no agent can be asked for its proposal")
        acts = void_actions(inputs)
        for cluster in able:
            choice = choices.get(cluster)
            if choice is None or not _possible(choice, inputs, cluster):
                counters["missing"] += 1
            elif choice.place is not None:
                acts.place[0, cluster] = choice.place
                acts.amounts[0, cluster] = choice.amounts
                acts.score[0, cluster] = choice.score
        return acts


def void_actions(inputs: Inputs) -> ClusterActions:
    """Every cluster is void."""
    batch, clusters, places = inputs.startable.shape
    return ClusterActions(
        np.full((batch, clusters), places),
        np.zeros((batch, clusters, inputs.minimum.shape[3]), dtype=np.int64),
        np.zeros((batch, clusters)),
    )


def _possible(choice: AgentChoice, inputs: Inputs, cluster: int) -> bool:
    """Whether the choice is void, or a legal one of this cluster."""
    place = choice.place
    if place is None:
        return True
    if not (0 <= place < inputs.startable.shape[2] and inputs.startable[0, cluster, place]):
        return False
    low, high = inputs.minimum[0, cluster, place].tolist(), inputs.largest[0, cluster, place].tolist()
    legal = len(choice.amounts) == len(low) and all(
        least <= amount <= most for least, amount, most in zip(low, choice.amounts, high, strict=True)
    )
    return legal and math.isfinite(choice.score) and 0.0 <= choice.score <= 1.0
