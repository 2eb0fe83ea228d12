"""The command line. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tapfinger import __version__
from tapfinger.commands import compare, export, live, models, scenarios, simulate, tasks, train, workload
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
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(workload.app, name="workload")
app.command("schedulers")(scenarios.schedulers)
app.command("models")(models.models)
app.command("train")(train.train)
app.command("finetune")(train.finetune)
app.command("export")(export.export)
for _name, _command in {
    "up": live.up,
    "down": live.down,
    "serve": live.serve,
    "agent": live.agent,
    "run": tasks.run,
    "submit": tasks.submit,
    "list": tasks.list_tasks,
    "show": tasks.show,
    "logs": tasks.logs,
    "cancel": tasks.cancel,
    "clusters": tasks.clusters,
    "drain": tasks.drain,
    "give-up": tasks.give_up,
    "token": tasks.token,
}.items():
    app.command(_name)(_command)


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
