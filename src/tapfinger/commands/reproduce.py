"""``tapfinger reproduce``: remakes the paper's figures, and some beyond it, and judges their claims."""

from __future__ import annotations

import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.compare import stop_when_told
from tapfinger.commands.options import Fields, JobsOption, expand_fields
from tapfinger.commands.screen import plain_console
from tapfinger.settings import FieldHelp

if TYPE_CHECKING:
    from rich.console import Console

    from tapfinger.evaluation.cells import CellStore
    from tapfinger.reproduce.declare import Figure
    from tapfinger.reproduce.figure_result import FigureResult
    from tapfinger.reproduce.plan import RunPlan
    from tapfinger.reproduce.run import ReproduceOptions

#: Width of tables if there is no terminal.
_WIDTH = 140


@dataclass(frozen=True)
class ReproduceRequest:
    """How much is run, and what is written."""

    quick: Annotated[bool, FieldHelp("Fewer seeds and shorter runs: minutes, not hours.", option="--quick")] = False
    seeds: Annotated[
        str | None, FieldHelp("1000:1030 (that is 1000 to 1029). Without it: as many as each figure says.", "SEEDS")
    ] = None
    out: Annotated[
        Path | None, FieldHelp("Directory for the report. [default: results/reproduce/full, or .../quick]", "DIR")
    ] = None
    train: Annotated[
        bool, FieldHelp("Make a short training run for the training curve (needs torch).", option="--train")
    ] = False
    docs: Annotated[Path | None, FieldHelp("Also write reproduction.md and its pictures here.", "DIR")] = None
    tasks: Annotated[int | None, FieldHelp("Most tasks per run, for a first look.", "N", min=1)] = None
    cache: Annotated[
        bool, FieldHelp("Reuse runs that were finished before, and keep those made now.", option="--cache/--no-cache")
    ] = True


@expand_fields
def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="list | all | FIGURE...",
            help="What to make; list shows what there is. Your own figure: package.module:NAME.",
        ),
    ],
    *,
    asked: Annotated[ReproduceRequest, Fields(ReproduceRequest)],
    jobs: JobsOption = 1,
) -> None:
    """Redo the paper's experiments and judge its claims.

    Every scheduler gets the same workloads; verdicts are computed from paired differences. Writes one directory with
    report.html, pictures (PNG, PDF) and tables (CSV). Finished runs are kept: stop with Ctrl-C, and run the same
    command again to continue. Nothing is trained unless --train is given.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD
    if figures[0] == "list" and all(":" in word for word in figures[1:]):
        _list(figures[1:])
        return

    from tapfinger.evaluation.runner import CACHE_VARIABLE, cache_folder, open_store
    from tapfinger.evaluation.specs import parse_seeds
    from tapfinger.reproduce.catalog import choose
    from tapfinger.reproduce.plan import RunPlan
    from tapfinger.reproduce.run import ReproduceOptions

    plan = RunPlan(tuple(choose(figures)), asked.quick, parse_seeds(asked.seeds) if asked.seeds else None, asked.tasks)
    folder = asked.out or Path("results") / "reproduce" / ("quick" if asked.quick else "full")
    command = ["tapfinger", "reproduce", *figures, *(["--quick"] if asked.quick else [])]
    command += ["--seeds", asked.seeds] if asked.seeds else []
    command += ["--tasks", str(asked.tasks)] if asked.tasks else []
    options = ReproduceOptions(folder, shlex.join([*command, "--jobs", str(jobs)]), jobs, asked.train, asked.docs)
    messages = plain_console(stderr=True)
    minutes = plan.expected_seconds / 60.0 / jobs
    messages.print(
        f"{_figures(len(plan.figures))}; about {minutes:.0f} minutes of runs with --jobs {jobs} if none is at hand",
        style="dim",
        highlight=False,
    )
    begin = time.monotonic()
    with open_store(asked.cache) as store:
        keeps = asked.cache and store.root == cache_folder()
        if asked.cache and not keeps:
            messages.print(
                f"cannot write into the store {cache_folder()}: finished runs are not kept; give another with "
                f"{CACHE_VARIABLE}",
                style="yellow",
                highlight=False,
            )
        made = _make(plan, store, options, messages, keeps)
    _show(made, folder, time.monotonic() - begin)


def _make(
    plan: RunPlan, store: CellStore, options: ReproduceOptions, messages: Console, cache: bool
) -> list[FigureResult]:
    """Make all figures, with a progress bar. If it is stopped, it says what is kept."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tapfinger.evaluation.runner import Interrupted
    from tapfinger.reproduce.run import ProgressListener, reproduce

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[counted]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    kept = "finished runs are kept, give the same command again to go on" if cache else "nothing is kept"
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as progress:
        bars: dict[str, int] = {}

        def tell(stage: str, done: float, total: float, counted: str) -> None:
            kind = stage.partition(" ")[0]
            if kind not in bars:
                for old in bars.values():
                    progress.remove_task(old)  # type: ignore[arg-type]
                bars.clear()
                bars[kind] = progress.add_task(stage, total=total, counted="")
            progress.update(bars[kind], description=stage, completed=done, total=total, counted=counted)  # type: ignore[arg-type]

        def note(text: str) -> None:
            messages.print(text, style="dim", highlight=False)

        told: list[int] = []
        try:
            with stop_when_told() as told:
                return reproduce(plan, store, options, ProgressListener(tell, note))
        except Interrupted as stopped:
            text = f"{stopped}: {kept}"
        except KeyboardInterrupt:
            text = f"interrupted: {kept}"
        progress.stop()
        messages.print(text, style="yellow", highlight=False)
        raise typer.Exit(128 + (told[0] if told else signal.SIGINT))


