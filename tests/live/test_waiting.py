"""Requests that wait for news end with their client's connection, and are few for each token."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from fastapi import HTTPException, Request

from tapfinger.live.http import waiting
from tapfinger.live.http.waiting import GONE, WaitingRoom
from tapfinger.live.service.loop_bridge import Announcer
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

LONG = 1000.0


class Site:
    """A service of which only its changes are asked for."""

    def __init__(self) -> None:
        self.changes = Announcer()
        self.room = WaitingRoom(cast(Service, self))

    async def change(self, seconds: float, seen: int) -> None:
        await self.changes.wait(seconds, seen)


class Caller:
    """A client with a request."""

    def __init__(self, name: str = "ann") -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        scope = {"type": "http", "state": {"holder": Token("", name, "viewer", None, 0.0)}}
        self.request = Request(scope, self.messages.get)  # type: ignore[arg-type]

    def hang_up(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK", 0.0)


def test_a_request_ends_when_its_client_hangs_up() -> None:
    async def run() -> None:
        site, caller = Site(), Caller()
        waits = asyncio.create_task(site.room.wait_for_news(caller.request, LONG, 0))
        await asyncio.sleep(0)
        caller.hang_up()
        with pytest.raises(HTTPException) as refused:
            await waits
        assert refused.value.status_code == GONE
        assert site.room._waiting == {}
        assert len(asyncio.all_tasks()) == 1, "nothing of it is left"

    asyncio.run(run())


def test_news_and_the_end_of_the_time_end_the_wait() -> None:
    async def run() -> None:
        site = Site()
        waits = asyncio.create_task(site.room.wait_for_news(Caller().request, LONG, 0))
        await asyncio.sleep(0)
        site.changes.announce()
        await waits
        await site.room.wait_for_news(Caller().request, 0.001, 1)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_few_requests_of_a_token_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "EACH", 2)

    async def run() -> None:
        site = Site()
        names = ("ann", "ann", "bob")
        waits = [asyncio.create_task(site.room.wait_for_news(Caller(name).request, LONG, 0)) for name in names]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as refused:
            await site.room.wait_for_news(Caller("ann").request, LONG, 0)
        assert refused.value.status_code == 429
        assert refused.value.headers == {"Retry-After": "1"}
        assert not any(one.done() for one in waits)
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert site.room._waiting == {}
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
