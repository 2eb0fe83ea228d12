"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tapfinger import __version__
from tapfinger.commands import (
    access,
    compare,
    dashboard,
    demo,
    export,
    history,
    insight,
    live,
    models,
    profile,
    profiles,
    reproduce,
    scenarios,
    simulate,
    tasks,
    train,
    whatif,
    workload,
)
from tapfinger.errors import TapfingerError

app = typer.Typer(
    name="tapfinger",
    help="Place machine-learning tasks on edge clusters and decide what each one gets: try schedulers, compare "
    "them, run real tasks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # boxes leave too little room for the words
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: tapfinger compare multi-3 --seeds 0:5",
)
app.command("compare")(compare.compare)
app.command("simulate")(simulate.simulate)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(workload.app, name="workload")
app.command("schedulers")(scenarios.schedulers)
app.command("models")(models.models)
app.command("profile")(profile.profile)
app.command("train")(train.train)
app.command("finetune")(train.finetune)
app.command("export")(export.export)
app.command("up")(live.up)
app.command("down")(live.down)
app.command("serve")(live.serve)
app.command("agent")(live.agent)
app.command("dashboard")(dashboard.dashboard)
app.command("run")(tasks.run)
app.command("submit")(tasks.submit)
app.command("list")(tasks.list_tasks)
app.command("show")(tasks.show)
app.command("logs")(tasks.logs)
app.command("cancel")(tasks.cancel)
app.command("events")(tasks.events)
app.command("clusters")(tasks.clusters)
app.command("drain")(tasks.drain)
app.command("give-up")(tasks.give_up)
app.add_typer(access.tokens, name="token")
app.command("audit")(access.audit)
app.command("demo")(demo.demo)
app.command("explain")(insight.explain)
app.command("shadow")(insight.shadow)
app.add_typer(history.app, name="history")
app.add_typer(profiles.app, name="profiles")
app.command("what-if")(whatif.what_if)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tapfinger {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; what a user can put right is one message without a traceback, exit code 2."""
    try:
        app(prog_name="tapfinger")
    except TapfingerError as error:
        colour = typer.colors.RED if sys.stderr.isatty() else None
        typer.echo(f"{typer.style('error:', fg=colour, bold=colour is not None)} {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
