"""Measures a grid of allocations, the most informative cells first, until all are known or time is over."""

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
from tapfinger.profiling.judge import BUSY, CellVerdict, by_cell, judge, usual_noise

#: Longest time of a run, in seconds, before anything is known of the task; later a multiple of what is expected.
FIRST_LIMIT, TIMES, LEAST_LIMIT = 3600.0, 10.0, 60.0

#: Share of the tasks' time that may go into fitting the speed model anew.
THINKING = 0.02

#: Cells in the middle of the grid that are tried if the task failed in all corners, before giving up.
MOST_MIDDLE = 4

#: Runs in a row that something else than the task has ended, before giving up.
MOST_LOST = 3


class RunsTask(Protocol):
    """Runs the task once; ``runner.Runner``, or a pretended one."""

    def run(self, cell: dict[str, float], limit: float, deadline: float, waiting: Callable[[], None]) -> RunLine | None:
        """See ``Runner.run``."""
        ...


class Watch(Protocol):
    """Is told what happens."""

    def started(self, cell: Cell, why: str, expected: float | None, left: float | None) -> None:
        """A run begins; ``expected`` seconds of it, ``left`` of everything."""
        ...

    def waiting(self) -> None:
        """It goes on; called many times a second."""
        ...

    def ended(self, cell: Cell, run: RunLine) -> None:
        """A run has ended."""
        ...


@dataclass(frozen=True)
class CampaignPlan:
    """What is to be measured, and how long that may take."""

    grid: Grid
    repeats: int = 2
    #: Seconds for everything; infinite for as long as it takes.
    budget: float = math.inf
    #: Seconds for a run; None: a multiple of what is expected.
    limit: float | None = None
    #: Share of its cores that others may use before a run counts as disturbed.
    busy: float = BUSY


@dataclass(frozen=True)
class Findings:
    """What came of it, with all runs of earlier sessions."""

    grid: Grid
    #: All cells that were run.
    verdicts: dict[Cell, CellVerdict]
    #: Cells of the grid that were not.
    unknown: list[Cell]
    #: Whether time was over before everything was known.
    cut_short: bool
    #: Seconds of this session, and those of them in which the task ran.
    passed: float
    in_task: float

    @property
    def counted(self) -> dict[Cell, tuple[float, ...]]:
        """Seconds that belong into the profile."""
        return {cell: verdict.counted for cell, verdict in self.verdicts.items() if verdict.counted}

    @property
    def failed(self) -> dict[Cell, str]:
        """Cells under which the task does not run, and why."""
        return {cell: verdict.failed for cell, verdict in self.verdicts.items() if verdict.failed}

    @property
    def spread(self) -> str:
        """How much equal runs differ, for people; nothing if none was repeated."""
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
        """``journal``: with what earlier sessions have run."""
        self._plan = plan
        self._journal = journal
        self._runs = runs
        self._watch = watch
        self._begun = time.monotonic()
        self._in_task = 0.0
        self._surface: Surface | None = None
        #: Seconds that the last fit took; seconds of the task since.
        self._fitting, self._since = 0.0, 0.0
        self._lost = 0

    def play(self) -> Findings:
        """Until everything is known or time is over."""
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
        """What is known so far, for one who was interrupted."""
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
        """A task that fails in every corner and in the middle is not tried everywhere else as well."""
        enough = min(len(self._wanted), len(self._plan.grid.corners()) + MOST_MIDDLE)
        if len(verdicts) < enough or any(v.counted for v in verdicts.values()):
            return
        bad = next(run for run in reversed(self._journal.runs) if run.result != "finished")
        lines = "\n".join(f"  | {line}" for line in bad.tail.strip().splitlines()[-12:])
        raise BackendError(
            f"the task did not finish under any of the {len(verdicts)} allocations tried; the last one "
            f"({', '.join(f'{a:g} {n}' for n, a in bad.cell.items())}): {bad.reason}. Put that right, or give a --grid "
            f"that it can run with, and begin anew with --fresh. {'It said:' if lines else 'It said nothing.'}"
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
        """Run a cell once; whether there was time for it."""
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
            return True  # it is still wanted, and comes again
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
        """Seconds that everything still takes, if all goes well."""
        if self._surface is None:
            return None
        cells = self._plan.grid.cells()
        seconds = np.exp(self._surface.predict(cells)[0])
        runs = by_cell(self._journal.runs, self._plan.grid.resources)
        failed = {cell for cell, verdict in verdicts.items() if verdict.failed}
        missing = [0 if cell in failed else max(0, self._plan.repeats - len(runs.get(cell, ()))) for cell in cells]
        return float(seconds @ np.array(missing, dtype=np.float64))
