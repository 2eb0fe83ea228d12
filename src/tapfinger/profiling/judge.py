"""Which runs count: finished, undisturbed, and in agreement with their repeats. And which must be repeated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tapfinger.profiles.repeats import summarise
from tapfinger.profiling.grid import Cell
from tapfinger.profiling.journal import RunLine
from tapfinger.profiling.options import BUSY

#: Standard deviations of the task's own noise beyond which repeats disagree, and a factor within which they never do.
SIGMAS: Final = 4.0
ALIKE: Final = 1.05

#: Factor between repeats above which further runs are worthwhile, however noisy the task is.
UNLIKE: Final = 1.25

#: Further runs of a cell with disturbed or disagreeing repeats; after these, its spread is taken as real.
MORE: Final = 2


@dataclass(frozen=True)
class CellVerdict:
    """The result of the runs of one cell."""

    #: Seconds of the runs that count, in order.
    counted: tuple[float, ...] = ()
    #: Why the cell must be run again; empty if it need not be.
    again: str = ""
    #: What a reader of the profile should know.
    note: str = ""
    #: Why no run of the cell will ever count; empty otherwise.
    failed: str = ""


def by_cell(runs: Iterable[RunLine], resources: Sequence[str]) -> dict[Cell, list[RunLine]]:
    """Runs of each cell, in order."""
    cells: dict[Cell, list[RunLine]] = defaultdict(list)
    for run in runs:
        cells[tuple(run.cell[name] for name in resources)].append(run)
    return dict(cells)


def usual_noise(cells: Mapping[Cell, Sequence[RunLine]], busy: float = BUSY) -> float:
    """Standard deviation of log seconds of this task's runs, from all cells that were repeated undisturbed."""
    good = [[r.seconds for r in runs if _undisturbed(r, busy)] for runs in cells.values()]
    return math.sqrt(summarise([runs for runs in good if runs]).noise)


def judge(runs: Sequence[RunLine], repeats: int, noise: float, busy: float = BUSY) -> CellVerdict:
    """``repeats``: number of runs that should count; ``noise``: see ``usual_noise``; ``busy``: see ``BUSY``."""
    finished = [run for run in runs if run.result == "finished"]
    bad = next((run for run in reversed(runs) if run.result != "finished"), None)
    if bad is not None and not finished:
        return CellVerdict(failed=bad.reason or bad.result)
    note = f"{len(runs) - len(finished)} of {len(runs)} runs did not finish: {bad.reason}" if bad is not None else ""
    calm = [run.seconds for run in finished if _undisturbed(run, busy)]
    agreed = _agreeing(calm, noise) if calm else []
    most = repeats + MORE
    vague = len(agreed) > 1 and max(agreed) > UNLIKE * min(agreed) and len(runs) < most and bad is None
    if len(agreed) >= repeats and not vague:
        return CellVerdict(tuple(agreed), note=note)
    if len(runs) < repeats or (len(runs) < most and bad is None):
        if len(calm) < len(finished):
            return CellVerdict(tuple(agreed), "others used its cores", note)
        disagree = vague or len(agreed) < len(calm)
        return CellVerdict(tuple(agreed), "its repeats disagree" if disagree else "repeat", note)
    # No more runs: use what there is, and say so.
    if not calm:
        quietest = sorted(finished, key=lambda run: run.others or 0.0)[:repeats]
        share = f"{quietest[0].others or 0.0:.0%}"
        note = f"others used {share} or more of its cores in each of {len(runs)} runs, so it may be faster than that"
        return CellVerdict(tuple(run.seconds for run in finished if run in quietest), note=note)
    if len(agreed) < len(calm):
        spread = max(calm) / min(calm)
        return CellVerdict(tuple(calm), note=f"its runs differ by a factor of {spread:.2g}, again and again")
    return CellVerdict(tuple(agreed), note=note or f"only {len(agreed)} of {len(runs)} runs were undisturbed")


def _undisturbed(run: RunLine, busy: float) -> bool:
    return run.result == "finished" and (run.others is None or run.others <= busy)


def _agreeing(seconds: Sequence[float], noise: float) -> list[float]:
    """The runs close to the median; of two that disagree, either may be right, so none."""
    near = max(math.log(ALIKE), SIGMAS * noise)
    if len(seconds) == 2 and abs(math.log(seconds[0] / seconds[1])) > near:
        return []
    middle = median(seconds)
    return [s for s in seconds if abs(math.log(s / middle)) <= near]
