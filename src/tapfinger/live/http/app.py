"""The coordinator's HTTP interface: REST for people and programs, a WebSocket for agents."""

# No `from __future__ import annotations` here: FastAPI reads the annotations, and some name local variables.

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from tapfinger import __version__
from tapfinger.core.contract import Phase
from tapfinger.errors import (
    AgentUnavailable,
    NotFound,
    NotLeading,
    StoreFailed,
    StoreUnavailable,
    TapfingerError,
    TooMany,
)
from tapfinger.live.http.agents import AGENT_PATH, AgentEndpoint
from tapfinger.live.http.answer_threads import AnswerThreads, as_json
from tapfinger.live.http.auth import HEALTH, NO_TOKEN, Authentication
from tapfinger.live.http.dashboard_routes import add_dashboard
from tapfinger.live.http.file_routes import add_files
from tapfinger.live.http.insight_routes import add_insight
from tapfinger.live.http.pages import MOST, page_of, with_tasks
from tapfinger.live.http.problems import PROBLEMS
from tapfinger.live.http.profile_routes import add_profiles
from tapfinger.live.http.reference import add_reference
from tapfinger.live.http.retention_routes import add_retention
from tapfinger.live.http.secret_routes import add_secrets
from tapfinger.live.http.standing import check_standing
from tapfinger.live.http.submissions import Submission, parsing_in
from tapfinger.live.http.task_view import check_sees, history_of, shown, shown_events
from tapfinger.live.http.waiting import GONE, WaitingRoom, clusters_of
from tapfinger.live.protocol.records import ENDED, Name, TaskRecord
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens
from tapfinger.live.store.store import Token

#: Most bytes of output in one answer.
PIECE = 1024 * 1024
#: Most faults of a request that are listed in the answer.
FAULTS = 100

