"""``tapfinger metrics``: the same measurements of simulated runs and of a live site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.screen import plain_console, say

if TYPE_CHECKING:
    from tapfinger.evaluation.event_logs import MeasuredRun
    from tapfinger.live.http.client import Client

#: Events that are requested at once.
_PAGE = 10_000


def _count(value: float) -> str:
    return f"{value:.6g}"


def _time(value: float) -> str:
    return f"{value:.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


#: Label, name of the measure, format; rows of single resources follow.
_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("tasks", "tasks", _count),
    ("  finished", "finished", _count),
    ("  failed", "failed", _count),
    ("first to last event", "seconds", _time),
    ("completion, mean", "mean", _time),
    ("  median", "median", _time),
    ("  p95", "p95", _time),
    ("  p99", "p99", _time),
    ("  max", "max", _time),
    ("waiting, mean", "waiting", _time),
    ("  p95", "waiting_p95", _time),
    ("  max", "waiting_max", _time),
    ("running, mean", "running", _time),
    ("tasks in system, most", "in_system_max", _count),
    ("tasks overtaken", "overtaken_share", _share),
)


def metrics(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Directory of a comparison, or an event log (.jsonl, .jsonl.gz)."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Measure a live site in place of a run.")] = False,
    state: StateOption = None,
    url: UrlOption = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the measurements to this file.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the live site's history as an event log too.")
    ] = None,
) -> None:
    """Measure runs from their event logs, or a live site from its history, in the same table."""
    from tapfinger.errors import ConfigError
    from tapfinger.evaluation import event_logs
    from tapfinger.evaluation.output import check_target, write_json

    live = live or state is not None or url is not None
    if (run is None) != live:
        raise ConfigError("give either a run (a directory or an event log) or --live, whichever is to be measured")
    if log is not None and not live:
        raise ConfigError("--log writes the history of a live site; a run has its event log already")
    for path in (json_path, log):
        if path is not None:
            check_target(path)
    found: dict[str, list[MeasuredRun]] = {}
    if run is not None:
        for path in event_logs.find_logs(run):
            measured = event_logs.measure_log(path)
            found.setdefault(measured.record.scheduler, []).append(measured)
    else:
        with open_client(state, url) as client:
            measured = event_logs.measure_live(client.site(), _lines(client), log)
        found[measured.record.scheduler] = [measured]
    numbers = {name: _mean([one.numbers() for one in runs]) for name, runs in found.items()}
    _show(found, numbers, live)
    if json_path is not None:
        write_json(json_path, {"seconds_per_slot": measured.slot_seconds, "schedulers": numbers})
    for path in (json_path, log):
        if path is not None:
            typer.echo(f"Wrote {path}")


def _lines(client: Client) -> Iterator[Mapping[str, Any]]:
    after = 0
    while page := client.events(after, _PAGE):
        yield from page
        after = page[-1]["seq"]


def _mean(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over several seeds; for measures that are a maximum, the maximum."""
    return {
        name: max(run[name] for run in runs) if name.endswith("max") else sum(run[name] for run in runs) / len(runs)
        for name in runs[0]
    }


def _show(found: Mapping[str, Sequence[MeasuredRun]], numbers: Mapping[str, Mapping[str, float]], live: bool) -> None:
    from rich import box
    from rich.table import Table

    from tapfinger.evaluation.stats import use_by_kind

    runs = next(iter(found.values()))
    record, seconds = runs[0].record, runs[0].slot_seconds
    what = "live" if live else f"{len(runs)} seed{'s' * (len(runs) != 1)}, slots of {seconds:g} s"
    table = Table(title=f"{record.scenario}, {what}", box=box.SIMPLE_HEAD)
    table.add_column("times in seconds")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    uses = [(f"{name} in use", f"utilisation.{name}", _share) for name in record.resources]
    uses += [(*row, _share) for row in use_by_kind(record)]
    idle = [(f"{name} idle while tasks wait", f"idle.{name}", _share) for name in record.resources]
    idle += [
        (f"{name} stranded while tasks wait", f"stranded.{name}", _share) for name in record.resources if record.wholes
    ]
    for label, name, form in (*_ROWS, *uses, *idle):
        table.add_row(label, *(form(column[name]) for column in numbers.values()))
    plain_console().print(table)
    for reason, count in runs[0].left_out.items():
        say(f"  {count} tasks left out: {reason}")
