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
    rate: float | None = None


CASES = (
    Case("multi-3", "1000:1100"),
    Case("hetero-6", "1000:1020"),
    Case("synthetic-3", "1000:1100"),
    Case("synthetic-6", "1000:1020"),
    Case("synthetic-6", "1000:1020", 3),
    Case("synthetic-6", "1000:1020", 2),
    Case("short-long-3", "1000:1100"),
    Case("testbed-3", "1000:1005"),
    Case("testbed-3", "1000:1005", 3),
    Case("testbed-6", "1000:1005"),
    Case("testbed-6", "1000:1005", 6),
)

#: Every size is kept until the end, for all alike.
RIVALS = ("greedy", "shortest-first", "optimus-static@admission=oldest", "fifo")


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
        "multi-3-paper-small",
        "the paper's own method: MAPPO from scratch",
    ),
)


def command(case: Case) -> list[str]:
    """The comparison of one row, as a user would type it."""
    schedulers = ",".join(("tapfinger", *RIVALS))
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
    heads = ["", "seeds", "tapfinger", *RIVALS, "tapfinger minus greedy", "p99 (greedy)", "max (greedy)"]
    return [
        "## The learned scheduler",
        "",
        "Mean completion time in slots of the shipped models, in the fixed regime: every scheduler keeps a task's size",
        "until its end. Bold is the best of a row. Difference: paired with Greedy, seed by seed, with its 95 %",
        "interval. p99 is the mean over seeds, max the largest of all. Each row is made by a line like",
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
    means = [f"{found[name]['mean']:.3f}" for name in ("tapfinger", *RIVALS)]
    best = min(means, key=float)
    cells = [
        _title(case),
        case.seeds,
        *(f"**{mean}**" if mean == best else mean for mean in means),
        f"{mine['difference']['mean']:+.3f} ({low:+.3f} to {high:+.3f})",
        f"{mine['p99']:.1f} ({greedy['p99']:.1f})",
        f"{mine['max']:.1f} ({greedy['max']:.1f})",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    wanted = tuple(case for case in CASES if not sys.argv[1:] or case.scenario in sys.argv[1:])
    lines = report(wanted) if wanted else []
    print("\n".join([*lines, "", *(report_variants() if not sys.argv[1:] or "variants" in sys.argv else [])]))
