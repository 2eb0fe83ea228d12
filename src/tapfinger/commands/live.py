"""``tapfinger up``, ``down``, ``serve`` and ``agent``: the processes of a live site."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.dashboard import dashboard_link
from tapfinger.commands.interrupts import interruptible
from tapfinger.commands.options import Fields, expand_fields, name_values
from tapfinger.errors import CoordinatorError, TapfingerError
from tapfinger.live.http.options import ServeOptions
from tapfinger.settings import FieldHelp
from tapfinger.visible import visible

if TYPE_CHECKING:
    from tapfinger.core.contract import Scheduler
    from tapfinger.live.config import LiveConfig

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="Where the site keeps its state. Without it: $TAPFINGER_STATE, or yours."
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="TOML", help="Clusters and task types. Without it: two on this machine."),
]

BackendOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How tasks are run: process, ray, fake, package.module:Class. Without it: as the configuration says.",
    ),
]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option("--backend-option", metavar="KEY=VALUE", help="An option of the backend; may be given repeatedly."),
]


def up(
    state: StateOption = None,
    config: ConfigOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once everything runs; it is watched over.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the coordinator; 0 for any that is free.")] = 0,
    backend: BackendOption = None,
    backend_option: BackendOptions = None,
) -> None:
    """Start a whole site on this machine: a coordinator and an agent per cluster. Starts again what dies."""
    from tapfinger.live.state_dir import state_directory
    from tapfinger.live.supervisor import Supervisor

    directory = state_directory(state).absolute()
    site = Supervisor(directory, config, backend, backend_option or (), partial(typer.echo, err=True))
    site.refuse_second()
    with interruptible():
        try:
            if detach:
                _welcome(site.in_background(port), directory, state, config, detach)
                return
            url = site.up(port)
            try:
                _welcome(url, directory, state, config, detach)
                site.watch()
            except KeyboardInterrupt:
                pass
            finally:
                site.end()
        except BaseException:
            _tell_rest(directory, state)
            raise
        _tell_rest(directory, state)


def _tell_rest(directory: Path, state: Path | None) -> None:
    """Say what runs on, since this command has not started it."""
    from tapfinger.live.local_site import LocalSite

    with suppress(TapfingerError, OSError):  # the terminal may be gone
        if left := LocalSite(directory).running():
            typer.echo(
                f"Left running, since they were not started by this command: {', '.join(left)}. End them with: "
                f"tapfinger down{_where(state)}",
                err=True,
            )


def _where(state: Path | None) -> str:
    return "" if state is None else f" --state {shlex.quote(str(state))}"


def _welcome(url: str, directory: Path, state: Path | None, config: Path | None, detach: bool) -> None:
    from tapfinger.live.config import load_site
    from tapfinger.live.protocol.records import DEFAULT_TYPE

    _warn_of_open_tasks(url, directory)
    types = [task_type.name for task_type in load_site(config)[0].task_types]
    kind = "" if DEFAULT_TYPE in types or len(types) == 1 else f" --type {shlex.quote(types[0])}"
    typer.echo(f"Coordinator: {url}  (state: {directory})")
    typer.echo(f"Dashboard:   {dashboard_link(url, (directory / 'token').read_text(encoding='ascii').strip())}")
    typer.echo(f"Try:         tapfinger run{_where(state)}{kind} -- python3 -c 'print(6 * 7)'")
    typer.echo(f"End it with: {f'tapfinger down{_where(state)}' if detach else 'Ctrl-C'}")


def _warn_of_open_tasks(url: str, directory: Path) -> None:
    """Say on standard error if tasks are not isolated."""
    from tapfinger.live.http.client import Client

    with Client(url, (directory / "token").read_text(encoding="ascii").strip()) as client:
        if any(cluster["isolates"] is False for cluster in client.clusters()):
            typer.echo(
                "Note: tasks are not isolated: they can read this site's token and each other's files. Why is in the "
                "agents' logs; bubblewrap (bwrap) isolates them.",
                err=True,
            )


def down(
    state: StateOption = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove what it has kept as well: tasks, history, output, tokens.")
    ] = False,
) -> None:
    """End a site that was started with up; tasks that run are stopped, and wait for the next up."""
    from tapfinger.live.local_site import LocalSite
    from tapfinger.live.state_dir import state_directory

    site = LocalSite(state_directory(state).absolute())
    stopped = site.down()
    if stopped or not site.doubts:
        typer.echo(visible(f"Stopped {', '.join(stopped)}.") if stopped else "Nothing was running.")
    if site.doubts:
        raise CoordinatorError(visible("; ".join(site.doubts)))
    if forget:
        left = ", ".join(site.forget())
        typer.echo(f"Removed what it kept in {site.state}{f'; left alone: {left}' if left else ''}.")


@expand_fields
def serve(
    *,
    state: StateOption = None,
    config: ConfigOption = None,
    options: Annotated[ServeOptions, Fields(ServeOptions)],
) -> None:
    """Run the coordinator; of several that share a store, one leads and the others stand by."""
    from tapfinger.live.backends.starting import hide_from_others
    from tapfinger.live.config import build_site, load_site
    from tapfinger.live.http.server import check_address, serve_site
    from tapfinger.live.http.tls import certificate
    from tapfinger.live.logging_setup import set_up_logging
    from tapfinger.live.service.service import Service
    from tapfinger.live.state_dir import state_directory
    from tapfinger.schedulers.exploring import Exploring

    hide_from_others()
    tls = certificate(options.tls_cert, options.tls_key)
    check_address(options.host, options.allow_remote, tls is not None)
    scenario, live = load_site(config)
    if options.store is not None:
        live = live.model_copy(update={"store": options.store})
    made = [_scheduler(text, live) for text in (live.scheduler, live.fallback, *live.shadow)]
    scheduler, fallback = Exploring(made[0], live.explore) if live.explore else made[0], made[1]
    shadows = dict(zip(live.shadow, made[2:], strict=True))
    set_up_logging(options.verbose, options.log_format)
    directory = state_directory(state)
    serve_site(directory, Service(directory, build_site(scenario), live, scheduler, fallback, shadows), options, tls)


def _scheduler(text: str, live: LiveConfig) -> Scheduler:
    """A scheduler for a coordinator; code that is not of this package runs in a process of its own."""
    from tapfinger.evaluation.specs import parse_spec
    from tapfinger.live.coordinator.scheduler_process import ProcessScheduler
    from tapfinger.registry import is_built_in

    spec = parse_spec(text)
    options = dict(spec.options)
    if is_built_in("scheduler", spec.name, options):
        return spec.create()
    return ProcessScheduler(text, spec.name, options, live.scheduler_memory_mb)


@dataclass(frozen=True)
class AgentOptions:
    """How an agent runs tasks, and what it logs."""

    pin: Annotated[bool, FieldHelp("Give each task cores of its own, if there are enough.")] = True
    cores: Annotated[
        str | None, FieldHelp("Cores to give to tasks, such as 0,1 or 4-7. Without it: the first ones.", "LIST")
    ] = None
    token_file: Annotated[
        Path | None,
        FieldHelp("File with the agent's token; - for standard input. Without it: $TAPFINGER_TOKEN.", "FILE"),
    ] = None
    ray_address: Annotated[
        str | None, FieldHelp("Ray's dashboard: the option 'address' of the backend ray.", "URL")
    ] = None
    ray_desk: Annotated[
        str | None, FieldHelp("This machine as Ray's nodes reach it: the option 'callback_address'.", "ADDRESS")
    ] = None
    cgroup: Annotated[
        Path | None, FieldHelp("Limit tasks in control groups (cgroup2) below this: the option 'cgroup'.", "DIR")
    ] = None
    memory_per_cpu: Annotated[
        float | None, FieldHelp("Most memory of a task for each cpu: the option 'memory_per_cpu'.", "GIB", min=0.001)
    ] = None
    hide: Annotated[
        list[Path], FieldHelp("What isolated tasks cannot see, besides live.hidden; may be repeated.", "PATH")
    ] = field(default_factory=list)
    tls_ca: Annotated[
        Path | None, FieldHelp("Certificates to believe. Without it: $TAPFINGER_TLS_CA, or the machine's.", "FILE")
    ] = None
    verbose: Annotated[bool, FieldHelp("Log everything that happens.", option="--verbose")] = False
    log_format: Annotated[str, FieldHelp("Of the log: text, or json (an object per line).", "FORMAT")] = "text"


@expand_fields
def agent(
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster that this agent runs.")],
    coordinator: Annotated[str, typer.Option(metavar="URL[,URL]", help="Addresses of the coordinator.")],
    state: Annotated[Path, typer.Option("--state", metavar="DIR", help="Where the agent keeps its state.")],
    config: ConfigOption = None,
    backend: BackendOption = None,
    backend_option: BackendOptions = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LIST",
            help="Devices of a resource to give to tasks, such as gpu=2,3; may be given repeatedly. Without it: the "
            "first ones.",
        ),
    ] = None,
    *,
    asked: Annotated[AgentOptions, Fields(AgentOptions)],
) -> None:
    """Run the agent of one cluster. SIGTERM leaves its tasks running for the next agent; Ctrl-C stops them."""
    import os

    from tapfinger.live.agent.devices import parse_cores
    from tapfinger.live.agent.main import AgentSettings, run_agent
    from tapfinger.overrides import parse_options

    named = {
        "address": asked.ray_address,
        "callback_address": asked.ray_desk,
        "cgroup": None if asked.cgroup is None else str(asked.cgroup),
        "memory_per_cpu": asked.memory_per_cpu,
    }
    options = parse_options(backend_option or ()) | {key: value for key, value in named.items() if value is not None}
    chosen = parse_cores(asked.cores) if asked.cores is not None else ()
    ids, hidden = name_values("--devices", devices), tuple(asked.hide)
    settings = AgentSettings(cluster, state, config, backend, options, chosen, ids, hidden, pin=asked.pin)
    ca = str(asked.tls_ca) if asked.tls_ca is not None else os.environ.get("TAPFINGER_TLS_CA")
    run_agent(settings, coordinator.split(","), asked.token_file, asked.verbose, ca, asked.log_format)
