"""The coordinator's HTTP server on an event loop of its own, for applications and connections of tests."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from waiting import PATIENCE, wait_for

from tapfinger.live.http.connections import LoopServer
from tapfinger.live.http.guests import Guest


def request(method: str, path: str, *lines: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


@contextmanager
def serving(
    app: Any, tls: ssl.SSLContext | None = None, lifespan: bool = False
) -> Iterator[tuple[LoopServer, Callable[[], socket.socket]]]:
    """The server, and what makes a connection to it, without a handshake of TLS."""
    server = LoopServer(app, tls, lifespan=lifespan, sockets=None)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([])))
    thread.start()
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:

        def come() -> socket.socket:
            client = stack.enter_context(socket.create_connection(listener.getsockname(), PATIENCE))
            accepted, _ = listener.accept()
            guest = Guest(fileno=accepted.detach())
            guest.setblocking(False)
            server.admit(guest)
            return client

        try:
            wait_for(lambda: server.started)
            yield server, come
        finally:
            server.should_exit = True
            thread.join()
