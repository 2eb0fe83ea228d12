"""A thread for what takes long, so that the event loop goes on answering."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """Does one thing after the other. It never keeps the process from ending, whatever it is at."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread, which is started when it is first needed."""
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open = 0

    @property
    def busy(self) -> bool:
        """Whether something is being done."""
        return self._open > 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """What ``work`` returns or raises; it runs in the thread."""
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
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(_tell, future, result, error)


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # whoever waited has given up
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
