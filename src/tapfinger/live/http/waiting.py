"""Requests that wait for news, and questions that only the leader's loop can answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException, Request

from tapfinger.live.http.answer_threads import AnswerThreads, name_of
from tapfinger.live.http.standing import check_standing
from tapfinger.live.service.service import Service

#: Seconds between two looks of a request that waits for something; each look costs something.
LOOK = 0.02
#: Requests of one token that wait at a time: as many as one address may have connections, so only those that give
#: theirs up without waiting for the answer come this far.
EACH = 250
#: Status, which nobody gets, of a request whose client has hung up.
GONE = 499
#: Most seconds of work that an explanation counts as: part of its time it waits for the schedulers.
PONDERED = 0.25

Result = TypeVar("Result")


class WaitingRoom:
    """Requests that wait for news: not too many of one token, and none whose client has hung up."""

    def __init__(self, service: Service) -> None:
        """Nobody waits yet."""
        self._service = service
        self._waiting: Counter[str] = Counter()

    async def wait_for_news(self, request: Request, seconds: float, seen: int) -> None:
        """Wait until there are more changes than ``seen``, at most this many seconds. The token must be valid then."""
        name = name_of(request)
        if self._waiting[name] >= EACH:
            raise HTTPException(429, "too many requests wait; try again later", {"Retry-After": "1"})
        self._waiting[name] += 1
        try:
            await _unless_gone(request, self._news(seconds, seen))
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]
        await check_standing(request)

    async def _news(self, seconds: float, seen: int) -> None:
        await asyncio.sleep(min(LOOK, seconds))
        await self._service.change(max(0.0, seconds - LOOK), seen)


async def _unless_gone(request: Request, wait: Coroutine[Any, Any, None]) -> None:
    """Wait for something, but end the request if its client hangs up."""
    waiting, gone = asyncio.ensure_future(wait), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)
    if not waiting.cancelled():
        waiting.result()
    else:
        raise HTTPException(GONE, "the client has hung up")


async def _gone(request: Request) -> None:
    """Wait until the client hangs up. What else comes is the end of a body that is empty."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def clusters_of(request: Request, service: Service, workers: AnswerThreads) -> list[dict[str, object]]:
    """Every cluster: from the leader's machine on its loop, or from the store."""
    if service.role == "leader":
        return await asked(request, service, service.clusters)
    return await workers.run(request, service.clusters)


async def asked(request: Request, service: Service, question: Callable[[], Result]) -> Result:
    """The answer to a quick question on the service's loop; its time counts as work of the request."""
    took = 0.0

    def timed() -> Result:
        nonlocal took
        began = time.thread_time()
        try:
            return question()
        finally:
            took = time.thread_time() - began

    try:
        return await service.bridge.ask(timed)
    finally:
        request.state.work = getattr(request.state, "work", 0.0) + took


async def explained(request: Request, service: Service, question: Callable[[], Awaitable[Result]]) -> Result:
    """An answer that needs forecasts and schedulers; its time counts as work of the request."""
    took = 0.0

    async def timed() -> Result:
        nonlocal took
        began = time.perf_counter()
        try:
            return await question()
        finally:
            took = time.perf_counter() - began

    try:
        found = await service.bridge.ponder(timed)
    finally:
        request.state.work = getattr(request.state, "work", 0.0) + min(took, PONDERED)
    await check_standing(request)
    return found
