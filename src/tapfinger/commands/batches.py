"""Submits many tasks from a file with one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapfinger.live.http.client import Client
    from tapfinger.live.protocol.records import TaskSpec

#: Most tasks and characters in one request, well below what coordinators accept.
MOST_TASKS, MOST_TEXT = 1000, 4 << 20


def batches(lines: Iterable[str], source: str) -> Iterator[tuple[int, list[TaskSpec]]]:
    """Tasks to send together, with the line number of the first. ConfigError names the line of a fault."""
    batch: list[TaskSpec] = []
    first, text = 1, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if batch and (len(batch) == MOST_TASKS or text + len(line) > MOST_TEXT):
            yield first, batch
            batch, text = [], 0
        if not batch:
            first = number
        batch.append(_spec(line, f"{source}, line {number}"))
        text += len(line)
    if batch:
        yield first, batch


def _spec(line: str, where: str) -> TaskSpec:
    import json

    from tapfinger.errors import ConfigError
    from tapfinger.live.http.client import make_spec

    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must be an object, such as {{'argv': ['python', 'train.py'], 'type': 'demo'}}")
    try:
        return make_spec(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def submit_all(client: Client, lines: list[str], source: str) -> Iterator[int]:
    """Submit the tasks, and yield their numbers as they are accepted. The whole file is checked before that."""
    from tapfinger.errors import CoordinatorError, TapfingerError

    ready = list(batches(lines, source))
    if not ready:
        raise CoordinatorError(f"{source} holds no tasks")
    taken = 0
    for first, batch in ready:
        try:
            yield from client.submit(*batch)
        except TapfingerError as error:
            before = f"the {taken} tasks before it were taken" if taken else "none was taken"
            raise type(error)(f"{source}, from line {first} on: {error}; {before}") from None
        taken += len(batch)
