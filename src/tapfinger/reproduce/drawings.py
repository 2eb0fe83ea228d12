"""Pictures of figures. Those of a single comparison come from evaluation; sweeps, tails and the rest are drawn here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tapfinger.drawing import add_legend, look, new_figure
from tapfinger.evaluation import plots
from tapfinger.reproduce.figure_data import FigureCurve, FigureData
from tapfinger.reproduce.styles import PLACES, look_of, places_of

#: Ratio between lines of one figure above which the axis is logarithmic.
_MAX_RATIO = 6.0
#: Percent beyond which a line would flatten the others in a picture of differences.
_FAR = 40.0

CAPTIONS = {
    "completion": "Completion times of all tasks of all seeds: box with median, quartiles and 5 to 95 %, and the "
    "share of tasks completed within a time. Left of the others is better.",
    "accumulation": "Tasks waiting and running, mean over seeds. The area under a line is the sum of completion times.",
    "utilisation": "Share of all clusters' capacity in use, mean over seeds; a run that has ended uses nothing.",
    "differences": "Difference of the mean completion time, seed by seed, with its 95 % interval. Where an interval "
    "leaves out zero, chance alone would hardly explain it.",
    "sweep": "Mean completion time with its 95 % interval over seeds. Lower is better.",
    "gaps": "The same relative to the scheduler at zero, seed by seed, with the 95 % interval of the paired "
    "difference. Above zero is worse. Schedulers that are far behind somewhere are left out.",
    "cost": "Time of a decision, all turns of a slot together, in slots that begin with a waiting task. "
    "Depends on the machine.",
    "settings": "Mean completion time with its 95 % interval over seeds. Lower is better.",
    "tails": "Mean, 95th and 99th percentile of completion times (mean over seeds), and the longest of all seeds.",
    "profiles": "Seconds of one task under an allocation. Where a line rises, more of the resource makes the "
    "task slower.",
    "overhead": "Time from an agent's report to its orders, the slowest of six agents, mean over slots with its "
    "95 % interval.",
    "training": "Mean completion time of the rollouts that updates learn from, relative to Greedy's on the same "
    "workloads, over the env-steps played so far; policies still explore in them. Lower is better. Of many "
    "small updates several are put together into a point.",
}


def draw(name: str, measured: FigureData) -> Picture:
    """A picture of a figure by name."""
    if name in _OF_ONE:
        return _of_comparison(name, measured)
    return _DRAWINGS[name](measured)


#: Pictures that evaluation draws for one comparison.
_OF_ONE = ("completion", "accumulation", "utilisation", "differences")


def _of_comparison(name: str, measured: FigureData) -> Picture:
    """Evaluation's picture of the last setting, which the figure is about."""
    key, runs = list(measured.runs.items())[-1]
    title = f"{key}, {runs.seeds} seed{'s' * (runs.seeds != 1)}"
    places = places_of(measured.figure)
    return plots.FIGURES[name](
        plots.Comparison(title, runs.slot_seconds, runs.records, runs.summaries, runs.reference, places)
    )


def _labels(measured: FigureData) -> list[str]:
    return list(next(iter(measured.runs.values())).records)


def _log_if_wide(axis: Axes, values: Sequence[float]) -> str:
    """Use a logarithmic axis with readable ticks if lines lie far apart; return a note about it."""
    low, high = min(values), max(values)
    if not low > 0 or high <= _MAX_RATIO * low:
        axis.set_ylim(bottom=0)
        return ""
    axis.set_yscale("log")
    _plain_ticks(axis.yaxis, low, high)
    return ", logarithmic"


def _plain_ticks(axis: object, low: float, high: float) -> None:
    """1, 2, 5, 10 ... as numbers instead of powers; more of them if these would be few."""
    shown = [low, high]
    for bases in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [base * 10.0**power for power in range(-4, 7) for base in bases]
        shown = [tick for tick in ticks if 0.8 * low <= tick <= 1.25 * high] or shown
        if len(shown) > 4:
            break
    axis.set_major_locator(FixedLocator(shown))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # type: ignore[attr-defined]


