"""A small HTTP server of the agent, which tasks on other machines ask whether they may continue.

It has two requests, below an address that only the agent and its tasks know. ``begin`` is answered once, with what to
run. ``beat`` brings output, and is answered with the lease and orders. An attempt that never sent ``begin`` has not
begun, and one that was refused never will, so the agent can safely declare it ended.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.agent.leases import replace_file

logger = logging.getLogger(__name__)

#: Longest request of a task, in bytes.
MAX_WORD = 4 * 1024 * 1024
#: Longest report of a task's progress, in characters.
MAX_LINE = 4096


class Refused(Exception):  # noqa: N818 - named for what it is
    """The attempt is no longer wanted and must not run."""


class NotYet(Exception):  # noqa: N818
    """The attempt is not known yet; it may ask again."""


#: Takes the attempt's name, the request's name and its body; returns the answer. Raises Refused or NotYet.
Answer = Callable[[str, str, bytes], bytes]


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
            self._server = ThreadingHTTPServer((host, known["port"]), _handler(self._secret, answer))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}, port {known['port']}, where tasks on the Ray cluster ask for their lease: "
                f"{error.strerror}; name an address of this machine that they reach with --ray-desk"
            ) from None
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        replace_file(note, {**known, "port": port}, sync=True)
        note.chmod(0o600)
        self._url = f"http://{host}:{port}/{self._secret}"
        threading.Thread(target=self._server.serve_forever, name="callback-server", daemon=True).start()

    def url(self, attempt: str) -> str:
        """The address that an attempt calls."""
        return f"{self._url}/{attempt}"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _handler(secret: str, answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 20  # seconds for a whole request, so that no client blocks a thread for long

        def do_POST(self) -> None:
            """Answer one request."""
            given, _, rest = self.path.removeprefix("/").partition("/")
            attempt, _, question = rest.partition("/")
            length = self.headers.get("Content-Length", "")
            if not secrets.compare_digest(given.encode(), secret.encode()):
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
                except (ValueError, KeyError, TypeError) as error:
                    logger.warning("attempt %s says nonsense: %s", attempt, error)
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
    offset, skipped, end = int(word["offset"]), int(word["skipped"]), word["end"]
    if offset < 0 or not 0 <= skipped <= offset:
        raise ValueError(f"offset {offset}, skipped {skipped}")
    if end is not None:
        end = {"result": str(end["result"]), "code": end["code"], "reason": str(end["reason"]), "output": end["output"]}
        if end["result"] not in ("finished", "failed", "stopped") or not isinstance(end["output"], int):
            raise ValueError(f"end {end}")
        if end["code"] is not None and not isinstance(end["code"], int):
            raise ValueError(f"code {end['code']}")
    return offset, skipped, base64.b64decode(word["data"], validate=True), end
