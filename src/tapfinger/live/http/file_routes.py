"""HTTP routes for files that tasks have left on their cluster, for their owner and operators."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from pydantic import Field

from tapfinger.errors import TooMany
from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.http.standing import check_standing
from tapfinger.live.http.task_view import check_sees
from tapfinger.live.protocol.wire import FileAnswer
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

TaskId = Annotated[int, Field(ge=1, le=2**62)]
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Which attempt; without it, the latest.")]
FilePath = Annotated[str, Query(max_length=4096, pattern=r"^[^\x00]*$", description="Path below the task's directory.")]


def add_files(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    """Add the routes."""

    async def place(request: Request, task: int, attempt: int | None, token: Token) -> tuple[int, str]:
        record = await workers.run(request, partial(service.task, task))
        check_sees(token, record, "a file")
        return await workers.run(request, partial(service.place_of_files, record, attempt))

    async def ask(request: Request, asked: Callable[[], Awaitable[FileAnswer]]) -> FileAnswer:
        try:
            answer = await service.bridge.run(asked)
        except TooMany as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        await check_standing(request)  # the agent may have taken its time
        return answer

    @app.get("/api/v1/tasks/{task}/files")
    async def files(
        request: Request,
        task: TaskId,
        token: Annotated[Token, may("read")],
        path: FilePath = "",
        attempt: Attempt = None,
        after: Annotated[str, Query(max_length=1024)] = "",
    ) -> dict[str, Any]:
        """A directory that the task has left, from the name after ``after`` on; ``more``: it has further entries."""
        where = await place(request, task, attempt, token)
        answer = await ask(
            request, partial(service.files_of, task, where, path, listed=True, after=after, asker=token.name)
        )
        return {"attempt": where[0], "files": [asdict(entry) for entry in answer.entries], "more": answer.more}

    @app.get(
        "/api/v1/tasks/{task}/files/content",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def content(
        request: Request,
        task: TaskId,
        token: Annotated[Token, may("read")],
        path: FilePath,
        attempt: Attempt = None,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    ) -> Response:
        """A piece of a file from ``offset`` on; empty at its end. Headers give the size of the whole file, and when it
        was changed last."""
        where = await place(request, task, attempt, token)
        answer = await ask(request, partial(service.files_of, task, where, path, offset=offset, asker=token.name))
        headers = {"X-Attempt": str(where[0]), "X-Size": str(answer.size), "X-Modified": repr(answer.modified)}
        data = answer.data.encode("latin-1")
        # A file of a task must never be shown as a page of this server.
        headers |= {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
        return Response(data, media_type="application/octet-stream", headers=headers)
