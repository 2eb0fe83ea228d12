"""Retrains models by the recipes on their cards: stage by stage, each resumable, then published.

A recipe is the list of training runs that led to a model: ``card.earlier``, each from the best network of the run
before, then ``card.training``, the last. A stage's directory is named after its settings and those of the stages
before it: models that share a stage share its run, and a finished run is not repeated.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from tapfinger.config import load_scenario, parse_scenario
from tapfinger.errors import ConfigError
from tapfinger.parallel.base import Pool
from tapfinger.policy.actor_critic import NetworkConfig
from tapfinger.policy.card import PREVIOUS, Card
from tapfinger.policy.checkpoint import load, save
from tapfinger.policy.exported import load_model
from tapfinger.policy.files import card_file
from tapfinger.training.config import DeviationConfig, GroupConfig, MappoConfig, TrainConfig
from tapfinger.training.publish import ANY_SITE, card_for, publish, publish_universal
from tapfinger.training.trainer import Report, Trainer
from tapfinger.training.universal import UniversalTrainer
from tapfinger.workloads.world import World, build_world

#: Milliseconds per task and workload, on one core of an ordinary machine: of a refinement (per cluster and pass),
#: of an update from rollouts (per pass), and of a scheduler's run. For estimates only.
_REFINED_MS, _ROLLED_MS, _RUN_MS = 0.25, 0.9, 0.6
#: Slots of a judged future for which the first of these holds.
_HORIZON = 28
#: Seconds per update of the model for any site; tasks of a workload if the scenario does not say.
_UPDATE_ANY_SITE, _TASKS = 24.0, 200

#: Settings of a quick run, which only shows that everything works.
_QUICK: dict[str, Any] = {
    "teacher_runs": 2,
    "imitation_epochs": 1,
    "selection_runs": 2,
    "evaluate_every": 1,
    "workloads": 2,
    "shards": 1,
    "max_steps": 0,
}


class TrainingStage(NamedTuple):
    """One training run of a recipe."""

    #: Name of the scenario, or ANY_SITE.
    scenario: str
    #: Scenario as on the card; None: as shipped now.
    resolved: Mapping[str, Any] | None
    config: TrainConfig
    folder: Path

    @property
    def world(self) -> World:
        """The world it is trained in."""
        return build_world(
            load_scenario(self.scenario) if self.resolved is None else parse_scenario(dict(self.resolved))
        )

    @property
    def finished(self) -> bool:
        """Whether its run is complete."""
        return (self.folder / "checkpoint" / "card.json").exists()

    def seconds(self) -> float:
        """A rough estimate of the time of the whole run on one core."""
        config = self.config
        if self.scenario == ANY_SITE:
            return (config.refinements + config.iterations) * _UPDATE_ANY_SITE
        world = self.world
        tasks = config.tasks or world.scenario.tasks or _TASKS
        played = config.workloads * config.repeats * tasks
        iterations = min(config.iterations, config.max_steps / played) if config.max_steps else config.iterations
        passes = config.mappo.epochs if config.algorithm == "mappo" else config.group.epochs
        longer = max(1.0, config.deviation.horizon / _HORIZON)
        refined = config.deviation.workloads * tasks * len(world.clusters) * config.deviation.epochs * longer
        taught = 0 if config.start or config.teacher == "none" else config.teacher_runs
        evaluated = config.selection_runs * (3 + (config.refinements + iterations) / config.evaluate_every / 4)
        spent = config.refinements * refined * _REFINED_MS + iterations * played * passes * _ROLLED_MS
        return (spent + (taught + evaluated) * tasks * _RUN_MS) / 1e3


#: Trains one stage; returns its best network and the network's sizes.
Run = Callable[[TrainingStage], tuple[nn.Module, NetworkConfig]]


def stages_of(card: Card, out: Path, quick: bool = False, updates: int | None = None) -> list[TrainingStage]:
    """The runs that lead to a model, in order. ``updates``: limit on each kind of update in each stage."""
    if not card.training:
        raise ConfigError(f"model {card.name!r}: its card has no recipe (field 'training'); train it by hand")
    recipe = [*card.earlier, {**card.training, "scenario": card.scenario["name"]}]
    stages: list[TrainingStage] = []
    for settings in recipe:
        config = config_from(settings)
        if quick:
            deviation = replace(config.deviation, workloads=1)
            config = replace(config, **_QUICK, deviation=deviation)
            updates = 1 if updates is None else updates
        if updates is not None:
            config = replace(
                config, refinements=min(config.refinements, updates), iterations=min(config.iterations, updates)
            )
        start = str(stages[-1].folder / "checkpoint") if stages else ""
        scenario = settings["scenario"]
        resolved = card.scenario if scenario == card.scenario["name"] else None
        key = json.dumps([*(s.folder.name for s in stages[-1:]), scenario, repr(replace(config, start=""))])
        folder = out / f"{scenario}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        stages.append(TrainingStage(scenario, resolved, replace(config, start=start), folder))
    return stages


def config_from(settings: Mapping[str, Any]) -> TrainConfig:
    """The settings of a run from its card; settings missing from an older card have their defaults."""
    known = {f.name for f in fields(TrainConfig)}
    values: dict[str, Any] = {name: value for name, value in settings.items() if name in known}
    values["loads"] = tuple(values.get("loads", (1.0,)))
    values["first_loads"] = tuple(values.get("first_loads", ()))
    for name, kind in (("deviation", DeviationConfig), ("group", GroupConfig), ("mappo", MappoConfig)):
        if name in values:
            values[name] = kind(**values[name])
    if values.get("start") == PREVIOUS:
        values["start"] = ""
    return TrainConfig(**values)


def rebuild(card: Card, stages: Sequence[TrainingStage], run: Run, into: Path, runs: int = 10) -> Path:
    """Train the unfinished stages and publish the last one; return the model's path in ``into``.

    ``run`` trains one stage, so that a command can show progress. ``runs``: workloads or sites of the evaluation.
    """
    for stage in stages:
        if not stage.finished:
            _keep(stage, *run(stage))
    return _publish(card, stages[-1], into, runs)


def make_trainer(stage: TrainingStage, report: Report | None, pool: Pool | None) -> Trainer:
    """The trainer of a stage; a run found in its directory is continued."""
    if stage.scenario == ANY_SITE:
        return UniversalTrainer(stage.config, stage.folder, report, pool)
    return Trainer(stage.world, stage.config, stage.folder, report, pool)


def _keep(stage: TrainingStage, network: nn.Module, sizes: NetworkConfig) -> None:
    """Write the stage's best network as the checkpoint that the next stage starts from."""
    scenario = None if stage.scenario == ANY_SITE else stage.world.scenario
    save(stage.folder / "checkpoint", network, sizes, card_for(scenario, stage.config, stage.scenario))


def _publish(card: Card, stage: TrainingStage, into: Path, runs: int) -> Path:
    """Publish the network of the last stage, unless already published, and copy the model to ``into``."""
    path = stage.folder / f"{card.name}.onnx"
    if not path.exists() or not load_model(str(path)).card.evaluation:
        network, kept = load(stage.folder / "checkpoint")
        sizes = NetworkConfig(**kept.config)
        if stage.scenario == ANY_SITE:
            publish_universal(network, sizes, stage.config, stage.folder, runs)
        else:
            publish(stage.world, network, sizes, stage.config, stage.folder, card.name, runs)
    into.mkdir(parents=True, exist_ok=True)
    for file in (path, card_file(path)):
        shutil.copyfile(file, into / file.name)
    if stage.scenario == ANY_SITE:
        shutil.copytree(stage.folder / "checkpoint", into / card.name, dirs_exist_ok=True)
    return into / path.name
