"""An agent's process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.agent.devices import can_pin, cores_of, make_devices, parse_devices
from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.kept import capacity_of
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.agent.link import CoordinatorLink
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import Backend, BackendContext
from tapfinger.live.backends.sandbox import Sandbox, find_sandbox
from tapfinger.live.backends.starting import hide_from_others
from tapfinger.live.backends.supervision import Supervised
from tapfinger.live.config import LiveConfig, cluster_capacities, load_site
from tapfinger.live.logging_setup import set_up_logging
from tapfinger.live.state_dir import announce, make_directory, state_directory
from tapfinger.workloads.resource_types import resource_types

#: Value of --token-file that means standard input: nobody finds the token in a file, an environment or a command line.
STANDARD_INPUT = Path("-")


def _token(path: Path | None) -> str:
    if path is None:
        token = os.environ.pop("TAPFINGER_TOKEN", "")
    elif path == STANDARD_INPUT:
        token = _first_line()
    else:
        try:
            token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {path} cannot be read: {error}") from None
    if not token:
        raise ConfigError("an agent needs a token: --token-file FILE (- for standard input), or TAPFINGER_TOKEN")
    return token


def _first_line() -> str:
    """The first line of standard input, which is empty from then on: tasks inherit it."""
    try:
        line = sys.stdin.readline().strip()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.close(nothing)
    except (OSError, ValueError) as error:  # also of a standard input that is closed, or holds other than text
        raise ConfigError(f"--token-file - cannot be read from standard input: {error}") from None
    return line


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Command-line settings of an agent for its cluster."""

    cluster: str
    #: Directory of the agent's state.
    state: Path
    #: The site's TOML file; None: the default site.
    config: Path | None = None
    #: Name of the backend; None: the one of the configuration.
    backend: str | None = None
    #: Options of the backend; they override options of the same name in the configuration.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Whether to pin each task to cores of its own, if there are enough.
    pin: bool = field(kw_only=True)
    #: Cores to choose from; empty: the first ones of this machine.
    cores: tuple[int, ...] = ()
    #: Ids of devices by resource, such as ``2,3``; devices of other resources are counted from 0.
    devices: Mapping[str, str] = field(default_factory=dict)
    #: Further directories and files that isolated tasks cannot see.
    hidden: tuple[Path, ...] = ()


#: File in an agent's directory with the configuration of its backend, so that tasks can be stopped without the agent.
BACKEND_NOTE = "backend.json"


def make_host(settings: AgentSettings) -> Host:
    """The parts of an agent, without its link to the coordinator."""
    scenario, config = load_site(settings.config)
    capacity = capacity_of(cluster_capacities(scenario), settings.cluster)
    resources = resource_types(scenario)
    wanted = cores_of(resources, capacity)
    pin = settings.pin and can_pin(wanted, settings.cores)
    if settings.cores and not pin:
        raise ConfigError(
            f"--cores names {len(settings.cores)} cores, and cluster {settings.cluster} has {wanted} "
            f"{resources.enforced_by('cores') or 'cores'}; name one for each, and leave out --no-pin"
        )
    devices = parse_devices(settings.devices, resources, capacity, settings.cluster)
    chosen = config.backend_of(settings.cluster, settings.backend, settings.options)
    backend = chosen.create()
    context = BackendContext(
        settings.state.absolute(),
        settings.cluster,
        capacity,
        resources,
        pin=pin,
        cores=settings.cores,
        stop_seconds=config.stop_seconds,
        roots=config.roots,
        max_log=config.max_log,
        sandbox=_sandbox(settings, config, backend),
    )
    rules = DiskRules(config.keep_results_hours, config.max_results_gb, config.min_free_mb)
    host = Host(context, backend, make_devices(context, devices), config.beat_seconds, rules=rules)
    replace_file(context.directory / BACKEND_NOTE, chosen.model_dump())
    return host


def _sandbox(settings: AgentSettings, config: LiveConfig, backend: Backend) -> Sandbox | None:
    """The sandbox of all tasks, with everything hidden that is private to the site; None without isolation."""
    if not isinstance(backend, Supervised):
        if config.isolation == "required":
            raise ConfigError(
                f'live.isolation = "required", but the backend {type(backend).__name__} does not isolate tasks; use '
                "the process backend"
            )
        return None
    # The user's own site is hidden as well: its token is that of an operator.
    own = (settings.state, state_directory(None))
    if config.isolation != "none":
        for place in own:
            with suppress(ConfigError):  # where this user can make none, it will have none
                make_directory(place)  # what does not exist cannot be hidden from tasks that run when it is made
    hidden = (*own, *map(Path, config.hidden), *settings.hidden)
    return find_sandbox(config.isolation, hidden, map(Path, config.roots))


def run_agent(
    settings: AgentSettings,
    urls: Sequence[str],
    token_file: Path | None,
    verbose: bool,
    ca: str | None = None,
    log_format: str = "text",
) -> None:
    """Run until SIGTERM, which leaves tasks running, or SIGINT, which stops them first."""
    hide_from_others()
    set_up_logging(verbose, log_format)
    token = _token(token_file)
    if token_file is not None and token_file.is_file():
        settings = replace(settings, hidden=(*settings.hidden, token_file))
    host = make_host(settings)
    try:
        asyncio.run(_run(host, CoordinatorLink(host, urls, token, ca), settings, urls))
    finally:
        (settings.state / "process.json").unlink(missing_ok=True)
        host.close()


async def _run(host: Host, link: CoordinatorLink, settings: AgentSettings, urls: Sequence[str]) -> None:
    loop, stop, clear = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, _both, clear, stop)
    # After this, signals may arrive.
    announce(settings.state, "process", cluster=settings.cluster, coordinator=list(urls))
    await link.run(stop)
    # The link is closed first: a coordinator that learned of the ends would send the tasks here again.
    while clear.is_set() and host.stop_all():
        await asyncio.sleep(0.05)


def _both(first: asyncio.Event, second: asyncio.Event) -> None:
    first.set()
    second.set()
