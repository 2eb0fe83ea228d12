"""Runs all cells of a comparison, here or on workers, and collects their records.

Results do not depend on where a cell runs: each cell draws everything from its own seed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tapfinger.config import Scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import Cell, CellStore, make_cells, make_files, run_cell
from tapfinger.evaluation.failure import explain
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.parallel.base import JobFailed, WorkerLost
from tapfinger.parallel.choose import open_pool
from tapfinger.records import RunRecord
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import build_world, draw_workload

#: Environment variable that moves the store of finished cells.
CACHE_VARIABLE = "TAPFINGER_CACHE_DIR"


class CellFailed(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """A run failed; the message names the scheduler and seed, and the reason."""


class Interrupted(TapfingerError):  # noqa: N818
    """The user stopped a comparison; finished cells are kept."""


@dataclass(frozen=True)
class ComparisonResult:
    """Records of a comparison, and where each cell is stored."""

    #: scheduler text -> one record per seed, in the order of the seeds.
    records: dict[str, list[RunRecord]]
    #: (scheduler text, seed) -> directory of the cell.
    folders: dict[tuple[str, int], Path]
    #: Number of cells found in the store.
    reused: int
    #: Whether several seeds all gave the same workload, so that they say nothing about chance.
    same_draws: bool = False


class ComparisonQuestion(NamedTuple):
    """A scenario, the schedulers compared on it, and the seeds."""

    scenario: Scenario
    specs: Sequence[SchedulerSpec]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Runner:
    """How to run cells."""

    store: CellStore
    #: Number of processes; 1 means this process.
    jobs: int = 1
    #: Whether to keep event logs.
    with_events: bool = True
    #: Called with (finished, total) whenever a cell is finished.
    on_progress: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005
    #: Address of a Ray cluster to run cells on instead.
    ray: str | None = None
    #: Called with each available cell: found in the store, or just finished.
    on_cell: Callable[[Cell], None] = lambda cell: None  # noqa: ARG005

    def run(self, scenario: Scenario, specs: Sequence[SchedulerSpec], seeds: Sequence[int]) -> ComparisonResult:
        """Run every scheduler on every seed; cells in the store are not run again."""
        return self.run_all([ComparisonQuestion(scenario, specs, seeds)])[0]

    def run_all(self, questions: Sequence[ComparisonQuestion]) -> list[ComparisonResult]:
        """Run several comparisons with the same processes; a shared cell is run once."""
        for scenario, specs, seeds in questions:
            draw_workload(build_world(scenario), seeds[0])  # finds faults of the input before anything starts
            for spec in specs:
                spec.create()
        asked = [make_cells(*question) for question in questions]
        cells = {cell.key: cell for part in asked for cell in part}
        found = {key: self.store.load(key, self.with_events) for key in cells}
        todo = [cell for key, cell in cells.items() if found[key] is None]
        done = len(cells) - len(todo)
        for key, cell in cells.items():
            if found[key] is not None:
                self.on_cell(cell)
        self.on_progress(done, len(cells))
        try:
            for cell in self._run_all(todo):
                done += 1
                self.on_cell(cell)
                self.on_progress(done, len(cells))
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after {done} of {len(cells)} runs") from None
        return [self._outcome(question, part, found) for question, part in zip(questions, asked, strict=True)]

    def _outcome(
        self, question: ComparisonQuestion, cells: list[Cell], found: dict[str, RunRecord | None]
    ) -> ComparisonResult:
        records: dict[str, list[RunRecord]] = {spec.text: [] for spec in question.specs}
        reused = 0
        for cell in cells:
            before = found[cell.key]
            reused += before is not None
            record = before or self.store.load(cell.key, self.with_events)
            if record is None:
                raise CellFailed(f"the run kept in {self.store.folder(cell.key)} is gone; give the same command again")
            records[cell.spec.text].append(record)
        folders = {(cell.spec.text, cell.seed): self.store.folder(cell.key) for cell in cells}
        return ComparisonResult(records, folders, reused, same_draws(question.scenario, question.seeds))

    def _run_all(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Run cells and yield each as it finishes; the first failure ends the comparison."""
        if not cells:
            return
        # Cells made on other machines are copied here; local processes write to the store themselves.
        store = self.store if self.ray is None else None
        jobs = [_Job(cell, store, self.with_events) for cell in cells]
        with open_pool(1 if len(cells) == 1 and self.ray is None else self.jobs, self.ray) as pool:
            try:
                for index, made in pool.run(_attempt, jobs):
                    cell = cells[index]
                    if isinstance(made, str):
                        raise CellFailed(f"scheduler {cell.spec.text!r}, seed {cell.seed}: {made}")
                    if store is None:
                        self.store.receive(cell.key, made)
                    yield cell
            except (JobFailed, WorkerLost) as error:
                cell = cells[error.index]
                raise CellFailed(
                    f"scheduler {cell.spec.text!r}, seed {cell.seed}, or a run beside it: {error}"
                ) from None


def same_draws(scenario: Scenario, seeds: Sequence[int]) -> bool:
    """Whether several seeds play the very same workload, as a trace without a window does."""
    if len(seeds) < 2 or scenario.noise.amplitude or scenario.knowledge.kind == "noisy":
        return False
    world = build_world(scenario)
    first = draw_workload(world, seeds[0])
    # Stops at the first difference: nearly always the second seed.
    return all(_equal(first, draw_workload(world, seed)) for seed in seeds[1:])


def _equal(one: Workload, two: Workload) -> bool:
    return all(
        np.array_equal(mine, other)
        for mine, other in ((one.slot, two.slot), (one.type, two.type), (one.eligible, two.eligible))
    )


class _Job(NamedTuple):
    """A cell to run; without a store, its files are returned."""

    cell: Cell
    store: CellStore | None
    with_events: bool


def _attempt(job: _Job) -> dict[str, bytes] | str:
    """Run a cell; return its files, or the error, explained where the user's source is available."""
    try:
        if job.store is None:
            return make_files(job.cell, job.with_events)
        run_cell(job.cell, job.store, job.with_events)
    except Exception as error:
        return explain(error)
    return {}


@contextlib.contextmanager
def open_store(cached: bool) -> Iterator[CellStore]:
    """The user's store of finished cells, or a temporary one."""
    root = cache_folder() if cached else None
    if root is not None:
        with contextlib.suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK) or not root.is_dir():
            root = None  # cannot be written, as in a read-only container: use none
    if root is None:
        with tempfile.TemporaryDirectory(prefix="tapfinger-") as folder:
            yield CellStore(Path(folder))
        return
    store = CellStore(root)
    store.forget_old()
    yield store


def cache_folder() -> Path:
    """Folder of finished cells between runs."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapfinger" / "cells"
