"""``tapfinger up``, ``down``, ``serve`` and ``agent``: the processes of a live site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.dashboard import dashboard_link

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

VerboseOption = Annotated[bool, typer.Option("--verbose", help="Log everything that happens.")]
LogFormatOption = Annotated[str, typer.Option(metavar="FORMAT", help="Of the log: text, or json (an object per line).")]


def up(
    state: StateOption = None,
    config: ConfigOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once everything runs.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the coordinator; 0 for any that is free.")] = 0,
) -> None:
    """Start a whole site on this machine: a coordinator and an agent per cluster."""
    import signal

    from tapfinger.live.home import state_directory
    from tapfinger.live.local import LocalSite

    site = LocalSite(state_directory(state).absolute(), config)
    before = signal.signal(signal.SIGTERM, interrupt)  # ends what was started, as Ctrl-C does
    try:
        url = site.up(port)
        try:
            _welcome(url, site.state, state, detach)
            if not detach:
                site.wait()
        except KeyboardInterrupt:
            pass
        finally:
            if not detach:
                site.down()
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt(*_: object) -> None:
    """As Ctrl-C does, for signal handlers."""
    raise KeyboardInterrupt


def _welcome(url: str, directory: Path, state: Path | None, detach: bool) -> None:
    typer.echo(f"Coordinator: {url}  (state: {directory})")
    typer.echo(f"Dashboard:   {dashboard_link(url, (directory / 'token').read_text(encoding='ascii').strip())}")
    where = f" --state {state}" if state is not None else ""
    typer.echo(f"Try:         tapfinger run{where} -- python3 -c 'print(6 * 7)'")
    typer.echo(f"End it with: {'tapfinger down' + where if detach else 'Ctrl-C'}")


def down(
    state: StateOption = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove what it has kept as well: tasks, history, output, tokens.")
    ] = False,
) -> None:
    """End a site that was started with up; tasks that run are stopped, and wait for the next up."""
    from tapfinger.live.home import state_directory
    from tapfinger.live.local import LocalSite

    site = LocalSite(state_directory(state).absolute(), None)
    stopped = site.down()
    typer.echo(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")
    if forget:
        left = ", ".join(site.forget())
        typer.echo(f"Removed what it kept in {site.state}{f'; left alone: {left}' if left else ''}.")


def serve(
    state: StateOption = None,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")] = 7410,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond this machine, although nothing is encrypted.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="PostgreSQL database, which several coordinators may share. Without it: a file."
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address at which others reach this coordinator, if it is another."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate to show, with those that it was signed with.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate.")] = None,
    verbose: VerboseOption = False,
    log_format: LogFormatOption = "text",
) -> None:
    """Run the coordinator; of several that share a store, one leads and the others stand by."""
    from tapfinger.evaluation.specs import parse_spec
    from tapfinger.live.config import load_site
    from tapfinger.live.home import state_directory
    from tapfinger.live.server import check_address, serve_site
    from tapfinger.live.tls import certificate
    from tapfinger.schedulers.exploring import Exploring

    tls = certificate(tls_cert, tls_key)
    check_address(host, allow_remote, tls is not None)
    scenario, live = load_site(config)
    if store is not None:
        live = live.model_copy(update={"store": store})
    scheduler, fallback = parse_spec(live.scheduler).create(), parse_spec(live.fallback).create()
    if live.explore:
        scheduler = Exploring(scheduler, live.explore)
    shadows = {name: parse_spec(name).create() for name in live.shadow}
    serve_site(
        state_directory(state),
        scenario,
        live,
        scheduler,
        fallback,
        host,
        port,
        verbose,
        advertise,
        shadows,
        tls,
        log_format,
    )


def agent(
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster that this agent runs.")],
    coordinator: Annotated[str, typer.Option(metavar="URL[,URL]", help="Addresses of the coordinator.")],
    state: Annotated[Path, typer.Option("--state", metavar="DIR", help="Where the agent keeps its state.")],
    config: ConfigOption = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="How tasks are run: process, ray, fake, package.module:Class.")
    ] = ("process"),
    pin: Annotated[bool, typer.Option(help="Give each task cores of its own, if there are enough.")] = True,
    cores: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Cores to give to tasks, such as 0,1 or 4-7. Without it: the first ones."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the agent's token. Without it: $TAPFINGER_TOKEN.")
    ] = None,
    ray_address: Annotated[
        str, typer.Option(metavar="URL", help="Ray's dashboard. Its token, if it wants one: $RAY_AUTH_TOKEN.")
    ] = "http://127.0.0.1:8265",
    ray_desk: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of this machine that Ray's nodes reach. Without it: found out."),
    ] = None,
    cgroup: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Limit tasks in control groups (cgroup2) below this one.")
    ] = None,
    memory_per_cpu: Annotated[
        float | None, typer.Option(metavar="GIB", min=0.001, help="Most memory of a task for each cpu; needs --cgroup.")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificates to believe. Without it: $TAPFINGER_TLS_CA, or the machine's."),
    ] = None,
    verbose: VerboseOption = False,
    log_format: LogFormatOption = "text",
) -> None:
    """Run the agent of one cluster. SIGTERM leaves its tasks running for the next agent; Ctrl-C stops them."""
    import os

    from tapfinger.live.devices import parse_cores
    from tapfinger.live.worker import Means, run_agent

    chosen = parse_cores(cores) if cores is not None else ()
    means = Means(backend, pin, chosen, ray_address, ray_desk, cgroup, memory_per_cpu)
    ca = str(tls_ca) if tls_ca is not None else os.environ.get("TAPFINGER_TLS_CA")
    run_agent(cluster, coordinator.split(","), state, config, means, token_file, verbose, ca, log_format)
