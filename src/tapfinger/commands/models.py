"""``tapfinger models``: the networks that ship with the package, their cards, and how to retrain them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tapfinger.commands.options import JobsOption, RayOption

if TYPE_CHECKING:
    from tapfinger.training.rebuild import TrainingStage

from tapfinger.commands.screen import plain_console

#: Column of the table -> name of the result in the card's evaluation.
RESULTS = {"tapfinger": "tapfinger", "greedy": "greedy", "optimus": "optimus-central"}


class _Models(TyperGroup):
    """``models NAME`` is short for ``models show NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Insert ``show`` if the first argument is not a command."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


app = typer.Typer(
    cls=_Models,
    invoke_without_command=True,
    rich_markup_mode=None,
    help="List the trained models with what they are for, show one's card, or retrain them.",
)


@app.callback()
def _list(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_models()


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped model, or a .onnx file.")],
) -> None:
    """Show a model's whole card; 'models NAME' does the same."""
    from tapfinger.policy.exported import load_model

    typer.echo(load_model(name).card.to_json())


@app.command("list")
def list_models() -> None:
    """List the trained models with what they are for."""
    from rich import box
    from rich.table import Table

    from tapfinger.policy.exported import shipped_models

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
        table.add_row(*row, *results)
    plain_console().print(table)
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


@app.command()
def rebuild(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Shipped models or .onnx files. [default: all]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--list", help="Only list the training runs, with rough times on one core.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The shortest run that goes through everything; its models are no good.")
    ] = False,
    updates: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Most updates of each kind in each run.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Keep the runs here; runs found there go on.")] = Path(
        "results/rebuild"
    ),
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the models here. [default: where the shipped ones are]")
    ] = None,
    jobs: JobsOption = 1,
    ray: RayOption = None,
) -> None:
    """Retrain models with the recipes on their cards and publish them; the same seeds, but not the same networks.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: run the same command again to continue.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD
    from tapfinger.commands.train import needs_torch, run_training
    from tapfinger.errors import ConfigError
    from tapfinger.policy.exported import load_model, models_folder, shipped_models

    try:
        from tapfinger.training.rebuild import make_trainer, stages_of
        from tapfinger.training.rebuild import rebuild as build_again
    except ModuleNotFoundError as error:
        raise needs_torch(error) from None
    if (quick or updates is not None) and into is None and not dry_run:
        raise ConfigError("--quick and --updates make poor models: give --into DIR, so that no shipped one is replaced")
    cards = [load_model(name).card for name in names] if names else list(shipped_models().values())
    plans = [(card, stages_of(card, out, quick, updates)) for card in cards]
    if dry_run:
        _tell_plans(plans)
        return

    def train(stage: TrainingStage) -> tuple[Any, Any]:
        typer.echo(f"{stage.scenario}: {_words(stage)}, in {stage.folder}")
        return run_training(lambda report, pool: make_trainer(stage, report, pool), stage.folder, jobs, ray)[1:]

    for card, stages in plans:
        typer.echo(f"Model {card.name}: {len(stages)} training run{'s' * (len(stages) > 1)}")
        path = build_again(card, stages, train, into or models_folder(), 2 if quick else 10)
        typer.echo(f"The model is {path}")


def _tell_plans(plans: list[tuple[Any, list[TrainingStage]]]) -> None:
    known: set[Path] = set()
    total = 0.0
    for card, stages in plans:
        typer.echo(card.name + (f": {card.notes}" if card.notes else ""))
        for stage in stages:
            seconds = 0.0 if stage.finished or stage.folder in known else stage.seconds()
            state = "finished" if stage.finished else "shared" if stage.folder in known else f"about {_time(seconds)}"
            typer.echo(f"  {stage.scenario}: {_words(stage)}: {state}")
            known.add(stage.folder)
            total += seconds
    typer.echo(f"In all about {_time(total)} on one core, and some minutes a model to evaluate it.")


def _words(stage: TrainingStage) -> str:
    config = stage.config
    begin = "from the run before" if config.start else f"imitating {config.teacher}"
    if not config.start and config.teacher == "none":
        begin = "from scratch"
    steps = f" (at most {config.max_steps:,} env-steps)" if config.max_steps else ""
    return f"{begin}, {config.refinements} refinements, {config.iterations} updates{steps}, seed {config.seed}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
