"""``tapfinger explain`` and ``shadow``: why tasks wait or run where they do, and what other schedulers would do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.options import JsonOption, StateOption, UrlOption, open_client
from tapfinger.commands.screen import plain_console
from tapfinger.commands.tasks import TaskArgument

if TYPE_CHECKING:
    from rich.console import Console


def explain(task: TaskArgument, state: StateOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Say why a task waits and when it may start, or why it got its place and size."""
    with open_client(state, url) as client:
        found = client.explain(task)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = _console()
    console.print(found["summary"], highlight=False, markup=False)
    if found["phase"] == "queued":
        _waiting(found, console)
    elif found["placement"] is not None:
        _placed(found["placement"], found["waited"], console)


def _waiting(found: dict[str, Any], console: Console) -> None:
    from tapfinger.live.insight.explain import named
    from tapfinger.live.protocol.words import seconds

    if found["clusters"]:  # of a task that rests there are none
        _verdicts(found["clusters"], console)
    console.print(f"It has waited for {seconds(found['waited'])}.", highlight=False)
    if found["overtaken_by"]:
        console.print(f"Overtaken by {named(found['overtaken_by'])}.", highlight=False)
    when, how = found["estimate"]["seconds"], found["estimate"]["how"]
    where = f" on {_place(found['estimate'])}" if "cluster" in found["estimate"] else ""
    text = f"unknown: {how}" if when is None else f"in about {seconds(when)}{where} ({how})"
    console.print(f"Start: {text}.", highlight=False)


def _verdicts(rows: list[dict[str, Any]], console: Console) -> None:
    from rich import box
    from rich.table import Table

    odds = any(row["probability"] is not None for row in rows)
    kinds = any(row.get("kind") for row in rows)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("cluster", no_wrap=True)
    if kinds:
        table.add_column("kind", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    if odds:
        table.add_column("chance", justify="right")
    table.add_column("why")
    for row in rows:
        chance = [] if not odds else ["" if row["probability"] is None else f"{100 * row['probability']:.1f} %"]
        kind = [row["kind"]] if kinds else []
        table.add_row(row["cluster"], *kind, row["verdict"], *chance, row["text"])
    console.print(table)


def _placed(placement: dict[str, Any], waited: float, console: Console) -> None:
    from tapfinger.live.protocol.words import seconds

    size = ", ".join(f"{amount:g} {name}" for name, amount in placement["allocation"].items() if amount)
    console.print(f"It waited for {seconds(waited)} and got {size} on {_place(placement)}.", highlight=False)
    if placement["text"]:
        console.print(f"Why: {placement['text']}.", highlight=False, markup=False)
    factor = placement.get("measured_factor", 1.0)
    if abs(factor - 1.0) > 0.05:
        text = f"Tasks of this type took {factor:.2g} times as long as their profile says, lately."
        console.print(text, highlight=False)


def _place(where: dict[str, Any]) -> str:
    """``lab:0 (a100)``: a cluster or node and its kind of hardware."""
    kind = where.get("kind")
    return f"{where['cluster']} ({kind})" if kind else str(where["cluster"])


def shadow(
    state: StateOption = None,
    url: UrlOption = None,
    rounds: Annotated[int, typer.Option(min=0, help="How many of the latest rounds to show.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Say what the schedulers of live.shadow would have done, and how often they agree with the one that decides."""
    with open_client(state, url) as client:
        found = client.shadow()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    if not found["shadows"]:
        typer.echo('No shadow is configured. Name one in the site\'s file: [live] shadow = "greedy"')
        return
    console = _console()
    for report in found["shadows"]:
        _tally(report, found["scheduler"], console)
        differing = [row for row in report["latest"] if not row["agrees"]][:rounds]
        for row in differing:
            _round(row, console)


def _tally(report: dict[str, Any], real: str, console: Console) -> None:
    name, rounds = report["scheduler"], report["rounds"]
    share = f"{report['agreed']} of {rounds} rounds" if rounds else "no round yet"
    console.print(f"{name}, as a shadow of {real}: agrees in {share}.", highlight=False, markup=False)
    console.print(
        f"  Both started {report['both']} tasks in the same round: {report['same_cluster']} on the same cluster, "
        f"{report['same_size']} with the same size. {report['only_shadow']} only {name} would have started then, "
        f"{report['only_real']} only {real} did.",
        highlight=False,
        markup=False,
    )
    if report["both"]:
        change = (report["shadow_seconds"] - report["real_seconds"]) / report["both"]
        faster = "longer" if change > 0 else "shorter"
        text = (
            f"  With the sizes of {name}, a task that both started would run {abs(change):.1f} s {faster} on average."
        )
        console.print(text, highlight=False, markup=False)
    left_out = f"  Not asked in {report['dropped']} rounds (still busy), failed in {report['failed']}."
    fault = f" At last: {report['fault']}" if report.get("fault") else ""
    console.print(left_out + fault, highlight=False, markup=False)


def _round(row: dict[str, Any], console: Console) -> None:
    from datetime import datetime

    at = datetime.fromtimestamp(row["at"]).strftime("%H:%M:%S")
    console.print(f"  {at}, {row['waiting']} waiting:", highlight=False)
    for who in ("real", "shadow"):
        starts = [f"{s['task']} on {s['cluster']} with {_size(s['allocation'])}" for s in row[who]]
        console.print(f"    {who + ':':8}{'; '.join(starts) or 'nothing'}", highlight=False, markup=False)


def _size(allocation: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in allocation.items() if amount)


def _console() -> Console:

    return plain_console()
