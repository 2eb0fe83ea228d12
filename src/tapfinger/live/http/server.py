"""The coordinator's process: it listens, serves, and writes its address to the state directory."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from tapfinger.errors import ConfigError
from tapfinger.live.http.app import make_app
from tapfinger.live.http.options import ServeOptions
from tapfinger.live.http.tls import Certificate, covers, is_loopback
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


def addresses(host: str, port: int, names: Sequence[str] | None, advertise: str | None) -> dict[str, str]:
    """What a coordinator notes of its addresses. ``names``: those in its certificate; None without encryption.

    ``url`` works on this machine, with ``server_name`` as the name to find in the certificate where it is another.
    ``advertised`` is the address for others.
    """
    everywhere = host != "localhost" and ipaddress.ip_address(host).is_unspecified
    local = ("::1" if ":" in host else "127.0.0.1") if everywhere else host
    scheme = "http" if names is None else "https"
    found = {"url": _url(scheme, local, port)}
    # A name with a star stands for many, and is nobody's address.
    whole = [name for name in names or () if "*" not in name]
    if names and not any(covers(name, local) for name in names):
        found["server_name"] = whole[0] if whole else names[0].replace("*", "tapfinger")
    found["advertised"] = advertise or (_url(scheme, whole[0], port) if everywhere and whole else found["url"])
    return found


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


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
    here = addresses(host, listener.getsockname()[1], None if tls is None else tls.names(), options.advertise)
    service.url = here["advertised"]
    failed: list[str] = []

    def give_up() -> None:
        failed.append("the coordinator could not go on, and the log says why; start it again")
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
    note = announce(state, "coordinator", **here, **({} if tls is None else {"ca": str(tls.cert)}))
    try:
        server.run(sockets=[listener])
    finally:
        note.unlink(missing_ok=True)
    if failed:
        raise ConfigError(failed[0])
