"""What was measured for a figure, by setting and scheduler: the only input of claims, tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tapfinger.evaluation.stats import Difference, Estimate, SchedulerSummary, paired, summarise
from tapfinger.records import RunRecord
from tapfinger.reproduce.declare import OURS, Figure, Setting


@dataclass(frozen=True)
class SettingRuns:
    """All runs of one setting."""

    setting: Setting
    #: Label -> one record per seed.
    records: Mapping[str, Sequence[RunRecord]]
    slot_seconds: float
    #: Overrides as used, including those of --quick and of a load.
    overrides: tuple[str, ...] = ()
    #: Whether seeds are different draws.
    independent: bool = True

    @property
    def reference(self) -> str:
        """The scheduler that differences are taken against: ours, or the first if ours does not take part."""
        return OURS if OURS in self.records else next(iter(self.records))

    @property
    def seeds(self) -> int:
        """Number of runs of each scheduler."""
        return len(self.records[self.reference])

    @cached_property
    def summaries(self) -> dict[str, SchedulerSummary]:
        """Label -> summary, best mean first."""
        return summarise(self.records, self.reference, self.independent)


@dataclass(frozen=True)
class FigureCurve:
    """A line from a source other than runs: points, and half the width of their intervals, if any."""

    x: Sequence[float]
    y: Sequence[float]
    half: Sequence[float] = ()


@dataclass(frozen=True)
class FigureData:
    """Everything that was measured for a figure."""

    figure: Figure
    runs: Mapping[str, SettingRuns] = field(default_factory=dict)
    #: Numbers of sources other than runs, by name.
    values: Mapping[str, Estimate] = field(default_factory=dict)
    #: Panel -> line -> points.
    curves: Mapping[str, Mapping[str, FigureCurve]] = field(default_factory=dict)
    #: Header and rows of the figure's own table.
    table: tuple[tuple[str, ...], tuple[tuple[str, ...], ...]] = ((), ())
    #: One sentence on what it shows, for a figure without runs and claims.
    seen: str = ""
    #: Reason why there is no data; empty if there is.
    missing: str = ""
    #: Label -> why this scheduler was left out.
    absent: Mapping[str, str] = field(default_factory=dict)

    def per_seed(self, setting: str, scheduler: str, measure: str) -> list[float]:
        """A measure of one scheduler, one value per seed."""
        return self.runs[setting].summaries[scheduler].per_seed[measure]

    def difference(self, one: tuple[str, str], other: tuple[str, str], measure: str) -> Difference:
        """(setting, scheduler) minus another, seed by seed."""
        independent = self.runs[one[0]].independent
        return paired(self.per_seed(*one, measure), self.per_seed(*other, measure), independent)
