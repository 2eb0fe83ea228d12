"""``tapfinger backup``, ``restore`` and ``prune``: what a live site keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the copy; it must not exist.")],
    state: StateOption = None,
) -> None:
    """Copy the store of a site to a file, also while its coordinator runs."""
    from tapfinger.live.state_dir import state_directory
    from tapfinger.live.store.copies import copy_store

    size = copy_store(state_directory(state) / "store.db", file)
    typer.echo(f"{size / 1e6:.1f} MB written to {file}: tasks, events and tokens; output of tasks is not in it")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that 'tapfinger backup' has made.")],
    state: StateOption = None,
) -> None:
    """Put a copy in the place of the store of a site whose coordinator does not run."""
    from tapfinger.live.state_dir import hold, make_directory, state_directory
    from tapfinger.live.store.copies import put_back

    directory = state_directory(state)
    make_directory(directory)
    with hold(directory, "coordinator; end it first: tapfinger down"):
        aside = put_back(file, directory / "store.db")
    typer.echo(f"{directory / 'store.db'} is the copy {file} now{f'; the earlier one is {aside}' if aside else ''}")


def prune(
    before: Annotated[
        float, typer.Option(metavar="DAYS", min=0.0, max=1e6, help="Only tasks that ended so many days ago or earlier.")
    ],
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
) -> None:
    """Remove ended tasks with their events and output before their time."""
    with open_client(state, url) as client:
        count = client.prune(before, dry_run)
    typer.echo(f"{count} ended tasks {'would go' if dry_run else 'are being removed'}")