def _figures(count: int) -> str:
    return f"{count} figure{'s' * (count != 1)}"


def _seeds(figure: Figure, quick: bool) -> str:
    """The numbers of seeds that the settings of a figure use, such as ``10-30``."""
    from tapfinger.reproduce.plan import RunPlan

    plan = RunPlan((figure,), quick)
    return "-".join(map(str, sorted({len(plan.seeds_of(figure, setting)) for setting in figure.settings})))


def _list(given: list[str]) -> None:
    from rich import box
    from rich.table import Table

    from tapfinger.reproduce.catalog import available
    from tapfinger.reproduce.plan import RunPlan

    all_figures = tuple(available(given).values())
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("figure", "in the paper", "what it shows", "claims", "seeds (quick)", "minutes (quick)"):
        table.add_column(head, no_wrap=head == "figure", justify="right" if "(" in head or head == "claims" else "left")
    for figure in all_figures:
        minutes = [RunPlan((figure,), quick).expected_seconds / 60.0 for quick in (False, True)]
        runs = figure.source == "runs"
        table.add_row(
            figure.name,
            figure.paper or "-",
            figure.title,
            str(len(figure.claims)),
            f"{_seeds(figure, quick=False)} ({_seeds(figure, quick=True)})" if runs else "",
            f"{minutes[0]:.1f} ({minutes[1]:.1f})" if runs else "",
        )
    plain_console(width=_WIDTH).print(table)
    full, quick = (RunPlan(all_figures, each).expected_seconds / 120.0 for each in (False, True))
    typer.echo(
        "Minutes are estimates of the runs on one core. All together, which share runs, with --jobs 2: "
        f"{full:.0f} ({quick:.0f}), and some for messages and drawing."
    )


def _show(made: list[FigureResult], folder: Path, seconds: float) -> None:
    from collections import Counter

    from rich import box
    from rich.table import Table

    table = Table(title="Claims", box=box.SIMPLE_HEAD)
    for head in ("figure", "claim", "measured here", "verdict"):
        table.add_column(head, overflow="fold")
    for each in made:
        for item in each.judged:
            table.add_row(each.measured.figure.name, item.claim.text, item.ours, item.verdict.value)
    screen = plain_console(width=_WIDTH)
    if table.rows:
        screen.print(table)
    counts = Counter(item.verdict.value for each in made for item in each.judged)
    if counts:
        screen.print("; ".join(f"{verdict}: {count}" for verdict, count in counts.items()), highlight=False)
    text = f"{_figures(len(made))} in {seconds / 60:.1f} minutes; open {folder / 'report.html'}"
    screen.print(text, highlight=False, soft_wrap=True)
