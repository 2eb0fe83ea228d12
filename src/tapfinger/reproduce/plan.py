"""Figures -> the runs they need, their expected cost, and whether everything for them is available."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tapfinger.config import Scenario, load_scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import Cell, make_cells
from tapfinger.evaluation.runner import ComparisonQuestion, ComparisonResult
from tapfinger.evaluation.specs import SchedulerSpec, parse_spec
from tapfinger.policy.exported import load_model, shipped_models
from tapfinger.registry import names
from tapfinger.reproduce.declare import Figure, Setting
from tapfinger.reproduce.figure_data import FigureData, SettingRuns
from tapfinger.reproduce.networks import training_of
from tapfinger.reproduce.styles import regime_of, scheduler_of
from tapfinger.schedulers.model_choice import has_model
from tapfinger.workloads.sites import rate_for
from tapfinger.workloads.world import build_world

#: First seed of a reproduction; nothing was tuned or trained on these seeds, as in BENCHMARKS.md.
FIRST_SEED = 1000

#: Prefix of a scheduler's name -> milliseconds per task on three clusters, including the simulator. Only for
#: estimates of time; the first matching prefix counts.
_MS_PER_TASK = {"tapfinger+lookahead": 8.0, "lookahead": 6.0, "optimus": 0.35, "tapfinger": 1.0, "": 0.2}


class MissingModel(TapfingerError):  # noqa: N818 - named for what is wrong, as the other errors
    """A figure needs a trained model that does not exist."""


@dataclass(frozen=True)
class Planned:
    """One setting of a figure, resolved."""

    setting: Setting
    scenario: Scenario
    overrides: tuple[str, ...]
    #: Label -> scheduler.
    specs: dict[str, SchedulerSpec]
    seeds: tuple[int, ...]

    @property
    def question(self) -> ComparisonQuestion:
        """What has to be run."""
        return ComparisonQuestion(self.scenario, tuple(self.specs.values()), self.seeds)

    def runs(self, outcome: ComparisonResult) -> SettingRuns:
        """The results of the setting, by label."""
        records = {label: outcome.records[spec.text] for label, spec in self.specs.items()}
        return SettingRuns(
            self.setting, records, self.scenario.slot_seconds, self.overrides, independent=not outcome.same_draws
        )


@dataclass(frozen=True)
class RunPlan:
    """Everything to run for some figures."""

    figures: tuple[Figure, ...]
    quick: bool
    #: Seeds to use instead of each figure's own.
    seeds: tuple[int, ...] | None = None
    #: Maximum number of tasks of any run, for tests and first looks.
    most_tasks: int | None = None
    _resolved: dict[str, list[Planned]] = field(default_factory=dict)

    def seeds_of(self, figure: Figure, setting: Setting) -> tuple[int, ...]:
        """The requested seeds, or as many as the figure and the setting ask for."""
        if self.seeds is not None:
            return self.seeds
        count = max(figure.quick_seeds if self.quick else figure.seeds, setting.least_seeds)
        return tuple(range(FIRST_SEED, FIRST_SEED + count))

    def of(self, figure: Figure) -> list[Planned]:
        """The settings of a figure, resolved."""
        if figure.name not in self._resolved:
            self._resolved[figure.name] = [self._resolve(figure, setting) for setting in figure.settings]
        return self._resolved[figure.name]

    def absent(self, figure: Figure) -> dict[str, str]:
        """Label -> why it is left out: an optional scheduler whose model does not ship."""
        return {label: why for label in figure.optional if (why := left_out(figure, label))}

    def _resolve(self, figure: Figure, setting: Setting) -> Planned:
        overrides = (*setting.overrides, *(setting.quick if self.quick else ()))
        scenario = load_scenario(setting.scenario, overrides)
        if setting.load is not None:
            overrides += (f"arrivals.rate={rate_for(build_world(scenario), setting.load):g}",)
        if self.most_tasks is not None and (scenario.tasks or 0) > self.most_tasks:
            overrides += (f"tasks={self.most_tasks}",)
        specs = {
            label: parse_spec(scheduler_of(figure, label))
            for label in figure.schedulers
            if label not in self.absent(figure)
        }
        seeds = self.seeds_of(figure, setting)
        return Planned(setting, load_scenario(setting.scenario, overrides), overrides, specs, seeds)

    @cached_property
    def all(self) -> list[Planned]:
        """Every setting of every figure."""
        return [planned for figure in self.figures for planned in self.of(figure)]

    def check(self) -> None:
        """Raise if anything is missing, before any run."""
        for planned in self.all:
            for label, spec in planned.specs.items():
                _check_model(planned, label, spec)

    def measured(self, figure: Figure, outcomes: dict[int, ComparisonResult]) -> FigureData:
        """The runs of a figure; ``outcomes`` by the id of the planned setting."""
        runs = {planned.setting.key: planned.runs(outcomes[id(planned)]) for planned in self.of(figure)}
        absent = self.absent(figure)
        notes = [regime_of(figure), *figure.notes]
        if figure.compares_networks:
            notes.append(training_of(figure, absent))
        notes += [f"Left out: {label}. {why}." for label, why in absent.items()]
        return FigureData(replace(figure, notes=tuple(notes)), runs, absent=absent)

    @property
    def expected_seconds(self) -> float:
        """Expected seconds on one core, ignoring the store; a run shared by several figures counts once."""
        costs = {}
        for planned in self.all:
            for spec in planned.specs.values():
                for seed in planned.seeds:
                    key = (planned.setting.scenario, planned.overrides, spec.text, seed)
                    costs[key] = run_seconds(spec.text, planned.scenario)
        return sum(costs.values())


def run_seconds(scheduler: str, scenario: Scenario) -> float:
    """Approximate duration of one run on one core, in seconds."""
    clusters = sum(cluster.count for cluster in scenario.clusters)
    per_task = next(ms for name, ms in _MS_PER_TASK.items() if scheduler.startswith(name))
    return 1e-3 * per_task * (scenario.tasks or 0) * (1.0 + clusters / 200.0)


def cell_weights(planned: Iterable[Planned]) -> dict[str, float]:
    """Key of every cell -> expected seconds, so that the time left is estimated by work, not by count."""
    weights = {}
    for item in planned:
        for cell in make_cells(*item.question):
            weights[cell.key] = run_seconds(cell.spec.text, item.scenario)
    return weights


def first_cells(figure: Figure, planned: Sequence[Planned]) -> dict[str, str]:
    """Name -> key of the first seed's cells: another key under the same name means other code or another scenario."""
    found: dict[str, str] = {}
    for item in planned:
        texts = {spec.text: label for label, spec in item.specs.items()}
        cells: list[Cell] = make_cells(item.scenario, tuple(item.specs.values()), item.seeds[:1])
        for cell in cells:
            found[f"{figure.name} | {item.setting.key} | {texts[cell.spec.text]} | seed {cell.seed}"] = cell.key
    return found


def left_out(figure: Figure, label: str) -> str:
    """Why an optional scheduler cannot take part, and how to make its model if it needs one; empty if it can."""
    text = scheduler_of(figure, label)
    name = text.partition("@")[0]
    if ":" not in name and name not in names("scheduler"):
        return f"There is no scheduler {name}"
    spec = parse_spec(text)
    wanted = str(dict(spec.options).get("model", ""))
    if not wanted or wanted in shipped_models():
        return ""
    return f"No model {wanted} ships yet; `{figure.optional[label]}` trains it"


def _check_model(planned: Planned, label: str, spec: SchedulerSpec) -> None:
    if not spec.name.startswith("tapfinger"):
        return
    wanted = dict(spec.options).get("model", "")
    try:
        if wanted:
            load_model(str(wanted))
        elif not has_model(build_world(planned.scenario).context(0)):
            raise TapfingerError(f"no shipped model is for the task types of {planned.setting.scenario}")
    except TapfingerError as error:
        raise MissingModel(
            f"scheduler {label!r} of the setting {planned.setting.key!r} has no model: {error}. Install the package "
            "again, or train one ('tapfinger train', docs/training.md)"
        ) from None
