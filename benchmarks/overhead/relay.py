"""A relay between agents and coordinator that stands for a slow line: it delays and throttles what passes.

The kernel's netem would do the same, but needs privileges and is not everywhere. Each connection is a link
of its own, with its own bandwidth in each direction.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass

#: Bytes read at a time: a packet of Ethernet.
PACKET = 1500


@dataclass(frozen=True)
class SlowLine:
    """What a link is like, the same in both directions."""

    #: Seconds from one end to the other.
    latency: float
    #: Bits per second.
    bandwidth: float


async def relay(line: SlowLine, port: int, upstream: int) -> asyncio.Server:
    """Listen on a port of this machine and pass every connection on to another; close the server to end it."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", upstream)
        for each in (writer, far_writer):
            no_delay(each)
        # Whoever closes the server while lines are open has no use for them any more.
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(_pump(reader, far_writer, line), _pump(far_reader, writer, line))

    return await asyncio.start_server(connected, "127.0.0.1", port)


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Send small messages at once: the kernel would wait for more, and be measured as latency."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: SlowLine) -> None:
    """One direction: a packet takes its time to get onto the line, then the latency."""
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, packet = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not packet:
                break
            writer.write(packet)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    free_at = 0.0
    try:
        while True:
            packet = await reader.read(PACKET)
            free_at = max(asyncio.get_running_loop().time(), free_at) + 8.0 * len(packet) / line.bandwidth
            on_the_way.put_nowait((free_at + line.latency, packet))
            if not packet:
                break
        await delivery
    finally:
        delivery.cancel()
        writer.close()
