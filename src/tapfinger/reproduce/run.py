"""Makes figures: plans their runs, lets the runner make what is missing, measures the rest, writes the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.evaluation.cells import Cell, CellStore
from tapfinger.evaluation.runner import Runner
from tapfinger.reproduce import output
from tapfinger.reproduce.made import Made, make
from tapfinger.reproduce.markdown import write_docs
from tapfinger.reproduce.measured import Measured
from tapfinger.reproduce.overhead import QUICK, SCENARIOS, Bench, measure_overhead
from tapfinger.reproduce.plan import Plan, cell_weights, first_cells
from tapfinger.reproduce.profiles import measure_profiles
from tapfinger.reproduce.training_curve import measure_training


@dataclass(frozen=True)
class Wishes:
    """How figures are to be made."""

    folder: Path
    #: The command that gives the same again, for the report.
    command: str
    jobs: int = 1
    train: bool = False
    #: The documentation's directory, if its page is to be written.
    docs: Path | None = None
    bench: Bench | None = None


@dataclass(frozen=True)
class Teller:
    """Who is told how far it is."""

    #: Stage, work done, all work (expected seconds of one core), what is counted in words.
    progress: Callable[[str, float, float, str], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None


def reproduce(plan: Plan, store: CellStore, wishes: Wishes, teller: Teller) -> list[Made]:
    """Everything for the planned figures; interrupted, it goes on where it stopped."""
    begin = time.monotonic()
    output.prepare_folder(wishes.folder)
    plan.check()
    cells = {name: key for figure in plan.figures for name, key in first_cells(figure, plan.of(figure)).items()}
    changed = output.changed_since(wishes.folder, cells)
    if changed:
        teller.note(
            f"the source, a model or a scenario has changed since {wishes.folder} was written: runs of {changed} of "
            f"{len(cells)} combinations no longer count and are made anew"
        )
    counts = _Counts(cell_weights(plan.all), teller)
    runner = Runner(store, wishes.jobs, with_events=False, on_progress=counts.progress, on_cell=counts.finished)
    outcomes = runner.run_all([planned.question for planned in plan.all]) if plan.all else []
    by_plan = {id(planned): outcome for planned, outcome in zip(plan.all, outcomes, strict=True)}
    made = []
    for number, figure in enumerate(plan.figures):
        teller.progress(f"measuring and drawing {figure.name}", number, len(plan.figures), "")
        if figure.source == "runs":
            measured = plan.measured(figure, by_plan)
        else:
            measured = _other_source(plan, figure.name, wishes, teller)
        try:
            made.append(make(measured, wishes.folder))
        except OSError as error:
            where = error.filename or wishes.folder
            raise ConfigError(f"cannot write {where}: {error.strerror or error}; give another with --out") from None
    how = output.about(wishes.command, time.monotonic() - begin, wishes.jobs, counts.reused, counts.total)
    output.write_report(wishes.folder, made, cells, how)
    if wishes.docs is not None:
        write_docs(wishes.docs, made, how)
    return made


class _Counts:
    """Finished runs, and the work they stood for: long runs count for more in the estimate of the time left."""

    def __init__(self, weights: dict[str, float], teller: Teller) -> None:
        self._weights, self._teller = weights, teller
        self._all, self._done = sum(weights.values()), 0.0
        self.total = len(weights)
        self.reused = -1

    def finished(self, cell: Cell) -> None:
        self._done += self._weights[cell.key]

    def progress(self, done: int, total: int) -> None:
        if self.reused < 0:
            self.reused = done
            if done:
                self._teller.note(f"{done:,} of {total:,} runs were finished before and are reused")
        self._teller.progress("running", self._done, self._all, f"{done:,}/{total:,} runs")


def _other_source(plan: Plan, name: str, wishes: Wishes, teller: Teller) -> Measured:
    figure = next(figure for figure in plan.figures if figure.name == name)
    if figure.source == "profiles":
        return measure_profiles(figure)
    if figure.source == "training":
        return measure_training(figure, wishes.folder / "training", wishes.train, wishes.jobs)
    bench = wishes.bench or (QUICK if plan.quick else Bench())
    phases = len(SCENARIOS) * len(bench.latencies) * (2 if bench.padded else 1)
    done = iter(range(1, phases + 1))
    measured, reused = measure_overhead(
        figure,
        bench,
        wishes.folder / "overhead.json",
        lambda: teller.progress("exchanging messages", next(done), phases, ""),
    )
    if reused:
        teller.note(
            "the overhead was measured before by the same source and is reused (remove overhead.json to repeat)"
        )
    return measured
