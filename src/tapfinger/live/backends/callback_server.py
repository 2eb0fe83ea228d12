"""A small HTTP server of the agent, which tasks on other machines ask whether they may continue.

It has two requests, below an address that each attempt has for itself. ``begin`` is answered once, with what to run.
``beat`` brings output, and is answered with the lease and orders. An attempt that never sent ``begin`` has not begun,
and one that was refused never will, so the agent can safely declare it ended.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.protocol.wire import LARGEST

logger = logging.getLogger(__name__)

#: Longest request of a task, in bytes: a piece of output as base64, and some more.
MAX_WORD = 1024 * 1024
#: Most connections at a time.
MOST = 128
#: Longest report of a task's progress, in characters.
MAX_LINE = 4096


class Refused(Exception):  # noqa: N818 - named for what it is
    """The attempt is no longer wanted and must not run."""


class NotYet(Exception):  # noqa: N818
    """The attempt is not known yet; it may ask again."""


#: Takes the attempt's name, the request's name and its body; returns the answer. Raises Refused or NotYet.
Answer = Callable[[str, str, bytes], bytes]


class _FewConnections(ThreadingHTTPServer):
    """A server with a bounded number of connections: a task that opens many takes no files from the agent's lease.

    A request takes milliseconds, so the oldest connection is the one to end, and its driver asks again.
    """

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[int, socket.socket] = {}  # by identity, oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread."""
        with self._lock:
            self._open[id(request)] = request
            if len(self._open) > MOST:
                with suppress(OSError):
                    self._open.pop(next(iter(self._open))).shutdown(socket.SHUT_RDWR)  # its thread closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log what went wrong with a connection in one line; most often it has ended."""
        logger.debug("a connection from %s failed", client_address, exc_info=True)


class CallbackServer:
    """Answers until it is closed. It keeps its address when the agent restarts."""

    def __init__(self, note: Path, host: str, answer: Answer) -> None:
        """``note``: file that keeps port and secret. ``host``: the address to listen on, which tasks call."""
        try:
            known = json.loads(note.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = {"port": 0, "secret": secrets.token_urlsafe(32), "name": secrets.token_hex(4)}
        self._secret: str = known["secret"]
        #: Distinguishes the attempts of this agent from those of others on the same Ray cluster.
        self.name: str = known["name"]
        try:
            self._server = _FewConnections((host, known["port"]), _handler(self._secret, answer))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}, port {known['port']}, where tasks on the Ray cluster ask for their lease: "
                f"{error.strerror}; name an address of this machine that they reach with --ray-desk"
            ) from None
        port = self._server.server_address[1]
        replace_file(note, {**known, "port": port}, sync=True)
        note.chmod(0o600)
        self._url = f"http://{host}:{port}"
        threading.Thread(target=self._server.serve_forever, name="callback-server", daemon=True).start()

    def url(self, attempt: str) -> str:
        """The address that an attempt calls. A task can read that of its own, and must not know those of others."""
        return f"{self._url}/{key_of(self._secret, attempt)}/{attempt}"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def key_of(secret: str, attempt: str) -> str:
    """What an attempt must show, made of the agent's secret and the attempt's name."""
    return hmac.new(secret.encode(), attempt.encode(), "sha256").hexdigest()


def _handler(secret: str, answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 20  # seconds without a byte, so that no client blocks a thread for long

        def do_POST(self) -> None:
            """Answer one request."""
            given, _, rest = self.path.removeprefix("/").partition("/")
            attempt, _, question = rest.partition("/")
            length = self.headers.get("Content-Length", "")
            if not secrets.compare_digest(given.encode(), key_of(secret, attempt).encode()):
                self._say(404, b"")
            elif not length.isdigit() or int(length) > MAX_WORD:
                self._say(413, b"")
            else:
                try:
                    self._say(200, answer(attempt, question, self.rfile.read(int(length))))
                except Refused:
                    self._say(410, b"")
                except NotYet:
                    self._say(503, b"")
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    logger.warning("attempt %s says nonsense: %s", attempt, str(error)[:200])
                    self._say(400, b"")

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: addresses contain the secret."""

    return Handler


def reported(body: bytes) -> str:
    """The task's latest progress report; empty from drivers of earlier versions."""
    line = json.loads(body).get("report", "")
    if not isinstance(line, str) or len(line) > MAX_LINE or "\n" in line:
        raise ValueError(f"report {str(line)[:100]!r}")
    return line


def decode_word(body: bytes) -> tuple[int, int, bytes, dict[str, Any] | None]:
    """Position of the output, number of bytes left out before it, the output, and the end if the task has ended."""
    word = json.loads(body)
    offset, skipped, end = word["offset"], word["skipped"], word["end"]
    if not (_within(offset, 0, LARGEST) and _within(skipped, 0, offset)):
        raise ValueError(f"offset {str(offset)[:50]}, skipped {str(skipped)[:50]}")
    return offset, skipped, base64.b64decode(word["data"], validate=True), None if end is None else decode_end(end)


def decode_end(end: Any) -> dict[str, Any]:
    """How a task has ended, as its driver says. The task may speak in its driver's place."""
    known = {"result": str(end["result"]), "code": end["code"], "reason": str(end["reason"]), "output": end["output"]}
    if known["result"] not in ("finished", "failed", "stopped"):
        raise ValueError(f"result {known['result'][:50]!r}")
    if known["code"] is not None and not _within(known["code"], -(2**31), 2**31 - 1):
        raise ValueError(f"code {str(known['code'])[:50]!r}")
    if not _within(known["output"], 0, LARGEST):
        raise ValueError(f"output {str(known['output'])[:50]!r}")
    return known


def _within(number: Any, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most
