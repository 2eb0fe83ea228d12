"""HTTP routes for the believed speed of task types."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from tapfinger.errors import ConfigError, NotFound
from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.http.waiting import asked
from tapfinger.live.insight.profile_views import cells, described
from tapfinger.live.protocol.records import Name
from tapfinger.live.service.service import Service

#: Most sizes in one answer; on sites with kinds of hardware, each counts once for every kind.
MOST_CELLS = 20_000


def add_profiles(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    """Add routes for the believed speed of each task type, and the runs behind it."""
    site = service.site

    @app.get("/api/v1/profiles", dependencies=[may("read")], response_model=dict[str, Any])
    async def profiles(request: Request) -> Response:
        """Every task type: runs seen, seconds at its usual size as believed and as configured, doubt, drift."""
        found = await asked(request, service, lambda: dict(service.insight.known()))

        def look() -> dict[str, Any]:
            rows = [described(known, site) for known in found.values()]
            return {"learn": site.learn, "slot_seconds": site.slot_seconds, "types": rows}

        return await workers.answer(request, look)

    @app.get("/api/v1/profiles/{name:path}", dependencies=[may("read")], response_model=dict[str, Any])
    async def profile(request: Request, name: Name, every: Annotated[bool, Query(alias="all")] = False) -> Response:
        """One task type, with the sizes seen so far or with ``all`` sizes."""
        found = await asked(request, service, lambda: dict(service.insight.known()))
        if name not in found:
            raise NotFound(f"there is no task type {name!r}; there are {', '.join(found)}")
        known = found[name]
        count = len(known.configured.profile.rates) * max(1, len(known.configured.profiles))
        if every and count > MOST_CELLS:
            raise ConfigError(
                f"{name} has {count:,} sizes, an answer at most {MOST_CELLS:,}; ask for those that were seen"
            )
        return await workers.answer(request, lambda: {**described(known, site), "cells": cells(known, site, every)})
