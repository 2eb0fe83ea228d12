"""The command line: a table of commands; a command's module is imported only when the command is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from tapfinger import __version__
from tapfinger.errors import TapfingerError
from tapfinger.visible import visible

#: Name -> (``module:attribute`` below tapfinger.commands: a function or a Typer; first sentence of its help).
#: The sentence is repeated here so that ``tapfinger --help`` imports no command; a test compares it with the docstring.
COMMANDS = {
    "compare": ("compare:compare", "Compare schedulers on the same workloads."),
    "simulate": ("simulate:simulate", "Run one scheduler on one workload and say how it went."),
    "metrics": (
        "metrics:metrics",
        "Measure runs from their event logs, or a live site from its history, in the same table.",
    ),
    "reproduce": ("reproduce:reproduce", "Redo the paper's experiments and judge its claims."),
    "schedulers": ("scenarios:schedulers", "List the schedulers with their options."),
    "models": ("models:app", "List the trained models with what they are for, show one's card, or retrain them."),
    "profile": ("profile:profile", "Run a task under many allocations and write its speed profile."),
    "train": ("train:train", "Imitate a teacher, then improve on rollouts; writes the best network as a model."),
    "finetune": ("train:finetune", "Adapt the universal model to one site, in minutes."),
    "export": (
        "export:export",
        "Write a trained network as one ONNX graph for any number of clusters and tasks; checks that both agree.",
    ),
    "up": ("live:up", "Start a whole site on this machine: a coordinator and an agent per cluster."),
    "down": ("live:down", "End a site that was started with up; tasks that run are stopped, and wait for the next up."),
    "serve": ("live:serve", "Run the coordinator; of several that share a store, one leads and the others stand by."),
    "agent": ("live:agent", "Run the agent of one cluster."),
    "dashboard": ("dashboard:dashboard", "Print a link to the dashboard that signs in."),
    "run": ("tasks:run", "Run a program on the site, show its output, and return its exit code."),
    "submit": (
        "tasks:submit",
        "Submit a program, or a file of many, and print their numbers; they are safe with the coordinator then.",
    ),
    "list": ("tasks:list_tasks", "List the latest tasks."),
    "show": ("tasks:show", "Show a task, how far it says it is, and what happened to it."),
    "get": ("files:get", "Fetch what a task without a working directory has left in its own."),
    "logs": ("tasks:logs", "Print what a task has written."),
    "cancel": ("tasks:cancel", "End a task, whatever it does."),
    "events": ("tasks:events", "Print what happened lately, to tasks and to clusters."),
    "clusters": ("tasks:clusters", "Show the clusters and what is free."),
    "drain": ("tasks:drain", "Let a cluster finish what it has and take nothing new."),
    "give-up": (
        "tasks:give_up",
        "Say that a silent cluster's machine is gone for good; its tasks are run elsewhere, or end as lost.",
    ),
    "backup": ("keeping:backup", "Copy the store of a site to a file, also while its coordinator runs."),
    "restore": ("keeping:restore", "Put a copy in the place of the store of a site whose coordinator does not run."),
    "prune": ("keeping:prune", "Remove ended tasks with their events and output before their time."),
    "audit": ("access:audit", "Show who did what, when, and from where."),
    "demo": (
        "demo:demo",
        "Submit a mixed batch of small tasks and show how they flow; starts a site of its own if none runs.",
    ),
    "explain": ("insight:explain", "Say why a task waits and when it may start, or why it got its place and size."),
    "shadow": (
        "insight:shadow",
        "Say what the schedulers of live.shadow would have done, and how often they agree with the one that decides.",
    ),
    "what-if": (
        "whatif:what_if",
        "Play the live queue, what runs, and a future like the recent past forward; compare configurations.",
    ),
    "scenarios": ("scenarios:app", "List the shipped scenarios, show one, or draw a random one."),
    "workload": ("workload:app", "Write, import, describe and draw workloads."),
    "secret": ("secrets:app", "Keep, list and remove secrets, which your tasks get as environment variables."),
    "token": ("access:tokens", "Make, list and revoke tokens."),
    "history": ("history:app", "What a live site has run, as files that scenarios can play."),
    "profiles": (
        "profiles:app",
        "How fast task types are believed to be: what a live site has learnt, or what a file says.",
    ),
}

_PLAIN: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "rich_markup_mode": None,  # boxes leave too little room for the text
}


class _Deferred(TyperCommand):
    """A row of the table; it is replaced by the real command when called."""

    def load(self) -> Any:
        """Import the command's module and build the command."""
        name = str(self.name)
        module, _, attribute = COMMANDS[name][0].partition(":")
        found = getattr(import_module(f"tapfinger.commands.{module}"), attribute)
        holder = typer.Typer(callback=lambda: None, **_PLAIN)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
        return get_group(holder).commands[name]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the real command, so that the real command is invoked."""
        return self.load().make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    """The table as a group of commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: _Deferred(name, help=line) for name, (_, line) in COMMANDS.items()}


app = typer.Typer(
    name="tapfinger",
    cls=_Commands,
    help="Place machine-learning tasks on edge clusters and decide what each one gets: try schedulers, compare "
    "them, run real tasks.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: tapfinger compare multi-3 --seeds 0:5",
    **_PLAIN,
)


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
    """Run a command. An error that the user can fix prints one message without a traceback and exits with code 2."""
    try:
        app(prog_name="tapfinger")
    except TapfingerError as error:
        colour = typer.colors.RED if sys.stderr.isatty() else None
        typer.echo(
            f"{typer.style('error:', fg=colour, bold=colour is not None)} {visible(str(error), lines=True)}", err=True
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
