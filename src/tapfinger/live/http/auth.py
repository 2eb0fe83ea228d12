"""Middleware that identifies the holder of a request's token, limits its rate, and writes the audit log."""

from __future__ import annotations

import math
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapfinger.errors import StoreFailed, StoreUnavailable
from tapfinger.live.http.limits import Buckets
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

#: Refused logins per second and address that are let through to the audit log; further ones are answered with 429.
REFUSALS = 5.0

#: Methods of requests that change nothing.
READING = ("GET", "HEAD", "OPTIONS")

#: What everyone may ask, also while the store cannot be reached.
HEALTH = "/api/v1/health"

NO_TOKEN = "a valid token is needed: Authorization: Bearer ..."


class Authentication:
    """Stores the token's holder in the request's state as ``holder``; None if there is no valid token.

    A handler may set ``detail`` in that state for the audit log.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Wrap ``app``."""
        self._app = app
        self._service = service
        rate = service.config.max_requests
        self._requests = Buckets(rate, 2.0 * rate, service.now)
        self._refusals = Buckets(REFUSALS, 2.0 * REFUSALS, service.now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 429."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization", "")
        source = source_of(scope)
        try:
            holder = known(self._service, given)
        except (StoreUnavailable, StoreFailed) as error:  # who asks is not known, so nothing was done
            if scope["path"] != HEALTH:
                await JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})(scope, receive, send)
                return
            holder, given = None, ""
        state: dict[str, Any] = scope.setdefault("state", {})
        state["holder"] = holder
        refused = given != "" and holder is None
        wait = self._requests.take(f"token {holder.name}" if holder is not None else f"address {source}")
        if wait or (refused and (wait := self._refusals.take(source))):
            body = {"detail": f"too many requests; try again in {wait:.2g} s"}
            await JSONResponse(body, 429, {"Retry-After": str(math.ceil(wait))})(scope, receive, send)
            return
        app = self._app
        if holder is None and scope["method"] not in READING:
            app = JSONResponse({"detail": NO_TOKEN}, 401)  # nobody's body is read
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            if refused or status == 403 or (holder is not None and scope["method"] not in READING):
                who = holder.name if holder is not None else None
                what = f"{scope['method']} {scope['path']}"
                detail = str(state.get("detail", "")) or ("no valid token" if refused else "")
                self._service.kept.audit.note(self._service.now(), who, source, what, status, detail)


def known(service: Service, authorization: str) -> Token | None:
    """The holder of the token in a header; None if the token is not valid now."""
    kind, _, token = authorization.partition(" ")
    return tokens.holder(service.store, token, service.now()) if kind.lower() == "bearer" and token else None


def source_of(scope: Scope) -> str:
    """The address from which a request comes."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
