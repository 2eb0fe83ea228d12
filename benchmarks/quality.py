"""Mean completion times of all baselines on unseen seeds, next to the reference figures and the bars to reach."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Seeds never used for tuning; 60 per scenario, 20 with six clusters.
SEEDS = {
    "synthetic-3": "1000:1060",
    "synthetic-6": "1000:1020",
    "multi-3": "1000:1060",
    "hetero-6": "1000:1020",
    "short-long-3": "1000:1060",
    "testbed-3": "1000:1060",
    "testbed-6": "1000:1020",
}

SCHEDULERS = (
    "lookahead",
    "greedy",
    "shortest-first",
    "optimus-central",
    "optimus",
    "optimus-first-wins",
    "tiresias-elastic",
    "tiresias",
    "fifo",
    "random",
    "min",
)

#: Schedulers for the long test-bed runs: only one of each kind.
FEWER = ("lookahead", "greedy", "shortest-first", "optimus-central", "min")


def schedulers_of(scenario: str) -> tuple[str, ...]:
    """The schedulers compared on a scenario."""
    return FEWER if scenario.startswith("testbed") else SCHEDULERS


#: Measured once, on other seeds (mean, standard deviation): the published schedulers run again, Optimus corrected.
REFERENCE: dict[str, dict[str, tuple[float, float]]] = {
    "min": {
        "synthetic-3": (15.5, 2.1),
        "synthetic-6": (15.9, 1.5),
        "multi-3": (26.8, 4.3),
        "hetero-6": (27.3, 2.6),
        "short-long-3": (12.5, 3.5),
    },
    "random": {
        "synthetic-3": (15.3, 3.5),
        "synthetic-6": (16.3, 2.4),
        "multi-3": (21.0, 3.7),
        "hetero-6": (23.8, 1.7),
        "short-long-3": (51.0, 11.0),
    },
    "tiresias": {
        "synthetic-3": (16.9, 2.5),
        "synthetic-6": (15.6, 1.3),
        "multi-3": (26.3, 4.5),
        "hetero-6": (26.7, 2.1),
        "short-long-3": (12.3, 3.3),
    },
    "optimus-first-wins": {
        "synthetic-3": (5.43, 0.48),
        "synthetic-6": (5.62, 0.41),
        "multi-3": (4.39, 0.53),
        "hetero-6": (5.89, 0.37),
        "short-long-3": (12.3, 3.3),
    },
}

#: Mean completion times to stay at or below.
BARS = {
    "greedy": {"synthetic-3": 3.95, "synthetic-6": 3.68, "multi-3": 3.78, "hetero-6": 3.56},
    "lookahead": {"multi-3": 3.62, "hetero-6": 3.45},
}


def command(scenario: str) -> list[str]:
    """The comparison of one scenario, as a user would type it."""
    schedulers = ",".join(schedulers_of(scenario))
    return ["compare", scenario, "--schedulers", schedulers, "--seeds", SEEDS[scenario], "--jobs", "2"]


def run_all() -> dict[str, Any]:
    """results.json of every scenario; finished cells are cached, so this can be interrupted."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for scenario in SEEDS:
            print(f"comparing {scenario}", flush=True)
            path = Path(folder) / f"{scenario}.json"
            arguments = [*command(scenario), "--baseline", "greedy", "--json", str(path)]
            subprocess.run([sys.executable, "-m", "tapfinger", *arguments], check=True, stdout=subprocess.DEVNULL)
            results[scenario] = json.loads(path.read_text())
    return results


def report(results: dict[str, Any]) -> list[str]:
    """The section of BENCHMARKS.md."""
    scenarios = list(SEEDS)
    lines = [
        "## Completion times",
        "",
        "Mean completion time in slots: mean over tasks, then mean and standard deviation over seeds that were not",
        "used for tuning. Every scheduler faces the same draws. One line per scenario makes its column:",
        "",
        "```",
        *(f"tapfinger {' '.join(command(s))}" for s in scenarios),
        "```",
        "",
        "| | " + " | ".join(scenarios) + " |",
        "|---" * (len(scenarios) + 1) + "|",
    ]
    for name in SCHEDULERS:
        lines.append(f"| {name} | " + " | ".join(_cell(results[s]["schedulers"].get(name)) for s in scenarios) + " |")
    lines += ["", "### Lookahead against Greedy", "", *_paired(results), "", "### Bars", "", *_bars(results)]
    lines += ["", "### Agreement with reference figures", "", *_agreement(results)]
    return lines


def _cell(entry: dict[str, Any] | None) -> str:
    return "" if entry is None else "{:.2f} ± {:.2f}".format(*_mean_sd(entry["per_seed"]))


def _mean_sd(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5


def _paired(results: dict[str, Any]) -> list[str]:
    """Paired differences, seed by seed, with a 95 % interval (Student's t)."""
    lines = ["| scenario | seeds | lookahead minus greedy | 95 % interval |", "|---|---|---|---|"]
    for scenario, result in results.items():
        entry = result["schedulers"]["lookahead"]
        gap = entry["difference"]
        low, high = gap["ci95"]
        lines.append(f"| {scenario} | {len(result['seeds'])} | {gap['mean']:+.3f} | {low:+.3f} to {high:+.3f} |")
    return lines


def _bars(results: dict[str, Any]) -> list[str]:
    lines = ["| scheduler | scenario | at most | measured | reached |", "|---|---|---|---|---|"]
    for name, bars in BARS.items():
        for scenario, bar in bars.items():
            mean = results[scenario]["schedulers"][name]["mean"]
            lines.append(f"| {name} | {scenario} | {bar:.2f} | {mean:.3f} | {'yes' if mean <= bar else '**no**'} |")
    greedy = results["short-long-3"]["schedulers"]["greedy"]["mean"]
    shortest = results["short-long-3"]["schedulers"]["shortest-first"]["mean"]
    lines += ["", f"Greedy and shortest-first on short-long-3: {greedy:.2f} and {shortest:.2f}."]
    return lines


def _agreement(results: dict[str, Any]) -> list[str]:
    lines = [
        "Distance from the reference mean in its standard deviations; within 2 is agreement. Why `optimus-first-wins`",
        "stands for the reference's Optimus, and why short-long-3 is lower throughout: docs/baselines.md.",
        "",
        "| scheduler | scenario | reference | measured | distance |",
        "|---|---|---|---|---|",
    ]
    for name, row in REFERENCE.items():
        for scenario, (mean, sd) in row.items():
            ours = results[scenario]["schedulers"][name]["mean"]
            distance = (ours - mean) / sd
            shown = f"{distance:+.1f}" if abs(distance) <= 2 else f"**{distance:+.1f}**"
            lines.append(f"| {name} | {scenario} | {mean:g} ± {sd:g} | {ours:.2f} | {shown} |")
    return lines
