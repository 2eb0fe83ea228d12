"""``tapfinger models``: the networks that ship with the package."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Show this model's whole card (a name or a file).")
    ] = "",
) -> None:
    """List the trained models with what they are for, or show one's card."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tapfinger.policy.exported import load_model, shipped_models

    if name:
        typer.echo(load_model(name).card.to_json())
        return
    cards = shipped_models()
    if not cards:
        typer.echo("No models are shipped with this version; give tapfinger@model=PATH.onnx.")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("model", "network", "trained on", "task types", "resources", "evaluation"):
        table.add_column(head, no_wrap=head == "model")
    for card in cards.values():
        results = ", ".join(f"{key} {value:.2f}" for key, value in card.evaluation.items() if isinstance(value, float))
        trained = f"{card.scenario.get('name', '?')} ({card.clusters} clusters)"
        row = (card.name, card.network, trained, ", ".join(card.task_types), ", ".join(card.resources), results)
        table.add_row(*map(escape, row))
    Console().print(table)
    typer.echo("Use one with: tapfinger@model=NAME. Its whole card: tapfinger models NAME.")
