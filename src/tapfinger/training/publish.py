"""From a trained network to a model: checkpoint, exported graph, and a card with its results on unseen workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tapfinger.config import Scenario
from tapfinger.core.contract import Scheduler
from tapfinger.core.events import Event, TaskArrived, TaskFinished
from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.actor_critic import NetworkConfig
from tapfinger.policy.card import MAX_WAIT, PREVIOUS, Card, make_card
from tapfinger.policy.checkpoint import card_of, save
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import PAPER_FEATURES, TYPES
from tapfinger.policy.export import export
from tapfinger.policy.files import card_file, change_card, read_card_file
from tapfinger.schedulers.tapfinger import UNIVERSAL, TapFinger
from tapfinger.sim.run import StuckError, run_scheduler
from tapfinger.training.config import PAPER, TrainConfig
from tapfinger.training.seeds import FINAL_SEEDS, SELECTION_SEEDS
from tapfinger.training.selection import RIVALS
from tapfinger.training.trainer import start_of, training_worlds
from tapfinger.training.universal import site_world
from tapfinger.workloads.sites import ranges
from tapfinger.workloads.world import World

#: Candidate bounds on waiting and on slow sizes, in ideal durations, and the share of the mean that a bound may cost.
WAITS = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
STRETCHES = (0.0, 3.5, 3.0, 2.5, 2.0)
COST = 0.005

#: Bound on waiting of a model for any site (docs/policy.md).
ANY_SITE_WAIT = 3.0

#: Name of the scenario of a model for any site.
ANY_SITE = "sites"

#: Number of tasks that a bound is tried on, at each load.
_TASKS_TRIED = 6000


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
            card = replace(card, features=PAPER_FEATURES, schema_digest="")
    else:
        card = Card(name, config.network, PROFILES.name, (), (), {"name": ANY_SITE}, seeds=(config.seed,))
        card = replace(card, max_wait=ANY_SITE_WAIT)
        training["ranges"] = ranges()
    return replace(card, training=training, earlier=earlier)


def rate_universal(path: Path, sites: int = 12) -> dict[str, Any]:
    """Evaluate a model for any site on sites that it has not seen, with the scheduler's rules as they are."""
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
    # The paper has no bounds.
    free = config.features == PAPER
    wait, stretch = (MAX_WAIT, 0.0) if free else best_limits(training_worlds(world, config), str(path))
    card = replace(read_card_file(card_file(path))[0], max_wait=wait, max_stretch=stretch)
    change_card(path, card)
    seeds = range(FINAL_SEEDS, FINAL_SEEDS + runs)
    mine = [_mean(world, TapFinger(model=str(path)), seed) for seed in seeds]
    evaluation: dict[str, Any] = {"seeds": f"{seeds.start}:{seeds.stop}", "tapfinger": round(float(np.mean(mine)), 4)}
    for rival in RIVALS:
        means = [_mean(world, parse_spec(rival).create(), seed) for seed in seeds]
        evaluation[rival] = round(float(np.mean(means)), 4)
    evaluation["per_seed"] = mine
    if free:
        evaluation["network_alone"] = _mean_alone(world, path, seeds)
    card = replace(card, evaluation=evaluation)
    change_card(path, card)
    save(folder / "checkpoint", network, sizes, card)
    return path, evaluation


def _mean_alone(world: World, path: Path, seeds: Sequence[int]) -> float | None:
    """Mean of the network alone; None if it refuses tasks for ever."""
    try:
        return round(float(np.mean([_mean(world, alone(path), seed) for seed in seeds])), 4)
    except StuckError:
        return None


def alone(path: Path) -> TapFinger:
    """The network and Bayes' rule for conflicts, as in the paper, without any rule around them."""
    never = 1e6
    rules = {"seniority": False, "lend": False, "share": False, "again": False, "move": False, "late_first": False}
    return TapFinger(str(path), max_wait=never, calm_wait=never, max_stretch=0.0, crowd=0.0, **rules)


def best_limits(worlds: Sequence[World], model: str) -> tuple[float, float]:
    """The bounds on waiting and on slow sizes with the best tail, among those that cost next to nothing at any load.

    They are tried on selection workloads of each load: first the bound on waiting, then, combined with it, the bound on
    sizes. Among equal bounds, the tighter one on waiting and the looser one on sizes win.
    """
    runs = max(2, _TASKS_TRIED // (worlds[0].scenario.tasks or _TASKS_TRIED))

    def times(load: int, wait: float, stretch: float) -> list[int]:
        seeds = range(SELECTION_SEEDS + load, SELECTION_SEEDS + len(worlds) * runs, len(worlds))
        scheduler = TapFinger(model, calm_wait=wait, max_stretch=stretch)
        return [t for s in seeds for t in completion_times(worlds[load], scheduler, s)]

    def tried(wait: float, stretch: float) -> list[list[int]]:
        return [times(load, wait, stretch) for load in range(len(worlds))]

    free = [np.mean(t) for t in tried(MAX_WAIT, 0.0)]

    def best(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
        found = {pair: tried(*pair) for pair in pairs}
        cheap = [p for p, t in found.items() if all(np.mean(m) <= (1 + COST) * f for m, f in zip(t, free, strict=True))]
        return min(cheap or [(MAX_WAIT, 0.0)], key=lambda pair: sum(max(t) for t in found.get(pair, [[0]])))

    wait, _ = best([(wait, 0.0) for wait in (*WAITS, MAX_WAIT)])
    return best([(wait, stretch) for stretch in STRETCHES])


def completion_times(world: World, scheduler: Scheduler, seed: int) -> list[int]:
    """Completion time of every task, in slots."""
    arrived: dict[int, int] = {}
    found = []

    def see(event: Event) -> None:
        if isinstance(event, TaskArrived):
            arrived[event.task.id] = event.slot
        elif isinstance(event, TaskFinished):
            found.append(event.slot - arrived[event.task] + 1)

    run_scheduler(world, scheduler, seed, [see])
    return found


def _mean(world: World, scheduler: Scheduler, seed: int) -> float:
    run = run_scheduler(world, scheduler, seed)
    return run.total_completion_time / run.tasks
