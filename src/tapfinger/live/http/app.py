"""The coordinator's HTTP interface: REST for people and programs, a WebSocket for agents."""

# No `from __future__ import annotations` here: FastAPI reads the annotations, and some name local variables.

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tapfinger import __version__
from tapfinger.core.contract import Phase
from tapfinger.errors import (
    AgentRefused,
    CoordinatorError,
    NotFound,
    NotLeading,
    StoreUnavailable,
    TapfingerError,
    TooMany,
)
from tapfinger.live.http.auth import NO_TOKEN, REFUSALS, Authentication, known, source_of
from tapfinger.live.http.dashboard_routes import add_dashboard
from tapfinger.live.http.insight_routes import add_insight
from tapfinger.live.http.limits import Buckets
from tapfinger.live.http.problems import PROBLEMS
from tapfinger.live.http.profile_routes import add_profiles
from tapfinger.live.http.secret_routes import SecretValue, add_secrets
from tapfinger.live.http.task_view import check_sees, history_of, shown, shown_events
from tapfinger.live.protocol.messages import Report
from tapfinger.live.protocol.records import ENDED, MAX_SECRETS, Name, TaskSpec, Variable, unknown_field
from tapfinger.live.protocol.wire import LogChunk, Message, Refusal, decode, encode
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

logger = logging.getLogger(__name__)

#: Most tasks in one submission, and most events in one answer.
MOST = 10_000
#: Most bytes of output in one answer.
PIECE = 1024 * 1024
#: Most faults of a request that are listed in the answer.
FAULTS = 100

