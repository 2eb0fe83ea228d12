"""``tapfinger train``: learn a scheduler for one scenario."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.compare import ScenarioArgument, SetOption


def train(
    scenario: ScenarioArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the run here; a run found there goes on.")
    ] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="Size of the network: cpu or paper.")] = "cpu",
    teacher: Annotated[
        str, typer.Option(metavar="NAME", help="Scheduler whose decisions are imitated first.")
    ] = "lookahead",
    teacher_runs: Annotated[int, typer.Option(min=1, metavar="N", help="Workloads it is recorded on.")] = 300,
    epochs: Annotated[int, typer.Option(min=0, metavar="N", help="Passes over the recorded decisions.")] = 10,
    iterations: Annotated[int, typer.Option(min=0, metavar="N", help="Updates by policy gradient afterwards.")] = 100,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same weights.")] = 0,
    overrides: SetOption = None,
) -> None:
    """Imitate a teacher, then improve by policy gradient; writes the best network as a model.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: the same command goes on.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tapfinger.config import load_scenario
    from tapfinger.errors import MissingDependency
    from tapfinger.workloads.world import build_world

    try:
        from tapfinger.policy.card import make_card
        from tapfinger.policy.checkpoint import save
        from tapfinger.policy.export import export
        from tapfinger.training.trainer import TrainConfig, Trainer
    except ModuleNotFoundError as error:
        raise MissingDependency(f"training needs {error.name}: pip install 'tapfinger[train]'") from None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    world = build_world(load_scenario(scenario, overrides or ()))
    folder = out or Path("results") / "train" / world.scenario.name
    config = TrainConfig(
        teacher=teacher,
        teacher_runs=teacher_runs,
        imitation_epochs=epochs,
        iterations=iterations,
        preset=preset,
        seed=seed,
    )
    screen = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[known]}"))
    with Progress(*columns, console=screen) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, share: float, known: dict[str, float]) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0, known="")
            shown = {k: v for k, v in known.items() if k in ("loss", "sampled", "evaluation", "best")}
            text = "  ".join(f"{name} {value:.3f}" for name, value in shown.items())
            bar.update(tasks[stage], completed=share, known=text)

        trainer = Trainer(world, config, folder, report)
        try:
            network, sizes, best = trainer.run()
        except KeyboardInterrupt:
            screen.print(f"Stopped. The same command goes on from {folder}.")
            raise typer.Exit(130) from None
    rivals = trainer.baselines()
    evaluation = {"selection": best, **rivals}
    card = make_card(world.scenario, seeds=(config.seed,), evaluation=evaluation)
    save(folder / "checkpoint", network, sizes, card)
    path = export(network, sizes, card, folder / f"{world.scenario.name}.onnx")
    screen.print(f"Mean completion time on {config.selection_runs} selection workloads: {best:.3f} slots")
    for name, value in rivals.items():
        screen.print(f"  {name}: {value:.3f}")
    screen.print(f"The model is {path}; use it as --scheduler tapfinger@model={path}")
