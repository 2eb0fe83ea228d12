"""Pages of tasks: bounded in number, and in what is read and shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapfinger.core.contract import Phase
from tapfinger.live.http.answer_threads import as_json
from tapfinger.live.protocol.records import TaskRecord, length
from tapfinger.live.service.service import Service

#: Most tasks or events in one answer.
MOST = 1000
#: Bytes after which a page ends, however few tasks it has: some have long arguments.
LONG = 2 * 1024 * 1024


def page_of(
    service: Service,
    phases: Sequence[Phase],
    limit: int,
    before: int | None,
    show: Callable[[TaskRecord], dict[str, Any]],
) -> tuple[list[bytes], int | None]:
    """The latest tasks as JSON, newest first, and the ``before`` of the next page; None if there is none."""
    found: list[bytes] = []
    size = 0
    for record in service.tasks(phases, limit, before):
        found.append(as_json(show(record)))
        size += max(length(record.spec), len(found[-1]))  # what is not shown was read, too
        if size > LONG or len(found) == limit:
            return found, record.id
    return found, None


def with_tasks(tasks: Sequence[bytes], **more: Any) -> bytes:
    """A JSON object of these tasks and some other values."""
    return b'{"tasks":[' + b",".join(tasks) + b"]," + as_json(more)[1:]
