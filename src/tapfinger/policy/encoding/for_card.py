"""The encoder that a model's card calls for."""

from __future__ import annotations

from collections.abc import Sequence

from tapfinger.core.contract import SchedulerContext
from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.card import Card
from tapfinger.policy.encoding.base import Adviser, StateEncoder
from tapfinger.policy.encoding.by_profile import ProfileEncoder
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.profiles.site_tables import SiteTables


def encoder_for(card: Card, site: SiteTables, advisers: Sequence[Adviser]) -> StateEncoder:
    """An encoder for the card's schema and features; rejects a card made for another scenario.

    ``advisers``: used only by the schema ``profiles``.
    """
    pending, who = card.size("pending"), f"model {card.name!r}"
    if card.schema == PROFILES.name:
        return ProfileEncoder(site, pending, advisers, card.features, who)
    context = site.context
    _check_fit(card, context)
    # This network stacks its inputs in one row, so the padding must stay.
    padded = card.network == "vanilla"
    encoder = TypeEncoder(context, pending, card.task_types, padded, card.features, who)
    if padded and encoder.observer.most_running != card.size("running"):
        raise mismatch(card, "config.running", card.size("running"), encoder.observer.most_running)
    return encoder


def _check_fit(card: Card, context: SchedulerContext) -> None:
    types = [t.name for t in context.task_types]
    if set(card.task_types) != set(types):
        raise mismatch(card, "task_types", ", ".join(card.task_types), ", ".join(types))
    if card.resources != tuple(context.resources.names):
        raise mismatch(card, "resources", ", ".join(card.resources), ", ".join(context.resources.names))
    actors = card.size("separate_actors")
    if actors and actors != len(context.clusters):
        raise mismatch(card, "config.separate_actors", actors, len(context.clusters))


def mismatch(card: Card, field: str, model: object, world: object) -> CheckpointMismatch:
    """The error for a model that does not fit."""
    return CheckpointMismatch(
        f"model {card.name!r} does not fit this scenario: its {field} is {model}, the scenario has {world}; "
        "use another model or train one on this scenario"
    )
