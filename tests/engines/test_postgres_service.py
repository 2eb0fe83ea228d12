"""Coordinators on a real PostgreSQL: one that loses its database, and two that start together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from engines.postgres import PostgresServer
from live.services import services
from waiting import PATIENCE

from tapfinger.errors import NotLeading, StoreUnavailable
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Store

KEYED = make_spec(argv=["x"], type="demo", key="k")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as service:
        yield service


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


def test_a_coordinator_that_loses_its_database_stands_by_and_takes_up_its_work_again(
    make: Callable[..., Service], postgres: PostgresServer
) -> None:
    address = postgres.database()
    service = make(address)
    spec = make_spec(argv=["x"], type="demo")

    def cut_off() -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    async def play() -> None:
        with pytest.raises(NotLeading, match="no leader is known yet"):
            await service.submit([spec], "me")
        running = asyncio.create_task(service.run())
        await until(lambda: service.role == "leader")
        assert await service.submit([spec], "me") == [1]
        cut_off()
        with pytest.raises((StoreUnavailable, NotLeading)):
            await service.submit([spec], "me")
        await until(lambda: service.role == "leader")
        await service.submit([spec], "me")
        assert [record.id for record in service.store.unended()] == [1, 2]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


#: What may be acknowledged although nothing has to be changed for it.
REQUESTS: dict[str, Callable[[Service], Any]] = {
    "cancel": lambda service: service.cancel(7),
    "submit with a known key": lambda service: service.submit([KEYED], "me"),
    "take with a known key": lambda service: service.take([KEYED], "me", {}, lambda _: None),
    "give up": lambda service: service.give_up("left"),
    "prune": lambda service: asyncio.to_thread(service.ended_before, 1.0),
    "revoke": lambda service: asyncio.to_thread(service.revoke, "nobody"),
    "remove a secret": lambda service: asyncio.to_thread(service.remove_secret, "me", "NOTHING"),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_deposed_coordinator_acknowledges_nothing_though_it_does_not_know_it(
    request_: str, make: Callable[..., Service], postgres: PostgresServer
) -> None:
    address = postgres.database()
    service, other = make(address), Store(address)

    async def play() -> None:
        service._leading = service._take_over()
        service._machine._links["left"].ends = 0.0  # as after a long silence
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("UPDATE leader SET until = 0")
        assert other.lead("http://other") == 2
        other.save([TaskRecord(7, KEYED, "me", 1.0)], [])
        assert service.role == "leader"
        with pytest.raises(NotLeading, match="the leader is at http://other"):
            await REQUESTS[request_](service)

    try:
        asyncio.run(play())
        record = other.task(7)
        assert record is not None
        assert not record.cancelled
    finally:
        other.close()


def test_only_the_first_coordinator_makes_the_first_token(
    make: Callable[..., Service], postgres: PostgresServer, tmp_path: Path
) -> None:
    address = postgres.database()
    first, second = make(address, "one"), make(address, "two")

    async def play() -> None:
        running = asyncio.create_task(first.run())
        await until(lambda: first.role == "leader")
        standing = asyncio.create_task(second.run())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        first.store.close()
        await until(lambda: second.role == "leader")
        standing.cancel()
        await asyncio.gather(standing, return_exceptions=True)

    asyncio.run(play())
    assert (tmp_path / "one" / "token").read_text().strip() == first.token != ""
    assert (second.token, (tmp_path / "two" / "token").exists()) == ("", False)
    assert [token.name for token in second.store.tokens()] == ["first"]
