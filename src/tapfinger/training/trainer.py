"""The training run: examples of a teacher, imitation, then policy gradient; evaluated, logged, resumable.

Everything random comes from the run's seed and every stage is counted in steps, not in minutes: the same seed gives
the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.actor_critic import NetworkConfig, config_for, make_network
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.run import run_scheduler
from tapfinger.training.group import GroupConfig, NetworkPolicy, repeat, rollouts, update
from tapfinger.training.imitation import imitate
from tapfinger.training.rollout import play
from tapfinger.training.teacher import Examples, Recorder, input_maker, join
from tapfinger.workloads.world import World, draw_workload

#: Seeds of training, of selection and (elsewhere) of tests never meet.
TEACHER_SEEDS = 100_000
SELECTION_SEEDS = 300_000
ROLLOUT_SEEDS = 400_000


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    #: Scheduler whose decisions are imitated first.
    teacher: str = "lookahead"
    #: Workloads the teacher is recorded on; more examples make a better start.
    teacher_runs: int = 300
    #: Passes over the examples.
    imitation_epochs: int = 10
    #: Updates of the policy gradient; 0 stops after imitation.
    iterations: int = 100
    #: Different workloads per update; each is played ``group.group`` times.
    workloads: int = 8
    #: Updates between evaluations.
    evaluate_every: int = 5
    #: Workloads of an evaluation.
    selection_runs: int = 40
    #: Size of the network: cpu or paper.
    preset: str = "cpu"
    seed: int = 0
    group: GroupConfig = field(default_factory=GroupConfig)


#: Called with a stage, how far it is (0..1) and what is known now.
Report = Callable[[str, float, dict[str, float]], None]


class Trainer:
    """Runs, or continues, a training run in its directory."""

    def __init__(self, world: World, config: TrainConfig, folder: Path, report: Report | None = None) -> None:
        """``folder`` keeps examples, progress and the best weights; a run found there goes on."""
        self.world, self.config, self.folder = world, config, folder
        self._report: Report = report or _silent
        self._maker = input_maker(world)
        self._accelerator = world.resources.accelerator
        self._selection: BatchSim | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._check_settings()

    def _check_settings(self) -> None:
        """A directory belongs to one scenario and one config."""
        path = self.folder / "run.json"
        mine = json.loads(json.dumps({"scenario": self.world.scenario.resolved(), "config": asdict(self.config)}))
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in mine["config"] if found["config"].get(name) != mine["config"][name]]
            if found["scenario"] != mine["scenario"]:
                changed.append("scenario")
            # A longer run may continue a shorter one.
            if [name for name in changed if name != "iterations"]:
                raise ConfigError(
                    f"{self.folder} holds a run with other settings ({', '.join(changed)}); choose another --out"
                )
        path.write_text(json.dumps(mine, indent=1), encoding="utf-8")

    def run(self) -> tuple[nn.Module, NetworkConfig, float]:
        """The best network by selection seeds, its config and its mean completion time there."""
        torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
        examples = self._examples()
        sizes = config_for(examples.inputs, self._accelerator, self.config.preset)
        torch.manual_seed(self.config.seed)
        network = make_network(sizes)
        state = self._resume(network)
        if state is None:
            self._imitate(network, examples)
            state = {"iteration": 0, "best": self.evaluate(network), "optimizer": None}
            self._keep_best(network)
            self._save(network, state)
        self._improve(network, state)
        network.load_state_dict(torch.load(self.folder / "best.pt", weights_only=True))
        return network, sizes, float(state["best"])

    def baselines(self) -> dict[str, float]:
        """Mean completion times of the rivals on the selection seeds."""
        found = {}
        for name in ("greedy", "optimus-central"):
            totals = [run_scheduler(self.world, parse_spec(name).create(), seed) for seed in self._selection_seeds()]
            found[name] = float(np.mean([t.total_completion_time / t.tasks for t in totals]))
        return found

    def evaluate(self, network: nn.Module) -> float:
        """Mean completion time of the deterministic policy on the selection seeds."""
        if self._selection is None:
            workloads = [draw_workload(self.world, seed) for seed in self._selection_seeds()]
            self._selection = BatchSim(self.world, workloads)
        self._selection.restart(np.ones(len(self._selection.done), dtype=np.bool_))
        network.eval()
        # A policy that never starts anything would never end.
        patience = 2 * int(self._selection.draws.arrival.max()) + 200
        episode = play(self._selection, self._maker, NetworkPolicy(network, self._accelerator), max_slots=patience)
        network.train()
        return float(episode.mean.mean()) if self._selection.done.all() else float("inf")

    def _selection_seeds(self) -> range:
        return range(SELECTION_SEEDS, SELECTION_SEEDS + self.config.selection_runs)

    def _examples(self) -> Examples:
        """Recorded in parts, each kept: an interrupted recording goes on."""
        parts = []
        spec, recorder = parse_spec(self.config.teacher), Recorder(self.world)
        size = 10
        for first in range(0, self.config.teacher_runs, size):
            path = self.folder / f"examples-{first:05d}.npz"
            if not path.exists():
                last = min(first + size, self.config.teacher_runs)
                seeds = range(TEACHER_SEEDS + first, TEACHER_SEEDS + last)
                fresh = self.folder / "examples-unfinished.npz"
                recorder.record(spec.create(), seeds).save(fresh)
                fresh.replace(path)
            parts.append(Examples.load(path))
            self._report("recording the teacher", (first + size) / self.config.teacher_runs, {})
        return join(parts)

    def _imitate(self, network: nn.Module, examples: Examples) -> None:
        steps = self.config.imitation_epochs * max(1, len(examples) // 256)

        def report(step: int, loss: float) -> None:
            self._report("imitation", (step + 1) / steps, {"loss": loss})

        imitate(network, examples, self._accelerator, self.config.imitation_epochs, self.config.seed, report=report)

    def _improve(self, network: nn.Module, state: dict[str, Any]) -> None:
        config = self.config
        optimizer = torch.optim.Adam(network.parameters(), lr=config.group.learning_rate)
        if state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
        while state["iteration"] < config.iterations:
            i = state["iteration"]
            rng = np.random.default_rng([config.seed, i])
            seeds = ROLLOUT_SEEDS + i * config.workloads + np.arange(config.workloads)
            workloads = repeat([draw_workload(self.world, int(seed)) for seed in seeds], config.group.group)
            sim = BatchSim(self.world, workloads)
            episode = rollouts(sim, self._maker, network, self._accelerator, int(rng.integers(1 << 31)))
            known = update(network, optimizer, episode, config.group, self._accelerator, rng)
            state["iteration"] = i + 1
            known["sampled"] = float(episode.mean.mean())
            if (i + 1) % config.evaluate_every == 0 or i + 1 == config.iterations:
                known["evaluation"] = self.evaluate(network)
                if known["evaluation"] < state["best"]:
                    state["best"] = known["evaluation"]
                    self._keep_best(network)
                state["optimizer"] = optimizer.state_dict()
                self._save(network, state)
            self._report("policy gradient", (i + 1) / config.iterations, {**known, "best": state["best"]})

    # ------------------------------------------------------------------ on disk

    def _keep_best(self, network: nn.Module) -> None:
        torch.save(network.state_dict(), self.folder / "best.pt")

    def _save(self, network: nn.Module, state: dict[str, Any]) -> None:
        unfinished = self.folder / "state-unfinished.pt"
        torch.save({"network": network.state_dict(), **state}, unfinished)
        unfinished.replace(self.folder / "state.pt")

    def _resume(self, network: nn.Module) -> dict[str, Any] | None:
        path = self.folder / "state.pt"
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, weights_only=True)
        network.load_state_dict(state.pop("network"))
        return state


def _silent(stage: str, share: float, known: dict[str, float]) -> None:
    """For those who do not listen."""
