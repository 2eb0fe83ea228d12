"""The learned scheduler against the strongest baselines, on seeds that neither training nor selection has used."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """One row of the table."""

    scenario: str
    seeds: str
    #: Mean completion time to stay at or below; None: must beat every other scheduler.
    bar: float | None = None
    rate: float | None = None
    more: tuple[str, ...] = ()


_EVERYBODY = ("shortest-first", "optimus", "fifo")

CASES = (
    Case("multi-3", "1000:1100", 3.62),
    Case("hetero-6", "1000:1020", 3.43),
    Case("synthetic-3", "1000:1100", 3.80),
    Case("synthetic-6", "1000:1020", 3.55),
    Case("synthetic-6", "1000:1020", None, 3),
    Case("synthetic-6", "1000:1020", None, 2),
    Case("short-long-3", "1000:1100", 8.2, None, ("shortest-first",)),
    Case("testbed-3", "1000:1005", None, None, _EVERYBODY),
    Case("testbed-3", "1000:1005", None, 3, _EVERYBODY),
    Case("testbed-6", "1000:1005", None, None, _EVERYBODY),
    Case("testbed-6", "1000:1005", None, 6, _EVERYBODY),
)

RIVALS = ("greedy", "lookahead", "optimus-central")


class Variant(NamedTuple):
    """The shipped model against the same network without a part, or trained in another way."""

    scenario: str
    seeds: str
    model: str
    what: str


VARIANTS = (
    Variant("multi-3", "1000:1100", "multi-3-no-han", "No-HAN: a perceptron instead of the graph"),
    Variant("multi-3", "1000:1100", "multi-3-hints-only", "the perceptron with our hints about other clusters"),
    Variant("short-long-3", "1000:1100", "short-long-3-no-pointer", "No-pointer: a random task"),
    Variant("synthetic-3", "1000:1100", "synthetic-3-vanilla", "vanilla: stacked state, oldest task"),
    Variant(
        "multi-3",
        "1000:1100",
        "multi-3-mappo",
        "the paper's own method: MAPPO from scratch, its inputs and its network",
    ),
)


def command(case: Case) -> list[str]:
    """The comparison of one row, as a user would type it."""
    schedulers = ",".join(("tapfinger", *RIVALS, *case.more))
    rate = ["--set", f"arrivals.rate={case.rate}"] if case.rate is not None else []
    return ["compare", case.scenario, *rate, "--schedulers", schedulers, "--seeds", case.seeds, "--jobs", "2"]


def variant_command(variant: Variant) -> list[str]:
    """The comparison of a variant, as a user would type it."""
    schedulers = f"tapfinger,tapfinger@model={variant.model}"
    return ["compare", variant.scenario, "--schedulers", schedulers, "--seeds", variant.seeds, "--jobs", "2"]


def run(words: list[str], baseline: str) -> dict[str, Any]:
    """results.json of a row; finished cells are cached."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        arguments = [*words, "--baseline", baseline, "--json", str(path)]
        subprocess.run([sys.executable, "-m", "tapfinger", *arguments], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def report(cases: tuple[Case, ...] = CASES) -> list[str]:
    """The section of BENCHMARKS.md."""
    rows = []
    for case in cases:
        print(f"comparing {_title(case)}", file=sys.stderr, flush=True)
        rows.append(_row(case, run(command(case), "greedy")["schedulers"]))
    heads = ["", "seeds", "tapfinger", *RIVALS, "others", "tapfinger minus greedy", "bar", "reached"]
    heads += ["p99 (greedy)", "max (greedy)"]
    return [
        "## The learned scheduler",
        "",
        "Mean completion time in slots of the shipped models, deterministic, without lookahead when they act.",
        "Difference: paired with Greedy, seed by seed, with its 95 % interval. The bar of rows without a number is the",
        "best of the others in the row; lookahead, which simulates at every decision, is shown but is no bar. p99 is",
        "the mean over seeds, max the largest of all. Each row is made by a line like",
        "",
        "```",
        *(f"tapfinger {' '.join(command(case))}" for case in (cases[0], cases[-1])),
        "```",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *rows,
    ]


def report_variants() -> list[str]:
    """Ablations and MAPPO, paired with the full model."""
    lines = [
        "### Parts taken out, and the paper's own training",
        "",
        "Paired with the shipped model of the scenario, seed by seed, with the 95 % interval. Ablations are trained by",
        "the recipe of the preset (`tapfinger train multi-3 --network no-han`). Each row is made by a line like",
        "",
        "```",
        f"tapfinger {' '.join(variant_command(VARIANTS[0]))}",
        "```",
        "",
        "| scenario | seeds | variant | full | variant | variant minus full |",
        "|---|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        print(f"comparing {variant.model}", file=sys.stderr, flush=True)
        found = run(variant_command(variant), "tapfinger")["schedulers"]
        other = found[f"tapfinger@model={variant.model}"]
        low, high = other["difference"]["ci95"]
        lines.append(
            f"| {variant.scenario} | {variant.seeds} | {variant.what} | {found['tapfinger']['mean']:.3f} | "
            f"{other['mean']:.3f} | {other['difference']['mean']:+.3f} ({low:+.3f} to {high:+.3f}) |"
        )
    return lines


def _title(case: Case) -> str:
    return case.scenario + (f" at rate {case.rate:g}" if case.rate is not None else "")


def _row(case: Case, found: dict[str, Any]) -> str:
    mine, greedy = found["tapfinger"], found["greedy"]
    low, high = mine["difference"]["ci95"]
    bars = [found[name]["mean"] for name in (*RIVALS, *case.more) if name != "lookahead"]
    bar = case.bar if case.bar is not None else min(bars)
    reached = mine["mean"] <= bar if case.bar is not None else mine["mean"] < bar
    others = ", ".join(f"{name} {found[name]['mean']:.2f}" for name in case.more)
    cells = [
        _title(case),
        case.seeds,
        f"**{mine['mean']:.3f}**",
        *(f"{found[name]['mean']:.3f}" for name in RIVALS),
        others,
        f"{mine['difference']['mean']:+.3f} ({low:+.3f} to {high:+.3f})",
        f"{bar:.2f}",
        "yes" if reached else "no",
        f"{mine['p99']:.1f} ({greedy['p99']:.1f})",
        f"{mine['max']:.1f} ({greedy['max']:.1f})",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    wanted = tuple(case for case in CASES if not sys.argv[1:] or case.scenario in sys.argv[1:])
    lines = report(wanted) if wanted else []
    print("\n".join([*lines, "", *(report_variants() if not sys.argv[1:] or "variants" in sys.argv else [])]))
