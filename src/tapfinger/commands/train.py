"""``tapfinger train``: learn a scheduler for one scenario."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.compare import JobsOption, RayOption, ScenarioArgument, SetOption

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def train(
    scenario: ScenarioArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the run here; a run found there goes on.")
    ] = None,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="cpu: trains on two cores. paper: the paper's network and MAPPO.")
    ] = "cpu",
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="After imitation: group or mappo. [default: by preset]")
    ] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help="full, no-han, no-pointer or vanilla. [default: full]")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Schedulers imitated first, or none. [default: greedy; paper: none]"),
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="DIR", help="Start from this checkpoint instead of a teacher.")
    ] = None,
    teacher_runs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Workloads they are recorded on. [default: 100]")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Passes over the recorded decisions. [default: 10]")
    ] = None,
    refinements: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Updates from simulated deviations then. [default: 60]")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Updates from rollouts at last. [default: 20]")
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Stop after so many env-steps. [default: no limit; paper: 8M]"),
    ] = None,
    loads: Annotated[
        str | None, typer.Option(metavar="X,X", help="Arrival rates to train on, times the scenario's. [default: 1]")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tasks per training workload. [default: the scenario's]")
    ] = None,
    pending: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Waiting tasks that a cluster sees. [default: 10]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same weights.")] = 0,
    jobs: JobsOption = 1,
    ray: RayOption = None,
    overrides: SetOption = None,
) -> None:
    """Imitate a teacher, then improve on rollouts; writes the best network as a model.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: the same command goes on.
    Logs for TensorBoard lie in DIR/logs. For the shipped scenarios, defaults are those of the shipped models.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tapfinger.config import load_scenario
    from tapfinger.errors import MissingDependency
    from tapfinger.parallel.choose import open_pool
    from tapfinger.workloads.world import build_world

    try:
        from tapfinger.training.config import parse_loads, preset_config
        from tapfinger.training.publish import publish
        from tapfinger.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise MissingDependency(f"training needs {error.name}: pip install 'tapfinger[train]'") from None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    world = build_world(load_scenario(scenario, overrides or ()))
    config = preset_config(
        preset,
        world.scenario.name,
        world.mode,
        algorithm=algorithm,
        network=network,
        teacher=teacher,
        start=start,
        teacher_runs=teacher_runs,
        imitation_epochs=epochs,
        refinements=refinements,
        iterations=iterations,
        max_steps=max_steps,
        loads=parse_loads(loads) if loads else None,
        tasks=tasks,
        pending=pending,
        seed=seed,
    )
    name = world.scenario.name if config.network == "full" else f"{world.scenario.name}-{config.network}"
    folder = out or Path("results") / "train" / name
    screen = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[known]}"),
    )
    with Progress(*columns, console=screen) as bar, open_pool(jobs, ray) as pool:
        trainer = Trainer(world, config, folder, _Screen(bar).report, pool)
        try:
            trained, sizes, _ = trainer.run()
        except KeyboardInterrupt:
            screen.print(f"Stopped. The same command goes on from {folder}.")
            raise typer.Exit(130) from None
    path, evaluation = publish(world, trained, sizes, config, folder, name)
    screen.print(f"Mean completion time in slots on fresh workloads (seeds {evaluation['seeds']}):")
    for rival in ("tapfinger", *trainer.rivals):
        screen.print(f"  {rival:<16} {evaluation[rival]:.3f}")
    screen.print(f"The model is {path}; use it as --scheduler tapfinger@model={path}")


class _Screen:
    """One bar per stage; beside it the latest evaluation with the rivals' on the same workloads."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._rivals = ""
        self._latest = ""

    def report(self, stage: str, share: float, known: dict[str, float]) -> None:
        """As training.trainer.Report."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=1.0, known="")
        if "greedy" in known:
            self._rivals = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        if "evaluation" in known:
            self._latest = f"now {known['evaluation']:.3f} ({self._rivals}), best {known['best']:.3f} of greedy"
        text = f"loss {known['loss']:.3f}  {self._latest}" if "loss" in known else self._rivals * ("greedy" in known)
        self._bar.update(self._tasks[stage], completed=share, known=text)
