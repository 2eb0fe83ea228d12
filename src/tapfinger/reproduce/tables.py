"""Tables of a figure: as text for people, as numbers for CSV files."""

from __future__ import annotations

from tapfinger.evaluation.report import Table
from tapfinger.evaluation.stats import SchedulerSummary
from tapfinger.reproduce.figure_data import FigureData, SettingRuns
from tapfinger.reproduce.verdicts import Judged


def main_table(measured: FigureData) -> Table:
    """For one setting, every scheduler in detail; for several, the means side by side."""
    if not measured.runs:
        return Table(*measured.table)
    if len(measured.runs) == 1:
        return _detailed(next(iter(measured.runs.values())))
    return _side_by_side(measured)


def _detailed(runs: SettingRuns) -> Table:
    summaries, reference = runs.summaries, runs.reference
    resources = list(summaries[reference].by_resource("utilisation"))
    head = ("scheduler", "mean", "median", "p95", "p99", "max", *(f"{name} in use" for name in resources))
    head += (f"minus {reference}, paired", "per cent", "better on", "the paper's mean")
    rows = []
    for name, summary in summaries.items():
        seeds = len(summary.per_seed["mean"])
        against = ("reference", "", "")
        if name != reference:
            gap = summary.difference
            against = (gap.mean.text(sign=True), f"{gap.percent:+.1f} %", f"{gap.better} of {seeds}")
        said = runs.setting.published.get(name)
        rows.append(
            (
                name,
                summary.estimate("mean").text(),
                *(f"{summary[measure]:.1f}" for measure in ("median", "p95", "p99")),
                f"{summary['max']:.0f}",
                *(f"{100 * share:.0f} %" for share in summary.by_resource("utilisation").values()),
                *against,
                f"{said:g}" if said is not None else "",
            )
        )
    return Table(head, tuple(rows))


def _side_by_side(measured: FigureData) -> Table:
    """Mean in each setting, followed by the paired difference from the reference."""
    first = next(iter(measured.runs.values()))
    head = ("scheduler", *measured.runs)
    rows = []
    for name in first.records:
        cells = [_with_difference(runs.summaries[name], name == runs.reference) for runs in measured.runs.values()]
        rows.append((name, *cells))
    return Table(head, tuple(rows))


def _with_difference(summary: SchedulerSummary, is_reference: bool) -> str:
    if is_reference:
        return summary.estimate("mean").text()
    return f"{summary['mean']:.2f} ({summary.difference.mean.text(sign=True)})"


#: Measures in every CSV file, by their name in ``evaluation.stats.measures``.
_MEASURES = (
    "median",
    "p95",
    "p99",
    "max",
    "variance",
    "waiting",
    "running",
    "in_system_max",
    "overtaken_share",
    "conflicts",
    "decision_ms_mean",
)


def numbers(measured: FigureData) -> Table:
    """A row per setting and scheduler; figures without runs have their own table."""
    if not measured.runs:
        return main_table(measured)
    first = next(iter(measured.runs.values()))
    resources = list(first.summaries[first.reference].by_resource("utilisation"))
    head: tuple[str, ...] = (
        "setting",
        "scenario",
        "overrides",
        "scheduler",
        "seeds",
        "tasks",
        "mean",
        "mean_low",
        "mean_high",
    )
    head += (*_MEASURES, *(f"utilisation_{name}" for name in resources))
    head += ("reference", "difference", "difference_low", "difference_high", "percent", "better_seeds", "paper_mean")
    rows = []
    for key, runs in measured.runs.items():
        for name, summary in runs.summaries.items():
            mean, gap = summary.estimate("mean"), summary.difference
            said = runs.setting.published.get(name)
            values = [mean.mean, *(mean.interval or ("", "")), *(summary[measure] for measure in _MEASURES)]
            values += [summary[f"utilisation.{resource}"] for resource in resources]
            against = [gap.mean.mean, *(gap.mean.interval or ("", "")), gap.percent, gap.better]
            plain = (key, runs.setting.scenario, " ".join(runs.overrides), name, len(summary.per_seed["mean"]))
            row = (*plain, summary["tasks"], *values, runs.reference, *against, "" if said is None else said)
            rows.append(tuple(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row))
    return Table(head, tuple(rows))


def claims_table(judged: list[Judged]) -> Table:
    """Claims with the paper's numbers, ours, and the verdict."""
    rows = tuple(
        (
            item.claim.text,
            item.paper,
            item.ours,
            item.verdict.value,
            item.why,
            item.surprise,
            item.by_paper_method.ours if item.by_paper_method else "",
            item.by_paper_method.verdict.value if item.by_paper_method else "",
        )
        for item in judged
    )
    head = ("claim", "paper", "ours", "verdict", "why", "expected", "by the paper's method", "its verdict")
    return Table(head, rows)
