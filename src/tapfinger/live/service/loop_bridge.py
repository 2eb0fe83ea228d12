"""How other event loops reach the service's own: calls that run on it, and the news that something has changed.

People's requests are served on a loop of their own, so that none of them can delay a lease.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Questions of people that the service's loop answers at a time. The others wait where they came from, so agents are
#: never behind more than these.
AT_ONCE = 4


class LoopBridge:
    """Runs work on the service's loop; directly, if the caller is on that loop, or before there is one."""

    def __init__(self) -> None:
        """``bind`` says later which loop it is."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking, self._pondering = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Make the running loop the service's."""
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run a change on the service's loop; return or raise what it returns or raises."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            return await work()

        here = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = here.create_future()

        async def there() -> None:
            result, error = None, None
            try:
                result = await work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the caller's loop has ended
                here.call_soon_threadsafe(_settle, answer, result, error)

        # Lighter than run_coroutine_threadsafe, which takes two locks more. Work that has begun is not cancelled.
        loop.call_soon_threadsafe(self._begin, there)
        return await answer

    async def save(
        self, work: Callable[[], Result], on_disk: Callable[[Callable[[BaseException | None], None]], None]
    ) -> Result:
        """Run a quick change on the service's loop, and return its result when ``on_disk`` tells that it is saved.

        Faster than ``run``: the answer does not pass through the service's loop a second time.
        """
        here = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = here.create_future()

        def settle(result: Result | None, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended
                here.call_soon_threadsafe(_settle, answer, result, error)

        def there() -> None:
            try:
                on_disk(partial(settle, work()))
            except BaseException as error:
                settle(None, error)

        if self._loop is None or self._loop is here:
            there()
        else:
            self._loop.call_soon_threadsafe(there)
        return await answer

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the service's loop, without waiting for it."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            work()
        else:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(work)

    def tell(self, work: Callable[[], None]) -> None:
        """``post`` for threads without a loop of their own."""
        if self._loop is None:
            work()
        else:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(work)

    async def ask(self, question: Callable[[], Result]) -> Result:
        """Run a quick question on the service's loop; only a few at a time."""

        async def answer() -> Result:
            return question()

        async with self._asking:
            return await self.run(answer)

    async def ponder(self, question: Callable[[], Awaitable[Result]]) -> Result:
        """Run a question that waits in between; only a few at a time, and no quick one waits for them."""
        async with self._pondering:
            return await self.run(question)


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # the caller has stopped waiting
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class Announcer:
    """Tells waiters on any loop that something has changed."""

    def __init__(self) -> None:
        """Nothing has changed yet."""
        #: Number of changes so far.
        self.count = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    def announce(self) -> None:
        """Wake everyone who waits. May be called from any thread."""
        with self._lock:
            self.count += 1
            waiting, self._waiting = self._waiting, {}
        for loop, event in waiting.items():
            with suppress(RuntimeError):  # that loop has ended, and its waiters with it
                loop.call_soon_threadsafe(event.set)

    async def wait(self, seconds: float, seen: int) -> None:
        """Wait until there are more changes than ``seen``, at most this many seconds."""
        with self._lock:
            if self.count != seen:
                return
            event = self._waiting.setdefault(asyncio.get_running_loop(), asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
