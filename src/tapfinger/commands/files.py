"""``tapfinger get``: files that a task has left on its cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.tasks import TaskArgument
from tapfinger.errors import NotFetched


def get(
    task: TaskArgument,
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="File or directory in the task's directory. Without it: all of it.")
    ] = "",
    state: StateOption = None,
    url: UrlOption = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to put it. Without it: a directory task-TASK here.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list what there is.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt. Without it: the latest.")] = None,
) -> None:
    """Fetch what a task without a working directory has left in its own. Called again, it goes on where it stopped.

    A file that cannot be written does not stop the others; it is named, and the exit code is 1.
    """
    from tapfinger.live.http.fetching import check_target

    target = to if to is not None else Path(f"task-{task}")
    with open_client(state, url) as client:
        if listing:
            for file in client.files(task, path, attempt):
                name = f"{file.path}/" if file.kind == "directory" else file.path
                size = "" if file.kind == "directory" else f"{file.size}"
                typer.echo(
                    f"{size:>14}  {_shown(name)}{'' if file.kind in ('file', 'directory') else f'  ({file.kind})'}"
                )
            return
        check_target(target)
        failed: Sequence[str] = ()
        try:
            fetched = [str(one) for one in client.fetch(task, path, target, attempt)]
        except NotFetched as error:
            fetched, failed = list(error.fetched), error.failed
    for one in fetched:
        typer.echo(_shown(one))
    for line in failed:
        typer.echo(_shown(line), err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(fetched) + len(failed)} files were not fetched", err=True)
        raise typer.Exit(1)


def _shown(name: str) -> str:
    """A name that a task has chosen, without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in name)
