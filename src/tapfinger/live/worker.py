"""An agent's process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.backends.base import Backend
from tapfinger.live.config import LiveConfig, cluster_capacities, load_site
from tapfinger.live.connection import Line
from tapfinger.live.devices import Devices, can_pin, device_ids
from tapfinger.live.home import announce, set_up_logging
from tapfinger.live.host import Host, capacity_of
from tapfinger.registry import create


def _token(path: Path | None) -> str:
    if path is None:
        token = os.environ.pop("TAPFINGER_TOKEN", "")
    else:
        try:
            token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {path} cannot be read: {error}") from None
    if not token:
        raise ConfigError("an agent needs a token: --token-file, or TAPFINGER_TOKEN")
    return token


def make_backend(name: str, config: LiveConfig, pin: bool) -> Backend:
    """A backend by name, with what the configuration says of it."""
    options: dict[str, Any] = {}
    if name == "process":
        options = {
            "pin": pin,
            "stop_seconds": config.stop_seconds,
            "roots": config.roots,
            "max_log": config.max_log,
        }
    backend: Backend = create("backend", name, options)
    return backend


def make_host(directory: Path, cluster: str, config_path: Path | None, backend: str, pin: bool) -> Host:
    """Everything of an agent but its line."""
    scenario, config = load_site(config_path)
    capacity = capacity_of(cluster_capacities(scenario), cluster)
    pinned = pin and can_pin(capacity)
    devices = Devices(device_ids(capacity, pinned))
    return Host(directory, cluster, make_backend(backend, config, pinned), devices, config.beat_seconds)


def run_agent(
    cluster: str,
    urls: Sequence[str],
    state: Path,
    config: Path | None,
    backend: str,
    pin: bool,
    token_file: Path | None,
    verbose: bool,
) -> None:
    """Until SIGTERM (tasks run on) or SIGINT (tasks are stopped)."""
    set_up_logging(verbose)
    token = _token(token_file)
    host = make_host(state.absolute(), cluster, config, backend, pin)
    try:
        asyncio.run(_run(host, Line(host, urls, token), state, cluster))
    finally:
        (state / "process.json").unlink(missing_ok=True)
        host.close()


async def _run(host: Host, line: Line, state: Path, cluster: str) -> None:
    loop, stop, clear = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, _both, clear, stop)
    announce(state, "process", cluster=cluster)  # whoever finds us by it may send signals
    await line.run(stop)
    # The line is cut first: a coordinator that heard of the ends would send the tasks here again.
    while clear.is_set() and host.stop_all():
        await asyncio.sleep(0.05)


def _both(first: asyncio.Event, second: asyncio.Event) -> None:
    first.set()
    second.set()
