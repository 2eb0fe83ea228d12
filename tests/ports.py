"""Ports for servers that tests start and that cannot choose one themselves."""

from __future__ import annotations

import secrets
import socket

#: Below the range from which Linux takes the near end of outgoing connections (32768 on): such a server binds seconds
#: after its port was found free, and until then any connection of this machine may be given a port of that range.
RANGE = range(20_000, 32_000)


def free_port() -> int:
    """A port that nothing listens on, on any address of this machine."""
    while True:
        # Not a seeded generator: two processes of one test run must not draw the same ports.
        port = secrets.choice(RANGE)
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
