"""Makes figures: plans their runs, has the runner make the missing ones, measures the rest, writes the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.evaluation.cells import Cell, CellStore
from tapfinger.evaluation.runner import Runner
from tapfinger.reproduce import output
from tapfinger.reproduce.check import check_figure
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.figure_data import FigureData
from tapfinger.reproduce.figure_result import FigureResult, make
from tapfinger.reproduce.markdown import write_docs
from tapfinger.reproduce.overhead import measure_overhead
from tapfinger.reproduce.plan import RunPlan, cell_weights, first_cells
from tapfinger.reproduce.profiles import measure_profiles
from tapfinger.reproduce.training_curve import measure_training


@dataclass(frozen=True)
class ReproduceOptions:
    """How to make figures, beyond the plan."""

    folder: Path
    #: Command that makes the same figures again, for the report.
    command: str
    jobs: int = 1
    train: bool = False
    #: Directory of the documentation, if its page is to be written.
    docs: Path | None = None


@dataclass(frozen=True)
class ProgressListener:
    """Receives the progress of a reproduction; both functions are optional."""

    #: Called with the stage, the work done and the total work (seconds on one core), and a count in words.
    progress: Callable[[str, float, float, str], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None


def reproduce(
    plan: RunPlan, store: CellStore, options: ReproduceOptions, listener: ProgressListener
) -> list[FigureResult]:
    """Make all planned figures and the report; a call after an interruption continues where it stopped."""
    begin = time.monotonic()
    output.prepare_folder(options.folder)
    for figure in plan.figures:
        check_figure(figure)
    plan.check()
    cells = {name: key for figure in plan.figures for name, key in first_cells(figure, plan.of(figure)).items()}
    changed = output.changed_since(options.folder, cells)
    if changed:
        listener.note(
            f"the source, a model or a scenario has changed since {options.folder} was written: runs of {changed} of "
            f"{len(cells)} combinations no longer count and are made again"
        )
    counts = _Counts(cell_weights(plan.all), listener)
    runner = Runner(store, options.jobs, with_events=False, on_progress=counts.progress, on_cell=counts.finished)
    outcomes = runner.run_all([planned.question for planned in plan.all]) if plan.all else []
    by_plan = {id(planned): outcome for planned, outcome in zip(plan.all, outcomes, strict=True)}
    made = []
    for number, figure in enumerate(plan.figures):
        listener.progress(f"measuring and drawing {figure.name}", number, len(plan.figures), "")
        measured = plan.measured(figure, by_plan) if figure.source == "runs" else _other_source(figure, options)
        try:
            made.append(make(measured, options.folder))
        except OSError as error:
            where = error.filename or options.folder
            raise ConfigError(f"cannot write {where}: {error.strerror or error}; give another with --out") from None
    how = output.about(options.command, time.monotonic() - begin, options.jobs, counts.reused, counts.total)
    output.write_report(options.folder, made, cells, how)
    if options.docs is not None:
        write_docs(options.docs, made, how)
    return made


class _Counts:
    """Finished runs, and the work they represent: long runs count for more in the estimate of the time left."""

    def __init__(self, weights: dict[str, float], listener: ProgressListener) -> None:
        self._weights, self._listener = weights, listener
        self._all, self._done = sum(weights.values()), 0.0
        self.total = len(weights)
        self.reused = -1

    def finished(self, cell: Cell) -> None:
        self._done += self._weights[cell.key]

    def progress(self, done: int, total: int) -> None:
        if self.reused < 0:
            self.reused = done
            if done:
                self._listener.note(f"{done:,} of {total:,} runs were finished before and are reused")
        self._listener.progress("running", self._done, self._all, f"{done:,}/{total:,} runs")


def _other_source(figure: Figure, options: ReproduceOptions) -> FigureData:
    """The data of a figure that needs no simulated runs."""
    if figure.source == "profiles":
        return measure_profiles(figure)
    if figure.source == "overhead":
        return measure_overhead(figure, options.folder)
    return measure_training(figure, options.folder / "training", options.train, options.jobs)
