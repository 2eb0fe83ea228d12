"""The coordinator's process: listens, serves, and leaves a note of where it can be found."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn

from tapfinger.config import Scenario
from tapfinger.core.contract import Scheduler
from tapfinger.errors import ConfigError
from tapfinger.live.api import make_app
from tapfinger.live.config import LiveConfig, build_site
from tapfinger.live.home import announce
from tapfinger.live.lines import set_up_logging
from tapfinger.live.service import Service
from tapfinger.live.tls import Certificate, is_loopback
from tapfinger.live.wire import MAX_REPORT


def check_address(host: str, allow_remote: bool, encrypted: bool) -> None:
    """Refuse to be heard beyond this machine unless encrypted, or someone has said so."""
    try:
        loopback = is_loopback(host)
    except ValueError:
        raise ConfigError(f"--host {host!r} must be an address such as 127.0.0.1, or localhost") from None
    if not loopback and not allow_remote and not encrypted:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and tokens would travel unencrypted; give "
            "--tls-cert and --tls-key, put a proxy with TLS before 127.0.0.1, or say --allow-remote"
        )


def serve_site(
    state: Path,
    scenario: Scenario,
    config: LiveConfig,
    scheduler: Scheduler,
    fallback: Scheduler,
    host: str,
    port: int,
    verbose: bool,
    advertised: str | None = None,
    shadows: Mapping[str, Scheduler] | None = None,
    tls: Certificate | None = None,
    log_format: str = "text",
) -> None:
    """Serve until told to stop; a failure of the store ends it with an error."""
    set_up_logging(verbose, log_format)
    service = Service(state, build_site(scenario), config, scheduler, fallback, shadows)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or asyncio does not recognise TCP and leaves small answers to be delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}; try another --port") from None
    shown = f"[{host}]" if ":" in host else host
    url = f"{'http' if tls is None else 'https'}://{shown}:{listener.getsockname()[1]}"
    service.url = advertised or url
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
    listener.listen(2048)  # before anyone is told the address
    note = announce(state, "coordinator", url=url, **({} if tls is None else {"ca": str(tls.cert)}))
    try:
        server.run(sockets=[listener])
    finally:
        note.unlink(missing_ok=True)
    if failed:
        raise ConfigError(failed[0])