TaskId = Annotated[int, Field(ge=1, le=2**62)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Submission(_Body):
    """Tasks to run; either all are accepted or none."""

    # The first fault ends the check: a long list of wrong tasks would make a longer list of faults.
    tasks: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST, fail_fast=True)]
    #: Values of secrets that these tasks name, for them only; others are the owner's.
    secrets: Annotated[dict[Variable, SecretValue], Field(max_length=MAX_SECRETS)] = {}

    @field_validator("tasks", mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """Refuse unknown fields: silently ignoring a misspelt limit would be worse."""
        few = given if isinstance(given, list) and len(given) <= MOST else ()  # a longer list is refused anyway
        for place, task in enumerate(few):
            if isinstance(task, dict) and (fault := unknown_field(task)):
                raise ValueError(f"{place}: {fault}")
        return given


class NewToken(_Body):
    """A token to make: its name, role and cluster."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")]
    role: str
    cluster: Name | None = None
    #: Seconds until the token expires; None for never.
    lasts: Annotated[float, Field(gt=0.0, le=1e10)] | None = None


def make_app(
    service: Service, on_ready: Callable[[], None] = lambda: None, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    """The application. It runs the service's loop, and calls ``on_failure`` if that loop ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.create_task(service.run())
        loop.add_done_callback(lambda ended: None if ended.cancelled() else on_failure())
        on_ready()
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        service.close()

    app = FastAPI(title="TapFinger", version=__version__, lifespan=lifespan, responses=PROBLEMS)
    app.add_middleware(Authentication, service=service)
    app.add_middleware(LimitBodies, most=service.config.max_body)
    _explain_errors(app)
    bearer = HTTPBearer(auto_error=False)

    async def holder(
        request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Token:
        token: Token | None = request.state.holder
        if token is None:
            raise HTTPException(401, NO_TOKEN)
        return token

    def may(what: str) -> Any:
        async def check(token: Annotated[Token, Depends(holder)]) -> Token:
            if what not in tokens.ROLES[token.role]:
                raise HTTPException(403, f"the role {token.role!r} may not {what}")
            return token

        return Depends(check)

    _tasks(app, service, may)
    _site(app, service, may)
    _agents(app, service)
    add_insight(app, service, may)
    add_profiles(app, service, may)
    add_secrets(app, service, may)
    add_dashboard(app, service, may, holder)
    return app


def _tasks(app: FastAPI, service: Service, may: Callable[[str], Any]) -> None:
    @app.post("/api/v1/tasks", status_code=201)
    async def submit(
        body: Submission, token: Annotated[Token, may("submit")], request: Request
    ) -> dict[str, list[int]]:
        ids = await service.submit(body.tasks, token.name, body.secrets)
        request.state.detail = f"{len(ids)} tasks, from {ids[0]} to {ids[-1]}"
        return {"ids": ids}

    @app.get("/api/v1/tasks")
    async def listed(
        token: Annotated[Token, may("read")],
        phase: Annotated[list[Phase] | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    ) -> dict[str, Any]:
        found = service.tasks(phase or [], limit, before)
        tasks = [shown(record, service.site.resources, token) for record in found]
        return {"tasks": tasks, "counts": service.store.counts()}

    @app.get("/api/v1/tasks/{task}")
    async def show(
        task: TaskId, token: Annotated[Token, may("read")], wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0
    ) -> dict[str, Any]:
        """A task with its history; waits for its end. ``progress`` and ``metrics`` are the latest that the task has
        reported, ``warnings`` are faults in its reports; ``incomplete``: it ended with code 0 before it reported 1.
        ``redacted``: arguments, environment and texts that may quote them are for its owner and operators."""
        until = service.now() + wait
        while service.task(task).phase not in ENDED and (left := until - service.now()) > 0:
            await service.change(left)
        record = service.task(task)
        history = history_of(record, service.store.history(0, MOST, task), token)
        return {**shown(record, service.site.resources, token), "history": history}

    @app.post("/api/v1/tasks/{task}/cancel")
    async def cancel(task: TaskId, token: Annotated[Token, may("submit")]) -> dict[str, Any]:
        owner = service.task(task).owner
        if token.role == "submitter" and token.name != owner:
            raise HTTPException(403, f"task {task} is {owner}'s; only they or an operator may cancel it")
        return shown(await service.cancel(task), service.site.resources, token)

    @app.get(
        "/api/v1/tasks/{task}/logs",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def logs(
        task: TaskId,
        token: Annotated[Token, may("read")],
        attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
    ) -> Response:
        """Output from ``offset`` on; waits for more. Headers give the attempt, where the output begins (later than
        ``offset`` if the middle of a long output was left out), where to continue, and whether it is complete. For the
        task's owner and operators only."""
        check_sees(token, service.task(task), "the output")
        until = service.now() + wait
        while True:
            record = service.task(task)
            which = attempt or max(1, record.attempt)
            start, data = service.kept.logs.read((task, which), offset, PIECE)
            over = record.phase in ENDED or which < record.attempt
            size = start + len(data)
            done = over and (which < record.attempt or size >= record.output)
            left = until - service.now()
            if data or done or left <= 0:
                break
            await service.change(left)
        # The end of a lost attempt does not tell the length of its output: readers take what there is.
        headers = {
            "X-Attempt": str(which),
            "X-Start": str(start),
            "X-Offset": str(size),
            "X-Complete": str(int(done)),
            "X-Over": str(int(over)),
        }
        return Response(data, media_type="application/octet-stream", headers=headers)


def _site(app: FastAPI, service: Service, may: Callable[[str], Any]) -> None:
    @app.get("/api/v1/clusters", dependencies=[may("read")])
    async def clusters() -> dict[str, Any]:
        return {"clusters": service.clusters()}

    @app.post("/api/v1/clusters/{cluster}/drain", dependencies=[may("operate")])
    async def drain(cluster: Name, undo: bool = False) -> dict[str, Any]:
        await service.drain(cluster, not undo)
        return {"clusters": service.clusters()}

    @app.post("/api/v1/clusters/{cluster}/give-up", dependencies=[may("operate")])
    async def give_up(cluster: Name) -> dict[str, Any]:
        await service.give_up(cluster)
        return {"clusters": service.clusters()}

    @app.get("/api/v1/events")
    async def events(
        token: Annotated[Token, may("read")],
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 1000,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
        last: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    ) -> dict[str, Any]:
        """Events after the one with number ``after``, or the ``last`` ones; waits for the next."""
        if last is not None:
            after = max(after, service.store.last_line() - last)
        if wait and not service.store.history(after, 1):
            await service.change(wait)
        return {"events": shown_events(service.store.history(after, limit), service.store, token)}

    @app.post("/api/v1/tokens", status_code=201, dependencies=[may("operate")])
    async def new_token(body: NewToken, request: Request) -> dict[str, str]:
        request.state.detail = f"{body.name!r}, {body.role}{f' of {body.cluster}' if body.cluster else ''}"
        return {"token": service.issue(body.name, body.role, body.cluster, body.lasts)}

    @app.get("/api/v1/tokens", dependencies=[may("operate")])
    async def all_tokens() -> dict[str, Any]:
        """The holders of tokens; the tokens themselves are known only to their holders."""
        now = service.now()
        found = [{**asdict(token), "expired": token.expired(now)} for token in service.store.tokens()]
        return {"tokens": [{name: value for name, value in token.items() if name != "hash"} for token in found]}

    @app.delete("/api/v1/tokens/{name:path}", dependencies=[may("operate")])
    async def revoke(name: Name) -> dict[str, str]:
        service.revoke(name)
        return {"revoked": name}

    @app.get("/api/v1/audit", dependencies=[may("operate")])
    async def audit(limit: Annotated[int, Query(ge=1, le=MOST)] = 100) -> dict[str, Any]:
        """The latest lines of the audit log, oldest first."""
        return {"lines": service.kept.audit.latest(limit)}

    @app.get("/api/v1/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__, "role": service.role, "leader": service.leader}


def _agents(app: FastAPI, service: Service) -> None:
    paces = Buckets(service.config.max_requests, 2.0 * service.config.max_requests, service.now)
    refusals = Buckets(REFUSALS, 2.0 * REFUSALS, service.now)

    @app.websocket("/api/v1/agent")
    async def agent(socket: WebSocket) -> None:
        given, source = socket.headers.get("authorization", ""), source_of(socket.scope)
        token = known(service, given)
        if token is None or token.role != "agent" or token.cluster is None:
            if not refusals.take(source):
                who = None if token is None else token.name
                service.kept.audit.note(service.now(), who, source, "agent", 401, "no valid token of an agent")
            await socket.close(4401, "a valid token of an agent is needed")
            return
        service.kept.audit.note(service.now(), token.name, source, "agent", 101, f"speaks for {token.cluster}")
        await socket.accept()
        outbox: asyncio.Queue[Message] = asyncio.Queue(maxsize=1000)

        def send(message: Message) -> None:
            with suppress(asyncio.QueueFull):  # lost, as any message may be; the next repeats everything
                outbox.put_nowait(message)

        writer = asyncio.create_task(_write(socket, outbox))
        try:
            service.check_leading()
            while not writer.done():
                text = await _received(socket)
                await asyncio.sleep(paces.take(token.name))  # the agent must wait, but its message is not dropped
                if known(service, given) is None:
                    raise AgentRefused("the token has expired, or was revoked")
                _listen(service, token.cluster, decode(text), send)
        except WebSocketDisconnect:
            pass
        except TapfingerError as error:
            with suppress(Exception):
                leader = error.leader if isinstance(error, NotLeading) else ""
                await socket.send_text(encode(Refusal(str(error), isinstance(error, NotLeading), leader)))
                await socket.close(4400)
        finally:
            service.disconnect(token.cluster, send)
            writer.cancel()


async def _received(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    text: str | None = message.get("text")
    if text is None:
        raise CoordinatorError("messages are text, not bytes")
    return text


async def _write(socket: WebSocket, outbox: asyncio.Queue[Message]) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.send_text(encode(await outbox.get()))


def _listen(service: Service, cluster: str, message: Message, send: Callable[[Message], None]) -> None:
    if isinstance(message, Report):
        if message.cluster != cluster:
            raise AgentRefused(f"this token speaks for cluster {cluster!r}, not for {message.cluster!r}")
        service.report(message, send)
    elif isinstance(message, LogChunk):
        service.output(cluster, message, send)
    else:
        raise CoordinatorError(f"an agent does not send {type(message).__name__}")


class LimitBodies:
    """Refuses long requests before their body is read."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        """``most``: longest body, in bytes."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers. A body must come with its length, and in no other way: chunks have no limit."""
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        length = headers.get("content-length")
        if "transfer-encoding" in headers:
            return JSONResponse({"detail": "say how long the request is: Content-Length"}, 411)
        if length is not None and (not length.isdigit() or int(length) > self._most):
            return JSONResponse({"detail": f"a request may have {self._most} bytes"}, 413)
        return None


def _explain_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def name_faults(_request: Request, error: Exception) -> JSONResponse:
        # The input is left out: it may be long, and may hold numbers that JSON cannot represent.
        faults = error.errors()[:FAULTS] if isinstance(error, RequestValidationError) else ()
        told = [{**{key: fault[key] for key in ("type", "loc")}, "msg": _said(fault["msg"])} for fault in faults]
        return JSONResponse({"detail": told}, 422)

    @app.exception_handler(TapfingerError)
    async def explain(_request: Request, error: Exception) -> JSONResponse:
        status = 404 if isinstance(error, NotFound) else 429 if isinstance(error, TooMany) else 422
        headers = {}
        if isinstance(error, NotLeading):  # nothing was done, so it is safe to ask the leader instead
            status, headers = 503, {"X-Leader": error.leader, "Retry-After": "1"}
        elif isinstance(error, StoreUnavailable):
            status, headers = 503, {"Retry-After": "1"}
        return JSONResponse({"detail": str(error)}, status, headers)


def _said(message: str) -> str:
    """The message of a validator, without pydantic's prefix."""
    return message.removeprefix("Value error, ")
