"""What it is worth to know nodes, hardware, other people and data: schedulers against themselves without it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import learned

SCENARIOS = ("nodes-3", "hardware-3", "shared-3", "memory-3", "data-3", "labs-4")
SCHEDULERS = ("greedy", "optimus", "optimus-central", "lookahead")
#: Seeds, and those of lookahead, which takes twenty times as long.
SEEDS, SLOW_SEEDS = "1000:1020", "1000:1008"


def command(scenario: str, scheduler: str, seeds: str, jobs: int) -> list[str]:
    """The comparison of one cell, as a user would type it."""
    names = f"{scheduler},unaware@of={scheduler}"
    return ["compare", scenario, "--schedulers", names, "--seeds", seeds, "--jobs", f"{jobs}"]


def report(scenarios: Sequence[str] = SCENARIOS, schedulers: Sequence[str] = SCHEDULERS, jobs: int = 2) -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Clusters as they are: what knowing them is worth",
        "",
        "Mean completion time in slots of a scheduler, and in brackets how much longer it is if nodes, kinds of",
        "hardware, other people and data do not show to it (`unaware`): the paired difference, with its 95 % interval.",
        f"Fixed sizes, apart from the two Optimus, which resize. Seeds {SEEDS}, lookahead {SLOW_SEEDS}. Each cell is",
        "made by a line like",
        "",
        "```",
        f"tapfinger {' '.join(command(scenarios[0], schedulers[0], SEEDS, jobs))}",
        "```",
        "",
        "| scenario | " + " | ".join(schedulers) + " |",
        "|---" * (len(schedulers) + 1) + "|",
    ]
    for scenario in scenarios:
        cells = [scenario]
        for scheduler in schedulers:
            print(f"comparing {scheduler} on {scenario}", file=sys.stderr, flush=True)
            seeds = SLOW_SEEDS if scheduler == "lookahead" else SEEDS
            found = learned.run(command(scenario, scheduler, seeds, jobs), scheduler)["schedulers"]
            unaware = found[f"unaware@of={scheduler}"]["difference"]
            low, high = unaware["ci95"]
            cells.append(f"{found[scheduler]['mean']:.2f} ({unaware['mean']:+.2f}, {low:+.2f} to {high:+.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="names, separated by commas")
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS), help="names, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    print("\n".join(report(given.scenarios.split(","), given.schedulers.split(","), given.jobs)))


if __name__ == "__main__":
    main()
