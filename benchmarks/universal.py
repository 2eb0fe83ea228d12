"""The universal model on the paper's scenarios, which it was never trained on: alone, fine-tuned, with lookahead.

python benchmarks/universal.py                                 # fine-tuned models are those of `tapfinger finetune`
python benchmarks/universal.py --scenarios hetero-6 --seeds 20000:20020
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from learned import run
from sites import difference


class Case(NamedTuple):
    """One column."""

    scenario: str
    seeds: str
    lookahead: bool = False


CASES = (
    Case("multi-3", "1000:1100", lookahead=True),
    Case("hetero-6", "1000:1020", lookahead=True),
    Case("synthetic-3", "1000:1100"),
    Case("synthetic-6", "1000:1020"),
)

UNIVERSAL, LOOKAHEAD, OWN = "tapfinger@model=universal", "tapfinger+lookahead", "tapfinger"


def tuned(case: Case) -> str | None:
    """The scheduler with the model written by ``tapfinger finetune``, if there is one."""
    path = Path("results/finetune", case.scenario, f"{case.scenario}.onnx")
    return f"tapfinger@model={path}" if path.exists() else None


def command(case: Case) -> list[str]:
    """The comparison of one column, as a user would type it."""
    wanted = (UNIVERSAL, tuned(case), OWN, LOOKAHEAD if case.lookahead else None, "greedy")
    schedulers = ",".join(name for name in wanted if name)
    return ["compare", case.scenario, "--schedulers", schedulers, "--seeds", case.seeds, "--jobs", "2"]


def report(cases: Sequence[Case] = CASES) -> list[str]:
    """The section of BENCHMARKS.md."""
    found = [run(command(case), OWN)["schedulers"] for case in cases]

    def row(title: str, names: Sequence[str | None]) -> str:
        return line(title, [_mean(results.get(name)) for name, results in zip(names, found, strict=True)])

    fine = [tuned(case) for case in cases]
    gaps = [results[name]["difference"] if name else None for name, results in zip(fine, found, strict=True)]
    return [
        "### The universal model, and fine-tuned",
        "",
        "Mean completion time in slots, fixed regime: a task keeps its size until its end. The universal model was",
        "never trained on these scenarios; fine-tuned by `tapfinger finetune SCENARIO --jobs 2`; lookahead with its",
        "budget of 20 ms. Difference: seed by seed, with its 95 % interval.",
        "",
        line("", [case.scenario for case in cases]),
        "|---" * (len(cases) + 1) + "|",
        line("seeds", [case.seeds for case in cases]),
        row(UNIVERSAL, [UNIVERSAL] * len(cases)),
        row("fine-tuned", fine),
        row("the scenario's own model", [OWN] * len(cases)),
        line("fine-tuned minus the own", [difference(gap, 3) if gap else "-" for gap in gaps]),
        row(LOOKAHEAD, [LOOKAHEAD] * len(cases)),
        row("greedy", ["greedy"] * len(cases)),
        "",
        "```",
        *(f"tapfinger {' '.join(command(case))}" for case in cases),
        "```",
    ]


def line(title: str, cells: Sequence[str]) -> str:
    """One row of the table."""
    return f"| {' | '.join([title, *cells])} |"


def _mean(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['mean']:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(c.scenario for c in CASES), help="separated by commas")
    parser.add_argument("--seeds", help="FIRST:END; without it, those of the page")
    given = parser.parse_args()
    wanted = [c for c in CASES if c.scenario in given.scenarios.split(",")]
    print("\n".join(report([c._replace(seeds=given.seeds or c.seeds) for c in wanted])))
