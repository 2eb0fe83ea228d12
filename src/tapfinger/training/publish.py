"""From a trained network to a model: checkpoint, exported graph, and a card with its results on unseen workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tapfinger.config import Scenario
from tapfinger.core.contract import Scheduler
from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.actor_critic import NetworkConfig
from tapfinger.policy.card import DEFAULT_PIPELINE, PREVIOUS, Card, make_card
from tapfinger.policy.checkpoint import card_of, save
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import PAPER_FEATURES, TYPES
from tapfinger.policy.export import export
from tapfinger.policy.files import card_file, change_card, read_card_file
from tapfinger.schedulers.model_choice import UNIVERSAL
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import StuckError, run_scheduler
from tapfinger.training.config import PAPER, TrainConfig
from tapfinger.training.seeds import FINAL_SEEDS
from tapfinger.training.selection import RIVALS
from tapfinger.training.trainer import start_of
from tapfinger.training.universal import site_world
from tapfinger.workloads.sites import ranges
from tapfinger.workloads.world import World

#: Name of the scenario of a model for any site.
ANY_SITE = "sites"


def publish_universal(
    network: nn.Module, sizes: NetworkConfig, config: TrainConfig, folder: Path, sites: int = 12
) -> tuple[Path, dict[str, Any]]:
    """As ``publish``, for a network for any site; evaluated on ``sites`` that it has not seen."""
    path = export(network, sizes, card_for(None, config, UNIVERSAL), folder / f"{UNIVERSAL}.onnx")
    evaluation = rate_universal(path, sites)
    card = replace(read_card_file(card_file(path))[0], evaluation=evaluation)
    change_card(path, card)
    save(folder / "checkpoint", network, sizes, card)
    return path, evaluation


def card_for(scenario: Scenario | None, config: TrainConfig, name: str) -> Card:
    """The card of a run with the whole recipe: its settings, and those of the run that it starts from.

    ``scenario``: None for a model for any site.
    """
    training = asdict(config)
    earlier: tuple[dict[str, Any], ...] = ()
    if config.start:
        training["start"] = PREVIOUS
        before = card_of(start_of(config))
        earlier = (*before.earlier, {**before.training, "scenario": before.scenario["name"]})
    if scenario is not None:
        schema = PROFILES.name if config.features == PROFILES.name else TYPES.name
        card = make_card(scenario, name, config.network, (config.seed,), schema=schema)
        if config.features == PAPER:
            card = replace(card, features=PAPER_FEATURES, schema_digest="", pipeline=PAPER)
    else:
        card = Card(name, config.network, PROFILES.name, (), (), {"name": ANY_SITE}, seeds=(config.seed,))
        training["ranges"] = ranges()
    return replace(card, training=training, earlier=earlier)


def rate_universal(path: Path, sites: int = 12) -> dict[str, Any]:
    """Evaluate a model for any site on sites that it has not seen, with the pipeline as it is."""
    seeds = range(FINAL_SEEDS, FINAL_SEEDS + sites)
    worlds = [site_world(seed) for seed in seeds]

    def means(make: Callable[[], Scheduler]) -> list[float]:
        return [_mean(world, make(), seed) for world, seed in zip(worlds, seeds, strict=True)]

    mine = means(lambda: TapFinger(model=str(path)))
    evaluation: dict[str, Any] = {"sites": f"{seeds.start}:{seeds.stop}", "per_site": mine}
    for rival in RIVALS:
        shares = np.array(mine) / means(lambda rival=rival: parse_spec(rival).create())  # type: ignore[misc]
        evaluation[f"share_of_{rival}"] = [round(float(share), 4) for share in shares]
    return evaluation


def publish(
    world: World, network: nn.Module, sizes: NetworkConfig, config: TrainConfig, folder: Path, name: str, runs: int = 10
) -> tuple[Path, dict[str, Any]]:
    """Write checkpoint and model into ``folder``; return the model's path and its evaluation.

    The exported model is evaluated by the scheduler that will use it, on ``runs`` workloads of the scenario that
    neither training nor selection has seen.
    """
    path = export(network, sizes, card_for(world.scenario, config, name), folder / f"{name}.onnx")
    seeds = range(FINAL_SEEDS, FINAL_SEEDS + runs)
    try:
        mine = [_mean(world, TapFinger(str(path)), seed) for seed in seeds]
    except StuckError:  # the paper's pipeline has no bound on waiting, and this network refuses tasks for ever
        mine = [_mean(world, TapFinger(str(path), pipeline=DEFAULT_PIPELINE), seed) for seed in seeds]
    evaluation: dict[str, Any] = {"seeds": f"{seeds.start}:{seeds.stop}", "tapfinger": round(float(np.mean(mine)), 4)}
    for rival in RIVALS:
        means = [_mean(world, parse_spec(rival).create(), seed) for seed in seeds]
        evaluation[rival] = round(float(np.mean(means)), 4)
    evaluation["per_seed"] = mine
    card = replace(read_card_file(card_file(path))[0], evaluation=evaluation)
    change_card(path, card)
    save(folder / "checkpoint", network, sizes, card)
    return path, evaluation


def _mean(world: World, scheduler: Scheduler, seed: int) -> float:
    run = run_scheduler(world, scheduler, seed)
    return run.total_completion_time / run.tasks
