"""What comes in through an agent's WebSocket is taken in small pieces, and too many frames end it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from live.sites import RealSite
from uvicorn.server import ServerState
from waiting import PATIENCE
from websockets.frames import Frame, Opcode

from tapfinger.live.http import sockets
from tapfinger.live.http.connections import LoopServer
from tapfinger.live.http.sockets import CONTROLS, FRAGMENTS, FRAMES, TURN, UNREAD, PacedSocket

REQUEST = (
    b"GET /api/v1/agent HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


class Network(asyncio.Transport):
    """A transport that notes what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads = True
        self.closed = False
        self.unread = 0

    def write(self, data: Any) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Gone(Network):
    """What asyncio's TLS transport is after its second close."""

    def resume_reading(self) -> None:
        raise AttributeError

    def pause_reading(self) -> None:
        raise AttributeError

    def get_write_buffer_size(self) -> int:
        raise AttributeError


def frame(opcode: Opcode, data: bytes = b"", fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


class World:
    """A connection to an application that accepts when told to, and keeps what it gets."""

    def __init__(self) -> None:
        self.accept = asyncio.Event()
        self.got: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope, receive, send)

        config = LoopServer(app, None).config
        config.load()
        self.network = Network()
        self.socket = PacedSocket(config, ServerState(), {})
        self.socket.connection_made(self.network)
        self.socket.data_received(REQUEST)

    async def _app(self, _scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        await receive()
        await self.accept.wait()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            self.got.append(message["text"])

    async def come(self, data: bytes) -> None:
        """Let bytes come in, as far as they are read, and all of them be worked on."""
        self.socket.data_received(data)
        await self.turns()

    async def turns(self) -> None:
        """Let the loop do all that is left to do."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def open(self) -> None:
        self.accept.set()
        await self.turns()

    async def end(self) -> None:
        self.accept.set()
        self.socket.connection_lost(None)
        await asyncio.gather(*self.socket.tasks)


@contextlib.asynccontextmanager
async def world() -> Any:
    made = World()
    try:
        yield made
    finally:
        await made.end()


def test_the_application_learns_of_an_end_that_asyncio_has_forgotten() -> None:
    async def run() -> None:
        site = World()
        await site.open()
        site.socket.data_received(frame(Opcode.TEXT, b"one") + b"\xff\xff")
        site.socket.transport = Gone()
        site.socket.look(0.0)
        site.socket.connection_lost(OSError("reset"))
        await asyncio.wait_for(asyncio.gather(*site.socket.tasks), PATIENCE)

    asyncio.run(run())


def test_nothing_is_compressed_and_nothing_is_read_before_the_application_accepts() -> None:
    async def run() -> None:
        async with world() as site:
            await site.come(frame(Opcode.TEXT, b"early"))
            assert not site.network.reads
            assert site.socket.conn.reader.buffer == b"", "not even parsed"
            assert site.got == []
            await site.open()
            assert site.got == ["early"]
            assert site.network.reads
            assert b" 101 " in site.network.sent
            assert b"deflate" not in site.network.sent

    asyncio.run(run())


def test_a_long_read_is_parsed_a_piece_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    parse = sockets.FrameLimits.receive_some

    def watched(conn: sockets.FrameLimits, data: bytes, now: float) -> None:
        pieces.append(len(data))
        parse(conn, data, now)

    async def run() -> None:
        monkeypatch.setattr(sockets.FrameLimits, "receive_some", watched)
        async with world() as site:
            await site.open()
            text = "x" * (10 * TURN)
            site.socket.data_received(frame(Opcode.TEXT, text.encode()) + frame(Opcode.TEXT, b"next"))
            assert len(pieces) == 1, "the rest waits for other work of the loop"
            assert not site.network.reads
            await site.turns()
            assert site.got == [text, "next"]
            assert max(pieces) <= TURN
            assert site.network.reads

    asyncio.run(run())


def test_messages_wait_unparsed_until_the_application_takes_the_one_before() -> None:
    async def run() -> None:
        async with world() as site:
            await site.open()
            site.socket.data_received(frame(Opcode.TEXT, b"x" * TURN) * 5)
            site.socket.data_received(frame(Opcode.TEXT, b"y"))
            assert site.socket.queue.qsize() <= 1
            await site.turns()
            assert len(site.got) == 6

    asyncio.run(run())


@pytest.mark.parametrize(
    ("allowed", "more"),
    [
        (frame(Opcode.PING, b"x") * CONTROLS, frame(Opcode.PING)),
        (frame(Opcode.PONG) * CONTROLS, frame(Opcode.PONG)),
        (
            frame(Opcode.TEXT, b"x" * 32, False) + frame(Opcode.CONT, b"x" * 32, False) * (FRAGMENTS - 1),
            frame(Opcode.CONT, b"x" * 32, False),
        ),
        (frame(Opcode.TEXT) * FRAMES, None),
    ],
    ids=["pings", "pongs", "fragments", "empty messages"],
)
def test_too_many_frames_end_a_connection(allowed: bytes, more: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 5.0)
        async with world() as site:
            await site.open()
            await site.come(allowed)
            assert not site.network.closed
            await site.come(more if more is not None else frame(Opcode.TEXT) * (FRAMES + 1))
            assert site.network.closed
            assert b"too many frames" in site.network.sent

    asyncio.run(run())


def test_pings_of_another_second_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0

    async def run() -> None:
        nonlocal now
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        async with world() as site:
            await site.open()
            for _ in range(5):
                await site.come(frame(Opcode.PING) * CONTROLS)
                now += 1.0
            assert not site.network.closed

    asyncio.run(run())


def test_who_does_not_read_is_cut_off() -> None:
    async def run() -> None:
        async with world() as site:
            await site.open()
            for now, unread in ((0.0, 100), (UNREAD - 1, 200), (UNREAD, 150), (2 * UNREAD - 1, 150)):
                site.network.unread = unread
                site.socket.look(now)
                assert not site.network.closed
            site.socket.look(2 * UNREAD + 1)
            assert site.network.closed

    asyncio.run(run())


def test_only_a_proxy_brings_agents_in_with_people(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        token = site.serve().new_token("l", "agent", "left")
        key = f"Authorization: Bearer {token}\r\n\r\n".encode()
        answers = []
        for path in (b"agent", b"agen%74"):
            with socket.create_connection(("127.0.0.1", site.port)) as connection:
                request = REQUEST.removesuffix(b"\r\n").replace(b"agent", path) + key
                connection.sendall(request)
                answers.append(connection.recv(4096).split()[1])
        assert answers == [b"101", b"404"]
    finally:
        site.close()
