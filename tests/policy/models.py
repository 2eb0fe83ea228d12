"""Small networks with random weights, for scenarios that ship."""

from __future__ import annotations

import torch

from tapfinger.config import load_scenario
from tapfinger.core.state import EdgeState
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.policy.card import make_card
from tapfinger.policy.encoding.inputs import batch_of_one
from tapfinger.training.simulators import make_encoder
from tapfinger.workloads.world import build_world

#: Added to the logit of void: with the first a cluster starts whatever it can, with the second nothing.
EAGER, IDLE = -100.0, 1000.0


def small_network(scenario="multi-3", network="full", void=EAGER, seed=0, **changes):
    """Network, config and card; ``scenario`` is a name or a Scenario."""
    chosen = load_scenario(scenario) if isinstance(scenario, str) else scenario
    world = build_world(chosen)
    snapshot = EdgeState(world.clusters, world.mode).snapshot()
    encoder = make_encoder(world)
    inputs = encoder.make(batch_of_one(encoder.observer.observe(snapshot)))
    sizes = {"hidden": 8, "heads": 2, "layers": 1, **changes}
    config = config_for(inputs, world.resources.accelerator, **sizes)
    torch.manual_seed(seed)
    net = build(network, config)
    with torch.no_grad():
        for actor in getattr(net.actor, "actors", [net.actor]):
            if config.form == "paper":
                actor.allocation.task[-1].bias[0] += void
            else:
                actor.chooser.void.layers[-1].bias += void
    return (
        net,
        config,
        make_card(chosen, name=f"small-{network}", network=network, seeds=[seed], evaluation={"mean": 3.5}),
    )
