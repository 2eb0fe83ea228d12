"""Which shipped model a site gets: its own if there is one, otherwise the universal one."""

from __future__ import annotations

import numpy as np

from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import Noise
from tapfinger.errors import ConfigError
from tapfinger.policy.card import Card
from tapfinger.policy.exported import shipped_models

#: The model that fits any site.
UNIVERSAL = "universal"


def choose_model(context: SchedulerContext) -> str:
    """The shipped model for these task types, clusters, noise and this mode; the universal one if there is none."""
    cards = shipped_models()
    fitting = [card.name for card in cards.values() if _is_for(card, context)]
    if not fitting and UNIVERSAL not in cards:
        types = ", ".join(t.name for t in context.task_types)
        raise ConfigError(
            f"tapfinger: no shipped model is for the task types {types}, the resources "
            f"{', '.join(context.resources.names)}, these clusters and {context.mode.value}-task mode; train one and "
            f"give model=PATH.onnx (shipped: {', '.join(cards) or 'none'})"
        )
    return min(fitting, default=UNIVERSAL)


def has_model(context: SchedulerContext) -> bool:
    """Whether a shipped model is for this site, or for any site."""
    cards = shipped_models()
    return UNIVERSAL in cards or any(_is_for(card, context) for card in cards.values())


def _is_for(card: Card, context: SchedulerContext) -> bool:
    """Whether the model was made for this scenario.

    On its own scenario such a model is better than the universal one. Elsewhere it is worse: on larger clusters, with
    another number of clusters (by up to 10 % on 6 and on 100 equal ones), with other noise, and in the other mode.

    Ablations and other variants ship to be measured; they are used only if asked for.
    """
    types = {t.name for t in context.task_types}
    same = set(card.task_types) == types and card.resources == tuple(context.resources.names)
    return (
        same
        and card.name == card.scenario.get("name")
        and card.scenario.get("mode") == context.mode.value
        and _same_noise(card, context)
        and _has_seen(card, [tuple(context.resources.natural(c.capacity).values()) for c in context.clusters])
    )


def _same_noise(card: Card, context: SchedulerContext) -> bool:
    """Whether progress varies as it did in training."""
    return Noise(**card.scenario.get("noise", {})) == context.noise


def _has_seen(card: Card, capacities: list[tuple[float, ...]]) -> bool:
    """Whether the clusters are the model's own, or as many with less capacity in total.

    Less capacity is like a higher load, so it counts only if the model was trained at such loads.
    """
    if card.capacities == sorted(capacities):
        return True
    heaviest = max(card.training.get("loads", (1.0,)))
    mine, its = (np.sum(amounts, axis=0) for amounts in (capacities, card.capacities))
    return len(capacities) == len(card.capacities) and bool(np.all((mine < its) & (mine * heaviest >= its)))
