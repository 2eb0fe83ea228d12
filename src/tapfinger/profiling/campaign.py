"""Measures a grid of allocations, the most informative cells first, until all are known or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tapfinger.errors import BackendError, DataError
from tapfinger.profiles.repeats import summarise
from tapfinger.profiles.surface import Surface, fit_surface
from tapfinger.profiling.choose import next_batch
from tapfinger.profiling.grid import Cell, Grid
from tapfinger.profiling.journal import Journal, RunLine
from tapfinger.profiling.judge import CellVerdict, by_cell, judge, usual_noise
from tapfinger.profiling.options import BUSY, REPEATS

#: Time limit of a run in seconds before anything is known; later a multiple of the expected time, and its minimum.
FIRST_LIMIT, TIMES, LEAST_LIMIT = 3600.0, 10.0, 60.0

#: Share of the tasks' time that may be spent on refitting the speed model.
THINKING = 0.02

#: Cells in the middle of the grid to try before giving up, if the task failed in all corners.
MOST_MIDDLE = 4

#: Runs in a row ended by something other than the task before giving up.
MOST_LOST = 3


class RunsTask(Protocol):
    """Runs the task once: ``runner.TaskRunner``, or a fake one."""

    def run(self, cell: dict[str, float], limit: float, deadline: float, waiting: Callable[[], None]) -> RunLine | None:
        """See ``TaskRunner.run``."""
        ...


class Watch(Protocol):
    """Is notified of what happens."""

    def started(self, cell: Cell, why: str, expected: float | None, left: float | None) -> None:
        """A run begins; ``expected``: seconds of this run, ``left``: seconds of all remaining runs."""
        ...

    def waiting(self) -> None:
        """The run continues; called many times a second."""
        ...

    def ended(self, cell: Cell, run: RunLine) -> None:
        """A run has ended."""
        ...


@dataclass(frozen=True)
class CampaignPlan:
    """What to measure, and how long it may take."""

    grid: Grid
    repeats: int = REPEATS
    #: Seconds for everything; infinite for no limit.
    budget: float = math.inf
    #: Seconds per run; None: a multiple of the expected time.
    limit: float | None = None
    #: Share of a run's cores that others may use before it counts as disturbed.
    busy: float = BUSY


@dataclass(frozen=True)
class Findings:
    """The results, including all runs of earlier sessions."""

    grid: Grid
    #: All cells that were run.
    verdicts: dict[Cell, CellVerdict]
    #: Cells of the grid that were not run.
    unknown: list[Cell]
    #: Whether time was up before everything was known.
    cut_short: bool
    #: Seconds of this session, and the part in which the task ran.
    passed: float
    in_task: float

    @property
    def counted(self) -> dict[Cell, tuple[float, ...]]:
        """Seconds that belong in the profile."""
        return {cell: verdict.counted for cell, verdict in self.verdicts.items() if verdict.counted}

    @property
    def failed(self) -> dict[Cell, str]:
        """Cells in which the task does not run, and why."""
        return {cell: verdict.failed for cell, verdict in self.verdicts.items() if verdict.failed}

    @property
    def spread(self) -> str:
        """How much equal runs differ, as text; empty if none was repeated."""
        runs = list(self.counted.values())
        if not any(len(repeats) > 1 for repeats in runs):
            return ""
        return f"Equal runs differ by {math.sqrt(summarise(runs).noise):.1%} (one standard deviation)."

    @property
    def overhead(self) -> float:
        """Share of this session in which the task did not run."""
        return 1.0 - self.in_task / self.passed if self.passed > 0.0 else 0.0


class Campaign:
    """One session of profiling."""

    def __init__(self, plan: CampaignPlan, journal: Journal, runs: RunsTask, watch: Watch) -> None:
        """``journal``: holds the runs of earlier sessions."""
        self._plan = plan
        self._journal = journal
        self._runs = runs
        self._watch = watch
        self._begun = time.monotonic()
        self._in_task = 0.0
        self._surface: Surface | None = None
        #: Seconds of the last fit, and seconds of the task since then.
        self._fitting, self._since = 0.0, 0.0
        self._lost = 0

    def play(self) -> Findings:
        """Measure until everything is known or time is up."""
        while True:
            verdicts = self._verdicts()
            again = {cell: v.again for cell, v in verdicts.items() if v.again and cell in self._wanted}
            if not again:
                self._check_hope(verdicts)
                again = dict.fromkeys(self._choose(verdicts), "")
            if not again:
                return self._findings(verdicts, cut_short=False)
            for cell, why in again.items():
                if not self._measure(cell, why, verdicts):
                    return self._findings(self._verdicts(), cut_short=True)

    def findings(self) -> Findings:
        """What is known so far, after an interruption."""
        return self._findings(self._verdicts(), cut_short=True)

    @property
    def _wanted(self) -> set[Cell]:
        return set(self._plan.grid.cells())

    def _verdicts(self) -> dict[Cell, CellVerdict]:
        cells = by_cell(self._journal.runs, self._plan.grid.resources)
        busy = self._plan.busy
        noise = usual_noise(cells, busy) if cells else 0.0
        return {cell: judge(runs, self._plan.repeats, noise, busy) for cell, runs in cells.items()}

    def _findings(self, verdicts: dict[Cell, CellVerdict], cut_short: bool) -> Findings:
        grid = self._plan.grid
        unknown = [cell for cell in grid.cells() if cell not in verdicts]
        passed = time.monotonic() - self._begun
        return Findings(grid, verdicts, unknown, cut_short, passed, self._in_task)

    def _check_hope(self, verdicts: dict[Cell, CellVerdict]) -> None:
        """Give up on a task that fails in every corner and in the middle, instead of trying it everywhere else."""
        enough = min(len(self._wanted), len(self._plan.grid.corners()) + MOST_MIDDLE)
        if len(verdicts) < enough or any(v.counted for v in verdicts.values()):
            return
        bad = next(run for run in reversed(self._journal.runs) if run.result != "finished")
        lines = "\n".join(f"  | {line}" for line in bad.tail.strip().splitlines()[-12:])
        raise BackendError(
            f"the task did not finish under any of the {len(verdicts)} allocations tried; the last one "
            f"({', '.join(f'{a:g} {n}' for n, a in bad.cell.items())}): {bad.reason}. Put that right, or give a --grid "
            f"that it can run with, and start again with --fresh. {'It said:' if lines else 'It said nothing.'}"
            + (f"\n{lines}" if lines else "")
        )

    def _choose(self, verdicts: dict[Cell, CellVerdict]) -> list[Cell]:
        self._fit({cell: v.counted for cell, v in verdicts.items() if v.counted})
        return next_batch(self._plan.grid, self._surface, verdicts.keys())

    def _fit(self, counted: dict[Cell, tuple[float, ...]]) -> None:
        if not counted or (self._surface is not None and self._fitting > THINKING * self._since):
            return
        begun = time.monotonic()
        self._surface = fit_surface(self._plan.grid.resources, counted)
        self._fitting, self._since = time.monotonic() - begun, 0.0

    def _measure(self, cell: Cell, why: str, verdicts: dict[Cell, CellVerdict]) -> bool:
        """Run a cell once; return whether there was time for it."""
        plan, now = self._plan, time.monotonic()
        deadline = self._begun + plan.budget
        expected = self._expected(cell, verdicts)
        if now + (expected or 0.0) > deadline:
            return False
        left = self._left(verdicts)
        self._watch.started(cell, why, expected, None if left is None else min(left, max(0.0, deadline - now)))
        run = self._runs.run(plan.grid.named(cell), self._limit(cell), deadline, self._watch.waiting)
        if run is None:
            if time.monotonic() > deadline:
                return False
            self._lost += 1
            if self._lost >= MOST_LOST:
                raise BackendError(
                    f"{MOST_LOST} runs in a row were stopped from outside; see what ends them, then go on"
                )
            return True  # still wanted, so it will be tried again
        self._lost = 0
        self._in_task += run.seconds
        self._since += run.seconds
        self._journal.add(run)
        self._watch.ended(cell, run)
        if run.code == 127 and run.result == "failed" and "could not be started" in run.reason:
            raise DataError(f"{run.reason}; name a program that exists, with its path if it is not on PATH")
        return True

    def _expected(self, cell: Cell, verdicts: dict[Cell, CellVerdict]) -> float | None:
        known = verdicts[cell].counted if cell in verdicts else ()
        if known:
            return float(np.mean(known))
        if self._surface is None:
            return None
        return float(np.exp(self._surface.predict([cell])[0][0]))

    def _limit(self, cell: Cell) -> float:
        if self._plan.limit is not None:
            return self._plan.limit
        if self._surface is None:
            return FIRST_LIMIT
        mean, doubt = self._surface.predict([cell])
        return max(LEAST_LIMIT, TIMES * math.exp(min(float(mean[0] + 2.0 * doubt[0]), math.log(FIRST_LIMIT * 240))))

    def _left(self, verdicts: dict[Cell, CellVerdict]) -> float | None:
        """Seconds that everything will still take if all goes well."""
        if self._surface is None:
            return None
        cells = self._plan.grid.cells()
        seconds = np.exp(self._surface.predict(cells)[0])
        runs = by_cell(self._journal.runs, self._plan.grid.resources)
        failed = {cell for cell, verdict in verdicts.items() if verdict.failed}
        missing = [0 if cell in failed else max(0, self._plan.repeats - len(runs.get(cell, ()))) for cell in cells]
        return float(seconds @ np.array(missing, dtype=np.float64))
