"""A thread for long work, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Worker:
    """Runs jobs one after the other in a daemon thread, which never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        """``name``: name of the thread, which starts with the first job."""
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._arrived = threading.Condition()
        self._thread: threading.Thread | None = None
        self._working = False

    @property
    def busy(self) -> bool:
        """Whether a job is queued or running, also one that nobody waits for any more."""
        return self._working or bool(self._jobs)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in the thread, and return or raise what it returns or raises.

        A caller that stops waiting takes its job back, unless the job has begun: nothing piles up behind a job that
        does not end.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        job: _Job = (loop, future, work)
        with self._arrived:
            self._jobs.append(job)
            self._arrived.notify()
        try:
            return await future
        except asyncio.CancelledError:
            with self._arrived, suppress(ValueError):  # it has begun
                self._jobs.remove(job)
            raise

    def _next(self) -> _Job:
        with self._arrived:
            while not self._jobs:
                self._arrived.wait()
            self._working = True
            return self._jobs.popleft()

    def _serve(self) -> None:
        while True:
            loop, future, work = self._next()
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with self._arrived:
                self._working = False
            with suppress(RuntimeError):  # the loop has ended, and nobody is waiting any more
                loop.call_soon_threadsafe(_tell, future, result, error)
            del future, work, result, error  # the next job may be long in coming


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # the caller has stopped waiting
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
