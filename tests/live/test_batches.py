"""Many tasks from a file: what is sent together, what is refused, and what is said when not all were taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tapfinger.commands import batches as module
from tapfinger.commands.batches import batches, submit_all
from tapfinger.errors import ConfigError, CoordinatorError, TooMany
from tapfinger.live.protocol.records import TaskSpec


def line(name: str, **more: object) -> str:
    return json.dumps({"argv": ["echo", name], "type": "demo", **more})


class GuestRoom:
    """Takes so many tasks, and refuses then."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[str] = []
        self.sizes: list[int] = []

    def submit(self, *specs: TaskSpec) -> list[int]:
        if len(self.taken) + len(specs) > self.room:
            raise TooMany("no room")
        self.sizes.append(len(specs))
        self.taken += [spec.argv[1] for spec in specs]
        return [*range(len(self.taken) - len(specs) + 1, len(self.taken) + 1)]


def sent(room: GuestRoom, lines: list[str]) -> list[int]:
    client: Any = room
    return list(submit_all(client, lines, "tasks.jsonl"))


def test_thousands_go_in_parts_and_in_order() -> None:
    names = [f"t{n}" for n in range(2500)]
    room = GuestRoom(10_000)
    assert sent(room, [line(name) for name in names]) == [*range(1, 2501)]
    assert (room.taken, room.sizes) == (names, [1000, 1000, 500])


def test_long_ones_go_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TEXT", 300)
    found = list(batches([line("a"), "", line("b" * 200), line("c"), line("d" * 400)], "x"))
    assert [(first, [spec.argv[1][0] for spec in specs]) for first, specs in found] == [
        (1, ["a", "b"]),
        (4, ["c"]),
        (5, ["d"]),
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "tasks.jsonl, line 2 is no JSON"),
        ("[1]", "tasks.jsonl, line 2 must be an object"),
        (line("x", retrys=1), "tasks.jsonl, line 2: a task has no field 'retrys'; did you mean 'retries'?"),
        (line("x", cwd="here"), "tasks.jsonl, line 2: cwd"),
        ('{"argv": "ls -l", "type": "demo"}', "tasks.jsonl, line 2: argv"),
    ],
)
def test_a_fault_is_found_before_anything_is_sent(bad: str, message: str) -> None:
    room = GuestRoom(10)
    with pytest.raises(ConfigError) as fault:
        sent(room, [line("a"), bad])
    assert message in str(fault.value)
    assert room.taken == []
    with pytest.raises(CoordinatorError, match=r"tasks.jsonl holds no tasks"):
        sent(room, ["", "  "])


def test_where_it_ended_is_said_when_not_all_were_taken() -> None:
    room, got = GuestRoom(1500), []
    client: Any = room
    with pytest.raises(TooMany, match="from line 1001 on: no room; the 1000 tasks before it were taken"):
        got.extend(submit_all(client, [line(str(n)) for n in range(2500)], "tasks.jsonl"))
    with pytest.raises(TooMany, match="from line 1 on: no room; none was taken"):
        sent(GuestRoom(0), [line("a")])
