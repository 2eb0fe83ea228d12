"""``tapfinger profiles``: the believed speed of task types, from a live site or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.options import JsonOption, StateOption, UrlOption, open_client
from tapfinger.commands.screen import plain_console, say

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    no_args_is_help=True,
    help="How fast task types are believed to be: what a live site has learnt, or what a file says.",
)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Instead of a live site: a profile CSV, or a scenario's TOML file."),
]
TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="A task type.")]
EveryOption = Annotated[bool, typer.Option("--all", help="Every size, not only those that were seen.")]


@app.command("list")
def list_types(
    state: StateOption = None, url: UrlOption = None, file: FileOption = None, as_json: JsonOption = False
) -> None:
    """List the task types: runs seen, seconds at the usual size, doubt, changes of speed."""
    rows = _types(state, url, file)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return

    table = _table("type", "runs", "sizes", "usual size", "seconds", "configured", "doubt", "drift")
    for row in rows:
        drift = row["drift"]
        table.add_row(
            row["name"],
            f"{row['runs']}",
            f"{row['sizes']}",
            _size(row["usual"]),
            f"{row['seconds']:.3g}",
            "" if row["configured_seconds"] is None else f"{row['configured_seconds']:.3g}",
            _doubt(row["doubt"]),
            "" if drift is None else f"x {drift['factor']:.2g} since {_clock(drift['since'])}",
        )
    _print(table)


@app.command("show")
def show(
    name: TypeArgument,
    state: StateOption = None,
    url: UrlOption = None,
    file: FileOption = None,
    every: EveryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the belief about a task type, size by size."""
    found = _type(name, state, url, file, every)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    scatter = f"; equal runs differ by {_doubt(found['scatter'])}" if found["runs"] else ""
    say(f"{found['name']}: {found['runs']} runs seen{scatter}.")
    if found["drift"] is not None:
        times, at = found["drift"]["factor"], _clock(found["drift"]["since"])
        typer.echo(f"Its tasks take {times:.3g} times as long as before, since {at}.")
    if not found["cells"]:
        typer.echo("No size was seen yet; --all shows what is believed of every one.")
        return
    table = _table("size", "runs", "seconds", "configured", "doubt")
    for cell in found["cells"]:
        table.add_row(
            _size(cell["allocation"]) + (f" on {cell['kind']}" if "kind" in cell else ""),
            f"{cell['runs']:.3g}",
            f"{cell['seconds']:.4g}",
            "" if cell["configured_seconds"] is None else f"{cell['configured_seconds']:.4g}",
            _doubt(cell["doubt"]),
        )
    _print(table)


@app.command("plot")
def plot(
    name: TypeArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.png", help="Picture to write.")],
    kind: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kind of hardware. Without it: the one with the most runs.")
    ] = None,
    state: StateOption = None,
    url: UrlOption = None,
    file: FileOption = None,
) -> None:
    """Draw the seconds of every size of a task type, and how certain they are."""
    from tapfinger.errors import DataError
    from tapfinger.evaluation.profile_plots import draw_profile

    found = _type(name, state, url, file, True)
    cells = _of_kind(found["cells"], kind)
    title = found["name"] + (f" on {cells[0]['kind']}" if "kind" in cells[0] else "")
    try:
        draw_profile(title, cells, out)
    except (OSError, ValueError) as error:  # no such folder; a kind of picture that matplotlib does not know
        raise DataError(f"{out} cannot be written: {error}") from None
    typer.echo(f"written: {out}")


@app.command("export")
def export(
    name: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="A task type. Without it: all.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.csv", help="Profile CSV to write.")] = Path("profile.csv"),
    state: StateOption = None,
    url: UrlOption = None,
    file: FileOption = None,
    every: EveryOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier file.")] = False,
) -> None:
    """Write the best estimates as a profile CSV, for scenarios and sites (speed kind "table")."""
    from tapfinger.errors import ConfigError, DataError
    from tapfinger.profiles.table import ProfileRow, write_profile

    if out.exists() and not force:
        raise ConfigError(f"{out} exists; choose another name, or overwrite it with --force")
    names = [name] if name is not None else [row["name"] for row in _types(state, url, file)]
    rows: list[ProfileRow] = []
    for one in names:
        cells = _type(one, state, url, file, every)["cells"]
        # Resources that a type never uses get no column.
        used = {resource for cell in cells for resource, amount in cell["allocation"].items() if amount}
        rows += [
            ProfileRow(
                one, {r: a for r, a in cell["allocation"].items() if r in used}, cell["seconds"], cell.get("kind", "")
            )
            for cell in cells
        ]
    if not rows:
        raise ConfigError(f"no size of {', '.join(names)} was seen yet; run some tasks, or write every size with --all")
    try:
        write_profile(out, rows)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error}") from None
    typer.echo(f"{len(rows)} sizes of {len({row.task_type for row in rows})} task types written to {out}")


# ------------------------------------------------------------------------ where from


def _types(state: Path | None, url: str | None, file: Path | None) -> Sequence[Mapping[str, Any]]:
    if file is None:
        with open_client(state, url) as client:
            return client.profiles()
    from tapfinger.evaluation.profile_files import file_types

    return [found.row for found in file_types(file).values()]


def _type(name: str, state: Path | None, url: str | None, file: Path | None, every: bool) -> Mapping[str, Any]:
    if file is None:
        with open_client(state, url) as client:
            return client.profile(name, every)
    from tapfinger.errors import UnknownNameError
    from tapfinger.evaluation.profile_files import file_types

    known = file_types(file)
    if name not in known:
        raise UnknownNameError("task type", name, known)
    return {**known[name].row, "cells": known[name].cells}


# ------------------------------------------------------------------------ for people


def _table(*heads: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for head in heads:
        left = head in ("type", "size", "usual size", "drift")
        table.add_column(head, justify="left" if left else "right", no_wrap=head in ("type", "size"))
    return table


def _print(table: Table) -> None:

    plain_console().print(table)


def _of_kind(cells: Sequence[dict[str, Any]], kind: str | None) -> list[dict[str, Any]]:
    """The cells of a kind of hardware; without a name, of the one with the most runs."""
    from tapfinger.errors import UnknownNameError

    runs: dict[str, float] = {}
    for cell in cells:
        runs[cell.get("kind", "")] = runs.get(cell.get("kind", ""), 0.0) + cell["runs"]
    if kind is not None and kind not in runs:
        raise UnknownNameError("kind of hardware", kind, runs)
    wanted = max(runs, key=runs.__getitem__) if kind is None else kind
    return [cell for cell in cells if cell.get("kind", "") == wanted]


def _size(allocation: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in allocation.items() if amount) or "nothing"


def _doubt(doubt: float) -> str:
    """A standard deviation of logarithms as a percentage: 0.1 is about 10 %."""
    import math

    return f"{100.0 * math.expm1(doubt):.2g} %"


def _clock(at: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
