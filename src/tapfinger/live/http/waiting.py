"""Requests that wait for news, and questions that only the leader's loop can answer."""

from __future__ import annotations

import asyncio

from fastapi import Request

from tapfinger.live.http.workers import Workers
from tapfinger.live.service.service import Service

#: Seconds between two looks of a request that waits for something; each look costs something.
LOOK = 0.02


async def wait_for_news(service: Service, seconds: float, seen: int) -> None:
    """Wait until there are more changes than ``seen``, at most this many seconds."""
    await asyncio.sleep(min(LOOK, seconds))
    await service.change(max(0.0, seconds - LOOK), seen)


async def clusters_of(request: Request, service: Service, workers: Workers) -> list[dict[str, object]]:
    """Every cluster: from the leader's machine on its loop, or from the store."""
    if service.role == "leader":
        return await service.bridge.ask(service.clusters)
    return await workers.run(request, service.clusters)
