"""``tapfinger simulate``: one scheduler, one workload."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.options import Fields, ScenarioArgument, SetOption, expand_fields
from tapfinger.commands.screen import plain_console
from tapfinger.settings import FieldHelp

if TYPE_CHECKING:
    from tapfinger.records import RunRecord


@dataclass(frozen=True)
class SimulateOptions:
    """What a run prints and writes."""

    gantt: Annotated[Path | None, FieldHelp("Draw who held what on each cluster over time.", "PNG")] = None
    slots: Annotated[
        str | None,
        FieldHelp("Slots that the Gantt chart shows, from A to before B. Without it: the busiest ones.", "A:B"),
    ] = None
    resource: Annotated[
        str | None, FieldHelp("Resource that the Gantt chart shows. Without it: the last one.", "NAME")
    ] = None
    events: Annotated[
        Path | None, FieldHelp("Write the event log (JSON lines; compressed if it ends in .gz).", "FILE")
    ] = None
    json_path: Annotated[Path | None, FieldHelp("Write the measurements to this file.", "PATH", option="--json")] = None
    explain: Annotated[
        bool, FieldHelp("Say why: the first decision with a conflict, or those of --at.", option="--explain")
    ] = False
    at: Annotated[list[int] | None, FieldHelp("Slot whose decisions are explained; repeatable.", "SLOT", min=0)] = None
    out: Annotated[
        Path | None, FieldHelp("Write the explanations there: JSON, and pictures of the attention.", "DIR")
    ] = None


@expand_fields
def simulate(
    scenario: ScenarioArgument,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="A scheduler (see 'tapfinger schedulers'), with options after @.")
    ],
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the workload.")] = 0,
    overrides: SetOption = None,
    *,
    asked: Annotated[SimulateOptions, Fields(SimulateOptions)],
) -> None:
    """Run one scheduler on one workload and say how it went."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD
    from tapfinger.commands.explaining import Watched, report
    from tapfinger.config import load_scenario
    from tapfinger.errors import ConfigError
    from tapfinger.evaluation import failure
    from tapfinger.evaluation.cells import run_once
    from tapfinger.evaluation.output import check_target, write_json
    from tapfinger.evaluation.runner import CellFailed
    from tapfinger.evaluation.specs import parse_spec
    from tapfinger.evaluation.stats import measures
    from tapfinger.workloads.world import build_world

    spec = parse_spec(scheduler)
    world = build_world(load_scenario(scenario, overrides or ()))
    names = world.resources.names
    shown = asked.resource if asked.resource is not None else names[-1]
    if shown not in names:
        raise ConfigError(f"--resource {shown!r}: resources are {', '.join(names)}")
    window = _window(asked.slots, asked.gantt)
    if not asked.explain and (asked.at or asked.out):
        raise ConfigError("--at and --out are about explanations; ask for them with --explain")
    for path in (asked.events, asked.json_path, asked.gantt, asked.out / "explain.json" if asked.out else None):
        if path is not None:
            check_target(path)
    made = spec.create()  # finds faults in its options before anything starts
    watched = Watched(made, spec.text, asked.at or ()) if asked.explain else None
    sinks = []
    if asked.gantt is not None:
        from tapfinger.evaluation.gantt import Gantt

        chart = Gantt(world.clusters, world.task_types, names.index(shown))
        sinks.append(chart)
    try:
        record = run_once(world, spec, seed, asked.events, *sinks, scheduler=watched or made)
    except Exception as error:  # the user's own scheduler may raise anything
        raise CellFailed(f"scheduler {spec.text!r}, seed {seed}: {failure.explain(error)}") from error
    found = measures(record)
    _show(record, found)
    if asked.json_path is not None:
        plain = {"scenario": record.scenario, "scheduler": spec.text, "seed": seed, **found}
        write_json(asked.json_path, plain)
    if asked.gantt is not None:
        from tapfinger.drawing import save

        title = f"{record.scenario}, {spec.text}, seed {seed}"
        unit = world.resources.units[names.index(shown)]
        save(chart.draw(title, shown, world.scenario.slot_seconds, window, unit), asked.gantt)
    for path in (asked.events, asked.json_path, asked.gantt):
        if path is not None:
            typer.echo(f"Wrote {path}")
    if watched is not None:
        report(watched, world, record, asked.out)


def _window(slots: str | None, gantt: Path | None) -> range | None:
    """The slots of ``--slots``, checked together with ``--gantt``."""
    import re

    from tapfinger.errors import ConfigError

    if gantt is not None and gantt.suffix != ".png":
        raise ConfigError(f"--gantt {gantt}: the picture is a PNG file; let its name end in .png")
    if slots is None:
        return None
    if gantt is None:
        raise ConfigError(f"--slots {slots} is about a Gantt chart; ask for one with --gantt FILE.png")
    from tapfinger.evaluation.gantt import MAX_SLOTS

    match = re.fullmatch(r"(\d+):(\d+)", slots)
    window = range(int(match[1]), int(match[2])) if match else range(0)
    if not 0 < len(window) <= MAX_SLOTS:
        raise ConfigError(f"--slots {slots} must look like 100:200, with at most {MAX_SLOTS} slots")
    return window


def _show(record: RunRecord, found: dict[str, float]) -> None:
    from rich import box
    from rich.table import Table

    from tapfinger.evaluation.stats import use_by_kind

    stranded = [(f"{name} stranded while tasks wait", f"stranded.{name}") for name in record.resources if record.wholes]
    title = f"{record.scenario}, {record.scheduler}, seed {record.seed}"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    rows = [
        ("tasks", f"{record.tasks}"),
        ("slots", f"{record.slots}"),
        ("completion time, mean [slots]", f"{found['mean']:.3f}"),
        ("  median / p95 / p99 / max", " / ".join(f"{found[name]:g}" for name in ("median", "p95", "p99", "max"))),
        ("waiting / running, mean [slots]", f"{found['waiting']:.3f} / {found['running']:.3f}"),
        *([("staging, mean [slots]", f"{found['staging']:.3f}")] if "staging" in found else []),
        *([("starts that wait for data", f"{100 * found['staged_share']:.1f} %")] if "staging" in found else []),
        *([("out of memory", f"{found['out_of_memory']:g}")] if "out_of_memory" in found else []),
        ("tasks in system, most", f"{found['in_system_max']:g}"),
        *((f"{name} in use", f"{100 * found[f'utilisation.{name}']:.1f} %") for name in record.resources),
        *((label, f"{100 * found[name]:.1f} %") for label, name in use_by_kind(record)),
        *((f"{name} idle while tasks wait", f"{100 * found[f'idle.{name}']:.1f} %") for name in record.resources),
        *((label, f"{100 * found[name]:.1f} %") for label, name in stranded),
        ("conflicts", f"{record.conflicts}"),
        ("tasks overtaken", f"{100 * found['overtaken_share']:.1f} %, by at most {found['overtaken_max']:g}"),
        (
            "decision, mean / p95 / max [ms]",
            " / ".join(f"{found[f'decision_ms_{n}']:.2f}" for n in ("mean", "p95", "max")),
        ),
    ]
    for row in rows:
        table.add_row(*row)
    plain_console().print(table)
