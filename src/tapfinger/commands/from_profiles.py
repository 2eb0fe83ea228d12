"""``tapfinger workload from-profiles``: measured profiles become a scenario."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from tapfinger.errors import ConfigError


def numbers(option: str, text: str | None, zero: bool = False) -> dict[str, float] | None:
    """``cpu=64,gpu=8`` -> numbers by name."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"--{option} {text}: {part!r} must look like name=number") from None
        if not (math.isfinite(number) and number >= 0 and (zero or number > 0)):
            raise ConfigError(f"--{option} {text}: {part!r} must be {'0 or more' if zero else 'above 0'}")
        found[name.strip()] = number
    return found


def from_profiles(
    profiles: Annotated[
        list[Path], typer.Argument(metavar="CSV...", help="Profiles, as tapfinger profile writes them.")
    ],
    out: Annotated[Path, typer.Option(metavar="TOML", help="Scenario to write; its profiles lie beside it.")],
    losses: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Loss curves of the same task types. Without it: progress that runs reported."
        ),
    ] = None,
    types: Annotated[str | None, typer.Option(metavar="NAME,...", help="Task types to use. Without it: all.")] = None,
    weights: Annotated[
        str | None, typer.Option("--weight", metavar="NAME=NUMBER,...", help="How often a type comes, against 1.")
    ] = None,
    clusters: Annotated[int, typer.Option(help="Number of equal clusters.")] = 3,
    capacity: Annotated[
        str | None,
        typer.Option(metavar="NAME=AMOUNT,...", help="Of each cluster. Without it: twice the largest allocation."),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Number of tasks.")] = 500,
    rate: Annotated[
        float | None, typer.Option(help="Tasks per second, on the new clock. Without it: by --load.")
    ] = None,
    load: Annotated[
        float, typer.Option(help="Share of the clusters in use if every task has its most economical size.")
    ] = 0.7,
    time_scale: Annotated[float, typer.Option(help="Seconds that become one: 60 makes a minute a second.")] = 1.0,
    slot_seconds: Annotated[
        float | None, typer.Option(help="Seconds per slot, on the new clock. Without it: by the shortest times.")
    ] = None,
    mode: Annotated[str, typer.Option(help="multi or single.")] = "multi",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier scenario.")] = False,
) -> None:
    """Turn measured profiles into a scenario that every scheduler can run.

    Allocations of the grid that were not measured are taken from the speed model; those under which the task failed
    are not in the scenario.
    """
    from rich.console import Console

    from tapfinger.config import parse_scenario
    from tapfinger.errors import DataError
    from tapfinger.profiles.table import write_profile
    from tapfinger.profiling.scenario import Options, build, read_measured
    from tapfinger.workloads.importers.toml import to_toml
    from tapfinger.workloads.world import build_world

    if out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a scenario is a TOML file; let its name end in .toml")
    target, beside = out, out.with_name(f"{out.stem}.profiles.csv")
    if target.exists() and not force:
        raise ConfigError(f"{target} exists; choose another --out, or overwrite it with --force")
    if beside.resolve() in [path.resolve() for path in profiles]:
        raise ConfigError(f"{beside} would be overwritten by what is made of it; choose another --out")
    options = Options(
        name=out.stem,
        types=[name.strip() for name in types.split(",")] if types else [],
        weights=numbers("weight", weights, zero=True) or {},
        clusters=clusters,
        capacity=numbers("capacity", capacity),
        tasks=tasks,
        rate=rate,
        load=load,
        time_scale=time_scale,
        slot_seconds=slot_seconds,
        mode=mode,
    )
    built = build(read_measured(profiles, losses), options, beside.name)
    heading = f"# Made by tapfinger workload from-profiles of {', '.join(path.name for path in profiles)}.\n"
    text = heading + "".join(f"# {note}\n" for note in built.notes) + "\n" + to_toml(built.scenario)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_profile(beside, built.rows)
        # Built before it is written: a scenario that does not load is none.
        world = build_world(parse_scenario(built.scenario, str(target), str(out.parent)))
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error}") from None
    console = Console()
    for note in built.notes:
        console.print(note, soft_wrap=True, highlight=False)
    per_hour = built.scenario["arrivals"]["rate"] / world.scenario.slot_seconds * 3600.0
    console.print(
        f"{len(world.task_types)} task types, {len(world.clusters)} clusters, {options.tasks} tasks, {per_hour:.4g} an "
        f"hour, slots of {world.scenario.slot_seconds:g} s: {target}",
        soft_wrap=True,
    )
    console.print(f"run it: tapfinger compare {target}", soft_wrap=True)
