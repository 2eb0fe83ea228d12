"""HTTP routes for files that tasks have left on their cluster, for their owner and operators."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Response
from pydantic import Field

from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

TaskId = Annotated[int, Field(ge=1, le=2**62)]
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Which attempt; without it, the latest.")]
FilePath = Annotated[str, Query(max_length=4096, pattern=r"^[^\x00]*$", description="Path below the task's directory.")]


def add_files(app: FastAPI, service: Service, may: Callable[[str], Any]) -> None:
    """Add the routes."""

    def check(task: int, token: Token) -> None:
        owner = service.task(task).owner
        if token.role != "operator" and token.name != owner:
            raise HTTPException(403, f"task {task} is {owner}'s; only they or an operator may have its files")

    @app.get("/api/v1/tasks/{task}/files")
    async def files(
        task: TaskId,
        token: Annotated[Token, may("read")],
        path: FilePath = "",
        attempt: Attempt = None,
        after: Annotated[str, Query(max_length=1024)] = "",
    ) -> dict[str, Any]:
        """A directory that the task has left, from the name after ``after`` on; ``more``: it has further entries."""
        check(task, token)
        which, answer = await service.files_of(task, attempt, path, listed=True, after=after)
        return {"attempt": which, "files": [asdict(entry) for entry in answer.entries], "more": answer.more}

    @app.get(
        "/api/v1/tasks/{task}/files/content",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def content(
        task: TaskId,
        token: Annotated[Token, may("read")],
        path: FilePath,
        attempt: Attempt = None,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    ) -> Response:
        """A piece of a file from ``offset`` on; empty at its end. Headers give the size of the whole file, and when it
        was changed last."""
        check(task, token)
        which, answer = await service.files_of(task, attempt, path, offset=offset)
        headers = {"X-Attempt": str(which), "X-Size": str(answer.size), "X-Modified": repr(answer.modified)}
        data = answer.data.encode("latin-1")
        # A file of a task must never be shown as a page of this server.
        headers |= {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
        return Response(data, media_type="application/octet-stream", headers=headers)
