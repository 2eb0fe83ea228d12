"""Who may see what of a task, and tasks and events as the HTTP interface shows them.

Arguments, environment, output and everything that may quote them are for the task's owner and for operators. Others
see that there is such a task, its program, its size and how it goes. Every answer about tasks is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from fastapi import HTTPException

from tapfinger.core.contract import Phase
from tapfinger.core.model import ResourceTypes
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Store, Token

#: Fields of events with text from an agent, which may quote a task's arguments, environment or output.
QUOTES = ("reason", "text", "words")


def sees(token: Token, owner: str) -> bool:
    """Whether the token's holder may see everything of this owner's tasks."""
    return token.name == owner or "operate" in tokens.ROLES[token.role]


def check_sees(token: Token, record: TaskRecord, what: str) -> None:
    """Answer 403 unless the token's holder may see everything of the task. ``what``: what they have asked for."""
    if not sees(token, record.owner):
        raise HTTPException(403, f"{what} of task {record.id} is for {record.owner}, who owns it, and for operators")


def open_part(record: TaskRecord) -> TaskRecord:
    """The part of a task that everyone may see: without what may quote its arguments, environment or output."""
    spec = replace(record.spec, argv=record.spec.argv[:1], env={}, secrets=(), cwd=None, key=None)
    return replace(record, spec=spec, reason="", warnings=(), results="")


def seen_by(token: Token, record: TaskRecord) -> TaskRecord:
    """The task as the token's holder may see it."""
    return record if sees(token, record.owner) else open_part(record)


def shown(record: TaskRecord, resources: ResourceTypes, token: Token, now: float) -> dict[str, Any]:
    """A task for the token's holder: natural amounts by resource, and ``redacted`` where something is left out."""
    plain = asdict(seen_by(token, record))
    plain["phase"] = record.phase.value
    del plain["lost"]  # for the coordinator alone
    plain["rests"] = max(0.0, record.not_before - now) if record.phase is Phase.QUEUED else 0.0
    for kind, size in (("allocation", record.allocation), ("wanted", record.wanted)):
        if size is not None:
            plain[kind] = {n: a * u for n, a, u in zip(resources.names, size, resources.units, strict=True)}
    return {**plain, "redacted": not sees(token, record.owner)}


def shown_events(lines: Sequence[tuple[int, LiveEvent]], store: Store, token: Token) -> list[dict[str, Any]]:
    """Events with their numbers for the token's holder."""
    foreign: set[int] = set()
    if "operate" not in tokens.ROLES[token.role]:
        quoted = {line.task for _, line in lines if line.task is not None and _quotes(line)}
        owners = store.owners(quoted)
        foreign = {task for task in quoted if owners.get(task) != token.name}
    return [{"seq": seq, **words.shown(_without_quotes(line) if line.task in foreign else line)} for seq, line in lines]


def history_of(record: TaskRecord, lines: Iterable[tuple[int, LiveEvent]], token: Token) -> list[dict[str, Any]]:
    """The events of one task for the token's holder."""
    open_to = sees(token, record.owner)
    return [words.shown(line if open_to else _without_quotes(line)) for _, line in lines]


def _quotes(line: LiveEvent) -> dict[str, Any]:
    """The fields of an event to leave out for others, each with an empty text."""
    return {name: "" for name in QUOTES if getattr(line, name, "")}


def _without_quotes(line: LiveEvent) -> LiveEvent:
    return replace(line, **_quotes(line))
