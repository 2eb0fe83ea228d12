"""Requests that wait for news, and questions that only the leader's loop can answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.service.service import Service

#: Seconds between two looks of a request that waits for something; each look costs something.
LOOK = 0.02
#: Most seconds of work that an explanation counts as: part of its time it waits for the schedulers.
PONDERED = 0.25

Result = TypeVar("Result")


async def wait_for_news(service: Service, seconds: float, seen: int) -> None:
    """Wait until there are more changes than ``seen``, at most this many seconds."""
    await asyncio.sleep(min(LOOK, seconds))
    await service.change(max(0.0, seconds - LOOK), seen)


async def clusters_of(request: Request, service: Service, workers: AnswerThreads) -> list[dict[str, object]]:
    """Every cluster: from the leader's machine on its loop, or from the store."""
    if service.role == "leader":
        return await service.bridge.ask(service.clusters)
    return await workers.run(request, service.clusters)


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
        return await service.bridge.ponder(timed)
    finally:
        request.state.work = getattr(request.state, "work", 0.0) + min(took, PONDERED)
