"""``tapfinger compare``: every scheduler on the same workloads."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.options import Fields, JobsOption, RayOption, ScenarioArgument, SetOption, expand_fields
from tapfinger.commands.screen import plain_console
from tapfinger.settings import FieldHelp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console
    from rich.table import Table

    from tapfinger.config import Scenario
    from tapfinger.evaluation.output import Request
    from tapfinger.evaluation.runner import ComparisonResult
    from tapfinger.evaluation.specs import SchedulerSpec
    from tapfinger.evaluation.stats import SchedulerSummary

#: Width of tables if there is no terminal.
_WIDTH = 140


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and what is written."""

    schedulers: Annotated[
        str | None,
        FieldHelp(
            "Schedulers, separated by commas; options after @, e.g. min@pending=5; your own class as "
            "package.module:Class. Without it: the usual baselines.",
            "A,B,C",
        ),
    ] = None
    seeds: Annotated[str, FieldHelp("0:30 (that is 0 to 29), 1,2,3 or 7. Each seed is another workload.", "SEEDS")] = (
        "0:10"
    )
    baseline: Annotated[
        str | None,
        FieldHelp(
            "The scheduler that differences are taken against. Without it: greedy, or else the first one.", "NAME"
        ),
    ] = None
    out: Annotated[Path | None, FieldHelp("Directory for the results. Without it: below results/SCENARIO.", "DIR")] = (
        None
    )
    json_path: Annotated[
        Path | None,
        FieldHelp("Write results.json to this file. Without --out, write only that.", "PATH", option="--json"),
    ] = None
    cache: Annotated[
        bool, FieldHelp("Reuse runs that were finished before, and keep those made now.", option="--cache/--no-cache")
    ] = True
    event_logs: Annotated[bool, FieldHelp("Keep an event log of every run.", option="--event-logs/--no-event-logs")] = (
        True
    )


@expand_fields
def compare(
    scenario: ScenarioArgument,
    *,
    asked: Annotated[CompareOptions, Fields(CompareOptions)],
    overrides: SetOption = None,
    jobs: JobsOption = 1,
    ray: RayOption = None,
) -> None:
    """Compare schedulers on the same workloads.

    Prints a table and writes a directory with results, figures, event logs and a report. Every scheduler
    gets the same arrivals, types and noise, so differences are taken seed by seed. Finished runs
    are kept: stop with Ctrl-C, and run the same command again to continue.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD

    from tapfinger.config import load_scenario
    from tapfinger.evaluation import output, specs
    from tapfinger.evaluation.stats import summarise

    loaded = load_scenario(scenario, overrides or ())
    chosen = specs.parse_specs(asked.schedulers) if asked.schedulers is not None else _usual(loaded)
    request = output.Request(
        scenario,
        loaded,
        tuple(overrides or ()),
        chosen,
        specs.parse_seeds(asked.seeds),
        _baseline(asked.baseline, chosen),
    )
    only_json = asked.json_path is not None and asked.out is None
    folder = asked.out or request.default_folder()
    if not only_json:
        output.prepare_folder(folder)
    if asked.json_path is not None:
        output.check_target(asked.json_path)
    messages = plain_console(stderr=True)
    with_events = asked.event_logs and not only_json
    with _run(request, (jobs, ray), asked.cache, with_events, messages) as outcome:
        summaries = summarise(outcome.records, request.baseline, independent=not outcome.same_draws)
        screen = plain_console(width=_WIDTH)
        _show(request, summaries, screen)
        if asked.json_path is not None:
            output.write_json(asked.json_path, output.results(request, summaries, outcome.same_draws))
        if not only_json:
            with messages.status("drawing figures and writing the report"):
                output.write_all(folder, request, outcome, summaries, with_events)
    where = str(asked.json_path) if only_json else f"{folder} (open {folder / 'report.html'})"
    screen.print(f"Results are in {where}", highlight=False, soft_wrap=True)


def _usual(scenario: Scenario) -> tuple[SchedulerSpec, ...]:
    """The usual schedulers; the learned one only if there is a model for this scenario."""
    from tapfinger.evaluation.specs import USUAL_SCHEDULERS, parse_specs
    from tapfinger.schedulers.model_choice import has_model
    from tapfinger.workloads.world import build_world

    left_out = () if has_model(build_world(scenario).context(0)) else ("tapfinger",)
    return parse_specs(",".join(name for name in USUAL_SCHEDULERS if name not in left_out))


def _baseline(wanted: str | None, chosen: tuple[SchedulerSpec, ...]) -> str:
    from tapfinger.errors import UnknownNameError

    texts = [spec.text for spec in chosen]
    if wanted is None:
        return "greedy" if "greedy" in texts else texts[0]
    if wanted not in texts:
        raise UnknownNameError("baseline among the compared schedulers called", wanted, texts)
    return wanted


@contextmanager
def _run(
    request: Request, where: tuple[int, str | None], cache: bool, with_events: bool, messages: Console
) -> Iterator[ComparisonResult]:
    """All runs, with a progress bar. A context manager, because without a cache the runs are deleted afterwards."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tapfinger.evaluation.runner import Interrupted, Runner, open_store

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeRemainingColumn(),
    )
    with open_store(cache) as store:
        with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as progress:
            bar = progress.add_task(request.scenario.name, total=None)
            jobs, ray = where
            runner = Runner(
                store, jobs, with_events, lambda done, total: progress.update(bar, completed=done, total=total), ray
            )
            try:
                with stop_when_told() as told:
                    outcome = runner.run(request.scenario, request.specs, request.seeds)
            except Interrupted as stopped:
                progress.stop()
                kept = "finished runs are kept, give the same command again to go on" if cache else "nothing is kept"
                messages.print(f"{stopped}: {kept}", style="yellow", highlight=False)
                raise typer.Exit(128 + (told[0] if told else signal.SIGINT)) from None
        if outcome.reused:
            text = f"{outcome.reused} runs were finished before and are reused (--no-cache would make them again)"
            messages.print(text, style="dim", highlight=False)
        yield outcome


