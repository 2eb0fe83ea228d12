"""Figures of a comparison, in the style of the paper. Drawing only: every number comes from records and summaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tapfinger.drawing import add_legend, look, new_figure, save
from tapfinger.evaluation.accumulate import align
from tapfinger.evaluation.stats import SchedulerSummary
from tapfinger.records import FloatArray, RunRecord

#: Most schedulers with bands over seeds; more bands would hide each other.
_MAX_BANDS = 3
#: Most columns of a strip with numbers; more would not fit.
_MAX_NUMBERS = 20
#: Most task types; with more, the figure would be too tall to read.
_MAX_TYPES = 10
#: Ratio of differences above which the axis is logarithmic; otherwise small ones could not be told apart.
_MAX_RATIO = 10.0
#: Most points of a curve; more cannot be seen.
_CURVE_POINTS = 1000


@dataclass(frozen=True)
class Comparison:
    """What the figures show."""

    title: str
    slot_seconds: float
    #: scheduler -> one record per seed.
    records: Mapping[str, Sequence[RunRecord]]
    #: scheduler -> summary, best first: the order in every figure.
    summaries: Mapping[str, SchedulerSummary]
    baseline: str
    #: scheduler -> its number in ``look``, where several comparisons must agree; else by the order of ``records``.
    places: Mapping[str, int] = field(default_factory=dict)

    def look(self, scheduler: str) -> dict[str, Any]:
        """Colour and dashes of a scheduler, the same in every figure."""
        return look(self.places[scheduler] if scheduler in self.places else list(self.records).index(scheduler))


def draw_all(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Write every figure as PNG; return name -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, draw in FIGURES.items():
        figure = draw(comparison)
        paths[name] = folder / f"{name}.png"
        save(figure, paths[name])
    return paths


def completion_times(comparison: Comparison) -> Figure:
    """Distribution of completion times: box plot and cumulative share of tasks."""
    names = list(comparison.summaries)
    figure, axes = new_figure(max(3.2, 1.4 + 0.36 * len(names)), ncols=2)
    boxes, curves = axes[0]
    samples = [np.concatenate([run.completion for run in comparison.records[name]]) for name in names]
    drawn = boxes.boxplot(
        samples[::-1],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        widths=0.6,
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4},
        medianprops={"color": "black"},
    )
    for box, name in zip(drawn["boxes"], names[::-1], strict=True):
        box.set_facecolor(comparison.look(name)["color"])
        box.set_alpha(0.65)
    boxes.set_yticks(range(1, len(names) + 1), names[::-1], fontsize=8)
    boxes.set_title("median, quartiles, 5-95 %; diamond: mean", fontsize=8)
    for name, sample in zip(names, samples, strict=True):
        share = np.linspace(0.0, 1.0, min(len(sample), _CURVE_POINTS))
        curves.plot(np.quantile(sample, share), share, label=name, linewidth=1.4, **comparison.look(name))
    curves.set_ylabel("share of tasks", fontsize=8)
    curves.set_title("tasks completed within this time", fontsize=8)
    curves.grid(alpha=0.25)
    for axis in (boxes, curves):
        _slots_on_log_axis(axis, samples)
    figure.suptitle(f"Completion time, {comparison.title}", fontsize=10)
    add_legend(figure, curves, len(names))
    return figure


def _slots_on_log_axis(axis: Axes, samples: Sequence[FloatArray]) -> None:
    axis.set_xscale("log")
    axis.set_xlabel("completion time [slots]", fontsize=8)
    top = max(float(sample.max()) for sample in samples)
    ticks = [base * 10**power for power in range(7) for base in (1, 2, 5) if base * 10**power <= 1.3 * top]
    axis.set_xlim(0.9, 1.15 * top)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xticks([], minor=True)


def _over_time(
    comparison: Comparison, axis: Axes, values: Callable[[Sequence[RunRecord]], tuple[int, FloatArray]]
) -> None:
    """One line per scheduler: mean over seeds, with a band of one standard deviation if schedulers are few."""
    for name in comparison.summaries:
        width, runs = values(comparison.records[name])
        slots = width * (np.arange(runs.shape[1]) + 0.5)
        look = comparison.look(name)
        mean = runs.mean(axis=0)
        axis.plot(slots, mean, label=name, linewidth=1.4, **look)
        if len(runs) > 1 and len(comparison.summaries) <= _MAX_BANDS:
            spread = runs.std(axis=0, ddof=1)
            axis.fill_between(slots, np.maximum(0, mean - spread), mean + spread, color=look["color"], alpha=0.15, lw=0)
    if axis.collections:
        axis.set_title("mean over seeds, with one standard deviation", fontsize=8)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)


def _time_axis(comparison: Comparison, axis: Axes) -> None:
    axis.set_xlabel(f"time [slots of {comparison.slot_seconds:g} s]", fontsize=8)


def task_accumulation(comparison: Comparison) -> Figure:
    """Tasks in the system over time; the area under a line is the objective."""
    figure, axes = new_figure(3.8)
    axis = axes[0, 0]
    _over_time(comparison, axis, lambda runs: align(runs, "in_system"))
    axis.set_ylabel("tasks in system", fontsize=8)
    _time_axis(comparison, axis)
    figure.suptitle(f"Task accumulation, {comparison.title}", fontsize=10)
    add_legend(figure, axis, len(comparison.summaries))
    return figure


def utilisation(comparison: Comparison) -> Figure:
    """Share of all clusters' capacity in use over time, one panel per resource."""
    sample = next(iter(comparison.records.values()))[0]
    figure, axes = new_figure(1.2 + 2.3 * len(sample.resources), nrows=len(sample.resources), sharex=True)
    total = np.maximum(1, sample.capacity.sum(axis=0))
    for index, resource in enumerate(sample.resources):

        def in_use(runs: Sequence[RunRecord], index: int = index) -> tuple[int, FloatArray]:
            width, used = align(runs, "used")
            return width, 100.0 * used.sum(axis=2)[..., index] / total[index]

        axis = axes[index, 0]
        _over_time(comparison, axis, in_use)
        axis.set_ylim(0, 100)
        axis.set_ylabel(f"{resource} in use [%]", fontsize=8)
    _time_axis(comparison, axes[-1, 0])
    figure.suptitle(f"Utilisation of all clusters together, {comparison.title}", fontsize=10)
    add_legend(figure, axes[0, 0], len(comparison.summaries))
    return figure


