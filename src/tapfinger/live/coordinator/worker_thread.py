"""A thread for long work, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """Runs jobs one after the other in a daemon thread, which never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        """``name``: name of the thread, which starts with the first job."""
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open = 0

    @property
    def busy(self) -> bool:
        """Whether a job is queued or running."""
        return self._open > 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in the thread, and return or raise what it returns or raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._open += 1
        try:
            self._jobs.put((loop, future, work))
            return await future
        finally:
            self._open -= 1

    def _serve(self) -> None:
        while True:
            loop, future, work = self._jobs.get()
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended, and nobody is waiting any more
                loop.call_soon_threadsafe(_tell, future, result, error)


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # the caller has stopped waiting
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
