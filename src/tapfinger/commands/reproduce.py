"""``tapfinger reproduce``: the paper's figures, and some beyond it, each with its claims judged."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.compare import JobsOption, stop_when_told

if TYPE_CHECKING:
    from rich.console import Console

    from tapfinger.evaluation.cells import CellStore
    from tapfinger.reproduce.declare import Figure
    from tapfinger.reproduce.made import Made
    from tapfinger.reproduce.plan import Plan
    from tapfinger.reproduce.run import Wishes

#: Width of tables where there is no terminal to ask.
_WIDTH = 140


def reproduce(
    figures: Annotated[
        list[str], typer.Argument(metavar="list | all | FIGURE...", help="What to make; list shows what there is.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds and shorter runs: minutes, not hours.")] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="SEEDS", help="1000:1030 (that is 1000 to 1029). Without it: as many as each figure says."
        ),
    ] = None,
    jobs: JobsOption = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for the report. [default: results/reproduce/full, or .../quick]"),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Make a short training run for the training curve (needs torch).")
    ] = False,
    docs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write reproduction.md and its pictures here.")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many tasks per run, for a first look.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Reuse runs that were finished before, and keep those made now.")
    ] = True,
) -> None:
    """Redo the paper's experiments and judge its claims.

    Every scheduler meets the same draws; verdicts are computed from paired differences. Writes one directory with
    report.html, pictures (PNG, PDF) and tables (CSV). Finished runs are kept: stop with Ctrl-C and give the same
    command to go on. Nothing is trained unless --train is given.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: see parallel.local.ONE_THREAD
    if figures == ["list"]:
        _list()
        return
    from rich.console import Console

    from tapfinger.evaluation.runner import CACHE_VARIABLE, cache_folder, open_store
    from tapfinger.evaluation.specs import parse_seeds
    from tapfinger.reproduce.catalog import choose
    from tapfinger.reproduce.plan import Plan
    from tapfinger.reproduce.run import Wishes

    plan = Plan(tuple(choose(figures)), quick, parse_seeds(seeds) if seeds else None, tasks)
    folder = out or Path("results") / "reproduce" / ("quick" if quick else "full")
    command = ["tapfinger", "reproduce", *figures, *(["--quick"] if quick else [])]
    command += ["--seeds", seeds] if seeds else []
    command += ["--tasks", str(tasks)] if tasks else []
    wishes = Wishes(folder, shlex.join([*command, "--jobs", str(jobs)]), jobs, train, docs)
    messages = Console(stderr=True)
    minutes = plan.expected_seconds / 60.0 / jobs
    messages.print(
        f"{_figures(len(plan.figures))}; about {minutes:.0f} minutes of runs with --jobs {jobs} if none is at hand",
        style="dim",
        highlight=False,
    )
    begin = time.monotonic()
    with open_store(cache) as store:
        keeps = cache and store.root == cache_folder()
        if cache and not keeps:
            messages.print(
                f"cannot write into the store {cache_folder()}: finished runs are not kept; give another with "
                f"{CACHE_VARIABLE}",
                style="yellow",
                highlight=False,
            )
        made = _make(plan, store, wishes, messages, keeps)
    _show(made, folder, time.monotonic() - begin)


def _make(plan: Plan, store: CellStore, wishes: Wishes, messages: Console, cache: bool) -> list[Made]:
    """Everything, under a progress bar; stopped, it says what is kept."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tapfinger.evaluation.runner import Interrupted
    from tapfinger.reproduce.run import Teller, reproduce

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counted]}"),
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
                return reproduce(plan, store, wishes, Teller(tell, note))
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
    """How many a figure has: of its settings the fewest and the most."""
    from tapfinger.reproduce.plan import Plan

    plan = Plan((figure,), quick)
    return "-".join(map(str, sorted({len(plan.seeds_of(figure, setting)) for setting in figure.settings})))


def _list() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tapfinger.reproduce.catalog import FIGURES
    from tapfinger.reproduce.plan import Plan

    table = Table(box=box.SIMPLE_HEAD)
    for head in ("figure", "in the paper", "what it shows", "claims", "seeds (quick)", "minutes (quick)"):
        table.add_column(head, no_wrap=head == "figure", justify="right" if "(" in head or head == "claims" else "left")
    for figure in FIGURES.values():
        minutes = [Plan((figure,), quick).expected_seconds / 60.0 for quick in (False, True)]
        runs = figure.source == "runs"
        table.add_row(
            figure.name,
            figure.paper or "-",
            figure.title,
            str(len(figure.claims)),
            f"{_seeds(figure, quick=False)} ({_seeds(figure, quick=True)})" if runs else "",
            f"{minutes[0]:.1f} ({minutes[1]:.1f})" if runs else "",
        )
    screen = Console()
    (screen if screen.is_terminal else Console(width=_WIDTH)).print(table)
    full, quick = (Plan(tuple(FIGURES.values()), each).expected_seconds / 120.0 for each in (False, True))
    typer.echo(
        "Minutes are estimates of the runs on one core. All together, which share runs, with --jobs 2: "
        f"{full:.0f} ({quick:.0f}), and some for messages and drawing."
    )


def _show(made: list[Made], folder: Path, seconds: float) -> None:
    from collections import Counter

    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Claims", box=box.SIMPLE_HEAD)
    for head in ("figure", "claim", "measured here", "verdict"):
        table.add_column(head, overflow="fold")
    for each in made:
        for item in each.judged:
            table.add_row(*map(escape, (each.measured.figure.name, item.claim.text, item.ours, item.verdict.value)))
    screen = Console()
    screen = screen if screen.is_terminal else Console(width=_WIDTH)
    if table.rows:
        screen.print(table)
    counts = Counter(item.verdict.value for each in made for item in each.judged)
    if counts:
        screen.print("; ".join(f"{verdict}: {count}" for verdict, count in counts.items()), highlight=False)
    text = f"{_figures(len(made))} in {seconds / 60:.1f} minutes; open {folder / 'report.html'}"
    screen.print(text, highlight=False, soft_wrap=True)
