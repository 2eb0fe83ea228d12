"""Schedulers with missing, noisy or wrong speed profiles, with and without learning from what they observe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import learned


class Case(NamedTuple):
    """One table."""

    scenario: str
    #: Share of the seeds that are played: runs on the test-bed are long.
    share: float
    #: Task type with the wrong profile: the one most sensitive to its size.
    wrong: str


CASES = (
    Case("multi-3", 1.0, "sensitive"),
    Case("hetero-6", 1.0, "sensitive"),
    Case("testbed-3", 0.25, "language-modeling"),
)

SCHEDULERS = ("tapfinger@model=universal", "tapfinger", "greedy", "optimus-central")
SEEDS = "1000:1020"


def kinds(wrong: str) -> dict[str, tuple[str, ...]]:
    """What is known about profiles: name in the table -> overrides of the scenario."""
    one = ('kind="wrong"', f'types=["{wrong}"]')
    return {
        "exact": (),
        "missing, all": ('kind="missing"',),
        "noisy, 0.3": ('kind="noisy"', "amount=0.3"),
        f"{wrong} 3x too fast": (*one, "factor=3"),
        f"{wrong} 3x too slow": (*one, f"factor={1 / 3:.4f}"),
    }


def rows(case: Case) -> Iterator[tuple[str, str, list[str]]]:
    """Name, whether profiles are learnt, and overrides of each row."""
    for name, given in kinds(case.wrong).items():
        overrides = [f"knowledge.{key}" for key in given]
        if not given:
            yield name, "", overrides
            continue
        yield name, "no", [*overrides, "knowledge.learn=false"]
        yield name, "yes", overrides


def command(case: Case, overrides: Sequence[str], schedulers: Sequence[str], seeds: str, jobs: int) -> list[str]:
    """The comparison of one row, as a user would type it."""
    first, end = map(int, seeds.split(":"))
    end = first + max(2, round(case.share * (end - first)))
    sets = [word for override in overrides for word in ("--set", override)]
    names = ",".join(schedulers)
    return ["compare", case.scenario, *sets, "--schedulers", names, "--seeds", f"{first}:{end}", "--jobs", f"{jobs}"]


def report(
    cases: Sequence[Case] = CASES, schedulers: Sequence[str] = SCHEDULERS, seeds: str = SEEDS, jobs: int = 2
) -> list[str]:
    """The section of BENCHMARKS.md."""
    if "greedy" not in schedulers:
        schedulers = (*schedulers, "greedy")
    example = command(cases[0], list(rows(cases[0]))[2][2], schedulers, seeds, jobs)
    quoted = " ".join(f"'{word}'" if '"' in word else word for word in example)
    lines = [
        "## Speed profiles that are missing, noisy or wrong",
        "",
        "Mean completion time in slots, and in brackets the difference to Greedy under the same knowledge, paired",
        "seed by seed, with its 95 % interval. Learnt: beliefs are corrected by what tasks are seen to do",
        "(docs/profiles.md). The models of single scenarios see no profiles: only the bound on waiting can be misled",
        "there; the universal one decides by profiles alone. Each row is made by a line like",
        "",
        "```",
        f"tapfinger {quoted}",
        "```",
    ]
    for case in cases:
        heads = ["known", "learnt", *schedulers]
        lines += ["", f"### {case.scenario}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for name, learnt, overrides in rows(case):
            print(f"comparing {case.scenario}, {name}, learnt: {learnt or '-'}", file=sys.stderr, flush=True)
            found = learned.run(command(case, overrides, schedulers, seeds, jobs), "greedy")["schedulers"]
            lines.append("| " + " | ".join([name, learnt, *(_cell(found[s], s) for s in schedulers)]) + " |")
    return lines


def _cell(found: dict[str, Any], scheduler: str) -> str:
    mean = f"{found['mean']:.3f}"
    if scheduler == "greedy":
        return mean
    low, high = found["difference"]["ci95"]
    return f"{mean} ({found['difference']['mean']:+.3f}, {low:+.3f} to {high:+.3f})"


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS), help="names, separated by commas")
    parser.add_argument(
        "--scenarios", default=",".join(c.scenario for c in CASES), help="of those that are the default"
    )
    parser.add_argument("--seeds", default=SEEDS, help="A:B, from A to before B")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    cases = [case for case in CASES if case.scenario in given.scenarios.split(",")]
    if not cases:
        parser.error(f"--scenarios {given.scenarios}: choose from {', '.join(c.scenario for c in CASES)}")
    print("\n".join(report(cases, given.schedulers.split(","), given.seeds, given.jobs)))


if __name__ == "__main__":
    main()
