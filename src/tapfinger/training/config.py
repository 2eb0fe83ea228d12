"""Settings of a training run, and the presets of ``tapfinger train``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.training.group import GroupConfig

#: Seeds of teaching, selection and rollouts; tests and benchmarks use those below 100,000.
TEACHER_SEEDS = 100_000
SELECTION_SEEDS = 300_000
ROLLOUT_SEEDS = 400_000
#: Seeds of the evaluation on a model's card: neither training nor selection sees them.
FINAL_SEEDS = 900_000_000

#: group: rollouts of one workload are compared with each other. mappo: the paper's, with a critic.
ALGORITHMS = ("group", "mappo")


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    #: How the network improves on its own: group or mappo.
    algorithm: str = "group"
    #: "full", or the ablation to train: no-han, no-pointer, vanilla.
    network: str = "full"
    #: Scheduler whose decisions are imitated first; several, joined by commas, take turns as loads do.
    #: none: from scratch.
    teacher: str = "lookahead"
    #: Workloads the teacher is recorded on; more examples make a better start.
    teacher_runs: int = 300
    #: Passes over the examples.
    imitation_epochs: int = 10
    #: Updates after imitation; 0 stops there.
    iterations: int = 100
    #: Stop when this many steps of worlds have been played; 0: no limit.
    max_steps: int = 0
    #: Different workloads per update.
    workloads: int = 8
    #: Rollouts of an update are played in this many independent parts, here or on other machines.
    shards: int = 2
    #: Updates between evaluations.
    evaluate_every: int = 5
    #: Workloads of an evaluation.
    selection_runs: int = 40
    #: Arrival rates to train on, as multiples of the scenario's; workloads take turns.
    loads: tuple[float, ...] = (1.0,)
    #: Tasks per training workload; 0: as many as the scenario has.
    tasks: int = 0
    #: Size of the network: cpu or paper.
    preset: str = "cpu"
    seed: int = 0
    group: GroupConfig = field(default_factory=GroupConfig)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        if not self.loads or not all(load > 0 for load in self.loads):
            raise ConfigError(f"loads = {self.loads} must be one or more numbers above 0")
        if self.workloads % self.shards:
            raise ConfigError(f"workloads = {self.workloads} must be a multiple of shards = {self.shards}")

    @property
    def repeats(self) -> int:
        """How often each workload is played in an update."""
        return self.group.group if self.algorithm == "group" else 1


#: What ``--preset`` stands for. ``cpu`` trains on two cores; ``paper`` is the paper's network and amount of training.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "paper": {
        "algorithm": "mappo",
        "teacher": "none",
        "workloads": 32,
        "iterations": 1_000_000,
        "max_steps": 8_000_000,
    },
}


def preset_config(preset: str, **changes: Any) -> TrainConfig:
    """The settings of a preset; ``changes`` that are None leave them as they are."""
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(TrainConfig(preset=preset, **PRESETS[preset]), **given)


def parse_loads(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"loads {text!r} must be numbers separated by commas, for example 1,2") from None
