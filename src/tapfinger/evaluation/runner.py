"""Runs all cells of a comparison, in this process or several, and gathers their records.

Results do not depend on the number of processes: each cell draws everything from its own seed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_one
from pathlib import Path

import numpy as np

from tapfinger.config import Scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import Cell, CellStore, make_cells, run_cell
from tapfinger.evaluation.failure import explain
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.records import RunRecord
from tapfinger.workloads.base import Workload
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
    #: Whether all seeds (if several) gave the same workload, so that they say nothing about chance.
    same_draws: bool = False


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
        found = {cell.key: self.store.load(cell.key, self.with_events) for cell in cells}
        todo = [cell for cell in cells if found[cell.key] is None]
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
            record = found[cell.key] or self.store.load(cell.key, self.with_events)
            if record is None:
                raise CellFailed(f"the run kept in {self.store.folder(cell.key)} is gone; give the same command again")
            records[cell.spec.text].append(record)
        folders = {(cell.spec.text, cell.seed): self.store.folder(cell.key) for cell in cells}
        return Outcome(records, folders, reused, same_draws(scenario, seeds))

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


def same_draws(scenario: Scenario, seeds: Sequence[int]) -> bool:
    """Whether several seeds play one and the same workload, as a trace without a window does."""
    if len(seeds) < 2 or scenario.noise.amplitude:
        return False
    world = build_world(scenario)
    first = draw_workload(world, seeds[0])
    # Stops at the first that differs: nearly always the second.
    return all(_equal(first, draw_workload(world, seed)) for seed in seeds[1:])


def _equal(one: Workload, two: Workload) -> bool:
    return all(
        np.array_equal(mine, other)
        for mine, other in ((one.slot, two.slot), (one.type, two.type), (one.eligible, two.eligible))
    )


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh single-threaded processes that ends with us, at once if we are stopped."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # inherited by the processes, which start as cells are handed in
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_follow_parent)
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


def _follow_parent() -> None:
    """Leave Ctrl-C, which reaches every process of the terminal, to the parent; end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    """A parent that was killed can end nobody, and a pool's process would wait for it for ever."""
    wait_for_one([sentinel])
    os._exit(1)


def _attempt(cell: Cell, store: CellStore, with_events: bool) -> str | None:
    """Run a cell; what went wrong comes back as text, for not every exception survives the way between processes."""
    try:
        run_cell(cell, store, with_events)
    except Exception as error:
        return explain(error)
    return None


def _raise_failure(cell: Cell, failure: str | None) -> None:
    if failure is not None:
        raise CellFailed(f"scheduler {cell.spec.text!r}, seed {cell.seed}: {failure}")


@contextlib.contextmanager
def open_store(cached: bool) -> Iterator[CellStore]:
    """The user's store of finished cells, or a temporary one."""
    root = cache_folder() if cached else None
    if root is not None:
        with contextlib.suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK) or not root.is_dir():
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
