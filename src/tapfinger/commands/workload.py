"""``tapfinger workload``: write, import, describe and draw workloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.from_profiles import from_profiles
from tapfinger.commands.options import Fields, expand_fields, numbers
from tapfinger.commands.screen import plain_console
from tapfinger.errors import ConfigError, DataError
from tapfinger.settings import check_settings
from tapfinger.workloads.importers.options import ConvertOptions, ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tapfinger.workloads.describe import WorkloadSummary
    from tapfinger.workloads.files import WorkloadFile
    from tapfinger.workloads.importers.convert import Imported
    from tapfinger.workloads.world import World

app = typer.Typer(no_args_is_help=True, help="Write, import, describe and draw workloads.")
app.command("from-profiles")(from_profiles)

Seed = Annotated[int, typer.Option(help="Seed of the draw.", min=0)]
Override = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a scenario key.")]
Subject = Annotated[
    str, typer.Argument(metavar="FILE|SCENARIO", help="A workload file (.csv, .parquet) or a scenario.")
]
Beside = Annotated[str | None, typer.Option(help="The scenario a workload file belongs to.")]


@app.command()
def generate(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario's name or a TOML file.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    seed: Seed = 0,
    override: Override = None,
) -> None:
    """Draw a scenario's workload and write it to a file."""
    from tapfinger.workloads.files import write_workload

    workload, _ = _load(scenario, None, seed, override)
    write_workload(out, workload)
    _console().print(f"{len(workload)} tasks written to {out}", soft_wrap=True)


@app.command("import")
@expand_fields
def import_(
    trace: Annotated[Path, typer.Argument(help="A recorded trace: philly, pollux, openb (CSV) or swf.")],
    *,
    out: Annotated[Path, typer.Option(help="Directory for scenario.toml and the workload file.")],
    format_: Annotated[
        str | None, typer.Option("--format", help="philly, pollux, openb or swf; found by its columns.")
    ] = None,
    conversion: Annotated[
        dict[str, Any],
        Fields(
            ConvertOptions,
            "clusters capacity load node_share eligible gpu_speed elastic maximum_factor slot_seconds time_scale "
            "limit types mode drop_oversized",
            parsers={
                "capacity": (str | None, numbers),
                "gpu_speed": (str | None, lambda *given: numbers(*given) or {}),
            },
            make=dict,
        ),
    ],
    reading: Annotated[
        ReadOptions, Fields(ReadOptions, parsers={"gpu_hours": (str | None, lambda *given: numbers(*given) or {})})
    ],
    parquet: Annotated[bool, typer.Option("--parquet", help="Write workload.parquet instead of workload.csv.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier import.")] = False,
) -> None:
    """Turn a recorded trace into a scenario that every scheduler can run."""
    from tapfinger.workloads.importers.convert import convert
    from tapfinger.workloads.importers.formats import read_trace

    check_settings(reading, options=True)
    found, recorded = read_trace(trace, format_, reading)
    imported = convert(recorded, ConvertOptions(out.resolve().name, **conversion))
    imported.scenario["description"] += f", imported from {trace.name} ({found})"
    _write(imported, out, "workload.parquet" if parquet else "workload.csv", force)
    _report(imported, found, out)


@app.command()
def describe(subject: Subject, scenario: Beside = None, seed: Seed = 0, override: Override = None) -> None:
    """Print the number of tasks, their rate, types and load."""
    from tapfinger.workloads.describe import summarise

    workload, world = _load(subject, scenario, seed, override)
    _print_summary(_console(), subject, summarise(workload, world), world)


@app.command()
def plot(
    subject: Subject,
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    scenario: Beside = None,
    seed: Seed = 0,
    override: Override = None,
) -> None:
    """Draw arrivals over time and the mix of types."""
    from tapfinger.workloads.figure import plot_workload

    if out.suffix != ".png":
        raise ConfigError(f"--out {out}: the picture is a PNG file; let its name end in .png")
    workload, _ = _load(subject, scenario, seed, override)
    plot_workload(workload, out, Path(subject).name)
    _console().print(f"drawn to {out}", soft_wrap=True)


def _console() -> Console:

    return plain_console()


