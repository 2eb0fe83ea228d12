"""``tapfinger secret``: values that tasks get as environment variables, and that nobody is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.screen import say
from tapfinger.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, help="Keep, list and remove secrets, which your tasks get as environment variables."
)

#: Most characters that are read; far fewer are possible, which the coordinator says.
LONGEST = 1_000_000

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment variable.")]


@app.command("set")
def keep(
    name: NameArgument,
    state: StateOption = None,
    url: UrlOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="File with the value. Without it: standard input.")
    ] = None,
) -> None:
    """Keep a secret, or give it another value. A line end after the value is left out."""
    value = _typed(name) if file is None else read_value("--file", file)
    with open_client(state, url) as client:
        client.keep_secret(name, value)


@app.command("list")
def list_secrets(state: StateOption = None, url: UrlOption = None) -> None:
    """List the names of your secrets, and when each was set."""
    from datetime import datetime

    with open_client(state, url) as client:
        for secret in client.secrets():
            say(f"{secret['name']}: set {datetime.fromtimestamp(secret['at']).strftime('%Y-%m-%d %H:%M')}")


@app.command("remove")
def remove(name: NameArgument, state: StateOption = None, url: UrlOption = None) -> None:
    """Remove a secret; tasks that wait with it will fail."""
    with open_client(state, url) as client:
        client.remove_secret(name)


def given_secrets(option: str, given: list[str] | None) -> dict[str, str | None]:
    """``NAME`` and ``NAME=FILE`` texts of an option: by name the file's content, or None for a secret that is kept."""
    found: dict[str, str | None] = {}
    for text in given or ():
        name, equals, file = text.partition("=")
        if not name or name in found:
            raise ConfigError(f"{option} {text!r} must look like NAME or NAME=FILE, each name once")
        found[name] = read_value(f"{option} {name}", Path(file)) if equals else None
    return found


def read_value(option: str, file: Path) -> str:
    """The value in a file, without the line end after it."""
    try:
        with file.open(encoding="utf-8") as opened:
            return _read(opened, f"{option}: {file}")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"{option}: {file} cannot be read: {why}") from None


def _typed(name: str) -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass(f"{name}: ")
    try:
        return _read(sys.stdin, "standard input")
    except UnicodeDecodeError:
        raise ConfigError("standard input is not text in UTF-8") from None


def _read(opened: TextIO, where: str) -> str:
    """The text without the line end after it. It may be a device that never ends."""
    text = opened.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise ConfigError(f"{where} has more than {LONGEST:,} characters; give tasks the name of a file instead")
    return text.removesuffix("\n").removesuffix("\r")
