"""Jobs on this machine: in this process, or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_one
from multiprocessing.process import BaseProcess

from tapfinger.parallel.base import Job, Pool, Raised, Result, WorkerLost, attempt, unwrap

#: One thread per process: several threads per numeric library would compete for the cores that processes use.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class InProcess(Pool):
    """Runs one job after another, in this process."""

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Yield results in order; a job's exception is raised unchanged."""
        for index, job in enumerate(jobs):
            yield index, function(job)

    def close(self, now: bool = False) -> None:
        """Does nothing: there is nothing to release."""


class Processes(Pool):
    """Fresh single-threaded processes that stay between batches and end with us, immediately if we are stopped."""

    def __init__(self, count: int) -> None:
        """At most ``count`` processes; each is started when a job first needs it."""
        self._count = self.cores = count
        self._executor: ProcessPoolExecutor | None = None
        self._started: set[BaseProcess] = set()

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Yield results as they finish. A process that dies ends the batch (``WorkerLost``); the next has new ones."""
        waiting: dict[Future[Result | Raised], int] = {}
        index = 0
        try:
            self._submit(function, jobs, waiting)
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    index = waiting.pop(future)
                    yield index, unwrap(index, future.result())
        except BrokenProcessPool:
            self.close(now=True)
            lost = "the process died, perhaps because memory ran out; try fewer --jobs"
            raise WorkerLost(index, lost) from None
        finally:
            if waiting:  # the batch was aborted: the rest is not needed
                self.close(now=True)

    def _submit(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], waiting: dict[Future[Result | Raised], int]
    ) -> None:
        if self._executor is None:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._count, context, initializer=_follow_parent)
        others = set(multiprocessing.active_children())
        try:
            with _environment(ONE_THREAD):  # inherited by the processes, which start as jobs are submitted
                for index, job in enumerate(jobs):
                    waiting[self._executor.submit(attempt, function, job)] = index
        finally:
            self._started |= set(multiprocessing.active_children()) - others

    def close(self, now: bool = False) -> None:
        """Let the processes finish; with ``now``, kill them."""
        if self._executor is not None:
            self._executor.shutdown(wait=not now, cancel_futures=now)
        if now:
            for process in self._started:
                process.kill()  # a milder signal can be lost while a process is just starting
        self._executor = None
        self._started = set()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables temporarily, for processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _follow_parent() -> None:
    """Leave Ctrl-C, which reaches every process of the terminal, to the parent; end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    """Exit when the parent is gone: a killed parent cannot end its processes, which would wait for it forever."""
    wait_for_one([sentinel])
    os._exit(1)
