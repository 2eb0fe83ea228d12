"""Settings of a training run, and the presets of ``tapfinger train``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tapfinger.core.contract import Mode
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.training.deviations import DeviationConfig
from tapfinger.training.group import GroupConfig
from tapfinger.training.mappo import MappoConfig, paper_config
from tapfinger.training.views import FEATURES

#: Instead of a checkpoint's directory: the one of the universal model, which ships.
UNIVERSAL_START = "universal"

#: group: rollouts of one workload are compared with each other. mappo: the paper's, with a critic.
ALGORITHMS = ("group", "mappo")


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    #: How the network improves on its own: group or mappo.
    algorithm: str = "group"
    #: "full", or the ablation to train: no-han, hints-only, no-pointer, vanilla, no-self, joint-head.
    network: str = "full"
    #: By what the network knows a task: types (the paper's one-hot) or profiles (its speed).
    features: str = "types"
    #: Scheduler whose decisions are imitated first; several, joined by commas, take turns as loads do.
    #: none: from scratch.
    teacher: str = "greedy"
    #: Checkpoint to start from instead of imitating.
    start: str = ""
    #: Workloads the teacher is recorded on; more examples make a better start.
    teacher_runs: int = 100
    #: Passes over the examples.
    imitation_epochs: int = 10
    #: Updates from simulated deviations, between imitation and rollouts.
    refinements: int = 60
    #: Updates from rollouts; 0 stops before them.
    iterations: int = 20
    #: Stop when this many steps of worlds have been played; 0: no limit.
    max_steps: int = 0
    #: Different workloads per update.
    workloads: int = 8
    #: Rollouts of an update are played in this many independent parts, here or on other machines.
    shards: int = 2
    #: Share of the refinements after which their networks are averaged; 1: they are not.
    average_from: float = 1.0
    #: Updates between evaluations.
    evaluate_every: int = 5
    #: Workloads of an evaluation.
    selection_runs: int = 40
    #: Arrival rates to train on, as multiples of the scenario's; workloads take turns.
    loads: tuple[float, ...] = (1.0,)
    #: Tasks per training workload; 0: as many as the scenario has.
    tasks: int = 0
    #: How many waiting tasks each cluster sees; the paper has 10.
    pending: int = 10
    #: Size of the network: cpu or paper.
    preset: str = "cpu"
    seed: int = 0
    deviation: DeviationConfig = field(default_factory=DeviationConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    mappo: MappoConfig = field(default_factory=MappoConfig)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        if self.features not in FEATURES:
            raise UnknownNameError("features", self.features, FEATURES)
        if not self.loads or not all(load > 0 for load in self.loads):
            raise ConfigError(f"loads = {self.loads} must be one or more numbers above 0")
        if self.workloads % self.shards:
            raise ConfigError(f"workloads = {self.workloads} must be a multiple of shards = {self.shards}")
        if self.deviation.workloads % self.shards:
            raise ConfigError(f"deviation.workloads = {self.deviation.workloads} must be a multiple of {self.shards}")

    @property
    def repeats(self) -> int:
        """How often each workload is played in an update."""
        return self.group.group if self.algorithm == "group" else 1

    @property
    def reward(self) -> str:
        """What agents pay: see MappoConfig. Groups compare what the whole system pays."""
        return self.mappo.reward if self.algorithm == "mappo" else "system"


#: What ``--preset`` stands for. ``cpu`` trains on two cores; ``paper`` is the paper's network and amount of training.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "paper": {
        "algorithm": "mappo",
        "teacher": "none",
        "refinements": 0,
        "workloads": 32,
        "iterations": 1_000_000,
        "max_steps": 8_000_000,
    },
}


#: At twice the load starts are scarce, one per cluster and slot: the patient greedy, who waits for good sizes, is lost.
_TESTBED = {
    "teacher": "greedy,greedy@patience=5@queue_price=20@calm=0",
    "teacher_runs": 20,
    "loads": (1.0, 2.0),
    "tasks": 800,
    "workloads": 4,
    "selection_runs": 12,
    # Waiting goes on for long: a start missed now is felt by all who come before the queue is empty again.
    "deviation": DeviationConfig(workloads=12, horizon=100),
    "group": GroupConfig(discount=0.97),
}

#: Settings for the shipped scenarios, where they differ from the preset ``cpu``.
RECIPES: dict[str, dict[str, Any]] = {
    "multi-3": {"iterations": 40},
    "hetero-6": {"teacher_runs": 60, "deviation": DeviationConfig(workloads=20), "selection_runs": 20},
    # The paper runs it at rates 4, 3 and 2.
    "synthetic-6": {
        "teacher_runs": 60,
        "refinements": 120,
        "loads": (1.0, 0.75, 0.5),
        "workloads": 6,
        "selection_runs": 30,
    },
    # Queues are long here, and the short tasks in them must be seen. Deviations gained less than policy gradient.
    "short-long-3": {
        "teacher": "lookahead",
        "teacher_runs": 150,
        "imitation_epochs": 15,
        "refinements": 0,
        "iterations": 50,
        "pending": 24,
        "group": GroupConfig(discount=0.97),
    },
    "testbed-3": _TESTBED,
    "testbed-6": {**_TESTBED, "tasks": 1000, "deviation": DeviationConfig(workloads=8, horizon=100)},
}


def preset_config(preset: str, scenario: str, mode: Mode, **changes: Any) -> TrainConfig:
    """The settings of a preset; ``changes`` that are None leave them as they are. MAPPO's depend on the mode.

    With ``cpu``, a scenario that has a recipe is trained by it.
    """
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    recipe = RECIPES.get(scenario, {}) if preset == "cpu" else {}
    given = {name: value for name, value in changes.items() if value is not None}
    return TrainConfig(**{"preset": preset, "mappo": paper_config(mode), **PRESETS[preset], **recipe, **given})


#: Every update of the universal model is played on ``deviation.workloads`` sites, and it is chosen by
#: ``selection_runs`` others.
UNIVERSAL: dict[str, Any] = {
    "features": "profiles",
    "teacher_runs": 30,
    # A network that copies its advisers exactly never tries anything else.
    "imitation_epochs": 1,
    "refinements": 240,
    "iterations": 0,
    "shards": 1,
    "evaluate_every": 8,
    "selection_runs": 14,
    "average_from": 0.5,
    # One pass in small steps learnt next to nothing in twenty updates; at 1.5e-3 it fell apart.
    "deviation": DeviationConfig(workloads=8, actions=10, batch=512, epochs=3, learning_rate=8e-4, restraint=0.1),
}


def universal_config(**changes: Any) -> TrainConfig:
    """The settings of the universal model; ``changes`` that are None leave them as they are.

    One that starts from a checkpoint goes on in steps as small as fine-tuning's: it is good already.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    smaller = {"deviation": replace(UNIVERSAL["deviation"], learning_rate=4e-4)} if given.get("start") else {}
    return TrainConfig(**{**UNIVERSAL, **smaller, **given})


def finetune_config(scenario: str, **changes: Any) -> TrainConfig:
    """Adapting the universal model to one scenario in about ten minutes; other settings as in its recipe, if any."""
    recipe = {k: v for k, v in RECIPES.get(scenario, {}).items() if k in ("loads", "tasks", "selection_runs")}
    given = {name: value for name, value in changes.items() if value is not None}
    return TrainConfig(**{**_FINETUNE, **recipe, **given})


#: As the universal model was trained, in smaller steps: it is good already.
_FINETUNE: dict[str, Any] = {
    "features": "profiles",
    "start": UNIVERSAL_START,
    "refinements": 40,
    "iterations": 0,
    "average_from": 0.4,
    "deviation": DeviationConfig(workloads=24, actions=10, batch=512, epochs=3, learning_rate=4e-4, restraint=0.1),
}


def parse_loads(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"loads {text!r} must be numbers separated by commas, for example 1,2") from None
