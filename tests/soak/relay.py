"""A cable between an agent and its coordinator that can be cut, or held so that nothing comes through."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Relay:
    """Passes bytes on in both directions, from a port of its own to another; runs in a thread."""

    def __init__(self, port: int) -> None:
        """``port``: of the coordinator, on this machine."""
        self._target = port
        self._whole = asyncio.Event()  # cleared: bytes wait
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    async def _listen(self) -> int:
        self._whole.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._whole.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()

    def _do(self, what: object) -> None:
        self._loop.call_soon_threadsafe(what)  # type: ignore[arg-type]

    def cut(self) -> None:
        """Connections break, and no new ones come about."""

        def act() -> None:
            self._refuses = True
            for writer in self._writers:
                writer.transport.abort()

        self._do(act)

    def hold(self) -> None:
        """Connections stay, and nothing comes through: as with a cable that was pulled."""
        self._do(self._whole.clear)

    def heal(self) -> None:
        """All is well again; what was held comes through now, late."""

        def act() -> None:
            self._refuses = False
            self._whole.set()

        self._do(act)

    def close(self) -> None:
        """End it."""

        async def end() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            self._whole.set()
            await asyncio.sleep(0.05)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
