"""Middleware at the door of the interface: who asks, how often, how much, and the audit log.

Nothing of a body is read before its sender is known, and no more than its sender may send.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapfinger.errors import StoreFailed, StoreUnavailable
from tapfinger.live.http.bodies import SMALL, BodyLimits, in_pieces
from tapfinger.live.http.known_addresses import origin_of
from tapfinger.live.http.limits import Buckets
from tapfinger.live.http.standing import Standing
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

#: Refused logins per second and address that are answered as such; further ones are answered with 429.
REFUSALS = 5.0
#: Seconds of work per second that requests of one token may cause, and seconds that it may save up.
WORK, WORK_SAVED = 0.5, 5.0

#: Methods of requests that change nothing.
READING = ("GET", "HEAD", "OPTIONS")
#: The path of submissions.
TASKS = "/api/v1/tasks"
#: The path that must always answer.
HEALTH = "/api/v1/health"

NO_TOKEN = "a valid token is needed: Authorization: Bearer ..."


class Authentication:
    """Stores the token's holder in the request's state as ``holder``; None if there is no valid token.

    There, too, is ``standing``, which tells later whether the token is still valid; only if there is one.
    A handler may set in that state: ``detail`` for the audit log, ``work`` (seconds that the request has cost), and
    ``release``, which is called when the answer has been sent.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Wrap ``app``."""
        self._app = app
        self._service = service
        rate = service.config.max_requests
        self._requests = Buckets(rate, 2.0 * rate, service.now)
        self._refusals = Buckets(REFUSALS, 2.0 * REFUSALS, service.now)
        self._work = Buckets(WORK, WORK_SAVED, service.now)
        self._bodies = BodyLimits(service.config.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given, source = headers.get("authorization", ""), source_of(scope)
        try:
            holder = await lookup(self._service, given) if scope["path"] != HEALTH else None
        except (StoreFailed, StoreUnavailable) as error:  # who asks is not known, so nothing was done
            await JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        state["holder"] = holder
        if holder is not None:
            state["standing"] = Standing(partial(lookup, self._service, given), holder)
        refused = given != "" and holder is None and scope["path"] != HEALTH
        name = f"token {holder.name}" if holder is not None else f"address {origin_of(source)}"
        wait = (
            self._requests.take(name)
            or self._work.take(name, 0.0)
            or (refused and self._refusals.take(origin_of(source)))
        )
        if wait:
            body = {"detail": f"too many requests; try again in {wait:.2g} s"}
            await JSONResponse(body, 429, {"Retry-After": str(math.ceil(wait))})(scope, receive, send)
            return
        app: ASGIApp | None = None
        reserved = 0
        if holder is None and scope["method"] not in READING:
            app = JSONResponse({"detail": NO_TOKEN}, 401, {"Connection": "close"})  # nobody's body is read
        else:
            app, reserved = self._bodies.admit(name, scope["method"], headers, self._longest(scope, holder))
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if app is not None:
                await app(scope, receive, watched)
            else:
                come = state["standing"].check if holder is not None else None
                await self._app(scope, self._bodies.timed(headers, receive, come), in_pieces(watched))
        finally:
            self._bodies.done(name, reserved)
            if (release := state.pop("release", None)) is not None:
                release()
            self._work.spend(name, float(state.get("work", 0.0)))
            if refused or status == 403 or (holder is not None and scope["method"] not in READING):
                who = holder.name if holder is not None else None
                what = f"{scope['method']} {scope['path']}"
                detail = str(state.get("detail", "")) or ("no valid token" if refused else "")
                whole = holder is not None and holder.role == "operator"
                self._service.kept.audit.note(self._service.now(), who, source, what, status, detail, whole)

    def _longest(self, scope: Scope, holder: Token | None) -> int:
        """Bytes of the longest body that the request may have: only submissions are long."""
        submits = holder is not None and "submit" in tokens.ROLES[holder.role] and scope["path"] == TASKS
        return self._service.config.max_body if submits else min(SMALL, self._service.config.max_body)


async def lookup(service: Service, authorization: str) -> Token | None:
    """The holder of the token in a header; None if it is not valid now. A shared store is asked in a thread."""
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or not token:
        return None
    if not service.store.shared:
        return tokens.holder(service.store, token, service.now())
    return await asyncio.to_thread(tokens.holder, service.store, token, service.now())


def source_of(scope: Scope) -> str:
    """The address from which a request comes."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
