"""The WebSocket of agents. It is served on the service's loop; a trusted proxy may also bring it in with people's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from tapfinger.errors import AgentRefused, CoordinatorError, NotLeading, StoreUnavailable, TapfingerError
from tapfinger.live.http.auth import REFUSALS, WORK, WORK_SAVED, lookup, source_of
from tapfinger.live.http.known_addresses import origin_of
from tapfinger.live.http.limits import Buckets
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.wire import FileAnswer, LogChunk, Message, ProposalAnswer, Refusal, decode, encode
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

logger = logging.getLogger(__name__)

#: Where agents connect.
AGENT_PATH = "/api/v1/agent"
#: Messages to an agent that wait to be sent; further ones are dropped, since the next repeats everything.
OUTBOX = 1000
#: Connections with one token: an agent needs one, and those that it has lost may take a while to end.
EACH = 4
#: Seconds after the end of a token until its connections end: clocks differ a little. No task starts in them.
GRACE = 1.0

NOT_VALID = "the token has expired, or was revoked"


class AgentEndpoint:
    """Talks with agents, each over one WebSocket."""

    def __init__(self, service: Service, proven: Callable[[Scope], None] = lambda _: None) -> None:
        """``proven`` is called for each connection that has shown a valid token."""
        self._service = service
        self._proven = proven
        rate = service.config.max_requests
        self._paces = Buckets(rate, 2.0 * rate, service.now)
        self._refusals = Buckets(REFUSALS, 2.0 * REFUSALS, service.now)
        self._work = Buckets(WORK, WORK_SAVED, service.now)
        #: By token: what ends each of its connections, oldest first; and whose message is in work.
        self._open: dict[str, tuple[list[asyncio.Timeout], asyncio.Lock]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        service.on_void.append(self._void)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An application that serves nothing else."""
        if scope["type"] == "websocket" and scope["path"] == AGENT_PATH:
            await self.serve(WebSocket(scope, receive, send))
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close(4404, "there is nothing here")
        elif scope["type"] == "http":
            detail = {"detail": "only an agent's WebSocket can be had on this connection"}
            await JSONResponse(detail, 404, {"Connection": "close"})(scope, receive, send)

    async def serve(self, socket: WebSocket) -> None:
        """Talk with one agent until its connection ends."""
        given, source = socket.headers.get("authorization", ""), source_of(socket.scope)
        try:
            token = await lookup(self._service, given)
        except StoreUnavailable:
            await socket.close(1013, "the store cannot be reached; try again")
            return
        if token is None or token.role != "agent" or token.cluster is None:
            if not self._refusals.take(origin_of(source)):
                who = None if token is None else token.name
                self._note(who, source, 401, "no valid token of an agent")
            await socket.close(4401, "a valid token of an agent is needed")
            return
        self._proven(socket.scope)
        self._note(token.name, source, 101, f"speaks for {token.cluster}")
        await socket.accept()
        await self._talk(socket, given, token, token.cluster)

    def _note(self, who: str | None, source: str, status: int, detail: str) -> None:
        self._service.kept.audit.note(self._service.now(), who, source, "agent", status, detail)

    @contextmanager
    def _charged(self, name: str) -> Iterator[None]:
        """Count the time that something takes as work for the token of that name, whether it fails or not."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._work.spend(name, time.thread_time() - began)

    @asynccontextmanager
    async def _one_of_few(self, name: str, lasts: float | None = None) -> AsyncIterator[asyncio.Lock]:
        """Count a connection of a token. It ends with a TimeoutError after ``lasts`` seconds, when the token is void,
        and when there are too many newer ones.

        Whoever works on a message of the token holds the lock: else each connection could take a turn before any is
        charged.
        """
        among, turn = self._open.setdefault(name, ([], asyncio.Lock()))
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(lasts) as patience:
            among.append(patience)
            if len(among) > EACH:
                _end(among.pop(0))
            try:
                yield turn
            finally:
                if patience in among:
                    among.remove(patience)
                if not among and self._open.get(name, (None,))[0] is among:
                    del self._open[name]

    def _void(self, name: str) -> None:
        """End the connections of a token. May be called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end_all, name)

    def _end_all(self, name: str) -> None:
        among, _ = self._open.get(name, ([], None))
        while among:
            _end(among.pop())

    async def _talk(self, socket: WebSocket, given: str, token: Token, cluster: str) -> None:
        service, loop = self._service, asyncio.get_running_loop()
        outbox: asyncio.Queue[Message] = asyncio.Queue(maxsize=OUTBOX)

        def put(message: Message) -> None:
            with suppress(asyncio.QueueFull):  # lost, as any message may be; the next repeats everything
                outbox.put_nowait(message)

        def send(message: Message) -> None:  # called on the service's loop
            if asyncio.get_running_loop() is loop:
                put(message)
            else:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(put, message)

        writer = asyncio.create_task(self._write(socket, outbox, given, token.name))
        lasts = None if token.expires is None else max(0.0, token.expires - service.now()) + GRACE
        try:
            service.check_leading()
            async with self._one_of_few(token.name, lasts) as turn:
                while not writer.done():
                    text = await _received(socket)
                    async with turn:
                        # The agent must wait, but nothing is dropped: leases of others share this loop.
                        await asyncio.sleep(max(self._paces.take(token.name), self._work.take(token.name, 0.0)))
                        if await lookup(service, given) is None:
                            raise AgentRefused(NOT_VALID)
                        await self._handle(text, token.name, cluster, send)
        except WebSocketDisconnect:
            pass
        except TimeoutError:
            with suppress(Exception):
                if await lookup(service, given) is None:
                    await _refuse(socket)
                else:
                    await socket.close(4409, "this token has newer connections")
        except TapfingerError as error:
            with suppress(Exception):
                away = isinstance(error, NotLeading | StoreUnavailable)
                await socket.send_text(encode(Refusal(str(error), away, getattr(error, "leader", ""))))
                await socket.close(4400)
        finally:
            service.bridge.post(partial(service.disconnect, cluster, send))
            writer.cancel()

    async def _handle(self, text: str, name: str, cluster: str, send: Callable[[Message], None]) -> None:
        """Read a message and do what it asks for, both of it charged to the token of that name."""
        with self._charged(name):
            message = decode(text)
        took = 0.0

        async def listen() -> None:
            nonlocal took
            began = time.thread_time()
            try:
                _listen(self._service, cluster, message, send)
            finally:
                took = time.thread_time() - began

        try:
            await self._service.bridge.run(listen)
        finally:
            self._work.spend(name, took)  # here, for the service's loop may be another thread's

    async def _write(self, socket: WebSocket, outbox: asyncio.Queue[Message], given: str, name: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                message = await outbox.get()
                if isinstance(message, Orders) and message.starts:  # with secrets
                    try:
                        token = await lookup(self._service, given)
                    except TapfingerError:
                        continue  # it is lost, as any message may be; the next repeats everything
                    if token is None:  # another coordinator may have revoked it
                        await _refuse(socket)
                        return
                with self._charged(name):
                    text = encode(message)
                await socket.send_text(text)


def _end(patience: asyncio.Timeout) -> None:
    """End what is under way in a timeout, unless that is happening already."""
    if not patience.expired():
        patience.reschedule(0.0)


async def _refuse(socket: WebSocket) -> None:
    await socket.send_text(encode(Refusal(NOT_VALID)))
    await socket.close(4400)


async def _received(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    text: str | None = message.get("text")
    if text is None:
        raise CoordinatorError("messages are text, not bytes")
    return text


def _listen(service: Service, cluster: str, message: Message, send: Callable[[Message], None]) -> None:
    if isinstance(message, Report):
        if message.cluster != cluster:
            raise AgentRefused(f"this token speaks for cluster {cluster!r}, not for {message.cluster!r}")
        service.report(message, send)
    elif isinstance(message, LogChunk):
        service.output(cluster, message, send)
    elif isinstance(message, FileAnswer):
        service.files.answered(cluster, message)
    elif isinstance(message, ProposalAnswer):
        service.proposals.answered(cluster, message)
    else:
        raise CoordinatorError(f"an agent does not send {type(message).__name__}")
