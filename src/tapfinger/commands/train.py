"""``tapfinger train``: learn a scheduler for one scenario."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.compare import JobsOption, RayOption, ScenarioArgument, SetOption

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tapfinger.training.trainer import Trainer

#: The scenario's name that stands for all sites.
UNIVERSAL = "universal"


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
        str | None,
        typer.Option(
            metavar="NAME", help="full, no-han, hints-only, no-pointer, vanilla, no-self or joint-head. [default: full]"
        ),
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
    features: Annotated[
        str | None, typer.Option(metavar="NAME", help="What a task is known by: types or profiles. [default: types]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same weights.")] = 0,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the model. [default: the scenario's, and the network's]")
    ] = None,
    jobs: JobsOption = 1,
    ray: RayOption = None,
    overrides: SetOption = None,
) -> None:
    """Imitate a teacher, then improve on rollouts; writes the best network as a model.

    SCENARIO may be universal: the network for any site, trained on random ones.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: the same command goes on.
    Logs for TensorBoard lie in DIR/logs. For the shipped scenarios, defaults are those of the shipped models.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tapfinger.config import load_scenario
    from tapfinger.errors import ConfigError, MissingDependency
    from tapfinger.workloads.world import build_world

    try:
        from tapfinger.training.config import parse_loads, preset_config
        from tapfinger.training.publish import publish
        from tapfinger.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise MissingDependency(f"training needs {error.name}: pip install 'tapfinger[train]'") from None

    given = {
        "algorithm": algorithm,
        "network": network,
        "teacher": teacher,
        "start": start,
        "teacher_runs": teacher_runs,
        "imitation_epochs": epochs,
        "refinements": refinements,
        "iterations": iterations,
        "max_steps": max_steps,
        "loads": parse_loads(loads) if loads else None,
        "tasks": tasks,
        "pending": pending,
        "features": features,
        "seed": seed,
    }
    if name is not None and (not name or Path(name).name != name):
        raise ConfigError(f"--name {name!r} must be a plain file name without its ending")
    if scenario == UNIVERSAL:
        if name is not None:
            raise ConfigError(f"--name {name}: the model for any site is always {UNIVERSAL!r}")
        _train_universal(given, out, overrides, jobs, ray)
        return
    world = build_world(load_scenario(scenario, overrides or ()))
    config = preset_config(preset, world.scenario.name, world.mode, **given)
    usual = world.scenario.name if config.network == "full" else f"{world.scenario.name}-{config.network}"
    name = name or usual
    folder = out or Path("results") / "train" / name
    trainer, trained, sizes = _run(lambda report, pool: Trainer(world, config, folder, report, pool), folder, jobs, ray)
    path, evaluation = publish(world, trained, sizes, config, folder, name)
    _tell(path, evaluation, trainer.rivals)


def finetune(
    scenario: ScenarioArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the run here; a run found there goes on.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="DIR", help="Checkpoint to start from. [default: the universal model]")
    ] = None,
    refinements: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Updates from simulated deviations. [default: 40]")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Updates from rollouts then. [default: none]")
    ] = None,
    loads: Annotated[
        str | None, typer.Option(metavar="X,X", help="Arrival rates to train on, times the scenario's. [default: 1]")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tasks per training workload. [default: the scenario's]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same weights.")] = 0,
    jobs: JobsOption = 1,
    ray: RayOption = None,
    overrides: SetOption = None,
) -> None:
    """Adapt the universal model to one site, in minutes.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: the same command goes on.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tapfinger.config import load_scenario
    from tapfinger.errors import MissingDependency
    from tapfinger.workloads.world import build_world

    try:
        from tapfinger.training.config import finetune_config, parse_loads
        from tapfinger.training.publish import publish
        from tapfinger.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise MissingDependency(f"training needs {error.name}: pip install 'tapfinger[train]'") from None

    world = build_world(load_scenario(scenario, overrides or ()))
    config = finetune_config(
        world.scenario.name,
        start=start,
        refinements=refinements,
        iterations=iterations,
        loads=parse_loads(loads) if loads else None,
        tasks=tasks,
        seed=seed,
    )
    folder = out or Path("results") / "finetune" / world.scenario.name
    trainer, trained, sizes = _run(lambda report, pool: Trainer(world, config, folder, report, pool), folder, jobs, ray)
    path, evaluation = publish(world, trained, sizes, config, folder, world.scenario.name)
    _tell(path, evaluation, trainer.rivals)


def _train_universal(
    given: dict[str, Any], out: Path | None, overrides: list[str] | None, jobs: int, ray: str | None
) -> None:
    from tapfinger.errors import ConfigError
    from tapfinger.training.config import universal_config
    from tapfinger.training.publish import publish_universal
    from tapfinger.training.universal import UniversalTrainer

    if overrides:
        raise ConfigError(f"--set {overrides[0]}: the universal model is trained on random sites; there is no scenario")
    config = universal_config(**given)
    folder = out or Path("results") / "train" / UNIVERSAL
    _, trained, sizes = _run(lambda report, pool: UniversalTrainer(config, folder, report, pool), folder, jobs, ray)
    path, evaluation = publish_universal(trained, sizes, config, folder)
    typer.echo(f"Mean completion time on fresh sites ({evaluation['sites']}), as a share of that of a rival:")
    for name, shares in evaluation.items():
        if name.startswith("share_of_"):
            mean, least, most = sum(shares) / len(shares), min(shares), max(shares)
            typer.echo(f"  {name.removeprefix('share_of_'):<16} {mean:.3f} (from {least:.3f} to {most:.3f})")
    typer.echo(f"The model is {path}; use it as --scheduler tapfinger@model={path}")


def _run(make: Callable[[Any, Any], Trainer], folder: Path, jobs: int, ray: str | None) -> tuple[Trainer, Any, Any]:
    """A training run with its progress on the screen; the trainer, the best network and its sizes."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tapfinger.parallel.choose import open_pool

    screen = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[known]}"),
    )
    with Progress(*columns, console=screen) as bar, open_pool(jobs, ray) as pool:
        trainer = make(_Screen(bar).report, pool)
        try:
            trained, sizes, _ = trainer.run()
        except KeyboardInterrupt:
            screen.print(f"Stopped. The same command goes on from {folder}.")
            raise typer.Exit(130) from None
    return trainer, trained, sizes


def _tell(path: Path, evaluation: dict[str, Any], rivals: Iterable[str]) -> None:
    typer.echo(f"Mean completion time in slots on fresh workloads (seeds {evaluation['seeds']}):")
    for rival in ("tapfinger", *rivals):
        typer.echo(f"  {rival:<16} {evaluation[rival]:.3f}")
    typer.echo(f"The model is {path}; use it as --scheduler tapfinger@model={path}")


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
