"""``tapfinger models``: the networks that ship with the package."""

from __future__ import annotations

from typing import Annotated

import typer

#: What the table shows of the card's evaluation, by the head of its column.
RESULTS = {"tapfinger": "tapfinger", "greedy": "greedy", "optimus": "optimus-central"}


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
    for head in ("model", "network", "clusters", *RESULTS):
        table.add_column(head, no_wrap=True, justify="right" if head in (*RESULTS, "clusters") else "left")
    for card in cards.values():
        results = [f"{card.evaluation[name]:.2f}" if name in card.evaluation else "" for name in RESULTS.values()]
        row = (card.name, card.network, str(len(card.capacities) or "any"))
        table.add_row(*map(escape, row), *results)
    Console().print(table)
    typer.echo("Results: mean completion time in slots on a few fresh workloads of its scenario.")
    for card in cards.values():
        shares = [
            f"{sum(found) / len(found):.2f} of {rival}'s"
            for rival in RESULTS.values()
            if (found := card.evaluation.get(f"share_of_{rival}"))
        ]
        if shares:
            typer.echo(
                f"{card.name}: for any site; on {len(card.evaluation['per_site'])} random ones {', '.join(shares)}."
            )
    typer.echo("Use one with: tapfinger@model=NAME. Its whole card: tapfinger models NAME.")