@contextmanager
def stop_when_told() -> Iterator[list[int]]:
    """Handle SIGTERM like Ctrl-C, so that no child process survives. Yields a list that receives the signal."""
    told: list[int] = []

    def stop(number: int, _: object) -> None:
        told.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


#: Columns that are dropped first if a terminal is too narrow, and columns that follow them one by one.
_FIRST_TO_GO = ("p99", "waiting", "ms/decision")
_NEXT_TO_GO = ("median", "in use", "max", "p95")
#: In a narrow terminal, names longer than this are folded to save columns.
_NAME_WIDTH = 32
_HEAD_WIDTH = 12


def _show(request: Request, summaries: Mapping[str, SchedulerSummary], screen: Console) -> None:
    """Print the table, best first, with as many columns as fit."""
    from rich.measure import Measurement

    gone: tuple[str, ...] = ()
    room = max(map(len, ("scheduler", *summaries)))
    for more in ((), _FIRST_TO_GO, *((name,) for name in _NEXT_TO_GO)):
        gone += more
        table = _table(request, summaries, gone, room)
        room = min(room, _NAME_WIDTH)
        if Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum <= screen.width:
            break
    screen.print(table)


def _table(request: Request, summaries: Mapping[str, SchedulerSummary], without: tuple[str, ...], room: int) -> Table:
    from rich import box
    from rich.table import Table

    from tapfinger.evaluation.stats import SAME_DRAWS

    first = next(iter(summaries.values()))
    resources = list(first.by_resource("utilisation"))
    note = "±: 95 % interval over seeds; differences are paired, seed by seed" if first.independent else SAME_DRAWS
    used = f"; in use: {', '.join(resources)}" if "in use" not in without else ""
    rest = f"; too narrow to show: {', '.join(without)}" if without else ""
    table = Table(
        title=f"Completion time in slots, {request.title}",
        caption=note.removesuffix(".") + used + rest,
        box=box.SIMPLE_HEAD,
    )
    rows = {name: _row(name, summary, request.baseline) for name, summary in summaries.items()}
    table.add_column("scheduler", overflow="fold", max_width=room)
    heads = [head for head in rows[first.scheduler] if head not in without]
    for head in heads:
        # A column is as wide as its numbers; a longer header is wrapped.
        width = max(len(row[head]) for row in rows.values())
        text = f"minus {request.baseline}" if head == "minus" else head
        width = max(width, min(len(text), _HEAD_WIDTH))
        table.add_column(text, justify="right", overflow="fold", width=width)
    for name, row in rows.items():
        style = "bold" if name == first.scheduler else None
        table.add_row(name, *(row[head] for head in heads), style=style)
    return table


def _row(name: str, summary: SchedulerSummary, baseline: str) -> dict[str, str]:
    """Column -> its text for one scheduler."""
    return {
        "mean": summary.estimate("mean").text(),
        **{measure: f"{summary[measure]:.1f}" for measure in ("median", "p95", "p99")},
        "max": f"{summary['max']:.0f}",
        "waiting": f"{summary['waiting']:.2f}",
        "in use": "/".join(f"{100 * share:.0f}" for share in summary.by_resource("utilisation").values()) + " %",
        "minus": "-" if name == baseline else summary.difference.mean.text(sign=True),
        "ms/decision": f"{summary['decision_ms_mean']:.2f}",
    }
