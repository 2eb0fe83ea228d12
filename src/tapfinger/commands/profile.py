"""``tapfinger profile``: measures a task of your own under many allocations."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.interrupts import interruptible
from tapfinger.commands.options import Fields, expand_fields, name_values
from tapfinger.commands.screen import plain_console
from tapfinger.profiling.options import BUSY, REPEATS
from tapfinger.settings import FieldHelp

if TYPE_CHECKING:
    from rich.console import Console

    from tapfinger.profiling.campaign import Findings
    from tapfinger.profiling.grid import Grid
    from tapfinger.profiling.results import Files
    from tapfinger.profiling.runner import Command, TaskRunner


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured, and where."""

    kind: Annotated[str | None, FieldHelp("Task type; the program's name if left out.", "NAME", option="--type")] = None
    hardware: Annotated[
        str, FieldHelp("Kind of hardware that this is, such as a100: a column of the profile says so.", "NAME")
    ] = ""
    grid: Annotated[
        list[str] | None,
        FieldHelp(
            "Allocations to measure: cpu=1:8 gpu=0:2, cpu=2:16:2 or cpu=1,2,4,8. Without it: all of this machine.",
            "NAME=AMOUNTS",
        ),
    ] = None
    repeats: Annotated[int, FieldHelp("Undisturbed runs of each allocation.", min=1, max=100)] = REPEATS
    budget: Annotated[
        str | None, FieldHelp("Stop after this long, such as 30m: the most informative cells come first.", "TIME")
    ] = None
    limit: Annotated[
        str | None, FieldHelp("Longest run. Without it: ten times what is expected, first an hour.", "TIME")
    ] = None
    out: Annotated[Path | None, FieldHelp("Profile to write; NAME.csv if left out. More lies beside it.", "CSV")] = None
    fresh: Annotated[bool, FieldHelp("Forget earlier runs instead of going on from them.", option="--fresh")] = False
    gpus: Annotated[
        int | None, FieldHelp("GPUs there are. Where there is no hardware, tasks get the number to work with.", min=0)
    ] = None
    env: Annotated[list[str] | None, FieldHelp("Environment of the task; repeatable.", "NAME=VALUE")] = None
    cwd: Annotated[Path | None, FieldHelp("Where the task runs. Without it: here.", "DIR")] = None
    busy: Annotated[
        float,
        FieldHelp("Share of its cores that others may use before a run is disturbed, and repeated.", min=0.0, max=1.0),
    ] = BUSY
    pin: Annotated[bool, FieldHelp("Give the task cores of its own: as many as the allocation says.")] = True
    backend: Annotated[str, FieldHelp("How the task is run: process or ray.", "NAME")] = "process"
    ray_address: Annotated[
        str | None,
        FieldHelp("Ray's dashboard. Without it: that of this machine. Its token, if any: $RAY_AUTH_TOKEN.", "URL"),
    ] = None
    pictures: Annotated[bool, FieldHelp("Draw a heat map and curves beside the profile.")] = True


@expand_fields
def profile(
    argv: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="The task: what to run.")],
    *,
    asked: Annotated[ProfileOptions, Fields(ProfileOptions)],
) -> None:
    """Run a task under many allocations and write its speed profile.

    Ctrl-C interrupts; run the same command again to continue. Runs that other processes disturbed are repeated.
    """
    import math

    from tapfinger.errors import ConfigError
    from tapfinger.profiling.campaign import Campaign, CampaignPlan
    from tapfinger.profiling.grid import parse_seconds
    from tapfinger.profiling.journal import Journal, Subject
    from tapfinger.profiling.results import Files
    from tapfinger.profiling.runner import Command
    from tapfinger.profiling.show import Show

    words, argv = _leading_grid(asked.grid or [], argv)
    if not re.fullmatch(r"[A-Za-z0-9_.-]*", asked.hardware):
        raise ConfigError(f"--hardware {asked.hardware!r} must be a name of letters, digits, and _ . -")
    kind = _type_name(asked.kind, argv)
    place = (asked.cwd or Path.cwd()).resolve()
    files = Files((asked.out or Path(f"{kind}.csv")).absolute())
    variables = name_values("--env", asked.env)
    whole, cpus, declared = _grid(words, asked.gpus, asked.backend, asked.ray_address)
    plan = CampaignPlan(
        whole,
        asked.repeats,
        parse_seconds("--budget", asked.budget) if asked.budget else math.inf,
        parse_seconds("--limit", asked.limit) if asked.limit else None,
        asked.busy,
    )
    _check_out(files, place, asked.fresh)
    journal = Journal(
        files.runs, Subject(kind, argv, whole.resources, asked.backend, str(place), variables), asked.fresh
    )
    console = plain_console()
    with interruptible(), closing(journal):
        capacity = {"cpu": float(cpus), "gpu": float(declared)}
        runner = _runner(files, Command(argv, place, variables), capacity, asked)
        show = Show(console, plan, len(journal.runs), kind)
        campaign = Campaign(plan, journal, runner, show)
        interrupted = False
        try:
            with show:
                findings = campaign.play()
        except KeyboardInterrupt:
            interrupted, findings = True, campaign.findings()
        finally:
            runner.close()
    _finish(console, files, kind, findings, asked, interrupted)
    if interrupted:
        console.print("Interrupted. The same command goes on from here.")
        raise typer.Exit(130)


