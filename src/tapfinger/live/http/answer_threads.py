"""Worker threads that read the store and encode long answers, so that no event loop does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import HTTPException, Request, Response

from tapfinger.live.http.limits import Reserve
from tapfinger.live.http.standing import check_standing

Result = TypeVar("Result")

#: Threads; reading releases Python's lock, encoding does not.
THREADS = 4
#: Threads that requests of one token use at a time, so that others get their turn.
EACH = 2
#: Bytes of answers that are held until they are read by those who asked: in all, and for one token.
HELD, HELD_EACH = 64 * 1024 * 1024, 16 * 1024 * 1024


class AnswerThreads:
    """A few threads, shared fairly among tokens. What each request used of them is noted in its state as ``work``."""

    def __init__(self) -> None:
        """Threads start when they are needed."""
        self._pool = ThreadPoolExecutor(THREADS, "readers")
        self._parser = ThreadPoolExecutor(1, "parser")  # no two of them keep Python's lock in turns
        self._turns: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}
        self._answers = Reserve(HELD, HELD_EACH)

    def close(self) -> None:
        """Wait for what is under way."""
        for pool in (self._pool, self._parser):
            pool.shutdown(wait=True, cancel_futures=True)

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """Run ``work`` in a thread, and return or raise what it returns or raises."""
        return await self._run(self._pool, request, work)

    async def parse(self, request: Request, work: Callable[[], Result]) -> Result:
        """Run ``work`` that parses a long body, one after the other: it does not let other threads run meanwhile."""
        return await self._run(self._parser, request, work)

    async def _run(self, pool: ThreadPoolExecutor, request: Request, work: Callable[[], Result]) -> Result:
        name = name_of(request)
        turn, users = self._turns.setdefault(name, (asyncio.Semaphore(EACH), []))
        users.append(None)
        try:
            async with turn:
                await check_standing(request)  # waiting for the turn may have taken long
                result, used = await asyncio.get_running_loop().run_in_executor(pool, _timed, work)
        finally:
            users.pop()
            if not users:
                self._turns.pop(name, None)
        request.state.work = getattr(request.state, "work", 0.0) + used
        if isinstance(result, Exception):
            raise result
        return result

    async def answer(self, request: Request, make: Callable[[], Any], status: int = 200) -> Response:
        """What ``make`` returns, as JSON unless it is bytes; all of it is done in a thread."""
        content = await self.run(request, lambda: as_json(make()))
        self.hold(request, len(content))
        return Response(content, status, media_type="application/json")

    def hold(self, request: Request, size: int) -> None:
        """Count an answer as held until it is sent; answers 429 instead if too much is held already."""
        name = name_of(request)
        if not self._answers.take(name, size):
            raise HTTPException(429, "too many answers wait to be read; try again later", {"Retry-After": "1"})
        request.state.release = lambda: self._answers.give_back(name, size)


def name_of(request: Request) -> str:
    """Who asks, for limits: the token's name."""
    holder = request.state.holder
    return holder.name if holder is not None else ""


def as_json(value: Any) -> bytes:
    """JSON as the interface sends it; bytes are taken to be JSON."""
    if isinstance(value, bytes):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _timed(work: Callable[[], Result]) -> tuple[Result | Exception, float]:
    """The result or the error, with the seconds of processor time that it took."""
    began = time.thread_time()
    try:
        result: Result | Exception = work()
    except Exception as error:
        result = error
    return result, time.thread_time() - began
