"""Tasks that are submitted again with their keys: once each, and the loop with the leases does not read them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.services import services

from tapfinger.errors import ConfigError
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service import service as service_module
from tapfinger.live.service.service import NOTHING, Service
from tapfinger.live.store.store import Store

FEW, MANY = 2, 4


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Service]]:
    monkeypatch.setattr(service_module, "BULK", 3)
    with services(tmp_path) as service:
        yield service


def keyed(count: int, first: int = 0) -> list[TaskSpec]:
    return [make_spec(argv=["x", str(n)], type="demo", key=f"k{n}") for n in range(first, first + count)]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_stored_tasks_are_read_in_another_thread_and_it_is_charged(
    make: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    service = make()
    threads: list[int] = []
    read = Store.by_keys

    def noted(store: Store, owner: str, keys: Sequence[str]) -> dict[str, TaskRecord]:
        threads.append(threading.get_ident())
        return read(store, owner, keys)

    monkeypatch.setattr(Store, "by_keys", noted)
    spent: list[float] = []
    specs = keyed(count)

    async def play() -> None:
        first = await service.take(specs, "me", NOTHING, spent.append)
        await service._commits.flush()
        before = len(spent)
        assert await service.take(specs, "me", NOTHING, spent.append) == first
        assert len(spent) == before + 1
        assert await service.submit(specs[:1], "me") == first[:1]
        with pytest.raises(ConfigError, match="key 'k1' was used for another task"):
            await service.take([specs[0], replace(specs[1], argv=("y",)), *specs[2:]], "me", NOTHING, spent.append)
        assert len(spent) == before + 2, "also what is refused"

    asyncio.run(play())
    assert threads
    assert threading.get_ident() not in threads


def test_a_key_used_twice_at_the_same_moment_gives_one_task(make: Callable[..., Service]) -> None:
    service = make()
    few, many = keyed(FEW), keyed(MANY)

    async def play() -> list[list[int]]:
        return await asyncio.gather(*(service.submit(specs, "me") for specs in (many, few, many, few, many[::-1])))

    found = asyncio.run(play())
    assert len({ident for ids in found for ident in ids}) == MANY
    assert found[0] == found[2] == found[4][::-1]
    assert found[1] == found[3] == found[0][:FEW]
    assert len(service.store.unended()) == MANY


def test_what_is_saved_during_a_look_is_found(make: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    read, looked, go_on = Store.by_keys, threading.Event(), threading.Event()

    def slow(store: Store, owner: str, keys: Sequence[str]) -> dict[str, TaskRecord]:
        found = read(store, owner, keys)
        looked.set()
        go_on.wait()
        return found

    monkeypatch.setattr(Store, "by_keys", slow)

    async def play() -> Any:
        many = asyncio.create_task(service.submit(keyed(MANY), "me"))
        await asyncio.to_thread(looked.wait)
        few = await service.submit(keyed(FEW), "me")  # on disk by then, and not known to the look
        go_on.set()
        return few, await many

    few, many = asyncio.run(play())
    assert few == many[:FEW]
    assert len(service.store.unended()) == MANY
    assert not service._earlier._looks
    assert not service._earlier._unsaved


def test_the_same_key_twice_in_a_submission(make: Callable[..., Service]) -> None:
    service = make()
    (one,), other = keyed(1), keyed(MANY, 10)

    async def play() -> None:
        first = await service.submit([one, one], "me")
        assert first[0] == first[1]
        assert await service.submit([one, *other, one], "me") == [first[0], 2, 3, 4, 5, first[0]]
        for wrong in ([one, replace(one, argv=("y",))], [one, *other, replace(one, argv=("y",))]):
            with pytest.raises(ConfigError):
                await service.submit(wrong, "me")

    asyncio.run(play())
