"""Settings of a training run, and the presets of ``tapfinger train``. Imports no torch, so that help is quick."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from tapfinger.core.contract import Mode
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.settings import FieldHelp, check_settings

#: Value of ``start`` that stands for the checkpoint of the universal model, which ships with the package.
UNIVERSAL_START = "universal"

#: group: rollouts of one workload are compared with each other. mappo: the paper's algorithm, with a critic.
ALGORITHMS = ("group", "mappo")

#: Name of the paper's inputs, and of its preset.
PAPER = "paper"

#: How a network identifies a task: by the paper's one-hot type, with our additions or with nothing but the paper's
#: inputs, or by its speed profile.
FEATURES = ("types", PAPER, "profiles")

#: system: all agents get minus the tasks in the system. own: minus those on, or waiting for, the agent's cluster.
REWARDS = ("system", "own")

#: Settings with the same meaning in every stage.
Epochs = Annotated[int, FieldHelp("Passes over the turns of an update.", min=1)]
Batch = Annotated[int, FieldHelp("Turns per step of the optimizer.", min=1)]
LearningRate = Annotated[float, FieldHelp("Learning rate of Adam at the start; it falls to zero.", above=0)]
Entropy = Annotated[float, FieldHelp("Weight of the policy's entropy in the loss.", min=0)]
GradientNorm = Annotated[float, FieldHelp("Norm above which a gradient is scaled down.", above=0)]
Clip = Annotated[float, FieldHelp("Largest change of a probability's ratio that an update rewards.", above=0)]


@dataclass(frozen=True)
class DeviationConfig:
    """One update from simulated deviations."""

    workloads: Annotated[int, FieldHelp("Different workloads per update.", min=1)] = 36
    actions: Annotated[
        int,
        FieldHelp("Actions tried for each cluster and turn, with the one it took; equal ones are tried once.", min=1),
    ] = 8
    horizon: Annotated[
        int,
        FieldHelp("Slots until an action's cost is known.", min=0, words={0: "by the durations of the task types"}),
    ] = 0
    learning_rate: LearningRate = 5e-4
    entropy: Entropy = 0.003
    # Nothing is known about untried actions; over many small steps they might become likely unnoticed.
    restraint: Annotated[
        float, FieldHelp("Weight of minus the log-probability that any of the actions tried is taken.", min=0)
    ] = 0.0
    epochs: Epochs = 1
    batch: Batch = 768
    max_grad_norm: GradientNorm = 0.5


@dataclass(frozen=True)
class GroupConfig:
    """One update from rollouts, each compared with others of the same workload."""

    group: Annotated[int, FieldHelp("Rollouts of the same workload.", min=2)] = 16
    discount: Annotated[float, FieldHelp("How much the next slot's tasks in system count.", min=0, max=1)] = 0.93
    clip: Clip = 0.2
    learning_rate: LearningRate = 3e-4
    entropy: Entropy = 0.003
    epochs: Epochs = 1
    batch: Batch = 512
    max_grad_norm: GradientNorm = 0.5


@dataclass(frozen=True)
class MappoConfig:
    """One update of MAPPO."""

    group: Annotated[
        int,
        FieldHelp("Rollouts of the same workload, each judged by what it pays more than the others; 1: none.", min=1),
    ] = 1
    discount: Annotated[
        float,
        FieldHelp(
            "How much the next slot counts; turns of one slot count the same. The paper has 1 in multi-task mode.",
            min=0,
            max=1,
        ),
    ] = 1.0
    trace: Annotated[
        float,
        FieldHelp("Lambda of GAE, by slots: 0 trusts the critic alone, 1 the returns alone.", min=0, max=1),
    ] = 0.95
    clip: Clip = 0.2
    value_clip: Annotated[
        bool, FieldHelp("Whether the critic's change is clipped too (by `clip`, in units of the return's spread).")
    ] = False
    value_weight: Annotated[float, FieldHelp("Weight of the critic's loss.", min=0)] = 0.5
    entropy: Entropy = 0.01
    epochs: Epochs = 4
    batch: Batch = 512
    learning_rate: LearningRate = 3e-4
    max_grad_norm: GradientNorm = 0.5
    reward: Annotated[str, FieldHelp("What agents pay: system or own.")] = "system"
    sharing: Annotated[
        float, FieldHelp("Weight of the other actors' gradients in that of a separate actor; 0: none.", min=0)
    ] = 0.0
    scale_rate: Annotated[
        float, FieldHelp("Share of the newest returns in the running scale of returns.", min=0, max=1)
    ] = 0.1

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        if self.reward not in REWARDS:
            raise UnknownNameError("reward", self.reward, REWARDS)
        check_settings(self)


def paper_config(mode: Mode, **changes: Any) -> MappoConfig:
    """The paper's reward and discount. It gives no discount for single-task mode; 0.99 is ours."""
    return MappoConfig(discount=0.99 if mode is Mode.SINGLE else 1.0, reward="own", **changes)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    preset: Annotated[str, FieldHelp("cpu: trains on two cores. paper: the paper's network and MAPPO.", "NAME")] = "cpu"
    algorithm: Annotated[str, FieldHelp("After imitation: group or mappo.", "NAME")] = "group"
    network: Annotated[
        str, FieldHelp("full, no-han, hints-only, no-pointer, vanilla, no-self or joint-head.", "NAME")
    ] = "full"
    # Several teachers, joined by commas, take turns as loads do.
    teacher: Annotated[str, FieldHelp("Schedulers imitated first, or none.", "NAMES")] = "greedy"
    start: Annotated[
        str,
        FieldHelp(
            "Start from this checkpoint instead of a teacher.", "DIR", words={UNIVERSAL_START: "the universal model"}
        ),
    ] = ""
    # More examples give a better start.
    teacher_runs: Annotated[int, FieldHelp("Workloads they are recorded on.", "N", min=1)] = 100
    imitation_epochs: Annotated[
        int, FieldHelp("Passes over the recorded decisions.", "N", min=0, option="--epochs")
    ] = 10
    refinements: Annotated[int, FieldHelp("Updates from simulated deviations.", "N", min=0)] = 60
    iterations: Annotated[int, FieldHelp("Updates from rollouts after that.", "N", min=0)] = 20
    max_steps: Annotated[int, FieldHelp("Stop after this many env-steps.", "N", min=0, words={0: "no limit"})] = 0
    loads: Annotated[tuple[float, ...], FieldHelp("Arrival rates to train on, times the scenario's.", "X,X")] = (1.0,)
    # From scratch, long queues teach little: whatever an agent does, nearly all tasks wait for other reasons.
    first_loads: Annotated[
        tuple[float, ...], FieldHelp("Arrival rates that rollouts are played at first, one after the other.", "X,X")
    ] = ()
    first_steps: Annotated[int, FieldHelp("Env-steps at each of these.", "N", min=0)] = 0
    tasks: Annotated[int, FieldHelp("Tasks per training workload.", "N", min=0, words={0: "the scenario's"})] = 0
    pending: Annotated[int, FieldHelp("Waiting tasks that a cluster sees.", "N", min=1)] = 10
    features: Annotated[str, FieldHelp("What the network is told: types, paper or profiles.", "NAME")] = "types"
    seed: Annotated[int, FieldHelp("Same seed, same weights.", "N", min=0)] = 0
    workloads: Annotated[int, FieldHelp("Different workloads per update.", min=1)] = 8
    shards: Annotated[
        int, FieldHelp("Independent parts that rollouts of an update are played in, here or on other machines.", min=1)
    ] = 2
    average_from: Annotated[
        float,
        FieldHelp("Share of the refinements after which their networks are averaged; 1: they are not.", min=0, max=1),
    ] = 1.0
    evaluate_every: Annotated[int, FieldHelp("Updates between evaluations.", min=1)] = 5
    selection_runs: Annotated[int, FieldHelp("Workloads of an evaluation.", min=1)] = 40
    deviation: DeviationConfig = field(default_factory=DeviationConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    mappo: MappoConfig = field(default_factory=MappoConfig)

    def __post_init__(self) -> None:
        """Reject settings that cannot be run."""
        check_settings(self)
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        if self.features not in FEATURES:
            raise UnknownNameError("features", self.features, FEATURES)
        if self.features == PAPER and self.teacher != "none":
            raise ConfigError(f"teacher = {self.teacher!r}: with the paper's inputs there is none; take 'none'")
        if not all(load > 0 for load in self.first_loads):
            raise ConfigError(f"first_loads = {self.first_loads} must be numbers above 0")
        if not self.loads or not all(load > 0 for load in self.loads):
            raise ConfigError(f"loads = {self.loads} must be one or more numbers above 0")
        if self.workloads % self.shards:
            raise ConfigError(f"workloads = {self.workloads} must be a multiple of shards = {self.shards}")
        if self.deviation.workloads % self.shards:
            raise ConfigError(f"deviation.workloads = {self.deviation.workloads} must be a multiple of {self.shards}")

    @property
    def repeats(self) -> int:
        """How often each workload is played in an update."""
        return self.group.group if self.algorithm == "group" else self.mappo.group

    @property
    def reward(self) -> str:
        """What agents pay: see MappoConfig. The group algorithm compares what the whole system pays."""
        return self.mappo.reward if self.algorithm == "mappo" else "system"


#: The paper's training budget; an update has eight rollouts of each of two workloads, half the paper's 32 worlds.
_PAPER: dict[str, Any] = {
    "algorithm": "mappo",
    "features": PAPER,
    "teacher": "none",
    "refinements": 0,
    "workloads": 2,
    "first_loads": (0.4, 0.7),
    "first_steps": 80_000,
    "shards": 1,
    "evaluate_every": 15,
    "selection_runs": 20,
    "iterations": 1_000_000,
    "max_steps": 8_000_000,
}

#: How the paper's network learns fastest, of what was tried (docs/research).
_PAPER_LEARNS: dict[str, Any] = {"group": 8, "sharing": 1.0, "entropy": 0.001, "epochs": 2, "batch": 256}
_RATES = {"paper": 5e-4, "paper-small": 2e-3}

#: Settings of each ``--preset``. ``cpu`` trains on two cores; ``paper`` has the paper's network and training budget.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {},
    PAPER: _PAPER,
    "paper-small": _PAPER,
}


