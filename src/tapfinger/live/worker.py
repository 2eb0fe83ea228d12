"""An agent's process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.backends.base import Backend, Opens
from tapfinger.live.config import LiveConfig, cluster_capacities, load_site
from tapfinger.live.connection import Line
from tapfinger.live.devices import Devices, can_pin, device_ids
from tapfinger.live.home import announce
from tapfinger.live.host import Host, capacity_of
from tapfinger.live.lines import set_up_logging
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


@dataclass(frozen=True, slots=True)
class Means:
    """How an agent runs tasks."""

    backend: str = "process"
    #: Give each task cores of its own, if there are enough.
    pin: bool = True
    #: Cores to choose from; none means those of this machine, the first ones first.
    cores: tuple[int, ...] = ()
    #: Of Ray's dashboard, and of this machine as Ray's nodes see it.
    ray_address: str = "http://127.0.0.1:8265"
    ray_desk: str | None = None
    #: Control group below which each task gets one of its own.
    cgroup: Path | None = None
    #: GiB that a task may use for each of its cpus.
    memory_per_cpu: float | None = None


def make_backend(means: Means, config: LiveConfig, capacity: Mapping[str, float], pin: bool) -> Backend:
    """A backend by name, with what the configuration says of it."""
    common: dict[str, Any] = {"stop_seconds": config.stop_seconds, "roots": config.roots, "max_log": config.max_log}
    if means.memory_per_cpu is not None and means.cgroup is None:
        raise ConfigError("--memory-per-cpu is a limit of a control group; name one with --cgroup")
    if means.backend == "process":
        from tapfinger.live.backends.cgroups import Cgroups
        from tapfinger.live.backends.process import Process

        cgroups = Cgroups(means.cgroup, means.memory_per_cpu) if means.cgroup is not None else None
        return Process(pin, cgroups=cgroups, **common)
    if means.cgroup is not None:
        raise ConfigError(f"--cgroup works with the backend process, not with {means.backend}")
    if means.backend == "ray":
        from tapfinger.live.backends.ray import Ray

        # Ray's own name; taken away so that tasks of this agent do not have it by accident.
        token = os.environ.pop("RAY_AUTH_TOKEN", None)
        ray = Ray(means.ray_address, token, means.ray_desk, **common)
        ray.check(capacity)
        return ray
    backend: Backend = create("backend", means.backend, {})
    return backend


def make_host(directory: Path, cluster: str, config_path: Path | None, means: Means) -> Host:
    """Everything of an agent but its line."""
    scenario, config = load_site(config_path)
    capacity = capacity_of(cluster_capacities(scenario), cluster)
    if means.cores and not (means.pin and means.backend != "ray" and can_pin(capacity, means.cores)):
        raise ConfigError(
            f"--cores names {len(means.cores)} cores, and cluster {cluster} has {capacity.get('cpu', 0):g} cpu; name "
            "one for each, and leave out --no-pin and Ray"
        )
    pinned = means.pin and means.backend != "ray" and can_pin(capacity, means.cores)
    devices = Devices(device_ids(capacity, pinned, means.cores))
    backend = make_backend(means, config, capacity, pinned)
    host = Host(directory, cluster, backend, devices, config.beat_seconds)
    if isinstance(backend, Opens):
        backend.open(directory)  # what is wrong with it is said now, not at the first task
    return host


def run_agent(
    cluster: str,
    urls: Sequence[str],
    state: Path,
    config: Path | None,
    means: Means,
    token_file: Path | None,
    verbose: bool,
    ca: str | None = None,
    log_format: str = "text",
) -> None:
    """Until SIGTERM (tasks run on) or SIGINT (tasks are stopped)."""
    set_up_logging(verbose, log_format)
    token = _token(token_file)
    host = make_host(state.absolute(), cluster, config, means)
    try:
        asyncio.run(_run(host, Line(host, urls, token, ca), state, cluster))
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
