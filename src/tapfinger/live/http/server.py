"""The coordinator's process: it listens, serves, and writes its address to the state directory."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn

from tapfinger.errors import ConfigError
from tapfinger.live.http.app import make_app
from tapfinger.live.http.options import ServeOptions
from tapfinger.live.http.tls import Certificate, is_loopback
from tapfinger.live.protocol.wire import MAX_REPORT
from tapfinger.live.service.service import Service
from tapfinger.live.state_dir import announce


def check_address(host: str, allow_remote: bool, encrypted: bool) -> None:
    """Refuse to listen beyond this machine, unless encrypted or explicitly allowed."""
    try:
        loopback = is_loopback(host)
    except ValueError:
        raise ConfigError(f"--host {host!r} must be an address such as 127.0.0.1, or localhost") from None
    if not loopback and not allow_remote and not encrypted:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and tokens would travel unencrypted; give "
            "--tls-cert and --tls-key, put a proxy with TLS before 127.0.0.1, or say --allow-remote"
        )


def serve_site(state: Path, service: Service, options: ServeOptions, tls: Certificate | None = None) -> None:
    """Serve until told to stop; a failure of the store ends it with an error."""
    host, port = options.host, options.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the explicit protocol, asyncio does not set TCP_NODELAY, and small answers are delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}; try another --port") from None
    shown = f"[{host}]" if ":" in host else host
    url = f"{'http' if tls is None else 'https'}://{shown}:{listener.getsockname()[1]}"
    service.url = options.advertise or url
    failed: list[str] = []

    def give_up() -> None:
        failed.append(service.failure or "the coordinator could not go on, and the log says why; start it again")
        server.should_exit = True

    app = make_app(service, lambda: None, give_up)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            lifespan="on",
            ws="websockets-sansio",
            ws_max_size=MAX_REPORT,
            timeout_graceful_shutdown=2,
            log_config=None,
            ssl_certfile=None if tls is None else tls.cert,
            ssl_keyfile=None if tls is None else tls.key,
        )
    )
    listener.listen(2048)  # before the address is announced
    note = announce(state, "coordinator", url=url, **({} if tls is None else {"ca": str(tls.cert)}))
    try:
        server.run(sockets=[listener])
    finally:
        note.unlink(missing_ok=True)
    if failed:
        raise ConfigError(failed[0])
