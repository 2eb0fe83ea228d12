"""How well a third of a measured grid predicts the rest: the speed model, Optimus' formula, and plain interpolation.

    python benchmarks/profile_surface.py testbed_profile.csv

Any profile CSV with cpu and gpu works; without one, the built-in test-bed formulas with 1 % noise are used.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tapfinger.profiles.surface import fit_surface
from tapfinger.profiles.table import Profile, read_rows
from tapfinger.profiles.testbed import TESTBED_TYPES, testbed_seconds
from tapfinger.profiling.choose import BATCH, next_batch
from tapfinger.profiling.grid import Cell, Grid
from tapfinger.schedulers.optimus import fit_durations

SEEDS = range(20000, 20020)
SHARE = 1 / 3

Measured = dict[Cell, list[float]]


def read_grids(path: Path | None) -> dict[str, Measured]:
    """Task type -> cell -> seconds of each repeat."""
    grids: dict[str, Measured] = defaultdict(lambda: defaultdict(list))
    if path is not None:
        for _, row in read_rows(path):
            grids[row.task_type][row.amounts["cpu"], row.amounts["gpu"]].append(row.seconds)
        return grids
    rng = np.random.default_rng(20000)
    for task_type in TESTBED_TYPES:
        seconds = testbed_seconds(task_type)
        for cpu in range(1, 17):
            for gpu in range(1, 9):
                truth = seconds({"cpu": cpu, "gpu": gpu})
                grids[task_type][float(cpu), float(gpu)] = (truth * np.exp(rng.normal(0.0, 0.01, 2))).tolist()
    return grids


def at_random(measured: Measured, seed: int) -> list[Cell]:
    """A third of the cells, at random."""
    cells = sorted(measured)
    chosen = np.random.default_rng(seed).permutation(len(cells))[: round(len(cells) * SHARE)]
    return [cells[i] for i in chosen]


def by_profiler(measured: Measured) -> list[Cell]:
    """The third that the profiler chooses, batch by batch."""
    cells = sorted(measured)
    grid = Grid({name: tuple(sorted({cell[r] for cell in cells})) for r, name in enumerate(("cpu", "gpu"))})
    wanted, chosen, surface = round(len(cells) * SHARE), [], None
    while len(chosen) < wanted:
        chosen += next_batch(grid, surface, set(chosen), min(BATCH, wanted - len(chosen)))
        surface = fit_surface(("cpu", "gpu"), {cell: measured[cell] for cell in chosen})
    return chosen


def predictions(measured: Measured, chosen: Sequence[Cell]) -> dict[str, Callable[[Cell], float]]:
    """Name of the method -> predicted seconds of a cell."""
    known = {cell: measured[cell] for cell in chosen}
    means = {cell: float(np.mean(runs)) for cell, runs in known.items()}
    surface = fit_surface(("cpu", "gpu"), known)
    p, w = np.array(chosen).T
    optimus = fit_durations(p, w, np.array([means[cell] for cell in chosen]))
    table = Profile(("cpu", "gpu"), means)
    return {
        "ours": lambda cell: surface.seconds({"cpu": cell[0], "gpu": cell[1]}),
        "optimus": lambda cell: optimus.slots(*cell),
        "interpolation": lambda cell: table.seconds({"cpu": cell[0], "gpu": cell[1]}),
    }


def errors(measured: Measured, chosen: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """Median and 90th percentile of the relative error over all other cells, by method."""
    rest = sorted(set(measured) - set(chosen))
    truth = np.array([np.mean(measured[cell]) for cell in rest])
    found = {}
    for name, seconds in predictions(measured, chosen).items():
        error = np.abs(np.array([seconds(cell) for cell in rest]) / truth - 1.0)
        found[name] = (float(np.median(error)), float(np.quantile(error, 0.9)))
    return found


def report(path: Path | None = None) -> list[str]:
    """The section of BENCHMARKS.md."""
    source = f"`{path}`" if path is not None else "the built-in formulas with 1 % noise"
    lines = [
        "## Speed model over allocations",
        "",
        f"`python benchmarks/profile_surface.py{f' {path}' if path else ''}`: a third of the cells of {source} is",
        "known. Relative error of the seconds of all others, median and 90th percentile. Cells at random: mean over",
        f"{len(SEEDS)} draws, in brackets the worst median. Optimus' formula and the interpolation of profile files",
        "are given the same cells.",
        "",
        "| task type | cells | speed model | Optimus' formula | interpolation |",
        "|---|---|---|---|---|",
    ]
    for task_type, measured in read_grids(path).items():
        draws = [errors(measured, at_random(measured, seed)) for seed in SEEDS]
        row = [f"{_mean(draws, name)} ({max(d[name][0] for d in draws):.1%})" for name in draws[0]]
        lines.append(f"| {task_type} | at random | {' | '.join(row)} |")
        chosen = by_profiler(measured)
        took = sum(sum(measured[c]) for c in chosen) / sum(sum(runs) for runs in measured.values())
        row = [f"{median:.2%}, {most:.1%}" for median, most in errors(measured, chosen).values()]
        lines.append(f"| {task_type} | by the profiler ({took:.0%} of the grid's time) | {' | '.join(row)} |")
    return [*lines, ""]


def _mean(draws: Sequence[dict[str, tuple[float, float]]], name: str) -> str:
    median, most = np.mean([draw[name] for draw in draws], axis=0)
    return f"{median:.2%}, {most:.1%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", type=Path, help="profile CSV with columns cpu and gpu")
    print("\n".join(report(parser.parse_args().profile)))