#: At twice the load, starts are scarce (one per cluster and slot): a patient greedy that waits for good sizes fails.
_TESTBED = {
    "teacher": "greedy,greedy@patience=5@queue_price=20@calm=0",
    "teacher_runs": 20,
    "loads": (1.0, 2.0),
    "tasks": 800,
    "workloads": 4,
    "selection_runs": 12,
    # Queues last long: a missed start affects every task that arrives before the queue is empty again.
    "deviation": DeviationConfig(workloads=12, horizon=100),
    "group": GroupConfig(discount=0.97),
}

#: Settings for the shipped scenarios where they differ from the preset ``cpu``.
RECIPES: dict[str, dict[str, Any]] = {
    "multi-3": {"iterations": 40},
    "hetero-6": {"teacher_runs": 60, "deviation": DeviationConfig(workloads=20), "selection_runs": 20},
    # The paper runs this scenario at rates 4, 3 and 2.
    "synthetic-6": {
        "teacher_runs": 60,
        "refinements": 120,
        "loads": (1.0, 0.75, 0.5),
        "workloads": 6,
        "selection_runs": 30,
    },
    # Queues are long here, and their short tasks must be seen. Deviations gained less than policy gradient.
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
    """The settings of a preset; ``changes`` that are None have no effect. MAPPO's settings depend on the mode.

    With ``cpu``, a scenario that has a recipe is trained by its recipe.
    """
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    recipe = RECIPES.get(scenario, {}) if preset == "cpu" else {}
    given = {name: value for name, value in changes.items() if value is not None}
    learns = {**_PAPER_LEARNS, "learning_rate": _RATES[preset]} if preset in _RATES else {}
    mappo = paper_config(mode, **learns)
    return TrainConfig(**{"preset": preset, "mappo": mappo, **PRESETS[preset], **recipe, **given})


#: Each update of the universal model is played on ``deviation.workloads`` sites; the best network is chosen on
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
    # One pass in small steps learnt next to nothing in twenty updates; at 1.5e-3 training diverged.
    "deviation": DeviationConfig(workloads=8, actions=10, batch=512, epochs=3, learning_rate=8e-4, restraint=0.1),
}