def _load(
    subject: str, scenario: str | None, seed: int, override: list[str] | None
) -> tuple[WorkloadFile, World | None]:
    """The workload of a file, of a file in a scenario, or of a scenario; and the scenario's world, if any."""
    from tapfinger.config import ArrivalsConfig, load_scenario
    from tapfinger.workloads.files import read_workload, to_file
    from tapfinger.workloads.world import build_world, draw_workload

    is_file = subject.endswith((".csv", ".parquet"))
    if is_file and scenario is None:
        if override:
            raise ConfigError(f"--set {override[0]} changes a scenario; name it with --scenario")
        return read_workload(Path(subject)), None
    config = load_scenario(scenario if is_file and scenario is not None else subject, override or ())
    if is_file:
        arrivals = ArrivalsConfig.model_validate({"kind": "trace", "file": str(Path(subject).resolve())})
        config = config.model_copy(update={"arrivals": arrivals})
    world = build_world(config)
    return to_file(world, draw_workload(world, seed), subject), world


def _write(imported: Imported, out: Path, file: str, force: bool) -> None:
    """Check that the scenario can be built, then write it and its workload."""
    import tomli_w

    from tapfinger.config import parse_scenario
    from tapfinger.workloads.files import write_workload
    from tapfinger.workloads.world import build_world

    target = out / "scenario.toml"
    if target.exists() and not force:
        raise ConfigError(f"{target} exists; choose another --out, or overwrite it with --force")
    imported.scenario["arrivals"]["file"] = file
    build_world(parse_scenario(imported.scenario, str(target), str(out)))
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_workload(out / file, imported.workload)
        target.write_text(tomli_w.dumps(imported.scenario), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error}") from None


def _report(imported: Imported, found: str, out: Path) -> None:
    """Print what was used, what was dropped, and a summary of the result."""
    from tapfinger.workloads.describe import summarise

    console = _console()
    console.print(f"format {found}: {len(imported.workload)} tasks used, {sum(imported.dropped.values())} rows dropped")
    for reason, count in sorted(imported.dropped.items(), key=lambda item: -item[1]):
        console.print(f"  {count} dropped: {reason}")
    if imported.rounded:
        console.print(f"  {imported.rounded} rare requests rounded to the nearest frequent one")
    if imported.speeds:
        known = ", ".join(f"{kind} {speed:g}" for kind, speed in imported.speeds.items())
        console.print(f"  speeds of GPUs, V100 = 1: {known}; change them with --gpu-speed", soft_wrap=True)
    workload, world = _load(str(out / "scenario.toml"), None, 0, None)
    summary = summarise(workload, world)
    _print_summary(console, str(out / "scenario.toml"), summary, world)
    over = {name: load for name, load in (summary.load or {}).items() if load > 1.0}
    for name, load in over.items():
        console.print(
            f"warning: the load of {name} is {load:.2f} of what there is, so queues only grow; "
            "give more --capacity or --clusters, or a larger --time-scale"
        )
    console.print(f"run it: tapfinger compare {out / 'scenario.toml'}", soft_wrap=True)


def _print_summary(console: Console, subject: str, summary: WorkloadSummary, world: World | None) -> None:
    from rich.table import Column, Table

    console.print(f"{subject}: {summary.tasks:,} tasks in {_span(summary.span)}", soft_wrap=True)
    if summary.rate_per_hour is not None:
        per_slot = ""
        if world is not None:
            slot = world.scenario.slot_seconds
            per_slot = f" ({summary.rate_per_hour * slot / 3600:.3g} per slot of {slot:g} s)"
        console.print(f"{summary.rate_per_hour:.4g} tasks per hour{per_slot}")
    if summary.burstiness is not None:
        every = _span(summary.burstiness.interval)
        console.print(f"burstiness {summary.burstiness.dispersion:.2f} (Poisson: 1), from the tasks in every {every}")
    if summary.load is not None:
        loads = ", ".join(f"{name} {load:.1%}" for name, load in summary.load.items())
        console.print(f"load under minimum allocations, over the whole span: {loads}")
    table = Table(
        Column("type", overflow="fold"),
        "tasks",
        "share",
        *(["minimum", "duration at minimum"] if world is not None else []),
    )
    for row in summary.types:
        known = [row.minimum, _span(row.seconds)] if row.seconds is not None else []
        table.add_row(row.name, str(row.count), f"{row.share:.1%}", *known)
    console.print(table)
    if summary.mean_eligible is not None:
        where = Table("cluster", *(["capacity"] if world is not None else []), "eligible tasks")
        capacities = {} if world is None else {n: world.resources.describe(c) for n, c in world.capacity_of.items()}
        for name in capacities or summary.eligible:
            known = [capacities[name]] if capacities else []
            where.add_row(name, *known, str(summary.eligible.get(name, 0)))
        console.print(where)
        console.print(f"{summary.mean_eligible:.2f} eligible clusters per task")
    if summary.drawn:
        console.print(f"{summary.drawn} tasks leave their eligible clusters to the scenario")


def _span(seconds: float | None) -> str:
    """A duration in a readable unit."""
    if seconds is None:
        return ""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:g} s"
