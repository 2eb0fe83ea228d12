"""Submissions: what they look like, and how long ones are read without keeping an event loop busy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.http.secret_routes import SecretValue
from tapfinger.live.protocol.records import MAX_SECRETS, TaskSpec, Variable, unknown_field
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

#: Most tasks in one submission.
MOST_SUBMITTED = 10_000
#: Bytes of a body beyond which it is read in a thread; of a shorter one, the way there would take longer.
LONG = 64 * 1024
#: Tasks and values in them that are checked at once, about: Python's other threads stand still meanwhile.
STEP = 500
#: Most values in a submission, about: commas and brackets are counted before it is read.
MOST_PARTS = 1_000_000
#: Most values in lists and tables of one task; more could never be within its other limits.
MOST_ENTRIES = 100_000
#: Most faults of a part that are told apart.
MOST_FAULTS = 1000

Accept = Callable[[Request, "Submission", Token], Coroutine[Any, Any, Response]]

#: The place of a task in the message about an unknown field.
_PLACE = re.compile(r"(?<=^Value error, )(\d+): ")


class Submission(BaseModel):
    """Tasks to run; either all are accepted or none."""

    model_config = ConfigDict(extra="forbid")

    # The first fault ends the check: a long list of wrong tasks would make a longer list of faults.
    tasks: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST_SUBMITTED, fail_fast=True)]
    #: Values of secrets that these tasks name, for them only; others are the owner's.
    secrets: Annotated[dict[Variable, SecretValue], Field(max_length=MAX_SECRETS)] = Field(default_factory=dict)

    @field_validator("tasks", mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """Refuse unknown fields: silently ignoring a misspelt limit would be worse."""
        # A longer list is refused anyway.
        few = given if isinstance(given, list) and len(given) <= MOST_SUBMITTED else ()
        for place, task in enumerate(few):
            if isinstance(task, dict) and (fault := unknown_field(task)):
                raise ValueError(f"{place}: {fault}")
        return given


def checked(body: bytes) -> Any:
    """The JSON of a long body, with its tasks already checked; raises RequestValidationError if one is wrong."""
    parts = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if parts > MOST_PARTS:
        said = f"a submission may have about {MOST_PARTS:,} values, and this one has {parts:,}; submit fewer at a time"
        raise RequestValidationError([{"type": "too_long", "loc": ("body",), "msg": said}])
    given = json.loads(body)
    tasks = given.get("tasks") if isinstance(given, dict) else None
    if not isinstance(tasks, list) or not 0 < len(tasks) <= MOST_SUBMITTED:
        return given
    found: list[TaskSpec] = []
    first = 0
    while first < len(tasks):
        last, size = first, 0
        while last < len(tasks) and size < STEP:
            entries = _entries(tasks[last])
            if entries > MOST_ENTRIES:
                said = f"a task may have {MOST_ENTRIES:,} values in its lists and tables, and this one has {entries:,}"
                raise RequestValidationError([{"type": "too_long", "loc": ("body", "tasks", last), "msg": said}])
            size, last = size + 1 + entries, last + 1
        try:
            found += Submission(tasks=tasks[first:last]).tasks
        except ValidationError as error:
            raise RequestValidationError(_faults(error, first)) from None
        first = last
    return {**given, "tasks": found}


def _entries(task: Any) -> int:
    """Number of values in the lists and tables of a task."""
    return sum(len(value) for value in task.values() if isinstance(value, list | dict)) if isinstance(task, dict) else 0


def _faults(error: ValidationError, first: int) -> list[dict[str, Any]]:
    """The faults as of a whole submission, of which the checked part begins with the task at ``first``."""
    if error.error_count() > MOST_FAULTS:
        said = f"task {first} and those behind it have {error.error_count():,} faults"
        return [{"type": "too_many_faults", "loc": ("body", "tasks"), "msg": said}]
    found = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = [part + first if n == 1 and isinstance(part, int) else part for n, part in enumerate(fault["loc"])]
        text = (
            _PLACE.sub(lambda number: f"{int(number[1]) + first}: ", fault["msg"]) if len(place) == 1 else fault["msg"]
        )
        found.append({"type": fault["type"], "loc": ("body", *place), "msg": text})
    return found


def parsing_in(workers: AnswerThreads, accept: Accept) -> type[APIRoute]:
    """A kind of route that reads long bodies in a thread of ``workers``.

    ``accept`` takes submissions in which nothing is wrong. All others go the long way, on which faults are explained.
    """

    class Parsed(Request):
        async def json(self) -> Any:
            if not hasattr(self, "_json"):
                body = await self.body()
                if len(body) <= LONG:
                    self._json = json.loads(body)
                else:
                    self._json = await workers.parse(self, lambda: checked(body))
            return self._json

    class ParsingRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def parse_and_handle(request: Request) -> Response:
                parsed, holder = Parsed(request.scope, request.receive), request.state.holder
                if len(await parsed.body()) > LONG:
                    with suppress(ValueError, RecursionError):  # no JSON: that is told as for short ones
                        await parsed.json()
                elif holder is not None and "submit" in tokens.ROLES[holder.role]:
                    with suppress(ValidationError):
                        return await accept(parsed, Submission.model_validate_json(await parsed.body()), holder)
                return await handle(parsed)

            return parse_and_handle

    return ParsingRoute
