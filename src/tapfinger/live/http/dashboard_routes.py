"""The dashboard: its files, and what it asks for that nobody else does."""

# Annotations are evaluated here, not kept as text: FastAPI reads them, and some name what only exists in a function.

import hashlib
import mimetypes
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from tapfinger.live.insight.overview import Overview, label
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

TaskId = Annotated[int, Field(ge=1, le=2**62)]

#: Only what this very server sends is run or shown, and no other page may hold ours in a frame.
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
#: Asked for again each time, and answered with 304 while it is the same: an update is never half seen.
CACHING = {"Cache-Control": "no-cache"}


def add_dashboard(app: FastAPI, service: Service, may: Callable[[str], Any], holder: Callable[..., Any]) -> None:
    """Add the page at ``/``, its files, and its questions."""
    _files(app)
    _questions(app, service, may, holder)


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
    # Not what the machine's tables say of scripts: some have types that browsers refuse to run.
    return "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"


def _questions(app: FastAPI, service: Service, may: Callable[[str], Any], holder: Callable[..., Any]) -> None:
    following = Overview(service.store, service.site.resources)

    @app.get("/api/v1/me")
    async def me(token: Annotated[Token, Depends(holder)]) -> dict[str, Any]:
        """Whose token this is, and what it allows."""
        allowed = sorted(tokens.ROLES[token.role])
        return {"name": token.name, "role": token.role, "cluster": token.cluster, "may": allowed}

    @app.get("/api/v1/task-types", dependencies=[may("read")])
    async def task_types() -> dict[str, Any]:
        """What tasks can be submitted: task types with their sizes, resources, clusters."""
        resources = service.site.resources
        return {
            "resources": [{"name": n, "unit": u} for n, u in zip(resources.names, resources.units, strict=True)],
            "task_types": [
                {"name": t.name, "minimum": resources.natural(t.minimum), "maximum": resources.natural(t.maximum)}
                for t in service.site.configured_types()
            ],
            "clusters": [cluster.name for cluster in service.site.clusters],
        }

    @app.get("/api/v1/labels", dependencies=[may("read")])
    async def labels(task: Annotated[list[TaskId], Query(min_length=1, max_length=100)]) -> dict[str, Any]:
        """What people call these tasks; those that do not exist are left out."""
        records = [record for ident in task if (record := service.store.task(ident)) is not None]
        return {"labels": [{"task": r.id, "label": label(r), "type": r.spec.type} for r in records]}

    @app.get("/api/v1/overview", dependencies=[may("read")])
    async def overview(
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
        heard: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> JSONResponse:
        """The site at a glance, as it has changed since line ``after`` of the history; waits for a change.

        ``heard``: as in the answer before, to be told as well when running tasks report their progress.
        """
        until = service.now() + wait
        while (
            service.store.last_line() == after
            and heard in (None, service.heard)
            and (left := until - service.now()) > 0
        ):
            await service.change(left)
        await following.catch_up()
        now, running = service.now(), {"heard": service.heard, "progress": service.progress()}
        who = {"role": service.role, "leader": service.leader}
        plain = {"now": now, **who, "clusters": service.clusters(), **running, **following.since(after)}
        return JSONResponse(plain)  # at once: the usual way would look at every number of it first
