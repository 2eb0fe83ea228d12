"""What commands print: a console, and text from others made harmless.

Names, arguments, reasons and output come from people and tasks. In a terminal, control characters in them could hide
or fake lines, write to the clipboard, or make the terminal type an answer.
"""

from __future__ import annotations

import codecs
import re
import sys
from typing import TYPE_CHECKING, Any

import typer

from tapfinger.visible import escaped, visible

if TYPE_CHECKING:
    from rich.console import Console

#: In a task's output: controls that neither move within the line nor begin a colour or the erasure of a line.
_UNSAFE = re.compile(r"(?P<kept>\x1b\[[0-9;:]{0,40}[mK])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
#: The beginning of a sequence that the next piece of output may complete.
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")
_RESET = "\x1b[0m"


def say(text: str, err: bool = False) -> None:
    """Print a line that may hold text from others."""
    typer.echo(visible(text), err=err)


def plain_console(stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints brackets as they are, ``pip install 'tapfinger[train]'``, and makes control characters
    visible.

    ``width``: characters per line if there is no terminal.
    """
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **more: Any) -> Text:
            return super().render_str(visible(text, lines=True), **more)

    console = Plain(stderr=stderr, markup=False)
    return console if width is None or console.is_terminal else Plain(stderr=stderr, markup=False, width=width)


class OutputWriter:
    """Writes a task's output to standard output: as it is, or made harmless if that is a terminal.

    In a terminal, colours and the erasure of a line are kept. Everything else that would control it is shown.
    """

    def __init__(self) -> None:
        """Look whether there is a terminal."""
        self._terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._coloured = False

    def write(self, piece: bytes) -> None:
        """Write a piece; sequences may be cut anywhere between pieces."""
        sys.stdout.buffer.write(self.harmless(piece).encode() if self._terminal else piece)
        sys.stdout.buffer.flush()

    def harmless(self, piece: bytes, last: bool = False) -> str:
        """A piece as it may be written to a terminal. ``last``: nothing follows."""
        text = self._rest + self._decoder.decode(piece, last)
        begun = None if last else _BEGUN.search(text, max(0, len(text) - 50))
        text, self._rest = (text, "") if begun is None else (text[: begun.start()], text[begun.start() :])
        self._coloured = self._coloured or "\x1b[" in text
        return _UNSAFE.sub(lambda found: found["kept"] or escaped(found[0]), text)

    def close(self) -> None:
        """Write what is left, and end colours that the task has not ended."""
        if self._terminal and (text := self.harmless(b"", last=True) + (_RESET if self._coloured else "")):
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
