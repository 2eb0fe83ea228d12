"""Submissions: what they look like, and how long ones are read without keeping an event loop busy."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tapfinger.live.http.secret_routes import SecretValue
from tapfinger.live.http.workers import Workers
from tapfinger.live.protocol.records import MAX_SECRETS, TaskSpec, Variable, unknown_field

#: Most tasks in one submission.
MOST_SUBMITTED = 10_000
#: Bytes of a body beyond which it is read in a thread; of a shorter one, the way there would take longer.
LONG = 64 * 1024
#: Tasks that are checked at once: Python's other threads stand still meanwhile.
STEP = 100


class Submission(BaseModel):
    """Tasks to run; either all are accepted or none."""

    model_config = ConfigDict(extra="forbid")

    # The first fault ends the check: a long list of wrong tasks would make a longer list of faults.
    tasks: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST_SUBMITTED, fail_fast=True)]
    #: Values of secrets that these tasks name, for them only; others are the owner's.
    secrets: Annotated[dict[Variable, SecretValue], Field(max_length=MAX_SECRETS)] = {}

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
    """The JSON of a body. Its tasks are checked already if all are right; faults are left to be found once more."""
    given = json.loads(body)
    tasks = given.get("tasks") if isinstance(given, dict) else None
    if not isinstance(tasks, list) or not 0 < len(tasks) <= MOST_SUBMITTED:
        return given
    found: list[TaskSpec] = []
    try:
        for first in range(0, len(tasks), STEP):
            found += Submission(tasks=tasks[first : first + STEP]).tasks
    except ValidationError:
        return given
    return {**given, "tasks": found}


def parsing_in(workers: Workers) -> type[APIRoute]:
    """A kind of route that reads long bodies in a thread of ``workers``."""

    class Parsed(Request):
        async def json(self) -> Any:
            if not hasattr(self, "_json"):
                body = await self.body()
                if len(body) <= LONG:
                    self._json = json.loads(body)
                else:
                    self._json = await workers.run(self, lambda: checked(body))
            return self._json

    class ParsingRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def parse_and_handle(request: Request) -> Response:
                return await handle(Parsed(request.scope, request.receive))

            return parse_and_handle

    return ParsingRoute
