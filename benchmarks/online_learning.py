"""Schedulers that start without speed profiles, against the same schedulers with exact profiles, after a warm-up.

    python benchmarks/online_learning.py [--scenarios testbed-3] [--schedulers greedy,lookahead] [--seeds 1000:1010]

Compared are the tasks that arrive after the hundredth task has ended: the same tasks of the same seeds in both runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tapfinger.config import load_scenario
from tapfinger.core.events import Event, TaskArrived, TaskFinished
from tapfinger.evaluation.specs import parse_seeds, parse_spec
from tapfinger.schedulers.exploring import Exploring
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

#: Number of tasks that must end before the comparison starts.
WARM_UP = 100

SCENARIOS = ("testbed-3", "testbed-6")
SCHEDULERS = ("greedy", "optimus-central", "lookahead", "tapfinger@model=universal", "tapfinger@model={scenario}")
#: Schedulers that take minutes per seed, and the seeds they get in BENCHMARKS.md.
SLOW, FEW = ("lookahead",), "1000:1003"
SEEDS = "1000:1010"
HEAD = (
    "| scenario | scheduler | seeds | exact | learnt | worse by | deviation | over seeds | before that |",
    "|---|---|---|---|---|---|---|---|---|",
)
MISSING = ('knowledge.kind="missing"',)


class Cell(NamedTuple):
    """One seed of one row."""

    scenario: str
    scheduler: str
    seed: int
    sets: tuple[str, ...]
    #: Share of the running time that the learning run may lose by trying sizes.
    explore: float


class Times:
    """Arrival and end of each task, in slots."""

    def __init__(self) -> None:
        """Start with no events."""
        self.arrival: dict[int, int] = {}
        self.end: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Process an event."""
        if isinstance(event, TaskArrived):
            self.arrival[event.task.id] = event.slot
        elif isinstance(event, TaskFinished):
            self.end[event.task] = event.slot

    def mean(self, after: int) -> float:
        """Mean completion time of tasks that arrived later."""
        return statistics.fmean(self.end[i] - at + 1 for i, at in self.arrival.items() if at > after)


def play(cell: Cell) -> tuple[float, float, float, float]:
    """Mean completion time with exact and with learnt profiles: after the warm-up, and during it."""
    found = []
    for sets in ((), (*MISSING, *cell.sets)):
        world = build_world(load_scenario(cell.scenario, sets))
        times = Times()
        scheduler = parse_spec(cell.scheduler).create()
        if sets and cell.explore:
            scheduler = Exploring(scheduler, cell.explore)
        run_scheduler(world, scheduler, cell.seed, [times])
        found.append(times)
    exact, learnt = found
    after = sorted(learnt.end.values())[WARM_UP - 1]
    both = [statistics.fmean(t.end[i] - at + 1 for i, at in t.arrival.items() if at <= after) for t in found]
    return exact.mean(after), learnt.mean(after), both[0], both[1]


def rows(
    scenario: str, schedulers: Sequence[str], seeds: Sequence[int], sets: tuple[str, ...], explore: float, jobs: int
) -> Iterator[str]:
    """Lines of the table of one scenario."""
    with ProcessPoolExecutor(jobs) as pool:
        for name in schedulers:
            scheduler, began = name.format(scenario=scenario), time.perf_counter()
            found = list(pool.map(play, [Cell(scenario, scheduler, seed, sets, explore) for seed in seeds]))
            worse = [100.0 * (learnt / exact - 1.0) for exact, learnt, _, _ in found]
            early = [100.0 * (learnt / exact - 1.0) for _, _, exact, learnt in found]
            means = [statistics.fmean(column) for column in zip(*found, strict=True)]
            spread = statistics.stdev(worse) if len(worse) > 1 else 0.0
            print(f"{scenario} {scheduler}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            worst = f"{min(worse):+.1f} to {max(worse):+.1f} %"
            yield (
                f"| {scenario} | {scheduler} | {len(seeds)} | {means[0]:.3f} | {means[1]:.3f} | "
                f"{statistics.fmean(worse):+.1f} % | {spread:.1f} | {worst} | {statistics.fmean(early):+.0f} % |"
            )


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Learning speed profiles online",
        "",
        "`python benchmarks/run.py online_learning`. Of the test-bed's speeds nothing is known but minimum and maximum",
        'sizes (`knowledge.kind = "missing"`: ten slots, faster with the square root of the size); schedulers learn',
        "from what runs, and try nothing for its own sake. Mean completion time, in slots, of tasks that arrive after",
        f"the {WARM_UP}th has ended, against the same scheduler with exact profiles on the same tasks (to reach:",
        "within 5 %), its deviation and range over seeds; before that: the same of all tasks that came earlier.",
        "",
        *HEAD,
    ]
    for scenario in SCENARIOS:
        for name in SCHEDULERS:
            lines += rows(scenario, [name], parse_seeds(FEW if name in SLOW else SEEDS), (), 0.0, 1)
    return [*lines, ""]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="names, separated by commas")
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS), help="{scenario} stands for the scenario's name")
    parser.add_argument("--seeds", default=SEEDS, help="A:B, from A to before B")
    parser.add_argument("--set", action="append", default=[], help="overrides of the run that learns; repeatable")
    parser.add_argument("--explore", type=float, default=0.0, help="share of the running time for trials")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    print("\n".join(HEAD))
    for scenario in given.scenarios.split(","):
        schedulers, seeds = given.schedulers.split(","), parse_seeds(given.seeds)
        for line in rows(scenario, schedulers, seeds, tuple(given.set), given.explore, given.jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