TaskId = Annotated[int, Field(ge=1, le=2**62)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewToken(_Body):
    """A token to make: its name, role and cluster."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")]
    role: str
    cluster: Name | None = None
    #: Seconds until the token expires; None for never.
    lasts: Annotated[float, Field(gt=0.0, le=1e10)] | None = None
    #: Whether it gets the tasks that are left of a revoked token of this name; without it such a name is refused.
    inherit: bool = False


def make_app(service: Service, on_failure: Callable[[], None] | None = None, runs_service: bool = True) -> FastAPI:
    """The application. ``runs_service``: it runs the service's loop, too, and calls ``on_failure`` if that ends."""
    workers = AnswerThreads()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not runs_service:
            yield
            await asyncio.to_thread(workers.close)
            return
        loop = asyncio.create_task(service.run())
        loop.add_done_callback(lambda ended: None if ended.cancelled() or on_failure is None else on_failure())
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await asyncio.to_thread(workers.close)
        service.close()

    app = FastAPI(
        title="TapFinger",
        version=__version__,
        lifespan=lifespan,
        responses=PROBLEMS,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Authentication, service=service)
    _explain_errors(app)
    bearer = HTTPBearer(auto_error=False)

    async def holder(
        request: Request, _given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Token:
        token: Token | None = request.state.holder
        if token is None:
            raise HTTPException(401, NO_TOKEN)
        await check_standing(request)  # reading a long body may have waited for others
        return token

    def may(what: str) -> Any:
        async def check(token: Annotated[Token, Depends(holder)]) -> Token:
            if what not in tokens.ROLES[token.role]:
                raise HTTPException(403, f"the role {token.role!r} may not {what}")
            return token

        return Depends(check)

    room = WaitingRoom(service)
    _tasks(app, service, workers, room, may)
    _site(app, service, workers, room, may)
    _operators(app, service, workers, may)
    endpoint = AgentEndpoint(service)

    @app.websocket(AGENT_PATH)
    async def agent(socket: WebSocket) -> None:
        await endpoint.serve(socket)

    add_files(app, service, workers, may)
    add_insight(app, service, workers, may)
    add_profiles(app, service, workers, may)
    add_secrets(app, service, workers, may)
    add_retention(app, service, workers, may)
    add_dashboard(app, service, workers, room, may, holder)
    add_reference(app)
    return app


def _tasks(
    app: FastAPI, service: Service, workers: AnswerThreads, room: WaitingRoom, may: Callable[[str], Any]
) -> None:
    async def accept(request: Request, body: Submission, token: Token) -> Response:
        def spent(seconds: float) -> None:
            request.state.work = getattr(request.state, "work", 0.0) + seconds

        ids = await service.take(body.tasks, token.name, body.secrets, spent)
        request.state.detail = f"{len(ids)} tasks, from {ids[0]} to {ids[-1]}"
        return Response(as_json({"ids": ids}), 201, media_type="application/json")

    bulky = APIRouter(route_class=parsing_in(workers, accept))

    def show_to(token: Token) -> Callable[[TaskRecord], dict[str, Any]]:
        """Shows a task to the token's holder."""
        return lambda record: shown(record, service.site.resources, token, service.now())

    @bulky.post("/api/v1/tasks", status_code=201, response_model=dict[str, list[int]])
    async def submit(body: Submission, token: Annotated[Token, may("submit")], request: Request) -> Response:
        return await accept(request, body, token)

    app.include_router(bulky)

    @app.get("/api/v1/tasks", response_model=dict[str, Any])
    async def listed(
        request: Request,
        token: Annotated[Token, may("read")],
        phase: Annotated[list[Phase] | None, Query(max_length=len(Phase))] = None,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    ) -> Response:
        """Tasks, newest first; ``next`` is the ``before`` of the next page. A page of long tasks may be shorter."""

        def look() -> bytes:
            tasks, following = page_of(service, phase or [], limit, before, show_to(token))
            return with_tasks(tasks, next=following, counts=service.store.counts())

        return await workers.answer(request, look)

    @app.get("/api/v1/tasks/{task}", response_model=dict[str, Any])
    async def show(
        request: Request,
        task: TaskId,
        token: Annotated[Token, may("read")],
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
    ) -> Response:
        """A task with its history; waits for its end. ``progress`` and ``metrics`` are the latest that the task has
        reported, ``warnings`` are faults in its reports; ``incomplete``: it ended with code 0 before it reported 1.
        ``least``: what its next attempts get at least, since an attempt ran out with less.
        ``redacted``: arguments, environment and texts that may quote them are for its owner and operators."""
        until = service.now() + wait
        while True:
            seen = service.changes.count
            record = await workers.run(request, partial(service.task, task))
            if record.phase in ENDED or (left := until - service.now()) <= 0:
                break
            await room.wait_for_news(request, left, seen)

        def look() -> dict[str, Any]:
            record = service.task(task)
            history = history_of(record, service.store.history(0, MOST, task), token)
            return {**show_to(token)(record), "history": history}

        return await workers.answer(request, look)

    @app.post("/api/v1/tasks/{task}/cancel")
    async def cancel(request: Request, task: TaskId, token: Annotated[Token, may("submit")]) -> dict[str, Any]:
        owner = (await workers.run(request, partial(service.task, task))).owner
        if token.role == "submitter" and token.name != owner:
            raise HTTPException(403, f"task {task} is {owner}'s; only they or an operator may cancel it")
        return show_to(token)(await service.bridge.run(partial(service.cancel, task)))

    @app.get(
        "/api/v1/tasks/{task}/logs",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def logs(
        request: Request,
        task: TaskId,
        token: Annotated[Token, may("read")],
        attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
    ) -> Response:
        """Output from ``offset`` on; waits for more. Headers give the attempt, where the output begins (later than
        ``offset`` if the middle of a long output was left out), where to continue, and whether it is complete. For the
        task's owner and operators only."""
        check_sees(token, await workers.run(request, partial(service.task, task)), "the output")
        until = service.now() + wait

        def look() -> tuple[TaskRecord, int, int, bytes]:
            record = service.task(task)
            which = attempt or max(1, record.attempt)
            return record, which, *service.kept.logs.read((task, which), offset, PIECE)

        while True:
            seen = service.changes.count
            record, which, start, data = await workers.run(request, look)
            over = record.phase in ENDED or which < record.attempt
            size = start + len(data)
            done = over and (which < record.attempt or size >= record.output)
            left = until - service.now()
            if data or done or left <= 0:
                break
            await room.wait_for_news(request, left, seen)
        workers.hold(request, len(data))
        # The end of a lost attempt does not tell the length of its output: readers take what there is.
        headers = {
            "X-Attempt": str(which),
            "X-Start": str(start),
            "X-Offset": str(size),
            "X-Complete": str(int(done)),
            "X-Over": str(int(over)),
        }
        return Response(data, media_type="application/octet-stream", headers=headers)


def _site(app: FastAPI, service: Service, workers: AnswerThreads, room: WaitingRoom, may: Callable[[str], Any]) -> None:
    @app.get("/api/v1/clusters", dependencies=[may("read")], response_model=dict[str, Any])
    async def clusters(request: Request) -> Response:
        found = await clusters_of(request, service, workers)
        return await workers.answer(request, lambda: {"clusters": found})

    @app.get("/api/v1/events", response_model=dict[str, Any])
    async def events(
        request: Request,
        token: Annotated[Token, may("read")],
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
        wait: Annotated[float, Query(ge=0.0, le=30.0)] = 0.0,
        last: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    ) -> Response:
        """Events after the one with number ``after``, or the ``last`` ones; waits for the next."""
        seen = service.changes.count
        if last is not None:
            after = max(after, await workers.run(request, lambda: service.store.line_before(last)))
        if wait and not await workers.run(request, lambda: service.store.history(after, 1)):
            await room.wait_for_news(request, wait, seen)

        def look() -> dict[str, Any]:
            return {"events": shown_events(service.store.history(after, limit), service.store, token)}

        return await workers.answer(request, look)

    @app.get(HEALTH, response_model=dict[str, Any])
    async def health() -> JSONResponse:
        """Whether the coordinator is well, and what is wrong if it is not; needs no token."""
        faults = sorted(service.faults)  # by name: texts about them may quote what is not for everyone
        who = {"version": __version__, "role": service.role, "leader": service.leader}
        said = {"status": "degraded" if faults else "ok", **who, "faults": faults}
        away = "store" in faults
        return JSONResponse(said, 503 if away else 200, {"Retry-After": "1"} if away else None)


def _operators(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    @app.post("/api/v1/clusters/{cluster}/drain", dependencies=[may("operate")])
    async def drain(request: Request, cluster: Name, undo: bool = False) -> dict[str, Any]:
        await service.bridge.run(partial(service.drain, cluster, not undo))
        return {"clusters": await clusters_of(request, service, workers)}

    @app.post("/api/v1/clusters/{cluster}/give-up", dependencies=[may("operate")])
    async def give_up(request: Request, cluster: Name) -> dict[str, Any]:
        await service.bridge.run(partial(service.give_up, cluster))
        return {"clusters": await clusters_of(request, service, workers)}

    @app.post("/api/v1/tokens", status_code=201, dependencies=[may("operate")])
    async def new_token(body: NewToken, request: Request) -> dict[str, str]:
        request.state.detail = f"{body.name!r}, {body.role}{f' of {body.cluster}' if body.cluster else ''}"
        request.state.detail += ", inherits what is left of that name" if body.inherit else ""
        made = partial(service.issue, body.name, body.role, body.cluster, body.lasts, body.inherit)
        return {"token": await workers.run(request, made)}

    @app.get("/api/v1/tokens", dependencies=[may("operate")], response_model=dict[str, Any])
    async def all_tokens(request: Request) -> Response:
        """The holders of tokens; the tokens themselves are known only to their holders."""

        def look() -> dict[str, Any]:
            now = service.now()
            found = [{**asdict(token), "expired": token.expired(now)} for token in service.store.tokens()]
            return {"tokens": [{name: value for name, value in token.items() if name != "hash"} for token in found]}

        return await workers.answer(request, look)

    @app.delete("/api/v1/tokens/{name:path}", dependencies=[may("operate")])
    async def revoke(request: Request, name: Name) -> dict[str, str]:
        await workers.run(request, partial(service.revoke, name))
        return {"revoked": name}

    @app.get("/api/v1/audit", dependencies=[may("operate")], response_model=dict[str, Any])
    async def audit(request: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> Response:
        """The latest lines of the audit log, oldest first."""
        return await workers.answer(request, lambda: {"lines": service.kept.audit.latest(limit, service.now())})


def _explain_errors(app: FastAPI) -> None:
    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=GONE)

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
        elif isinstance(error, AgentUnavailable):
            status = 504
        elif isinstance(error, StoreFailed):
            status = 503
        return JSONResponse({"detail": str(error)}, status, headers)


def _said(message: str) -> str:
    """The message of a validator, without pydantic's prefix."""
    return message.removeprefix("Value error, ")
