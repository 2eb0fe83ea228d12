"""From a trained network to a model: checkpoint, exported graph, and a card with what it does on fresh workloads."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tapfinger.core.contract import Scheduler
from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.actor_critic import NetworkConfig
from tapfinger.policy.card import make_card
from tapfinger.policy.checkpoint import save
from tapfinger.policy.export import export
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import run_scheduler
from tapfinger.training.config import FINAL_SEEDS, TrainConfig
from tapfinger.training.selection import RIVALS
from tapfinger.workloads.world import World


def publish(
    world: World, network: nn.Module, sizes: NetworkConfig, config: TrainConfig, folder: Path, name: str, runs: int = 10
) -> tuple[Path, dict[str, Any]]:
    """Write checkpoint and model into ``folder``; returns the model's path and its evaluation.

    The evaluation is of the exported model, run by the scheduler that will use it, on ``runs`` workloads of the
    scenario that neither training nor selection has seen.
    """
    card = make_card(world.scenario, name=name, network=config.network, seeds=(config.seed,))
    card = replace(card, training=asdict(config))
    path = export(network, sizes, card, folder / f"{name}.onnx")
    seeds = range(FINAL_SEEDS, FINAL_SEEDS + runs)
    mine = [_mean(world, TapFinger(model=str(path)), seed) for seed in seeds]
    evaluation: dict[str, Any] = {"seeds": f"{seeds.start}:{seeds.stop}", "tapfinger": round(float(np.mean(mine)), 4)}
    for rival in RIVALS:
        means = [_mean(world, parse_spec(rival).create(), seed) for seed in seeds]
        evaluation[rival] = round(float(np.mean(means)), 4)
    evaluation["per_seed"] = mine
    card = replace(card, evaluation=evaluation)
    save(folder / "checkpoint", network, sizes, card)
    return export(network, sizes, card, path), evaluation


def _mean(world: World, scheduler: Scheduler, seed: int) -> float:
    run = run_scheduler(world, scheduler, seed)
    return run.total_completion_time / run.tasks
