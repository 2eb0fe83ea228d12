"""The training run: a teacher's examples, imitation, then learning from rollouts; evaluated, logged, resumable.

All randomness comes from the run's seed, and every stage is counted in steps, not in minutes: the same seed gives
the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tapfinger.config import parse_scenario
from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_specs
from tapfinger.overrides import apply_override
from tapfinger.parallel.base import Pool
from tapfinger.parallel.local import InProcess
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import NetworkConfig, config_for
from tapfinger.policy.checkpoint import shipped_checkpoint, take_over
from tapfinger.policy.export import graph_of
from tapfinger.profiles.greedy_options import GREEDY_DEFAULTS
from tapfinger.sim.layout import GreedyPlan
from tapfinger.training.average import Average
from tapfinger.training.config import UNIVERSAL_START, TrainConfig
from tapfinger.training.imitation import imitate
from tapfinger.training.learners import make_learner, make_refiner
from tapfinger.training.logs import RunLog
from tapfinger.training.rollout import Ints, RolloutResult
from tapfinger.training.saved import load_state, save_state
from tapfinger.training.seeds import DEVIATION_SEEDS, ROLLOUT_SEEDS, TEACHER_SEEDS
from tapfinger.training.selection import Selection
from tapfinger.training.shards import Shard, gather, roll, weights_of, workload_of
from tapfinger.training.simulators import make_encoder, make_sim
from tapfinger.training.teacher import Examples, Recorder, join
from tapfinger.workloads.world import World, build_world

#: Called with a stage, its progress (0..1) and the metrics known so far.
Report = Callable[[str, float, dict[str, float]], None]

#: Files of the run's current state and of its best network so far.
_STATE, _BEST = "state.safetensors", "best.safetensors"
#: File of the mean of its last networks.
_AVERAGE = "average.safetensors"

#: Teacher runs per file: an interrupted recording loses at most this many.
_RECORDED_TOGETHER = 10


class Trainer:
    """Starts or continues a training run in its directory."""

    def __init__(
        self,
        world: World,
        config: TrainConfig,
        folder: Path,
        report: Report | None = None,
        pool: Pool | None = None,
    ) -> None:
        """``folder`` keeps examples, progress and the best weights; a run found there is continued.

        ``pool`` plays the rollouts; the choice of pool does not affect the result.
        """
        self.config, self.folder = config, folder
        self.worlds = training_worlds(world, config)
        self._first_worlds = training_worlds(world, config, config.first_loads)
        self._report: Report = report or _silent
        self._pool: Pool = pool or InProcess()
        folder.mkdir(parents=True, exist_ok=True)
        self._check_settings(world)
        self.sizes = self._sizes(world.resources.accelerator)
        self._accelerator = self.sizes.accelerator
        self.selection = self._selection()
        #: Mean completion times of the rivals, workload by workload.
        self.rivals: dict[str, list[float]] = {}

    def _check_settings(self, world: World) -> None:
        """Check that the directory belongs to this scenario and config."""
        path = self.folder / "run.json"
        mine = json.loads(json.dumps({"scenario": world.scenario.resolved(), "config": asdict(self.config)}))
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                changed = [name for name in mine["config"] if found["config"].get(name) != mine["config"][name]]
                # Parse it again, for keys that did not exist when the run began.
                if parse_scenario(found["scenario"]).resolved() != mine["scenario"]:
                    changed.append("scenario")
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
                raise ConfigError(
                    f"{path} is damaged ({str(error)[:200]}); choose another --out, or delete it to start again"
                ) from None
            # A longer run may continue a shorter one.
            if [name for name in changed if name not in ("refinements", "iterations", "max_steps")]:
                raise ConfigError(
                    f"{self.folder} holds a run with other settings ({', '.join(changed)}); choose another --out"
                )
        path.write_text(json.dumps(mine, indent=1), encoding="utf-8")

    def _sizes(self, accelerator: int) -> NetworkConfig:
        encoder = make_encoder(self.worlds[0], self.config.features, self.config.pending)
        sim = make_sim(self.worlds[0], encoder, [workload_of(self.worlds, TEACHER_SEEDS)])
        inputs = encoder.encode_batch(sim, np.zeros(1, dtype=np.int64))
        return config_for(inputs, accelerator, self.config.preset)

    def _selection(self) -> Selection:
        return Selection(self.worlds, self.config.selection_runs, self.sizes.pending, self.config.features)

    def run(self) -> tuple[nn.Module, NetworkConfig, list[float]]:
        """The best network on the selection workloads, its config and its mean completion times there."""
        # A matrix product is too small to share among threads, which wait for each other; minibatch chunks are not.
        torch.set_num_threads(1)
        self._report("rivals on selection workloads", 0.0, {})
        self.rivals = self.selection.rivals(self.folder / "rivals.json")
        self._report("rivals on selection workloads", 1.0, {n: float(np.mean(v)) for n, v in self.rivals.items()})
        torch.manual_seed(self.config.seed)
        network = build(self.config.network, self.sizes)
        state = self._resume(network)
        if state is None:
            if self.config.start:
                take_over(network, start_of(self.config))
            elif self.config.teacher != "none":
                self._imitate(network)
            found = self.selection.play(network, self._accelerator)
            state = {"iteration": 0, "steps": 0, "best": self._score(found), "found": found, "optimizer": None}
            self._keep_best(network)
            self._save(network, state)
        self._improve(network, state)
        load_state(self.folder / _BEST, network)
        return network, self.sizes, state["found"]

    def _score(self, found: Sequence[float]) -> float:
        return self.selection.score(found, self.rivals)

    def _imitate(self, network: nn.Module) -> None:
        def report(step: int, steps: int, loss: float) -> None:
            self._report("imitation", (step + 1) / steps, {"loss": loss})

        config, threads = self.config, self._pool.cores
        epochs, seed = config.imitation_epochs, config.seed
        imitate(network, self.examples(), self._accelerator, epochs, seed, report=report, threads=threads)

    def examples(self) -> Examples:
        """The teacher's actions, recorded in parts that are kept, so that an interrupted recording can continue."""
        specs, parts, runs = parse_specs(self.config.teacher), [], self.config.teacher_runs
        recorders = [Recorder(world, self.sizes.pending) for world in self.worlds]
        for first in range(0, runs, _RECORDED_TOGETHER):
            path = self.folder / f"examples-{first:05d}.npz"
            last = min(first + _RECORDED_TOGETHER, runs)
            if not path.exists():
                unfinished = self.folder / "examples-unfinished.npz"
                seeds = range(TEACHER_SEEDS + first, TEACHER_SEEDS + last)
                recorded = [recorders[s % len(recorders)].record(specs[s % len(specs)].create(), [s]) for s in seeds]
                join(recorded).save(unfinished)
                unfinished.replace(path)
            parts.append(Examples.load(path))
            self._report("recording the teacher", last / runs, {})
        return join(parts)

    def _improve(self, network: nn.Module, state: dict[str, Any]) -> None:
        log = RunLog(self.folder / "logs", state["iteration"] or None)
        try:
            self._updates(network, state, log)
        finally:
            log.close()

    def _updates(self, network: nn.Module, state: dict[str, Any], log: RunLog) -> None:
        config, threads = self.config, self._pool.cores
        refiner = make_refiner(config, self._accelerator, threads)
        player = make_learner(config, self._accelerator, threads)
        optimizer = torch.optim.Adam(network.parameters(), lr=player.learning_rate, fused=True)
        if state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
            player.remember(state["learner"])
        average = Average(network, self.folder / _AVERAGE if state["iteration"] else None)
        while self._share(state) < 1.0:
            i = state["iteration"]
            rng = np.random.default_rng([config.seed, i])
            refining = i < config.refinements
            learner, share = (refiner, i / config.refinements) if refining else (player, self._share(state))
            # Small steps at the end, so that the last policies differ little and the best of them is no accident.
            for settings in optimizer.param_groups:
                settings["lr"] = learner.learning_rate * (1.0 - 0.9 * share)
            shards = self._deviating(network, i, rng) if refining else self._shards(network, state, rng)
            episodes = self._gather(self._roll(shards))
            known = learner.update(network, optimizer, episodes, rng)
            if refining and share >= config.average_from:
                average.add(network)
            state["iteration"] = i + 1
            state["steps"] += sum(episode.steps for episode in episodes)
            means = np.concatenate([episode.mean for episode in episodes])
            ended = np.isfinite(means)
            known["sampled"] = float(means[ended].mean()) if ended.any() else float("inf")
            evaluated = (i + 1) % config.evaluate_every == 0 or self._share(state) >= 1.0
            if evaluated:
                known |= self._evaluate(network, state)
                if average.count > 1:
                    found = self._evaluate(average.network, state)
                    known |= {f"average/{name}": value for name, value in found.items()}
            known["steps"] = state["steps"]
            log.scalars(i + 1, known)
            if evaluated:  # after logging: a run resumed from here must find this step in the log
                state["optimizer"], state["learner"] = optimizer.state_dict(), player.remembered()
                average.save(self.folder / _AVERAGE)
                self._save(network, state)
            stage = "learning from deviations" if refining else "learning from rollouts"
            done = (i + 1) / config.refinements if refining else self._share(state)
            self._report(stage, done, {**known, "best": state["best"]})

    def _roll(self, shards: Sequence[Any]) -> list[RolloutResult]:
        return self._pool.gather(roll, shards)

    def _gather(self, episodes: Sequence[RolloutResult]) -> list[RolloutResult]:
        """Combine the shards, which all belong to one site."""
        return [gather(episodes)]

    def _share(self, state: dict[str, Any]) -> float:
        """Completed share of the rollouts; below 0 while learning from deviations."""
        played: int = state["iteration"] - self.config.refinements
        if played < 0:
            return played / self.config.refinements
        updates = played / self.config.iterations if self.config.iterations else 1.0
        steps: float = state["steps"] / self.config.max_steps if self.config.max_steps else 0.0
        return max(updates, steps)

    def _deviating(self, network: nn.Module, iteration: int, rng: np.random.Generator) -> list[Shard]:
        """Half of the parts follow the policy as it will act; the other half explore."""
        config = self.config.deviation
        seeds = DEVIATION_SEEDS + iteration * config.workloads + np.arange(config.workloads)
        tried = {"deviations": config.actions, "bases": self._bases(), "horizon": config.horizon}
        parts = self._parts(network, seeds, rng, repeats=1, reward="system", **tried)
        if self.config.features == "profiles":  # its graph is several times faster than torch on small batches
            weights = graph_of(network, self.sizes)
            parts = [part._replace(weights=weights) for part in parts]
        return [part._replace(explore=bool((iteration + index) % 2)) for index, part in enumerate(parts)]

    def _bases(self) -> tuple[GreedyPlan, ...]:
        """The greedy plan that plays on after a deviation, per load: the teacher's, if the teacher is a greedy."""
        specs = list(parse_specs(self.config.teacher)) if self.config.teacher != "none" else []
        options = [dict(spec.options) if spec.name == "greedy" else {} for spec in specs] or [{}]
        return tuple(
            GreedyPlan(**{**GREEDY_DEFAULTS, **options[load % len(options)]}) for load in range(len(self.worlds))
        )

    def _shards(self, network: nn.Module, state: dict[str, Any], rng: np.random.Generator) -> list[Shard]:
        config = self.config
        seeds = ROLLOUT_SEEDS + state["iteration"] * config.workloads + np.arange(config.workloads)
        stage = state["steps"] // config.first_steps if config.first_steps else len(self._first_worlds)
        worlds = self._first_worlds[stage : stage + 1] or self.worlds
        return self._parts(network, seeds, rng, worlds=worlds, repeats=config.repeats, reward=config.reward)

    def _parts(self, network: nn.Module, seeds: Ints, rng: np.random.Generator, **more: Any) -> list[Shard]:
        """The workloads of an update in shards, each with its own randomness."""
        common: dict[str, Any] = {"worlds": self.worlds, "network": self.config.network, "sizes": self.sizes, **more}
        common["features"] = self.config.features
        weights = weights_of(network)
        return [
            Shard(workloads=tuple(part.tolist()), weights=weights, seed=int(rng.integers(1 << 31)), **common)
            for part in np.split(seeds, self.config.shards)
        ]

    def _evaluate(self, network: nn.Module, state: dict[str, Any]) -> dict[str, float]:
        found = self.selection.play(network, self._accelerator)
        score = self._score(found)
        if score < state["best"]:
            state["best"], state["found"] = score, found
            self._keep_best(network)
        return {"evaluation": float(np.mean(found)), "score": score}

    # ------------------------------------------------------------------ on disk

    def _keep_best(self, network: nn.Module) -> None:
        save_state(self.folder / _BEST, network, {})

    def _save(self, network: nn.Module, state: dict[str, Any]) -> None:
        values = {name: value for name, value in state.items() if name != "optimizer"}
        save_state(self.folder / _STATE, network, values, state["optimizer"])

    def _resume(self, network: nn.Module) -> dict[str, Any] | None:
        path = self.folder / _STATE
        if not path.exists():
            return None
        values, optimizer = load_state(path, network)
        return {**values, "optimizer": optimizer}


def start_of(config: TrainConfig) -> Path:
    """Directory of the checkpoint that a run starts from."""
    return shipped_checkpoint(config.start) if config.start == UNIVERSAL_START else Path(config.start)


def training_worlds(world: World, config: TrainConfig, loads: Sequence[float] | None = None) -> tuple[World, ...]:
    """One world per load, the config's by default; they differ only in the arrivals."""
    if not world.exact:
        raise ConfigError(
            f"knowledge.kind = {world.scenario.knowledge.kind!r}: training plays with exact speed profiles; train "
            "without [knowledge], and evaluate with it"
        )
    worlds = []
    for load in config.loads if loads is None else loads:
        data = world.scenario.resolved()
        if config.tasks:
            apply_override(data, f"tasks={config.tasks}")
        if load != 1.0:
            rate = world.scenario.arrivals.options().get("rate")
            if rate is None:
                raise ConfigError(f"load = {load}: the scenario's arrivals have no rate to multiply")
            apply_override(data, f"arrivals.rate={rate * load}")
        worlds.append(build_world(parse_scenario(data, directory=world.scenario.directory)))
    return tuple(worlds)


def _silent(stage: str, share: float, known: dict[str, float]) -> None:
    """The report of a run without a listener."""
