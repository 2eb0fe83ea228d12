"""The profiler's terminal output: a bar with the time left, a line per run, and a summary."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tapfinger.profiling.campaign import CampaignPlan, Findings
from tapfinger.profiling.grid import Cell
from tapfinger.profiling.journal import RunLine

#: Most cells named in a summary.
MOST_NAMED = 12


#: Most characters shown of a task's last line.
MOST_SAID = 200


class Show:
    """Shows progress while the profiler runs."""

    def __init__(self, console: Console, plan: CampaignPlan, before: int, task_type: str) -> None:
        """``before``: number of runs of earlier sessions."""
        self._console = console
        self._grid = plan.grid
        self._busy = plan.busy
        cells = len(plan.grid.cells())
        runs = "a run" if plan.repeats == 1 else f"{plan.repeats} runs"
        time = "" if math.isinf(plan.budget) else f", for {span(plan.budget)} at most"
        console.print(f"{task_type}: {cells} allocations, {runs} of each{time}", soft_wrap=True)
        if before:
            console.print(f"going on from {before} earlier runs (--fresh to forget them)")
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        # Twice a second: drawing more often takes time from what is measured.
        self._progress = Progress(*columns, console=console, transient=True, refresh_per_second=2)
        self._bar = self._progress.add_task("starting", total=cells * plan.repeats, completed=before, left="")

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()

    def started(self, cell: Cell, why: str, expected: float | None, left: float | None) -> None:
        """A run begins."""
        about = f", about {span(expected)}" if expected is not None else ""
        self._progress.update(
            self._bar,
            description=f"{self._grid.describe(cell)}{f' ({why})' if why not in ('', 'repeat') else ''}{about}",
            left=f"{span(left)} left" if left is not None else "",
        )

    def waiting(self) -> None:
        """Does nothing: the bar draws itself."""

    def ended(self, cell: Cell, run: RunLine) -> None:
        """Print a line for the run."""
        what = f"{run.seconds:9.3f} s" if run.result == "finished" else f"{run.result}: {run.reason}{last_word(run)}"
        if run.others is not None and run.others > self._busy:
            what += f"  disturbed: others used {run.others:.0%} of its cores"
        for fault in run.faults:
            what += f"  ({fault})"
        self._progress.console.print(f"  {self._grid.describe(cell):>20}  {what}", soft_wrap=True)
        self._progress.advance(self._bar)


def last_word(run: RunLine) -> str:
    """The last line of a run's output, which is usually the reason."""
    lines = run.tail.strip().splitlines()
    return f"; it said: {lines[-1].strip()[:MOST_SAID]}" if lines else ""


def span(seconds: float) -> str:
    """A duration for people to read."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def summary(console: Console, findings: Findings) -> None:
    """Print what was measured, what failed, and what to be careful with."""
    total = len(findings.grid.cells())
    counted = findings.counted
    best = min(counted, key=lambda cell: sum(counted[cell]) / len(counted[cell]))
    seconds = sum(counted[best]) / len(counted[best])
    console.print(
        f"{len(counted)} of {total} allocations measured, fastest with {findings.grid.describe(best)}: "
        f"{span(seconds)}. {findings.spread}",
        soft_wrap=True,
    )
    console.print(f"{span(findings.passed)}, of which {findings.overhead:.1%} not in the task.", soft_wrap=True)
    notes = {cell: v.note for cell, v in findings.verdicts.items() if v.note and v.counted}
    for heading, found in (("Did not run with", findings.failed), ("Careful with", notes)):
        for cell, why in list(found.items())[:MOST_NAMED]:
            console.print(f"{heading} {findings.grid.describe(cell)}: {why}", soft_wrap=True)
        if len(found) > MOST_NAMED:
            console.print(f"... and {len(found) - MOST_NAMED} more")
    if findings.cut_short and findings.unknown:
        console.print(
            f"{len(findings.unknown)} allocations were not reached; the same command goes on with them.", soft_wrap=True
        )
