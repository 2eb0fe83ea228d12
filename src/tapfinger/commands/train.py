"""``tapfinger train`` and ``finetune``: train a scheduler for one scenario, or for any site."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.options import Fields, JobsOption, RayOption, ScenarioArgument, SetOption, expand_fields
from tapfinger.commands.screen import plain_console
from tapfinger.errors import ConfigError, MissingDependency
from tapfinger.training.config import (
    FINETUNE,
    PRESETS,
    TrainConfig,
    finetune_config,
    parse_loads,
    preset_config,
    universal_config,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tapfinger.training.trainer import Trainer
    from tapfinger.workloads.world import World

#: Scenario name that stands for any site.
UNIVERSAL = "universal"

OutOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run here; a run found there goes on.")]
_PARSERS = {"loads": (str, lambda _, text: parse_loads(text))}
TrainOptions = Annotated[
    dict[str, Any],
    Fields(
        TrainConfig,
        "preset algorithm network teacher start teacher_runs imitation_epochs refinements iterations max_steps loads "
        "tasks pending features seed",
        presets=PRESETS,
        always="preset seed",
        parsers=_PARSERS,
        make=dict,
    ),
]
FinetuneOptions = Annotated[
    dict[str, Any],
    Fields(
        TrainConfig,
        "start refinements iterations loads tasks seed",
        presets={"": FINETUNE},
        always="seed",
        parsers=_PARSERS,
        make=dict,
    ),
]


@expand_fields
def train(
    scenario: ScenarioArgument,
    *,
    out: OutOption = None,
    given: TrainOptions,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the model. [default: the scenario's, and the network's]")
    ] = None,
    jobs: JobsOption = 1,
    ray: RayOption = None,
    overrides: SetOption = None,
) -> None:
    """Imitate a teacher, then improve on rollouts; writes the best network as a model.

    SCENARIO may be universal: a network for any site, trained on random sites.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: run the same command again to continue.
    Logs for TensorBoard are in DIR/logs. For the shipped scenarios, the defaults are those of the shipped models.
    """
    if name is not None and (not name or Path(name).name != name):
        raise ConfigError(f"--name {name!r} must be a plain file name without its ending")
    preset = given.pop("preset")
    if scenario == UNIVERSAL:
        if name is not None:
            raise ConfigError(f"--name {name}: the model for any site is always {UNIVERSAL!r}")
        if overrides:
            raise ConfigError(
                f"--set {overrides[0]}: the universal model is trained on random sites; there is no scenario"
            )
        _train_universal(universal_config(**given), out, jobs, ray)
        return
    world = _world(scenario, overrides)
    config = preset_config(preset, world.scenario.name, world.mode, **given)
    usual = world.scenario.name if config.network == "full" else f"{world.scenario.name}-{config.network}"
    name = name or usual
    _train_one(world, config, out or Path("results") / "train" / name, name, (jobs, ray))


@expand_fields
def finetune(
    scenario: ScenarioArgument,
    *,
    out: OutOption = None,
    given: FinetuneOptions,
    jobs: JobsOption = 1,
    ray: RayOption = None,
    overrides: SetOption = None,
) -> None:
    """Adapt the universal model to one site, in minutes.

    Needs torch: pip install 'tapfinger[train]'. Ctrl-C loses nothing: run the same command again to continue.
    """
    world = _world(scenario, overrides)
    name = world.scenario.name
    _train_one(world, finetune_config(name, **given), out or Path("results") / "finetune" / name, name, (jobs, ray))


def _world(scenario: str, overrides: list[str] | None) -> World:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD
    from tapfinger.config import load_scenario
    from tapfinger.workloads.world import build_world

    return build_world(load_scenario(scenario, overrides or ()))


def needs_torch(error: ModuleNotFoundError) -> MissingDependency:
    """The error if torch is not installed."""
    return MissingDependency(f"training needs {error.name}: pip install 'tapfinger[train]'")


def _train_one(world: World, config: TrainConfig, folder: Path, name: str, where: tuple[int, str | None]) -> None:
    """Train for one scenario and write the model. ``where``: number of processes, and the address of Ray."""
    try:
        from tapfinger.training.publish import publish
        from tapfinger.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise needs_torch(error) from None
    trainer, trained, sizes = run_training(
        lambda report, pool: Trainer(world, config, folder, report, pool), folder, *where
    )
    path, evaluation = publish(world, trained, sizes, config, folder, name)
    _tell(path, evaluation, trainer.rivals)


def _train_universal(config: TrainConfig, out: Path | None, jobs: int, ray: str | None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        from tapfinger.training.publish import publish_universal
        from tapfinger.training.universal import UniversalTrainer
    except ModuleNotFoundError as error:
        raise needs_torch(error) from None
    folder = out or Path("results") / "train" / UNIVERSAL
    _, trained, sizes = run_training(
        lambda report, pool: UniversalTrainer(config, folder, report, pool), folder, jobs, ray
    )
    path, evaluation = publish_universal(trained, sizes, config, folder)
    typer.echo(f"Mean completion time on fresh sites ({evaluation['sites']}), as a share of that of a rival:")
    for name, shares in evaluation.items():
        if name.startswith("share_of_"):
            mean, least, most = sum(shares) / len(shares), min(shares), max(shares)
            typer.echo(f"  {name.removeprefix('share_of_'):<16} {mean:.3f} (from {least:.3f} to {most:.3f})")
    typer.echo(f"The model is {path}; use it as --scheduler tapfinger@model={path}")


def run_training(
    make: Callable[[Any, Any], Trainer], folder: Path, jobs: int, ray: str | None
) -> tuple[Trainer, Any, Any]:
    """Train, with progress on the screen. Returns the trainer, the best network and its sizes."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tapfinger.parallel.choose import open_pool

    screen = plain_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[known]}", markup=False),
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
    """One bar per stage, with the latest evaluation and those of the rivals on the same workloads."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._rivals = ""
        self._latest = ""

    def report(self, stage: str, share: float, known: dict[str, float]) -> None:
        """Show progress; called as training.trainer.Report."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=1.0, known="")
        if "greedy" in known:
            self._rivals = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        if "evaluation" in known:
            self._latest = f"now {known['evaluation']:.3f} ({self._rivals}), best {known['best']:.3f} of greedy"
        text = f"loss {known['loss']:.3f}  {self._latest}" if "loss" in known else self._rivals * ("greedy" in known)
        self._bar.update(self._tasks[stage], completed=share, known=text)
