"""The single-file report: tables, figures and settings in one HTML page that needs no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tapfinger.evaluation.stats import SAME_DRAWS, Summary

#: Figure -> what a reader should know about it.
CAPTIONS = {
    "completion": "Completion times of all tasks of all seeds. Left of the others is better.",
    "differences": "Every scheduler meets the same draws, so the difference is taken seed by seed, then averaged. "
    "Where an interval leaves out zero, chance alone would hardly explain it (5 % level, one comparison at a time).",
    "accumulation": "Tasks waiting and running, mean over seeds. The area under a line is the sum of completion times.",
    "utilisation": "Share of all clusters' capacity in use, mean over seeds; a run that has ended uses nothing.",
    "clusters": "The same per cluster, over the whole run.",
    "allocations": "What tasks held when they ended, in smallest units.",
}

#: In place of the caption that speaks of chance.
_SAME_DIFFERENCES = f"Difference of the means. {SAME_DRAWS}"

_NOTE = (
    "Overtaken: tasks that saw a later arrival start before them on a cluster they could have used; by at most: the "
    "largest number of later arrivals one task saw. Idle: free share of capacity in slots in which a task waits; "
    "stranded: its part on clusters where tasks wait but none fits; held back: its part where one would fit. "
    "A decision is all that a scheduler decides in one slot that begins with a waiting task."
)

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { margin-bottom: 0 } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; font-size: 13px } .wide { overflow-x: auto; max-width: 100% }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap }
th { background: #f4f4f4; white-space: normal; vertical-align: bottom }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
th:first-child { background: #f4f4f4 }
tr.best td { font-weight: 600 } figure { margin: 1rem 0 } img { max-width: 100% }
figcaption, .note { color: #555; font-size: 13px }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: 12px }
"""


def write_report(
    path: Path,
    config: Mapping[str, Any],
    summaries: Mapping[str, Summary],
    figures: Mapping[str, Path],
    same_draws: bool = False,
) -> None:
    """Write the page. ``config`` is the content of config.json; ``same_draws``: seeds differ in nothing."""
    name = ", ".join([str(config["scenario"]["name"]), *config["overrides"]])
    captions = CAPTIONS | ({"differences": _SAME_DIFFERENCES} if same_draws else {})
    scenario = json.dumps(config["scenario"], indent=2)
    parts = [
        *_head(config, len(summaries), same_draws),
        "<h2>Completion time</h2>",
        _completion_table(summaries, str(config["baseline"])),
        *(inline(title, figures[title], captions.get(title, "")) for title in figures),
        "<h2>Fairness, fragmentation and decisions</h2>",
        _other_table(summaries),
        f"<p class='note'>{escape(_NOTE)}</p>",
        "<h2>How to get this again</h2>",
        f"<pre>{escape(str(config['command']))}</pre>",
        _settings(config),
        f"<details><summary>Resolved scenario</summary><pre>{escape(scenario)}</pre></details>",
    ]
    path.write_text(page(f"{name}: comparison of schedulers", parts), encoding="utf-8")


def page(title: str, parts: Iterable[str], more_style: str = "") -> str:
    """A whole document."""
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}{more_style}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _head(config: Mapping[str, Any], schedulers: int, same_draws: bool) -> list[str]:
    scenario, seeds = config["scenario"], len(config["seeds"])
    changed = f"Changed: {', '.join(config['overrides'])}. " if config["overrides"] else ""
    intervals = "± is the 95 % confidence interval over seeds (Student's t)."
    return [
        f"<h1>{escape(str(scenario['name']))}</h1><p>{escape(str(scenario['description']))}. "
        f"<b>{escape(changed)}</b>{schedulers} scheduler{'s' * (schedulers != 1)}, {seeds} seed{'s' * (seeds != 1)}, "
        "the same draws for every scheduler. Times are in slots of "
        f"{scenario['slot_seconds']:g} s. {escape(SAME_DRAWS if same_draws else intervals)}</p>"
    ]


def table(head: Iterable[str], rows: Sequence[Sequence[str]], mark_first: bool = False) -> str:
    """Rows of text, in a box that scrolls by itself."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = ""
    for number, row in enumerate(rows):
        mark = " class='best'" if mark_first and number == 0 else ""
        body += f"<tr{mark}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n"
    return f"<div class='wide'><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"


def _completion_table(summaries: Mapping[str, Summary], baseline: str) -> str:
    resources = list(next(iter(summaries.values())).by_resource("utilisation"))
    head = ["scheduler", "mean", "median", "p95", "p99", "max", "waiting", "running"]
    head += [f"{resource} in use" for resource in resources] + [f"minus {baseline}", "per cent", "better on"]
    rows = []
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
            [
                name,
                summary.estimate("mean").text(),
                *(f"{summary[measure]:.1f}" for measure in ("median", "p95", "p99")),
                f"{summary['max']:.0f}",
                f"{summary['waiting']:.2f}",
                f"{summary['running']:.2f}",
                *(f"{100 * share:.0f} %" for share in summary.by_resource("utilisation").values()),
                *against,
            ]
        )
    return table(head, rows, mark_first=True)


def _other_table(summaries: Mapping[str, Summary]) -> str:
    resources = list(next(iter(summaries.values())).by_resource("idle"))
    head = ["scheduler", "conflicts per run", "overtaken", "by at most", "slots with waiting tasks"]
    head += [f"{resource} {what}" for resource in resources for what in ("idle", "stranded", "held back")]
    head += ["ms per decision", "p95", "max"]
    rows = []
    for name, summary in summaries.items():
        parts = [summary.by_resource(what) for what in ("idle", "stranded", "held_back")]
        rows.append(
            [
                name,
                f"{summary['conflicts']:.1f}",
                f"{100 * summary['overtaken_share']:.1f} %",
                f"{summary['overtaken_max']:.0f}",
                f"{100 * summary['waiting_slots_share']:.0f} %",
                *(f"{100 * part[resource]:.1f} %" for resource in resources for part in parts),
                *(f"{summary[f'decision_ms_{what}']:.2f}" for what in ("mean", "p95", "max")),
            ]
        )
    return table(head, rows)


def inline(name: str, path: Path, caption: str) -> str:
    """A picture with its content in the page."""
    picture = base64.b64encode(path.read_bytes()).decode()
    image = f"<img alt='{escape(name)}' src='data:image/png;base64,{picture}'>"
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _settings(config: Mapping[str, Any]) -> str:
    rows = [
        ["schedulers", ", ".join(config["schedulers"])],
        ["baseline", str(config["baseline"])],
        ["seeds", ", ".join(map(str, config["seeds"]))],
        ["overrides", ", ".join(config["overrides"]) or "none"],
        ["versions", ", ".join(f"{name} {version}" for name, version in config["versions"].items())],
        ["source revision", str(config["git_revision"] or "not in a repository")],
    ]
    cells = "".join(
        f"<tr><td>{escape(a)}</td><td style='text-align:left;white-space:normal'>{escape(b)}</td></tr>\n"
        for a, b in rows
    )
    return f"<div class='wide'><table><tbody>\n{cells}</tbody></table></div>"