def _heat(figure: Figure, axis: Axes, values: FloatArray, rows: Sequence[str], gamma: float = 1.0) -> None:
    """A strip of percentages per scheduler, as numbers where there is room for them, else with a scale."""
    picture = axis.imshow(values, aspect="auto", cmap="Blues", norm=PowerNorm(gamma, 0, 100), interpolation="nearest")
    axis.set_yticks(range(len(rows)), rows, fontsize=8)
    axis.spines[:].set_visible(False)
    axis.set_yticks(np.arange(len(rows) - 1) + 0.5, minor=True)
    axis.grid(axis="y", which="minor", color="white", linewidth=2)
    axis.tick_params(which="minor", length=0)
    if values.shape[1] > _MAX_NUMBERS:
        bar = figure.colorbar(picture, ax=axis, fraction=0.03, pad=0.01, label="%")
        bar.ax.tick_params(labelsize=7)
        return
    for (row, column), value in np.ndenumerate(values):
        if value >= 0.5:
            colour = "white" if (value / 100) ** gamma > 0.6 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)


def cluster_utilisation(comparison: Comparison) -> Figure:
    """Mean utilisation of every cluster, one panel per resource."""
    names = list(comparison.summaries)
    sample = next(iter(comparison.records.values()))[0]
    height = 1.2 + len(sample.resources) * (0.9 + 0.24 * len(names))
    figure, axes = new_figure(height, nrows=len(sample.resources), sharex=True)
    for index, resource in enumerate(sample.resources):
        in_use = [comparison.summaries[name].cluster_utilisation for name in names]
        clusters = list(in_use[0])
        shares = [[100 * mean[cluster][resource] for cluster in clusters] for mean in in_use]
        _heat(figure, axes[index, 0], np.array(shares), names)
        axes[index, 0].set_title(f"{resource} in use [%]", fontsize=8)
        step = -(-len(clusters) // 12)
        axes[index, 0].set_xticks(range(0, len(clusters), step), clusters[::step], fontsize=8)
    figure.suptitle(f"Mean utilisation per cluster, {comparison.title}", fontsize=10)
    return figure


def allocations(comparison: Comparison) -> Figure:
    """Allocations of tasks of each type, per resource: share of tasks by amount."""
    names = list(comparison.summaries)
    runs = next(iter(comparison.records.values()))
    types, resources = runs[0].task_types, runs[0].resources
    tasks = np.bincount(np.concatenate([run.type for run in runs]), minlength=len(types))
    present = int((tasks > 0).sum())
    # In the scenario's order; if there are many, only the most frequent.
    shown = sorted(np.argsort(-tasks, kind="stable")[: min(present, _MAX_TYPES)].tolist())
    height = 1.2 + len(shown) * (0.8 + 0.24 * len(names))
    figure, axes = new_figure(height, nrows=len(shown), ncols=len(resources), sharey=True)
    for row, kind in enumerate(shown):
        for column, resource in enumerate(resources):
            counts = [_amounts(comparison.records[name], kind, column) for name in names]
            amounts = np.arange(min(map(min, counts)), max(map(max, counts)) + 1)
            shares = [[100 * c.get(int(a), 0) / max(1, sum(c.values())) for a in amounts] for c in counts]
            axis = axes[row, column]
            _heat(figure, axis, np.array(shares), names, gamma=0.5)  # the square root shows small shares too
            step = -(-len(amounts) // 16)
            axis.set_xticks(range(0, len(amounts), step), amounts[::step])
            axis.set_xlabel(f"{resource} allotted [units]", fontsize=8)
            axis.set_title(f"{types[kind]}: share of tasks [%]", fontsize=8)
    some = f" ({len(shown)} most frequent of {present})" if len(shown) < present else ""
    figure.suptitle(f"Allocations by task type{some}, {comparison.title}", fontsize=10)
    return figure


def _amounts(runs: Sequence[RunRecord], kind: int, resource: int) -> dict[int, int]:
    """amount -> number of tasks of this type that held it."""
    given = np.concatenate([run.allocation[run.type == kind, resource] for run in runs])
    values, counts = np.unique(given, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True)) or {0: 0}


def differences(comparison: Comparison) -> Figure:
    """Paired difference of the mean completion time from the baseline, with its interval."""
    others = [name for name in comparison.summaries if name != comparison.baseline] or [comparison.baseline]
    figure, axes = new_figure(1.5 + 0.28 * len(others))
    axis = axes[0, 0]
    for place, name in enumerate(reversed(others)):
        gap = comparison.summaries[name].difference.mean
        colour = comparison.look(name)["color"]
        axis.errorbar(gap.mean, place, xerr=gap.half_width or 0.0, fmt="o", color=colour, capsize=3, markersize=5)
        axis.annotate(
            gap.text(sign=True), (gap.mean, place), (0, 6), textcoords="offset points", ha="center", fontsize=7
        )
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(others)), others[::-1], fontsize=8)
    axis.set_ylim(-0.6, len(others) - 0.3)
    gaps = [comparison.summaries[name].difference.mean for name in others]
    note = _spread_axis(axis, [abs(gap.mean) for gap in gaps])
    axis.margins(x=0.12)
    axis.grid(axis="x", alpha=0.25)
    label = f"mean completion time minus that of {comparison.baseline} [slots]; left is better{note}"
    axis.set_xlabel(label, fontsize=8)
    intervals = " with 95 % intervals" if any(gap.half_width is not None for gap in gaps) else ""
    figure.suptitle(f"Paired differences{intervals}, {comparison.title}", fontsize=10)
    return figure


def _spread_axis(axis: Axes, sizes: Sequence[float]) -> str:
    """Make the axis logarithmic away from zero if one size would hide the others; return a note about it."""
    seen = [size for size in sizes if size > 0]
    if not seen or max(seen) <= _MAX_RATIO * min(seen):
        return ""
    # Linear up to a power of ten near the smallest value, never finer than the two digits written next to it, and at
    # most four decades, as nobody could read more.
    linear = 10.0 ** max(math.floor(math.log10(min(seen))), math.ceil(math.log10(max(seen))) - 4, -2)
    axis.set_xscale("symlog", linthresh=linear)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return f"; logarithmic beyond ±{linear:g}"


#: File name -> drawing, in the order of the report.
FIGURES: dict[str, Callable[[Comparison], Figure]] = {
    "completion": completion_times,
    "differences": differences,
    "accumulation": task_accumulation,
    "utilisation": utilisation,
    "clusters": cluster_utilisation,
    "allocations": allocations,
}
