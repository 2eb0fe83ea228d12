"""The coordinator's process: listens, serves, and leaves a note of where it can be found."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn

from tapfinger.config import Scenario
from tapfinger.core.contract import Scheduler
from tapfinger.errors import ConfigError
from tapfinger.live.api import make_app
from tapfinger.live.config import LiveConfig, build_site
from tapfinger.live.home import announce, set_up_logging
from tapfinger.live.service import Service
from tapfinger.live.wire import MAX_MESSAGE


def check_address(host: str, allow_remote: bool) -> None:
    """Refuse to be heard beyond this machine unless someone has said so."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ConfigError(f"--host {host!r} must be an address such as 127.0.0.1, or localhost") from None
    if not loopback and not allow_remote:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and tokens would travel unencrypted; put a proxy with "
            "TLS before 127.0.0.1, or say --allow-remote"
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
) -> None:
    """Serve until told to stop; a failure of the store ends it with an error."""
    set_up_logging(verbose)
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
    url = f"http://{shown}:{listener.getsockname()[1]}"
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
            ws_max_size=MAX_MESSAGE,
            timeout_graceful_shutdown=2,
            log_config=None,
        )
    )
    listener.listen(2048)  # before anyone is told the address
    note = announce(state, "coordinator", url=url)
    try:
        server.run(sockets=[listener])
    finally:
        note.unlink(missing_ok=True)
    if failed:
        raise ConfigError(failed[0])
