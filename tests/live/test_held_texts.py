"""What tasks that have not ended bring with them may take so much memory, and each owner's half of that."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from live.test_machines import SPEC, Driven
from live.test_security import make_service
from live.test_store import Opener, Where, opened, where  # noqa: F401
from pydantic import TypeAdapter

from tapfinger.errors import TooMany
from tapfinger.live.coordinator.held_texts import MB, HeldTexts, memory_of
from tapfinger.live.coordinator.inputs import Cancel, Submit
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service.service import Service
from tapfinger.live.store import store as store_module

ORDINARY = TaskSpec(("python", "train.py", "--lr", "0.1", "--seed", "17"), "demo", env={"A": "1", "B": "2", "C": "3"})


def long(size: int, key: str | None = None) -> TaskSpec:
    return TaskSpec(("x", "y" * size), "demo", key=key)


@pytest.mark.parametrize(
    "argv",
    [
        ("a" * 100_000,),
        ("ü" * 100_000,),
        ("\N{SNOWMAN}" * 50_000,),
        ("\N{GRINNING FACE}" * 30_000,),
        ("\N{GRINNING FACE}" + "a" * 100_000,),
        tuple(f"{n:05d}" for n in range(10_000)),
        ("\x01" * 100_000,),
    ],
)
def test_what_is_counted_is_no_less_than_what_it_takes(argv: tuple[str, ...]) -> None:
    adapter = TypeAdapter(TaskSpec)
    text = adapter.dump_json(TaskSpec(argv, "demo"))
    tracemalloc.start()
    try:
        specs = [adapter.validate_json(text) for _ in range(10)]
        before = memory_of(specs[0])
        for spec in specs:
            adapter.dump_json(spec)  # as the store does: it may leave the encoded text beside the text
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 10 * 1.1 * before
    assert memory_of(specs[0]) == before, "always the same, or it would not come to nothing in the end"


def test_a_hundred_thousand_ordinary_tasks_of_one_owner_fit() -> None:
    assert 100_000 * memory_of(ORDINARY) <= 256 * MB / 2


def test_an_owner_may_have_half_and_all_together_the_whole() -> None:
    held = HeldTexts()
    many = [long(MB // 2)] * 4
    held.check_room(many[:1], "ann", 2)
    for spec in many[:1]:
        held.add(spec, "ann")
    with pytest.raises(TooMany, match=r"of ann's tasks .* may take 1 MiB .*max_waiting_mb.* they would take 1"):
        held.check_room(many[:1], "ann", 2)
    for owner in ("bob", "cid"):
        held.check_room(many[:1], owner, 2)
        held.add(many[0], owner)
    with pytest.raises(TooMany, match="of tasks that have not ended may take 2 MiB"):
        held.check_room(many[:1], "dan", 2)
    held.remove(many[0], "ann")
    held.check_room(many[:1], "dan", 2)
    for owner in ("bob", "cid"):
        held.remove(many[0], owner)
    assert (held.total, held.of("bob")) == (0, 0)


def test_the_machine_counts_what_has_not_ended_and_again_after_a_restart() -> None:
    driven = Driven()
    driven.tell(Submit([SPEC, SPEC], "ann"), 0.1)
    assert driven.machine.texts.of("ann") == 2 * memory_of(SPEC)
    driven.tell(Cancel(1), 0.2)
    assert driven.machine.texts.of("ann") == memory_of(SPEC)
    again = Driven([TaskRecord(2, SPEC, "ann", 0.0)], epoch=2)
    assert again.machine.texts.of("ann") == memory_of(SPEC)
    again.tell(Cancel(2), 0.3)
    assert again.machine.texts.total == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = make_service(tmp_path, "max_waiting_mb = 1\n")
    yield made
    made.close()


def test_submissions_beyond_are_refused_as_a_whole_until_some_have_ended(service: Service) -> None:
    one = long(120_000)

    async def people() -> None:
        first = await service.submit([long(120_000, "k"), one], "ann")
        with pytest.raises(TooMany, match="max_waiting_mb"):
            await service.submit([one] * 3, "ann")
        assert service.store.next_id() == first[-1] + 1, "all or none"
        await service.submit([one] * 4, "bob")
        await service.submit([one] * 2, "ann")
        with pytest.raises(TooMany, match="max_waiting_mb"):
            await service.submit([one], "ann")
        assert await service.submit([long(120_000, "k")], "ann") == first[:1], "one that is known takes nothing more"
        await service.cancel(first[1])
        await service.submit([one], "ann")

    asyncio.run(people())


def test_a_new_leader_reads_a_few_rows_at_a_time_and_keeps_equal_ones_once(
    opened: Opener,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    store.save([TaskRecord(n, long(n % 2), "ann", 0.0) for n in range(1, 121)], [])
    most = 0
    real = store._db.query

    def query(statement: str, values: Sequence[object] = ()) -> object:
        nonlocal most
        rows = real(statement, values)
        most = max(most, len(rows))
        return rows

    monkeypatch.setattr(store._db, "query", query)
    found = store.unended()
    assert [record.id for record in found] == list(range(1, 121))
    assert len({id(record.spec) for record in found}) == 2
    assert most == store_module.RESTORED
