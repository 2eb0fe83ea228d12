"""The dashboard: its files, and HTTP routes that only the dashboard uses."""

# No `from __future__ import annotations` here: FastAPI reads the annotations, and some name local variables.

import hashlib
import mimetypes
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import Field

from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.http.task_view import open_part, seen_by, sees, shown_events
from tapfinger.live.http.waiting import WaitingRoom, clusters_of
from tapfinger.live.insight.overview import Overview, label
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

TaskId = Annotated[int, Field(ge=1, le=2**62)]

#: The page may only run and show what this server sends, and no other page may embed it in a frame.
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Browsers ask again each time and get 304 while a file is unchanged, so they never mix files of two versions.
CACHING = {"Cache-Control": "no-cache"}


def add_dashboard(
    app: FastAPI,
    service: Service,
    workers: AnswerThreads,
    room: WaitingRoom,
    may: Callable[[str], Any],
    holder: Callable[..., Any],
) -> None:
    """Add the page at ``/``, its files, and its routes."""
    _files(app)
    _questions(app, service, workers, may, holder)
    _overview(app, service, workers, room, may)


def _files(app: FastAPI) -> None:
    found = {path.name: path.read_bytes() for path in files("tapfinger.live").joinpath("dashboard").iterdir()}
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in found.items()}

    def answer(name: str, request: Request) -> Response:
        if name not in found:
            raise HTTPException(404, f"the dashboard has no file {name!r}")
        headers = {**SECURITY, **CACHING, "ETag": tags[name]}
        # Proxies that compress on the way mark the tag as weak.
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if tags[name] in known:
            return Response(status_code=304, headers=headers)
        return Response(found[name], media_type=_media_type(name), headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return answer("index.html", request)

    @app.api_route("/dashboard/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        return answer(name, request)


def _media_type(name: str) -> str:
    # The machine's own tables are not used for scripts: some give types that browsers refuse to run.
    return "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"


def _questions(
    app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any], holder: Callable[..., Any]
) -> None:
    @app.get("/api/v1/me")
    async def me(token: Annotated[Token, Depends(holder)]) -> dict[str, Any]:
        """The holder of the token, and what it allows."""
        allowed = sorted(tokens.ROLES[token.role])
        return {"name": token.name, "role": token.role, "cluster": token.cluster, "may": allowed}

    @app.get("/api/v1/task-types", dependencies=[may("read")])
    async def task_types() -> dict[str, Any]:
        """What a submission can name: task types with their sizes, resources, clusters."""
        resources = service.site.resources
        return {
            "resources": [{"name": n, "unit": u} for n, u in zip(resources.names, resources.units, strict=True)],
            "task_types": [
                {"name": t.name, "minimum": resources.natural(t.minimum), "maximum": resources.natural(t.maximum)}
                for t in service.site.configured_types()
            ],
            "clusters": [cluster.name for cluster in service.site.clusters],
        }

    @app.get("/api/v1/labels", response_model=dict[str, Any])
    async def labels(
        request: Request,
        task: Annotated[list[TaskId], Query(min_length=1, max_length=100)],
        token: Annotated[Token, may("read")],
    ) -> Response:
        """Labels of these tasks, as shown to people; tasks that do not exist are left out."""

        def look() -> dict[str, Any]:
            # One after the other: some are long.
            records = (record for ident in dict.fromkeys(task) if (record := service.store.task(ident)) is not None)
            return {"labels": [{"task": r.id, "label": label(seen_by(token, r)), "type": r.spec.type} for r in records]}

        return await workers.answer(request, look)


def _overview(
    app: FastAPI, service: Service, workers: AnswerThreads, room: WaitingRoom, may: Callable[[str], Any]
) -> None:
    following = Overview(service.store, service.site.resources, open_part)

    @app.get("/api/v1/overview", response_model=None)
    async def overview(
        request: Request,
        token: Annotated[Token, may("read")],
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
        heard: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> Response:
        """The site at a glance: changes since event ``after`` of the history; waits for a change.

        ``heard``: the value from the last answer, to be notified of progress reports as well.
        """
        until = service.now() + wait
        while True:
            seen, left = service.changes.count, until - service.now()
            news = await workers.run(request, service.store.last_line) != after or heard not in (None, service.heard)
            if news or left <= 0:
                break
            await room.wait_for_news(request, left, seen)
        clusters = await clusters_of(request, service, workers)

        def look() -> dict[str, Any]:
            following.catch_up()
            now, running = service.now(), {"heard": service.heard, "progress": service.progress()}
            who = {"role": service.role, "leader": service.leader, "faults": dict(service.faults)}
            site = following.since(after, lambda owner: sees(token, owner))
            site["events"] = shown_events(site["events"], service.store, token)
            return {"now": now, **who, "clusters": clusters, **running, **site}

        return await workers.answer(request, look)