def _leading_grid(grid: list[str], argv: list[str]) -> tuple[list[str], list[str]]:
    """``--grid cpu=1:8 gpu=0:2 -- program``: an option takes one word, so the others arrive in front of the command."""
    from tapfinger.errors import ConfigError

    words, rest = list(grid), list(argv)
    while grid and rest and re.fullmatch(r"[a-z][a-z0-9_-]*=[0-9.:,]+", rest[0]):
        words.append(rest.pop(0))
    if not rest or not rest[0]:
        raise ConfigError("there is no program to run; give it after --, such as: tapfinger profile -- python task.py")
    return words, rest


def _type_name(kind: str | None, argv: list[str]) -> str:
    """The name as given, or else from the script, the module or the program."""
    from tapfinger.errors import ConfigError

    if kind is None:
        script = next((word for word in argv if word.endswith(".py")), None)
        module = argv[argv.index("-m") + 1] if "-m" in argv[:-1] else None
        kind = Path(script).stem if script else module.rsplit(".", 1)[-1] if module else Path(argv[0]).name
        kind = re.sub(r"[^A-Za-z0-9_.-]", "-", kind)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", kind):
        raise ConfigError(f"--type {kind!r} must be a name of letters, digits, and _ . - between them")
    return kind


def _grid(words: list[str], gpus: int | None, backend: str, ray_address: str | None) -> tuple[Grid, int, int]:
    """The grid to measure, and the number of available cpus and gpus."""
    from tapfinger.errors import ConfigError
    from tapfinger.profiling.grid import check_grid, default_grid, machine_cpus, machine_gpus, parse_grid

    if backend not in ("process", "ray"):
        raise ConfigError(f"--backend {backend!r} must be process or ray")
    where, declare = "this machine", "or say how many there are with --gpus"
    cpus, there = machine_cpus(), machine_gpus()
    if backend == "ray":
        import os

        from tapfinger.live.backends.ray_jobs import LOCAL_ADDRESS, RayJobs

        address = ray_address or LOCAL_ADDRESS
        jobs = RayJobs(address, os.environ.get("RAY_AUTH_TOKEN"))
        try:
            totals = jobs.totals()
        finally:
            jobs.close()
        cpus, there = int(totals.get("CPU", 0)), int(totals.get("GPU", 0))
        where, declare = f"Ray at {address}", "Ray knows how many it has"
        gpus = None
    have = there if gpus is None else gpus
    whole = parse_grid(words) if words else default_grid(cpus, have)
    check_grid(whole, cpus, have, where, declare)
    return whole, cpus, have


def _check_out(files: Files, place: Path, fresh: bool) -> None:
    """Find faults before the first run that would otherwise only show at the end."""
    import os

    from tapfinger.errors import ConfigError

    if files.profile.suffix != ".csv":
        raise ConfigError(f"--out {files.profile}: a profile is a CSV file; let its name end in .csv")
    if not place.is_dir():
        raise ConfigError(f"--cwd {place}: there is no such directory")
    folder = files.profile.parent
    if not folder.is_dir():
        raise ConfigError(f"--out {files.profile}: there is no directory {folder}; make it, or choose another")
    if not os.access(folder, os.W_OK) or files.profile.is_dir():
        raise ConfigError(f"--out {files.profile} cannot be written; choose another")
    if files.profile.exists() and not files.runs.exists() and not fresh:
        raise ConfigError(
            f"{files.profile} exists, but without the runs it was made of ({files.runs.name}), so it would be lost; "
            "choose another --out, or overwrite it with --fresh"
        )


def _runner(files: Files, command: Command, capacity: dict[str, float], asked: ProfileOptions) -> TaskRunner:
    from tapfinger.live.agent.devices import make_devices
    from tapfinger.live.backends.base import BackendContext
    from tapfinger.live.config import BackendConfig
    from tapfinger.profiling.runner import TaskRunner

    local = asked.backend == "process"
    options = {} if local or asked.ray_address is None else {"address": asked.ray_address}
    made = BackendConfig(kind=asked.backend, **options).create()
    context = BackendContext(files.work, capacity=capacity, pin=local and asked.pin, max_log=1 << 20)
    return TaskRunner(made, context, make_devices(context), command, local)


def _finish(
    console: Console, files: Files, kind: str, findings: Findings, asked: ProfileOptions, interrupted: bool
) -> None:
    """Write the results, and print what was written."""
    from tapfinger.profiling.pictures import draw
    from tapfinger.profiling.results import save_profile, scenario_lines
    from tapfinger.profiling.show import summary

    if not findings.counted:
        console.print("Nothing was measured yet.")
        return
    save_profile(files, kind, findings, asked.hardware)
    summary(console, findings)
    console.print(f"Profile: {files.profile}  (every run: {files.runs.name})", soft_wrap=True)
    if asked.pictures and not interrupted:
        heatmap, curves = files.beside(".heatmap.png"), files.beside(".curves.png")
        draw(findings, kind, heatmap, curves)
        console.print(f"Pictures: {heatmap.name}, {curves.name}", soft_wrap=True)
    lines = scenario_lines(kind, findings, files.profile, asked.hardware)
    console.print("For a scenario or a site in the same directory (these lines were tried and load):\n")
    console.print(lines, soft_wrap=True, markup=False, highlight=False)
    if asked.hardware:
        console.print(
            f"\nThey are for clusters with kind = {asked.hardware!r}. Rows of other kinds can be added to the file.",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    console.print(
        f"\nA whole scenario, with what was not measured from the speed model:\n"
        f"tapfinger workload from-profiles {files.profile.name} --out {files.beside('.toml').name}",
        soft_wrap=True,
        highlight=False,
    )
