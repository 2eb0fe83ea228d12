"""The single-file report: tables, figures and settings in one HTML page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tapfinger.evaluation.pages import render
from tapfinger.evaluation.stats import SAME_DRAWS, SchedulerSummary

#: Figure -> caption for the reader.
CAPTIONS = {
    "completion": "Completion times of all tasks of all seeds. Left of the others is better.",
    "differences": "Every scheduler meets the same draws, so the difference is taken seed by seed, then averaged. "
    "Where an interval leaves out zero, chance alone would hardly explain it (5 % level, one comparison at a time).",
    "accumulation": "Tasks waiting and running, mean over seeds. The area under a line is the sum of completion times.",
    "utilisation": "Share of all clusters' capacity in use, mean over seeds; a run that has ended uses nothing.",
    "clusters": "The same per cluster, over the whole run.",
    "allocations": "What tasks held when they ended, in smallest units.",
}

#: Replaces the caption that mentions chance.
_SAME_DIFFERENCES = f"Difference of the means. {SAME_DRAWS}"


class Table(NamedTuple):
    """A header and rows of text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_report(
    path: Path,
    config: Mapping[str, Any],
    summaries: Mapping[str, SchedulerSummary],
    figures: Mapping[str, Path],
    same_draws: bool = False,
) -> None:
    """Write the page. ``config`` is the content of config.json; ``same_draws``: all seeds gave the same workload."""
    scenario = config["scenario"]
    text = render(
        "tapfinger.evaluation",
        "comparison.html",
        title=", ".join([str(scenario["name"]), *config["overrides"]]) + ": comparison of schedulers",
        config=config,
        scenario=scenario,
        scenario_text=json.dumps(scenario, indent=2),
        same_draws=SAME_DRAWS if same_draws else "",
        completion=_completion_table(summaries, str(config["baseline"])),
        other=_other_table(summaries),
        kinds=_kinds_table(summaries),
        figures=figures,
        captions=CAPTIONS | ({"differences": _SAME_DIFFERENCES} if same_draws else {}),
        settings=_settings(config),
    )
    path.write_text(text, encoding="utf-8")


def _completion_table(summaries: Mapping[str, SchedulerSummary], baseline: str) -> Table:
    resources = list(next(iter(summaries.values())).by_resource("utilisation"))
    head: tuple[str, ...] = ("scheduler", "mean", "median", "p95", "p99", "max", "waiting", "running")
    head += (*(f"{resource} in use" for resource in resources), f"minus {baseline}", "per cent", "better on")
    rows: list[tuple[str, ...]] = []
    for name, summary in summaries.items():
        gap = summary.difference
        against = ["baseline", "", ""]
        if name != baseline:
            against = [
                gap.mean.text(sign=True),
                f"{gap.percent:+.1f} %",
                f"{gap.better} of {len(summary.per_seed['mean'])}" if summary.independent else "",
            ]
        rows.append(
            (
                name,
                summary.estimate("mean").text(),
                *(f"{summary[measure]:.1f}" for measure in ("median", "p95", "p99")),
                f"{summary['max']:.0f}",
                f"{summary['waiting']:.2f}",
                f"{summary['running']:.2f}",
                *(f"{100 * share:.0f} %" for share in summary.by_resource("utilisation").values()),
                *against,
            )
        )
    return Table(head, tuple(rows))


def _other_table(summaries: Mapping[str, SchedulerSummary]) -> Table:
    resources = list(next(iter(summaries.values())).by_resource("idle"))
    head: tuple[str, ...] = ("scheduler", "conflicts per run", "overtaken", "by at most", "slots with waiting tasks")
    head += tuple(f"{resource} {what}" for resource in resources for what in ("idle", "stranded", "held back"))
    head += ("ms per decision", "p95", "max")
    rows: list[tuple[str, ...]] = []
    for name, summary in summaries.items():
        parts = [summary.by_resource(what) for what in ("idle", "stranded", "held_back")]
        rows.append(
            (
                name,
                f"{summary['conflicts']:.1f}",
                f"{100 * summary['overtaken_share']:.1f} %",
                f"{summary['overtaken_max']:.0f}",
                f"{100 * summary['waiting_slots_share']:.0f} %",
                *(f"{100 * part[resource]:.1f} %" for resource in resources for part in parts),
                *(f"{summary[f'decision_ms_{what}']:.2f}" for what in ("mean", "p95", "max")),
            )
        )
    return Table(head, tuple(rows))


def _kinds_table(summaries: Mapping[str, SchedulerSummary]) -> Table | None:
    """Utilisation by kind of hardware; None where all clusters are alike."""
    shares = {name: summary.kind_utilisation for name, summary in summaries.items()}
    first = next(iter(shares.values()))
    if not first:
        return None
    columns = [(kind, resource) for kind, by_resource in first.items() for resource in by_resource]
    head = ("scheduler", *(f"{resource} on {kind or 'no kind'}" for kind, resource in columns))
    rows = (
        (name, *(f"{100 * own[kind][resource]:.0f} %" for kind, resource in columns)) for name, own in shares.items()
    )
    return Table(head, tuple(rows))


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    return {
        "schedulers": ", ".join(config["schedulers"]),
        "baseline": str(config["baseline"]),
        "seeds": ", ".join(map(str, config["seeds"])),
        "overrides": ", ".join(config["overrides"]) or "none",
        "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
        "source revision": str(config["git_revision"] or "not in a repository"),
    }
