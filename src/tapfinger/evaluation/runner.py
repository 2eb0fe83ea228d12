"""Runs all cells of a comparison, in this process or several, and gathers their records.

Results do not depend on the number of processes: each cell draws everything from its own seed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tapfinger.config import Scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import Cell, CellStore, make_cells, run_cell
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.records import RunRecord
from tapfinger.workloads.world import build_world, draw_workload

#: Set to move the store of finished cells elsewhere.
CACHE_VARIABLE = "TAPFINGER_CACHE_DIR"

#: Numeric libraries with several threads each would fight over the cores that processes already use.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class CellFailed(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """A run broke off; says which scheduler and seed, and how."""


class Interrupted(TapfingerError):  # noqa: N818
    """The user stopped a comparison; finished cells are kept."""


@dataclass(frozen=True)
class Outcome:
    """Records of a comparison, and where each cell is kept."""

    #: scheduler text -> one record per seed, in the order of the seeds.
    records: dict[str, list[RunRecord]]
    #: (scheduler text, seed) -> directory of the cell.
    folders: dict[tuple[str, int], Path]
    #: Cells that did not have to be run.
    reused: int


@dataclass(frozen=True)
class Runner:
    """How to run cells."""

    store: CellStore
    #: Processes; 1 means this one.
    jobs: int = 1
    #: Whether to keep event logs.
    with_events: bool = True
    #: Called with (finished, all) whenever a cell is finished.
    on_progress: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005

    def run(self, scenario: Scenario, specs: Sequence[SchedulerSpec], seeds: Sequence[int]) -> Outcome:
        """Every scheduler on every seed; what is in the store is not run again."""
        draw_workload(build_world(scenario), seeds[0])  # faults of the input are found before anything is started
        for spec in specs:
            spec.create()
        cells = make_cells(scenario, specs, seeds)
        todo = [cell for cell in cells if not self.store.has(cell.key, self.with_events)]
        done = reused = len(cells) - len(todo)
        self.on_progress(done, len(cells))
        try:
            for _ in self._run_all(todo):
                done += 1
                self.on_progress(done, len(cells))
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after {done} of {len(cells)} runs") from None
        records: dict[str, list[RunRecord]] = {spec.text: [] for spec in specs}
        for cell in cells:
            records[cell.spec.text].append(self.store.load(cell.key))
        folders = {(cell.spec.text, cell.seed): self.store.folder(cell.key) for cell in cells}
        return Outcome(records, folders, reused)

    def _run_all(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Run cells, yielding after each; the first that fails ends it all."""
        if self.jobs == 1 or len(cells) < 2:
            for cell in cells:
                _raise_failure(cell, _attempt(cell, self.store, self.with_events))
                yield
            return
        with _pool(min(self.jobs, len(cells))) as pool:
            waiting: dict[Future[str | None], Cell] = {
                pool.submit(_attempt, cell, self.store, self.with_events): cell for cell in cells
            }
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    cell = waiting.pop(future)
                    try:
                        _raise_failure(cell, future.result())
                    except BrokenProcessPool:
                        raise CellFailed(
                            f"scheduler {cell.spec.text!r}, seed {cell.seed}, or a run beside it: the process died, "
                            "perhaps for want of memory; try fewer --jobs"
                        ) from None
                    yield


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh single-threaded processes that ends with us, at once if we are stopped."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # inherited by the processes, which start as cells are handed in
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_ignore_interrupt)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _ignore_interrupt() -> None:
    """Ctrl-C reaches every process of the terminal; only the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _attempt(cell: Cell, store: CellStore, with_events: bool) -> str | None:
    """Run a cell; what went wrong comes back as text, for not every exception survives the way between processes."""
    try:
        run_cell(cell, store, with_events)
    except TapfingerError as error:
        return str(error)
    except Exception:
        return "it raised\n" + traceback.format_exc().rstrip()
    return None


def _raise_failure(cell: Cell, failure: str | None) -> None:
    if failure is not None:
        raise CellFailed(f"scheduler {cell.spec.text!r}, seed {cell.seed}: {failure}")


@contextlib.contextmanager
def open_store(cached: bool) -> Iterator[CellStore]:
    """The user's store of finished cells, or a temporary one."""
    root = cache_folder() if cached else None
    if root is not None:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError:
            root = None  # nowhere to keep anything, as in a read-only container: go without
    if root is None:
        with tempfile.TemporaryDirectory(prefix="tapfinger-") as folder:
            yield CellStore(Path(folder))
        return
    store = CellStore(root)
    store.forget_old()
    yield store


def cache_folder() -> Path:
    """Where finished cells are kept between runs."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapfinger" / "cells"
