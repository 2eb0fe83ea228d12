"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console(stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints brackets as they are: ``pip install 'tapfinger[train]'``, names with [1].

    ``width``: characters per line if there is no terminal.
    """
    from rich.console import Console

    console = Console(stderr=stderr, markup=False)
    return console if width is None or console.is_terminal else Console(stderr=stderr, markup=False, width=width)
