"""What the networks of a figure had as training, so that ablations are compared by what they are given."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.card import Card
from tapfinger.policy.exported import shipped_models
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.styles import scheduler_of


def training_of(figure: Figure, absent: Collection[str]) -> str:
    """The updates of the networks in a figure, those with the same together. ``absent``: labels that are left out."""
    groups: dict[str, list[str]] = {}
    for label in figure.schedulers:
        card = None if label in absent else _card(figure, label)
        if card is not None:
            groups.setdefault(f"{card.training.get('algorithm')}, {_updates(card)}", []).append(label)
    listed = "; ".join(f"{text}: {', '.join(labels)}" for text, labels in groups.items())
    matched = (
        "All are matched."
        if len(groups) == 1
        else "Networks that do not stand together are not matched: part of a difference may come from the training."
    )
    return f"Training (algorithm, refinements by deviations + updates from rollouts): {listed}. {matched}"


def _card(figure: Figure, label: str) -> Card | None:
    """The card of the shipped model behind a label; None for schedulers without a network."""
    spec = parse_spec(scheduler_of(figure, label))
    if spec.name != "tapfinger":
        return None
    name = str(dict(spec.options).get("model", "") or figure.settings[0].scenario)
    return shipped_models().get(name)


def _updates(card: Card) -> str:
    """``60 + 40``, or env-steps where the run was limited by them; runs before the last are counted first."""
    return ", then ".join(_run(run) for run in (*card.earlier, card.training))


def _run(run: dict[str, Any]) -> str:
    if steps := run.get("max_steps"):
        return f"{steps:,} env-steps"
    return f"{run.get('refinements', 0)} + {run.get('iterations', 0)}"
