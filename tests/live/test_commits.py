"""Group commit: what shares a transaction, what waits for it, and what becomes of the rest when one fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from live.postgres import PostgresServer
from live.sites import CONFIG

from tapfinger.errors import ConfigError, NotLeading, StoreUnavailable, TooMany
from tapfinger.live.client import make_spec
from tapfinger.live.commits import Change, Commits
from tapfinger.live.config import build_site, load_site
from tapfinger.live.service import Service
from tapfinger.live.store import Store
from tapfinger.live.tasks import Happening, TaskRecord, TaskSpec
from tapfinger.registry import create

RECORD = TaskRecord(1, TaskSpec(("x",), "demo"), "me", 1.0)


class SlowStore:
    """Notes what is saved; each save waits until it is let go."""

    def __init__(self) -> None:
        self.saved: list[list[int]] = []
        self.go = threading.Event()
        self.error: Exception | None = None

    def save(self, records: Any, *_: object) -> None:
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        self.saved.append([record.id for record in records])


def change(ident: int) -> Change:
    return Change([replace(RECORD, id=ident)], [Happening(1.0, "submitted", ident)])


def test_what_comes_while_a_commit_is_under_way_shares_the_next() -> None:
    store, told = SlowStore(), []

    async def play() -> None:
        commits = Commits(store, told.append)  # type: ignore[arg-type]
        commits.put(Change(), lambda: told.append("nothing to save: at once"))
        commits.put(change(1), lambda: told.append(1))
        await asyncio.sleep(0.05)
        for ident in (2, 3, 2):
            commits.put(change(ident), lambda ident=ident: told.append(ident))
        commits.put(Change(), lambda: told.append("after all before it"))
        assert told == ["nothing to save: at once"]
        store.go.set()
        await commits.flush()
        await commits.flush()
        commits.close()

    asyncio.run(play())
    assert store.saved == [[1], [2, 3]]
    assert told == ["nothing to save: at once", 1, 2, 3, 2, "after all before it"]


def test_after_a_failure_nothing_is_saved_and_nobody_is_told() -> None:
    store, told = SlowStore(), []
    store.error = OSError("disk full")

    async def play() -> None:
        commits = Commits(store, lambda error: told.append(str(error)))  # type: ignore[arg-type]
        commits.put(change(1), lambda: told.append(1))
        waiting = asyncio.create_task(commits.flush())
        await asyncio.sleep(0.05)
        commits.put(change(2), lambda: told.append(2))
        store.go.set()
        with pytest.raises(OSError, match="disk full"):
            await waiting
        with pytest.raises(OSError, match="disk full"):
            commits.put(change(3), lambda: told.append(3))
        with pytest.raises(OSError, match="disk full"):
            await commits.flush()
        commits.close()

    asyncio.run(play())
    assert (store.saved, told) == ([], ["disk full"])


# ------------------------------------------------------------------------- services


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Services of one site, on SQLite or an address."""
    made: list[Service] = []

    def service(store: str = "", name: str = "state") -> Service:
        path = tmp_path / "site.toml"
        path.write_text(CONFIG + f"max_waiting = 5\nstore = '{store}'\n")
        scenario, config = load_site(path)
        schedulers = create("scheduler", "fifo", {}), create("scheduler", "min", {})
        made.append(Service(tmp_path / name, build_site(scenario), config, *schedulers))
        return made[-1]

    yield service
    for one in made:
        one.close()


def test_submissions_at_the_same_time_share_a_commit_and_their_keys(
    make: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    spec = make_spec(argv=["x"], type="demo", key="k")
    saves: list[int] = []
    save = Store.save

    def counted(store: Store, records: Any, *more: Any) -> None:
        saves.append(len(records))
        save(store, records, *more)

    monkeypatch.setattr(Store, "save", counted)

    async def play() -> list[Any]:
        others = [service.submit([make_spec(argv=[name], type="demo")], "me") for name in "abc"]
        same = [service.submit([spec], "me") for _ in range(3)]
        wrong = service.submit([replace(spec, argv=("other",))], "me")
        many = service.submit([replace(spec, key=None)] * 2, "me")
        return await asyncio.gather(*others, *same, wrong, many, return_exceptions=True)

    *taken, wrong, many = asyncio.run(play())
    assert taken == [[1], [2], [3], [4], [4], [4]]
    assert (isinstance(wrong, ConfigError), isinstance(many, TooMany)) == (True, True)
    assert saves == [4]
    assert [record.id for record in service.store.unended()] == [1, 2, 3, 4]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
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
