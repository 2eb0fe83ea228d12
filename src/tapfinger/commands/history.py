"""``tapfinger history``: the tasks that have run, as files that scenarios can play."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.screen import say

app = typer.Typer(no_args_is_help=True, help="What a live site has run, as files that scenarios can play.")


@app.callback()
def _group() -> None:
    pass


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Workload file to write: .csv or .parquet.")],
    state: StateOption = None,
    url: UrlOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many of the latest tasks.")] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Name only the site's task types, for scenarios without other sizes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite earlier files.")] = False,
) -> None:
    """Write the tasks that have run as a workload file, and next to it a scenario of this site that plays it."""
    import tomli_w

    from tapfinger.config import parse_scenario
    from tapfinger.errors import ConfigError, DataError
    from tapfinger.evaluation import live_history
    from tapfinger.workloads.files import write_workload
    from tapfinger.workloads.world import build_world

    scenario_file = file.with_suffix(".toml")
    for path in (file, scenario_file):
        if path.exists() and not force:
            raise ConfigError(f"{path} exists; choose another name, or overwrite it with --force")
    with open_client(state, url) as client:
        history = live_history.read_history(client.site(), client.history(limit))
    made = live_history.export(history, file.stem, plain)
    scenario = {**made.scenario, "arrivals": {"kind": "trace", "file": file.name}}
    build_world(
        parse_scenario(scenario, str(scenario_file), str(file.parent))
    )  # faults are found before anything is written
    write_workload(file, made.workload)
    try:
        scenario_file.write_text(tomli_w.dumps(scenario), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{scenario_file} cannot be written: {error}") from None
    typer.echo(f"{len(made.workload)} tasks written to {file}, the scenario that plays them to {scenario_file}")
    for reason, count in history.left_out.items():
        say(f"  {count} left out: {reason}")
    if made.widened:
        typer.echo(f"  {made.widened} had sizes of their own and may have any size of their type there")
    for kind in history.scenario.task_types:
        known = history.known[kind.name]
        if known.finished:
            times = f"{known.factor:.3g} times"
            say(f"  {kind.name}: took {times} what its profile says, and is as slow in the scenario")
    typer.echo(f"run it: tapfinger compare {scenario_file}")
