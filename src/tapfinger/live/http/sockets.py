"""WebSockets that cannot keep the loop busy: read in small pieces, uncompressed, and not before their application.

uvicorn parses all that has come in one go, and before the application has asked for anything: 256 KiB may be forty
thousand frames, and could be gigabytes if they were compressed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ProtocolError
from websockets.frames import CONT, Frame, Opcode
from websockets.server import ServerProtocol

#: Bytes that are parsed in one turn of the loop, and most frames in them: no agent sends such short ones.
TURN, FRAMES = 16 * 1024, 512
#: Most pings, pongs and the like in a second: agents send one every few seconds.
CONTROLS = 50
#: Most fragments of a message. Agents send messages whole; something in between may cut them.
FRAGMENTS = 1000
#: Most seconds in which nothing of what was sent is read.
UNREAD = 20.0

_CONTROL = (Opcode.PING, Opcode.PONG, Opcode.CLOSE)


def unread_of(transport: asyncio.Transport) -> int:
    """Bytes that were sent and not read by the other side. None are known where TLS was closed twice."""
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # asyncio's transport has let go of its connection, which ends by a timer of its own
        return 0


class FrameLimits(ServerProtocol):
    """The frames of a connection, which ends when there are too many of them for what they carry."""

    def __init__(self, *given: Any, **more: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*given, **more)
        self._turn = self._fragments = self._controls = self._second = 0

    def receive_some(self, data: bytes, now: float) -> None:
        """``receive_data`` of the bytes of one turn; ``now``: seconds."""
        self._turn = 0
        if int(now) != self._second:
            self._second, self._controls = int(now), 0
        self.receive_data(data)

    def recv_frame(self, frame: Frame) -> None:
        """Process a frame, unless there were too many."""
        self._turn += 1
        if frame.opcode in _CONTROL:
            self._controls += 1
        else:
            self._fragments = self._fragments + 1 if frame.opcode is CONT else 1
        if self._turn > FRAMES or self._controls > CONTROLS or self._fragments > FRAGMENTS:
            raise ProtocolError("too many frames")
        super().recv_frame(frame)


class PacedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, read a piece per turn of the loop, and only while the application waits for a message.

    Until the application accepts the connection nothing is read: before, nobody knows whose it is.
    """

    conn: FrameLimits

    def __init__(self, *given: Any, **more: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*given, **more)
        self.conn = FrameLimits(max_size=self.config.ws_max_size, logger=self.logger)
        #: Bytes that are not parsed yet; what will parse some of them in the next turn.
        self._held = bytearray()
        self._next: asyncio.Handle | None = None
        #: Bytes that were not read at the last look, and since when none of them was.
        self._unread, self._stuck = 0, 0.0

    def data_received(self, data: bytes) -> None:
        """Take bytes from the network; first of all the request, which HTTP has read."""
        if not self.handshake_initiated:
            super().data_received(data)
        else:
            self._held += data
            if self._next is None and self._ready:
                self._parse()
        self._steer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what was not parsed, and tell the application."""
        self.read_paused = False  # else it would try to read on
        super().connection_lost(exc)
        self._steer()

    async def receive(self) -> Any:
        """The next message, for the application."""
        message = await super().receive()
        self._steer()
        return message

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        self._steer()

    def look(self, now: float) -> None:
        """End the connection if what was sent is not read: nothing else would, if the other side says nothing."""
        unread = unread_of(self.transport)
        if not unread or unread < self._unread or not self._unread:
            self._stuck = now
        self._unread = unread
        if unread and now - self._stuck > UNREAD:
            self.transport.abort()

    @property
    def _ready(self) -> bool:
        """Whether bytes may be parsed: the application has accepted, and has taken all messages."""
        return self.handshake_complete and not self.read_paused

    def _parse(self) -> None:
        """Parse the first bytes that are held."""
        self._next = None
        piece = bytes(self._held[:TURN])
        del self._held[:TURN]
        self.conn.receive_some(piece, self.loop.time())
        if self.conn.parser_exc is not None:
            self._held.clear()
            self.handle_parser_exception()
        else:
            self.handle_events()

    def _parse_next(self) -> None:
        self._parse()
        self._steer()

    def _steer(self) -> None:
        """See to it that the rest is parsed when that may be, and that nothing more is read before."""
        over = self.disconnected or self.transport.is_closing()
        if over:
            self._held.clear()
        if self._held and self._ready:
            if self._next is None:
                self._next = self.loop.call_soon(self._parse_next)
        elif self._next is not None:
            self._next.cancel()
            self._next = None
        if over:  # asyncio's transport may have let go of its connection
            return
        if self._held or not self._ready:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
