"""HTTP route for removing ended tasks before their time."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.service.service import Service


class Pruning(BaseModel):
    """What to remove."""

    model_config = ConfigDict(extra="forbid")

    #: Tasks that ended this many days ago or earlier.
    days: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
    #: Only count them.
    dry_run: bool = False


def add_retention(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    """Add the route."""

    @app.post("/api/v1/prune", dependencies=[may("operate")])
    async def prune(body: Pruning, request: Request) -> dict[str, int]:
        """Remove ended tasks with their events and output. Returns how many; they go one after another from now on."""
        before, tasks = await workers.run(request, partial(service.ended_before, body.days))
        if not body.dry_run:
            service.bridge.post(partial(service.retention.ask, before))
        request.state.detail = f"{tasks} tasks, {'counted only' if body.dry_run else 'removed'}"
        return {"tasks": tasks}