def _x_axis(axis: Axes, measured: FigureData) -> None:
    if measured.figure.log_axis:
        axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(_places(measured)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel(measured.figure.axis, fontsize=8)
    axis.grid(alpha=0.25)


def _places(measured: FigureData) -> list[float]:
    """Positions of the settings on the axis."""
    return [runs.setting.x or 0.0 for runs in measured.runs.values()]


def _line(axis: Axes, name: str, curve: FigureCurve, style: Mapping[str, Any]) -> None:
    """Points with their intervals, connected by a line."""
    halves = curve.half or None
    axis.errorbar(curve.x, curve.y, halves, label=name, marker="o", ms=3.5, lw=1.4, capsize=2, **style)


def _over_settings(measured: FigureData, measure: str, label: str, title: str) -> Picture:
    picture, axes = new_figure(4.2)
    axis, heights = axes[0, 0], []
    for name in _labels(measured):
        found = [runs.summaries[name].estimate(measure) for runs in measured.runs.values()]
        heights += [f.mean for f in found]
        halves = [f.half_width or 0.0 for f in found]
        _line(
            axis, name, FigureCurve(_places(measured), [f.mean for f in found], halves), look_of(measured.figure, name)
        )
    _x_axis(axis, measured)
    note = _log_if_wide(axis, heights)
    axis.set_ylabel(f"{label}{note}", fontsize=8)
    picture.suptitle(title, fontsize=10)
    add_legend(picture, axis, len(_labels(measured)))
    return picture


def _sweep(measured: FigureData) -> Picture:
    return _over_settings(measured, "mean", "mean completion time [slots]", measured.figure.title)


def _cost(measured: FigureData) -> Picture:
    title = f"Cost of a decision: {measured.figure.title.lower()}"
    return _over_settings(measured, "decision_ms_mean", "time of a decision [ms]", title)


def _gaps(measured: FigureData) -> Picture:
    """Differences in percent of the reference, which a sweep's own scale would hide."""
    picture, axes = new_figure(3.6)
    axis = axes[0, 0]
    reference = next(iter(measured.runs.values())).reference
    # Far weaker schedulers would flatten the others; they are in the picture above.
    shown = [name for name in _labels(measured) if name != reference and _largest_gap(measured, name) < _FAR]
    for name in shown:
        means, halves = [], []
        for runs in measured.runs.values():
            gap, base = runs.summaries[name].difference, runs.summaries[reference]["mean"]
            means.append(gap.percent)
            halves.append(100.0 * (gap.mean.half_width or 0.0) / base)
        _line(axis, name, FigureCurve(_places(measured), means, halves), look_of(measured.figure, name))
    axis.axhline(0, label=reference, lw=1.4, **look_of(measured.figure, reference))
    _x_axis(axis, measured)
    axis.set_ylabel(f"to {reference}, paired [%]", fontsize=8)
    picture.suptitle(f"{measured.figure.title}: difference to {reference}", fontsize=10)
    add_legend(picture, axis, len(shown) + 1)
    return picture


def _largest_gap(measured: FigureData, name: str) -> float:
    return max(abs(runs.summaries[name].difference.percent) for runs in measured.runs.values())


def _settings(measured: FigureData) -> Picture:
    """Bars by setting, for settings that are not numbers."""
    names, keys = _labels(measured), list(measured.runs)
    picture, axes = new_figure(3.8)
    axis, width = axes[0, 0], 0.8 / len(names)
    heights = []
    for number, name in enumerate(names):
        found = [measured.runs[key].summaries[name].estimate("mean") for key in keys]
        places = np.arange(len(keys)) + (number - (len(names) - 1) / 2) * width
        heights += [f.mean for f in found]
        halves = [f.half_width or 0.0 for f in found]
        colour = look_of(measured.figure, name)
        axis.bar(
            places,
            [f.mean for f in found],
            0.92 * width,
            yerr=halves,
            label=name,
            color=colour["color"],
            alpha=0.75,
            hatch=None if colour["linestyle"] == "-" else "///",
            edgecolor="white",
            error_kw={"lw": 1, "capsize": 2},
        )
    axis.set_xticks(range(len(keys)), keys, fontsize=8)
    axis.set_ylabel("mean completion time [slots]", fontsize=8)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    picture.suptitle(measured.figure.title, fontsize=10)
    add_legend(picture, axis, len(names))
    return picture


def _tails(measured: FigureData) -> Picture:
    """Four marks per scheduler, one panel per setting."""
    names, keys = _labels(measured), list(measured.runs)
    columns = 2 if len(keys) > 1 else 1
    rows = -(-len(keys) // columns)
    picture, axes = new_figure(1.0 + rows * (0.9 + 0.3 * len(names)), nrows=rows, ncols=columns)
    marks = {"mean": "D", "p95": "o", "p99": "s", "max": "x"}
    for axis, key in zip(axes.flat, keys, strict=False):
        for place, name in enumerate(reversed(names)):
            summary, colour = measured.runs[key].summaries[name], look_of(measured.figure, name)["color"]
            points = [summary[measure] for measure in marks]
            axis.plot([points[0], points[-1]], [place, place], color=colour, lw=1, alpha=0.5)
            for point, mark in zip(points, marks.values(), strict=True):
                axis.plot(point, place, mark, color=colour, ms=6)
        axis.set_yticks(range(len(names)), names[::-1], fontsize=8)
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.set_xlim(left=0)
        axis.set_title(key, fontsize=8)
        axis.set_xlabel("completion time [slots]", fontsize=8)
        axis.grid(axis="x", alpha=0.25)
    for axis in axes.flat[len(keys) :]:
        axis.set_visible(False)
    handles = [axes.flat[0].plot([], [], mark, color="grey", ms=6, label=name)[0] for name, mark in marks.items()]
    picture.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    picture.suptitle(measured.figure.title, fontsize=10)
    return picture


def _lines(axis: Axes, curves: Mapping[str, FigureCurve]) -> None:
    for place, (name, curve) in enumerate(curves.items()):
        _line(axis, name, curve, look(place))
    axis.grid(alpha=0.25)


def _profiles(measured: FigureData) -> Picture:
    """Two panels per task type: over GPUs for some CPUs, and over CPUs for some GPUs."""
    panels = list(measured.curves.items())
    rows = len(panels) // 2
    picture, axes = new_figure(2.5 * rows, nrows=rows, ncols=2, sharey="row")
    for axis, (name, curves) in zip(axes.flat, panels, strict=True):
        task_type, _, resource = name.rpartition(" over ")
        _lines(axis, curves)
        axis.set_ylim(0, 1.12 * max(max(curve.y) for curve in curves.values()))
        axis.set_title(task_type, fontsize=8)
        axis.set_xlabel(f"{resource}s allotted", fontsize=8)
        axis.set_ylabel("completion time [s]", fontsize=8)
        axis.legend(fontsize=7, frameon=False, ncols=2)
    picture.suptitle(measured.figure.title, fontsize=10)
    return picture


def _overhead(measured: FigureData) -> Picture:
    picture, axes = new_figure(4.0)
    axis = axes[0, 0]
    curves = measured.curves["overhead"]
    _lines(axis, curves)
    axis.set_xlim(left=0)
    top = 1.1 * max(max(curve.y) for curve in curves.values())
    axis.set_ylim(0, max(top, 330.0))
    axis.axhline(300, color="grey", lw=1, ls=":")
    axis.annotate("3 % of a slot of 10 s", (0, 300), (4, 3), textcoords="offset points", fontsize=8, color="#555")
    axis.set_xlabel("latency, one way [ms]", fontsize=8)
    axis.set_ylabel("overhead per slot [ms]", fontsize=8)
    share = axis.secondary_yaxis("right", functions=(lambda ms: ms / 100.0, lambda percent: 100.0 * percent))
    share.set_ylabel("share of a slot of 10 s [%]", fontsize=8)
    share.tick_params(labelsize=8)
    picture.suptitle(measured.figure.title, fontsize=10)
    add_legend(picture, axis, len(curves))
    return picture


def _training(measured: FigureData) -> Picture:
    picture, axes = new_figure(3.6)
    axis, curves = axes[0, 0], measured.curves["training"]
    for name, curve in curves.items():
        # Shipped networks have the same colour everywhere.
        colour = look(PLACES[name]) if name in PLACES else {"color": "grey"}
        axis.plot(curve.x, curve.y, label=name, marker="o", ms=3.5, lw=1.4, **colour)
    axis.grid(alpha=0.25)
    heights = [y for curve in curves.values() for y in curve.y]
    axis.set_yscale("log")
    _plain_ticks(axis.yaxis, min(heights), max(heights))
    axis.axhline(1.0, color="grey", lw=1, ls=":")
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
    axis.set_xlabel("thousand env-steps", fontsize=8)
    axis.set_ylabel("completion time over Greedy's, logarithmic", fontsize=8)
    picture.suptitle(measured.figure.title, fontsize=10)
    add_legend(picture, axis, len(curves))
    return picture


_DRAWINGS: dict[str, Callable[[FigureData], Picture]] = {
    "sweep": _sweep,
    "gaps": _gaps,
    "cost": _cost,
    "settings": _settings,
    "tails": _tails,
    "profiles": _profiles,
    "overhead": _overhead,
    "training": _training,
}

#: All names that a declaration may use.
PICTURES = (*_OF_ONE, *_DRAWINGS)
