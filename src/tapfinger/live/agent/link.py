"""An agent's link to the coordinator, which reconnects whenever it breaks. Tasks and lease never wait for it.

The reconnect of websockets is not used: with several coordinators, the next one or the known leader must be tried.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from tapfinger.errors import AgentRefused, CoordinatorError, NotLeading
from tapfinger.live.agent.inferring import Inferring
from tapfinger.live.agent.runtime import Host
from tapfinger.live.http.tls import AGENT_PROTOCOL, travels_openly, trust
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.wire import (
    MAX_MESSAGE,
    FileAnswer,
    FileRequest,
    LogSize,
    Message,
    ProposalAnswer,
    ProposalRequest,
    Refusal,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

#: Seconds between checks of the running tasks.
PULSE = 0.1
#: Longest pause before reconnecting, in seconds. It is short because a new leader waits for reports only for a lease.
MAX_PAUSE = 1.0
#: Pause after a refusal, in seconds: the reason is unlikely to go away soon.
REFUSED_PAUSE = 5.0
#: Seconds without an answer after which a connection is given up, or the time of three reports if that is longer.
SILENCE = 3.0
#: Most requests for files that are answered at once.
FETCHES = 8


class CoordinatorLink:
    """Runs a host, connected or not."""

    def __init__(self, host: Host, urls: Sequence[str], token: str, ca: str | None = None) -> None:
        """``urls``: addresses of coordinators, tried in turn. ``ca``: file with certificates to trust."""
        self._host = host
        self._trust = trust(ca)
        self._trust.set_alpn_protocols([AGENT_PROTOCOL, "http/1.1"])  # so that the coordinator knows at once
        for url in filter(travels_openly, urls):
            logger.warning("the token travels unencrypted to %s; use https", url)
        self._urls = [_socket_address(url) for url in urls]
        self._token = token
        self._socket: ClientConnection | None = None
        self._leader: str | None = None
        self._heard = 0.0
        self._fetching: set[asyncio.Task[None]] = set()
        self._inferring = Inferring()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        caller = asyncio.create_task(self._stay_connected())
        try:
            while not stop.is_set():
                await self._send(self._step())
                self._doubt()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PULSE):
                        await stop.wait()
                if caller.done():
                    caller.result()
        finally:
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)

    def _step(self, orders: Orders | None = None) -> list[Report]:
        """A step of the host. A fault of it is neither one of the connection nor the end of the agent."""
        try:
            return self._host.step(orders)
        except Exception:
            logger.exception("a step of the agent failed; it goes on")
            return []

    async def _send(self, reports: list[Report]) -> None:
        socket = self._socket
        if socket is None:
            return
        try:
            # A stuck connection must not keep the agent from looking after tasks and lease.
            async with asyncio.timeout(PULSE * 10):
                messages: list[Message] = [*reports, *self._host.chunks()]
                for message in messages:
                    await socket.send(encode(message))
        except (ConnectionClosed, TimeoutError):
            self._hang_up(socket)

    def _hang_up(self, socket: ClientConnection) -> None:
        if self._socket is socket:
            self._socket = None
        asyncio.create_task(socket.close())  # noqa: RUF006 - nobody waits for it

    def _doubt(self) -> None:
        """Give up a connection without answers: a suspended coordinator keeps it open while another one may lead."""
        if self._socket is not None and time.monotonic() > self._heard + max(SILENCE, 3 * self._host.beat):
            logger.warning("the coordinator does not answer")
            self._hang_up(self._socket)

    async def _stay_connected(self) -> None:
        pause = 0.1
        turns = itertools.cycle(self._urls)
        while True:
            url, self._leader = self._leader or next(turns), None
            try:
                async with connect(
                    url,
                    additional_headers={"Authorization": f"Bearer {self._token}"},
                    max_size=MAX_MESSAGE,
                    ssl=self._trust if url.startswith("wss:") else None,
                    open_timeout=5.0,
                    ping_timeout=10.0,
                    close_timeout=1.0,
                    proxy=None if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") else True,
                ) as socket:
                    logger.info("connected to %s", url)
                    pause = 0.1
                    await self._talk(socket)
            except NotLeading as error:
                logger.info("%s: %s", url, error)
                self._leader = _socket_address(error.leader) if error.leader else None
                pause = min(pause, 0.5)
            except AgentRefused as error:
                logger.error("refused: %s", error)
                pause = REFUSED_PAUSE
            except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed, CoordinatorError) as error:
                logger.warning("no connection to %s: %s", url, error)
            except InvalidURI as error:
                raise CoordinatorError(f"{url} is no address of a coordinator: {error}") from None
            except Exception:
                logger.exception("the connection to %s failed; another one is made", url)
            finally:
                self._socket = None
            await asyncio.sleep(pause)
            pause = min(MAX_PAUSE, pause * 2)

    async def _talk(self, socket: ClientConnection) -> None:
        self._host.connected()
        await socket.send(encode(self._host.report()))
        self._socket, self._heard = socket, time.monotonic()
        async for text in socket:
            message = decode(text)
            self._heard = time.monotonic()
            if isinstance(message, Orders):
                await self._send(self._step(message))
            elif isinstance(message, LogSize):
                self._host.arrived(message)
            elif isinstance(message, FileRequest):
                self._fetch(socket, message)
            elif isinstance(message, ProposalRequest):
                self._inferring.take(message, partial(self._say, socket))
            elif isinstance(message, Refusal) and message.standby:
                raise NotLeading(message.leader)
            elif isinstance(message, Refusal):
                raise AgentRefused(message.reason)
        if (socket.close_code or 0) >= 4000:
            raise AgentRefused(socket.close_reason or "the coordinator has closed the connection")
        raise CoordinatorError("the connection was closed")

    def _fetch(self, socket: ClientConnection, request: FileRequest) -> None:
        """Answer a request for files in a thread. More than a few at once are refused: reports come first."""
        self._fetching = {task for task in self._fetching if not task.done()}
        self._fetching.add(asyncio.create_task(self._answer(socket, request, len(self._fetching) >= FETCHES)))

    async def _answer(self, socket: ClientConnection, request: FileRequest, busy: bool) -> None:
        answer = FileAnswer(request.number, fault="the agent answers too many requests for files; try again")
        if not busy:
            try:
                answer = await asyncio.to_thread(self._host.files, request)
            except Exception as error:  # no thread can be started, or what nobody foresaw: who has asked waits for it
                logger.exception("a request for files of task %d attempt %d has failed", *request.id)
                fault = f"the agent cannot read files now: {type(error).__name__}; try again"
                answer = FileAnswer(request.number, fault=fault)
        await self._say(socket, answer)

    async def _say(self, socket: ClientConnection, answer: FileAnswer | ProposalAnswer) -> None:
        with suppress(ConnectionClosed):  # who has asked will ask again
            await socket.send(encode(answer))


def _socket_address(url: str) -> str:
    return url.strip().rstrip("/").replace("http", "ws", 1) + "/api/v1/agent"
