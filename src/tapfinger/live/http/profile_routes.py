"""HTTP routes for the believed speed of task types."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query

from tapfinger.errors import ConfigError, NotFound
from tapfinger.live.insight.profile_views import cells, described
from tapfinger.live.protocol.records import Name
from tapfinger.live.service.service import Service

#: Most sizes in one answer.
MOST_CELLS = 20_000


def add_profiles(app: FastAPI, service: Service, may: Callable[[str], Any]) -> None:
    """Add routes for the believed speed of each task type, and the runs behind it."""
    site = service.site

    @app.get("/api/v1/profiles", dependencies=[may("read")])
    async def profiles() -> dict[str, Any]:
        """Every task type: runs seen, seconds at its usual size as believed and as configured, doubt, drift."""
        found = service.insight.known()
        rows = [described(known, site) for known in found.values()]
        return {"learn": site.learn, "slot_seconds": site.slot_seconds, "types": rows}

    @app.get("/api/v1/profiles/{name:path}", dependencies=[may("read")])
    async def profile(name: Name, every: Annotated[bool, Query(alias="all")] = False) -> dict[str, Any]:
        """One task type, with the sizes seen so far or with ``all`` sizes."""
        found = service.insight.known()
        if name not in found:
            raise NotFound(f"there is no task type {name!r}; there are {', '.join(found)}")
        known = found[name]
        count = len(known.configured.profile.rates)
        if every and count > MOST_CELLS:
            raise ConfigError(
                f"{name} has {count:,} sizes, an answer at most {MOST_CELLS:,}; ask for those that were seen"
            )
        return {**described(known, site), "cells": cells(known, site, every)}
