"""``tapfinger workload from-profiles``: turns measured profiles into a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tapfinger.commands.options import Fields, expand_fields, numbers
from tapfinger.commands.screen import plain_console
from tapfinger.errors import ConfigError
from tapfinger.profiling.options import ScenarioChoices


@expand_fields
def from_profiles(
    profiles: Annotated[
        list[Path], typer.Argument(metavar="CSV...", help="Profiles, as tapfinger profile writes them.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="TOML", help="Scenario to write; its profiles lie beside it.")],
    losses: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Loss curves of the same task types. Without it: progress that runs reported."
        ),
    ] = None,
    choices: Annotated[
        dict[str, Any],
        Fields(
            ScenarioChoices,
            "types weights clusters capacity tasks rate load time_scale slot_seconds mode",
            parsers={
                "types": (str | None, lambda _, text: [name.strip() for name in text.split(",")] if text else []),
                "weights": (str | None, lambda option, text: numbers(option, text, zero=True) or {}),
                "capacity": (str | None, numbers),
            },
            make=dict,
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier scenario.")] = False,
) -> None:
    """Turn measured profiles into a scenario that every scheduler can run.

    For allocations of the grid that were not measured, speeds come from the speed model. Allocations under which the
    task failed are not in the scenario.
    """
    import tomli_w

    from tapfinger.config import parse_scenario
    from tapfinger.errors import DataError
    from tapfinger.profiles.table import write_profile
    from tapfinger.profiling.scenario import build, read_measured
    from tapfinger.workloads.world import build_world

    if out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a scenario is a TOML file; let its name end in .toml")
    target, beside = out, out.with_name(f"{out.stem}.profiles.csv")
    if target.exists() and not force:
        raise ConfigError(f"{target} exists; choose another --out, or overwrite it with --force")
    if beside.resolve() in [path.resolve() for path in profiles]:
        raise ConfigError(f"{beside} would be overwritten by what is made of it; choose another --out")
    options = ScenarioChoices(out.stem, **choices)
    built = build(read_measured(profiles, losses), options, beside.name)
    heading = f"# Made by tapfinger workload from-profiles of {', '.join(path.name for path in profiles)}.\n"
    text = heading + "".join(f"# {note}\n" for note in built.notes) + "\n" + tomli_w.dumps(built.scenario)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_profile(beside, built.rows)
        # Built before it is written, so that only scenarios that load are written.
        world = build_world(parse_scenario(built.scenario, str(target), str(out.parent)))
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error}") from None
    console = plain_console()
    for note in built.notes:
        console.print(note, soft_wrap=True, highlight=False)
    per_hour = built.scenario["arrivals"]["rate"] / world.scenario.slot_seconds * 3600.0
    console.print(
        f"{len(world.task_types)} task types, {len(world.clusters)} clusters, {options.tasks} tasks, {per_hour:.4g} an "
        f"hour, slots of {world.scenario.slot_seconds:g} s: {target}",
        soft_wrap=True,
    )
    console.print(f"run it: tapfinger compare {target}", soft_wrap=True)