def universal_config(**changes: Any) -> TrainConfig:
    """The settings of the universal model; ``changes`` that are None have no effect.

    A run that starts from a checkpoint uses steps as small as fine-tuning's: the network is already good.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    smaller = {"deviation": replace(UNIVERSAL["deviation"], learning_rate=4e-4)} if given.get("start") else {}
    return TrainConfig(**{**UNIVERSAL, **smaller, **given})


#: The universal model's settings with smaller steps: the network is already good.
FINETUNE: dict[str, Any] = {
    "features": "profiles",
    "start": UNIVERSAL_START,
    "refinements": 40,
    "iterations": 0,
    "average_from": 0.4,
    "deviation": DeviationConfig(workloads=24, actions=10, batch=512, epochs=3, learning_rate=4e-4, restraint=0.1),
}


def finetune_config(scenario: str, **changes: Any) -> TrainConfig:
    """Settings to adapt the universal model to one scenario in about ten minutes; the rest as in its recipe, if any."""
    recipe = {k: v for k, v in RECIPES.get(scenario, {}).items() if k in ("loads", "tasks", "selection_runs")}
    given = {name: value for name, value in changes.items() if value is not None}
    return TrainConfig(**{**FINETUNE, **recipe, **given})


def parse_loads(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"loads {text!r} must be numbers separated by commas, for example 1,2") from None
