"""Connections after the door: served by uvicorn on one event loop, and ended when they take too long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from tapfinger.live.http.guests import Guest
from tapfinger.live.http.sockets import PacedSocket, unread_of
from tapfinger.live.protocol.wire import MAX_REPORT

logger = logging.getLogger(__name__)

#: Seconds for the head of a request, counted from the connection or the answer before it.
HEAD = 10.0
#: Bytes of the longest head of a request.
LONGEST_HEAD = 64 * 1024
#: Seconds for which a connection without requests is kept.
IDLE = 5
#: Most seconds in which nothing of an answer is read, and most seconds for all of an answer.
UNREAD, ANSWER = 20.0, 120.0
#: Seconds for a TLS handshake.
HANDSHAKE = 10.0
#: Seconds that open requests have when the coordinator ends.
ENDING = 2
#: Seconds between two looks at all connections.
SWEEP = 1.0


class JoinedAnswers(h11.Connection):
    """HTTP that sends the head of an answer together with the first bytes of its body, where these come at once.

    uvicorn writes them one after the other: two calls of the system, after each of which another thread may go first.
    """

    _head = b""
    #: Whether there are bytes behind a request that is not answered yet.
    behind = False

    def next_event(self) -> Any:  # an event, or a class that stands for none
        """What the bytes so far say next."""
        event = super().next_event()
        self.behind = event is h11.PAUSED
        return event

    def send(self, event: h11.Event) -> Any:  # bytes, or None for the end of the connection
        """The bytes to send, perhaps later than their event."""
        output = super().send(event)
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = output or b""
            return b""
        if self._head and output is not None:
            output, self._head = self._head + output, b""
        return output


class HeldBack(FlowControl):
    """Reads nothing more while there are bytes behind a request that is not answered yet.

    uvicorn reads on whenever the application waits for a message: each time, 256 KiB more would be kept.
    """

    def __init__(self, transport: asyncio.Transport, conn: JoinedAnswers) -> None:
        """``conn`` knows whether there are such bytes."""
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        """Read on, unless there is enough to answer first."""
        if not self._conn.behind:
            super().resume_reading()


class WatchedProtocol(H11Protocol):
    """uvicorn's HTTP, which has no time limits of its own for heads of requests and for readers of answers.

    Nor has it a limit for what comes behind a request that is not answered yet.
    """

    conn: JoinedAnswers

    def __init__(self, *given: Any, **more: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*given, **more)
        self.conn = JoinedAnswers(h11.SERVER, LONGEST_HEAD)
        #: When the last answer was complete; before the first, when the connection was made.
        self._rested = self.loop.time()
        #: Bytes that were not read at the last look; since when none of them was.
        self._unread, self._stuck = 0, 0.0
        #: The request whose answer is under way, and since when it is.
        self._answering: tuple[object, float] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self.flow = HeldBack(transport, self.conn)

    def on_response_complete(self) -> None:
        """Start to wait for the next request, part of which may be there."""
        self._rested = self.loop.time()
        self.conn.behind = False
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. It may be within a request, whose application has nothing to answer any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:  # to HEAD there are answers without a body only
                self.transport.close()
        else:  # an answer was begun
            self.transport.close()

    def resume_writing(self) -> None:
        """Note that the answer is read."""
        self._stuck = self.loop.time()
        super().resume_writing()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: anybody may ask for a WebSocket where there is none, and gets the answer of HTTP."""

    def look(self, now: float) -> None:
        """End the connection if it takes too long."""
        cycle, unread = self.cycle, unread_of(self.transport)
        if not unread or unread < self._unread or not self._unread:
            self._stuck = now
        self._unread = unread
        resting = cycle is None or cycle.response_complete
        if resting and not unread:
            self._answering = None
        elif unread and (self._answering is None or self._answering[0] is not cycle):
            self._answering = cycle, now
        late = now - self._rested > HEAD and resting and not unread
        unheard = unread > 0 and now - self._stuck > UNREAD
        endless = unread > 0 and self._answering is not None and now - self._answering[1] > ANSWER
        if late or unheard or endless:
            self.transport.abort()


class LoopServer(uvicorn.Server):
    """Serves connections that the door hands over, on the loop that runs ``serve([])``."""

    def __init__(
        self,
        app: Any,
        tls: ssl.SSLContext | None,
        proxy: str | None = None,
        lifespan: bool = True,
        sockets: type[PacedSocket] | None = PacedSocket,
    ) -> None:
        """``proxy``: the address whose ``X-Forwarded-For`` is believed; None for nobody's.

        ``lifespan``: the application wants to know when it starts and ends. ``sockets``: how WebSockets are served;
        None: not at all.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=WatchedProtocol,
                ws=sockets or "none",
                ws_max_size=MAX_REPORT,
                ws_per_message_deflate=False,
                log_level="warning",
                log_config=None,
                lifespan="on" if lifespan else "off",
                proxy_headers=proxy is not None,
                forwarded_allow_ips=proxy or "",
                server_header=False,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=ENDING,
            )
        )
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entering: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs the loop."""
        yield

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Start, and be ready for guests."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()

    async def on_tick(self, counter: int) -> bool:
        """Look at all connections now and then."""
        if counter % round(SWEEP * 10) == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, WatchedProtocol | PacedSocket):
                    connection.look(now)
        return await super().on_tick(counter)

    def admit(self, guest: Guest) -> None:
        """Take over a connection. Called by the door, in its thread."""
        try:
            if self._loop is None:
                guest.close()
            else:
                self._loop.call_soon_threadsafe(self._enter, guest)
        except RuntimeError:  # the loop has ended
            guest.close()

    def _enter(self, guest: Guest) -> None:
        entering = asyncio.ensure_future(self._serve_guest(guest))
        self._entering.add(entering)
        entering.add_done_callback(self._entering.discard)

    async def _serve_guest(self, guest: Guest) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._protocol,
                guest,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE if self._tls is not None else None,
            )
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError is one: a guest's fault
            logger.debug("a connection was not made: %s", error)
            guest.close()

    def _protocol(self) -> WatchedProtocol:
        return WatchedProtocol(self.config, self.server_state, self.lifespan.state, asyncio.get_running_loop())
