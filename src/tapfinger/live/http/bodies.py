"""Bodies of requests and answers: how long they may be, how long they may take, how many bytes are held at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Send

from tapfinger.live.http.limits import Reserve

#: Bytes of bodies that are read at once, of all requests and of those of one token.
HELD, HELD_EACH = 64 * 1024 * 1024, 32 * 1024 * 1024
#: Bytes of a body that is not counted: connections are limited, too.
SMALL = 64 * 1024
#: Most seconds without a byte of a body.
STALLED = 10.0
#: Seconds that any body may take, and bytes per second that a longer one must come with.
ALLOWED, SLOWEST = 30.0, 64 * 1024
#: Bytes of an answer that are handed to the network at a time.
PIECE = 64 * 1024

#: Methods whose requests have no body.
BODILESS = ("GET", "HEAD", "OPTIONS")


class BodyLimits:
    """Admits bodies of known length, and sees to it that they come."""

    def __init__(self, most: int) -> None:
        """``most``: longest body, in bytes."""
        self._held = Reserve(max(HELD, most), max(HELD_EACH, most))

    def admit(self, name: str, method: str, headers: Headers, most: int) -> tuple[JSONResponse | None, int]:
        """None and the bytes reserved for ``name``, or a refusal. A body must come with its length, in no other way.

        ``most``: longest body of this request, in bytes.
        """
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers:
            return _refusal(411, "say how long the request is: Content-Length"), 0
        if not (length.isascii() and length.isdigit()) or int(length) > most:
            return _refusal(413, f"a request may have {most} bytes"), 0
        size = int(length)
        if size and method in BODILESS:
            return _refusal(413, f"a {method} has no body"), 0
        if size <= SMALL:
            return None, 0
        if not self._held.take(name, size):
            return _refusal(503, "too many long requests at once; try again later", {"Retry-After": "1"}), 0
        return None, size

    def done(self, name: str, reserved: int) -> None:
        """Give back what ``admit`` has reserved."""
        if reserved:
            self._held.give_back(name, reserved)

    def timed(self, headers: Headers, receive: Receive, come: Callable[[], Awaitable[None]] | None = None) -> Receive:
        """``receive`` that answers 408 if a body does not come in time. ``come`` is awaited when all of it is there."""
        size = int(headers.get("content-length", "0"))
        if not size:
            return receive
        end = asyncio.get_running_loop().time() + ALLOWED + size / SLOWEST
        more = True

        async def receive_in_time() -> Message:
            nonlocal more
            if not more:
                return await receive()
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout_at(min(end, loop.time() + STALLED)):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request did not come in time", {"Connection": "close"}) from None
            more = bool(message.get("more_body", False))
            if not more and come is not None:
                await come()
            return message

        return receive_in_time


def in_pieces(send: Send) -> Send:
    """``send`` that hands a long answer over in pieces, and so waits until it is read."""

    async def send_pieces(message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or len(body) <= PIECE:
            await send(message)
            return
        more = message.get("more_body", False)
        view = memoryview(body)
        for start in range(0, len(body), PIECE):
            last = start + PIECE >= len(body)
            await send({**message, "body": bytes(view[start : start + PIECE]), "more_body": more or not last})

    return send_pieces


def _refusal(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The connection ends with it: what is left of the body must not be read."""
    return JSONResponse({"detail": detail}, status, {"Connection": "close", **(headers or {})})
