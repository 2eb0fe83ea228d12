"""``tapfinger scenarios`` and ``tapfinger schedulers``: list what is available."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.screen import plain_console

app = typer.Typer(help="List the shipped scenarios, show one, or draw a random one.", invoke_without_command=True)


@app.callback()
def list_scenarios(context: typer.Context) -> None:
    """List the shipped scenarios, show one, or draw a random one."""
    if context.invoked_subcommand is not None:
        return
    from rich import box
    from rich.table import Table

    from tapfinger.config import load_scenario, scenario_names

    table = Table(box=box.SIMPLE_HEAD)
    for head in ("scenario", "mode", "clusters", "tasks", "what it is"):
        table.add_column(head, no_wrap=head == "scenario", justify="right" if head in ("clusters", "tasks") else "left")
    for name in scenario_names():
        scenario = load_scenario(name)
        clusters = sum(cluster.count for cluster in scenario.clusters)
        table.add_row(name, scenario.mode, str(clusters), str(scenario.tasks or ""), scenario.description)
    plain_console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped scenario, or a TOML file.")],
) -> None:
    """Print a scenario's TOML, to read or to save and change. A file is checked first."""
    from importlib import resources

    from tapfinger.config import load_scenario, scenario_names
    from tapfinger.errors import UnknownNameError
    from tapfinger.workloads.world import build_world

    if name.endswith(".toml"):
        build_world(load_scenario(name))
        typer.echo(Path(name).read_text(encoding="utf-8"), nl=False)
        return
    if name not in scenario_names():
        raise UnknownNameError("scenario", name, scenario_names())
    typer.echo((resources.files("tapfinger") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"), nl=False)


@app.command()
def site(
    seed: Annotated[int, typer.Argument(metavar="SEED", min=0, help="Which site; the same seed, the same site.")],
    tasks: Annotated[int, typer.Option(min=1, max=10_000_000, help="Number of tasks per workload.")] = 150,
    distribution: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="wide: nodes, unlike hardware, other people's load. pools: what the universal policy is trained on.",
        ),
    ] = "wide",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file to write. Without it: to the screen.")
    ] = None,
) -> None:
    """Draw a random site and print its TOML, or write it to a file (docs/universal.md)."""
    import tomli_w

    from tapfinger.errors import ConfigError
    from tapfinger.workloads.distributions import draw

    if out is not None and out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a scenario is a TOML file; let its name end in .toml")
    text = tomli_w.dumps(draw(seed, tasks, distribution).written())
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; give another path") from None
    plain_console().print(f"site {seed} ({distribution}) written to {out}", soft_wrap=True)


def schedulers() -> None:
    """List the schedulers with their options."""
    import inspect

    from rich import box
    from rich.table import Table

    from tapfinger.registry import lookup, names

    table = Table(box=box.SIMPLE_HEAD)
    for head in ("scheduler", "what it does", "options (with their defaults)"):
        table.add_column(head, no_wrap=head == "scheduler")
    for name in names("scheduler"):
        try:
            factory = lookup("scheduler", name)
        except Exception as error:  # an installed plug-in may be broken in any way; still list the others
            table.add_row(name, f"cannot be loaded: {error}", "")
            continue
        parameters = inspect.signature(factory).parameters.values()
        options = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
        summary = (inspect.getdoc(factory) or "").partition("\n")[0]
        table.add_row(name, summary, ", ".join(options))
    plain_console().print(table)
    typer.echo("Options are given after @: min@pending=5. Your own scheduler: package.module:Class.")
