"""The part of an agent that infers: what one cluster wants, from the observation that all agents have.

The graph runs as a whole, as in the central pass, and the agent keeps its own row: so both ways give the same numbers.
"""

from __future__ import annotations

import math

from tapfinger.core.exchange import AgentChoice
from tapfinger.errors import CheckpointMismatch, DataError
from tapfinger.policy.actions import best_actions
from tapfinger.policy.encoding.packing import unpack
from tapfinger.policy.exported import ExportedNetwork, load_model


def choose(model: str, digest: str, data: bytes, cluster: int) -> AgentChoice:
    """The choice of this cluster; raises a TapfingerError if this machine does not have the coordinator's network."""
    network = load_model(model)
    if network.digest != digest:
        raise CheckpointMismatch(
            f"model {model!r} is another one here (SHA-256 {network.digest[:12]}) than the coordinator's "
            f"({digest[:12]}); install the same version, or copy NAME.onnx and NAME.card.json from there"
        )
    return own_choice(network, data, cluster)


def own_choice(network: ExportedNetwork, data: bytes, cluster: int) -> AgentChoice:
    """The choice of one cluster's agent."""
    inputs = unpack(data)
    _, clusters, places = inputs.startable.shape
    if not 0 <= cluster < clusters:
        raise DataError(f"an observation of {clusters} clusters has none of number {cluster}")
    acts = best_actions(network.run(inputs), inputs, network.card.size("accelerator"))
    place, score = int(acts.place[0, cluster]), float(acts.score[0, cluster])
    if not math.isfinite(score):
        raise DataError(f"model {network.card.name!r}: the scores of cluster {cluster} are not numbers")
    if place == places:
        return AgentChoice()
    return AgentChoice(place, tuple(acts.amounts[0, cluster].tolist()), score)
