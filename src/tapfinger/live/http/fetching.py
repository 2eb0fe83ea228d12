"""Fetches files of tasks from a site, piece by piece; a file that was fetched in part is gone on with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tapfinger.errors import ConfigError, CoordinatorError, NotFetched, NotFound

#: Ending of files that are not complete yet.
PART = ".part"

#: Asks the coordinator: a path of the API, and parameters.
Ask = Callable[[str, dict[str, Any]], httpx.Response]


@dataclass(frozen=True)
class TaskFile:
    """A file or directory that a task has left."""

    #: Below the task's directory.
    path: str
    #: ``file``, ``directory``, ``link`` or ``special``; only files can be fetched.
    kind: str
    #: Bytes.
    size: int
    #: When it was changed last, in seconds since the epoch.
    modified: float


def listed(ask: Ask, task: int, path: str, attempt: int | None) -> Iterator[TaskFile]:
    """Everything at or below a path, directories before what is in them."""
    open_folders = [_in_folder(ask, task, path, attempt)]
    while open_folders:
        if (entry := next(open_folders[-1], None)) is None:
            open_folders.pop()
            continue
        yield entry
        if entry.kind == "directory":
            open_folders.append(_in_folder(ask, task, entry.path, attempt))


def _in_folder(ask: Ask, task: int, path: str, attempt: int | None) -> Iterator[TaskFile]:
    """The entries of a directory, or the file at that path."""
    after, more = "", True
    while more:
        page = ask(f"tasks/{task}/files", _params(path=path, after=after, attempt=attempt)).json()
        entries, more = page["files"], page["more"] and bool(page["files"])
        # The one entry for a file has no name: it is what was asked for.
        itself = bool(path.strip("/")) and [(entry["name"], entry["kind"]) for entry in entries] == [("", "file")]
        for entry in entries:
            name = entry["name"]
            if "/" in name or name in (".", "..") or (name <= after and not (itself and not more)):
                raise CoordinatorError(f"the coordinator names a file {name!r}, which cannot be there")
            after = name
            inner = "/".join(part for part in (path.strip("/"), name) if part)
            yield TaskFile(inner, entry["kind"], entry["size"], entry["modified"])


def fetch_all(ask: Ask, task: int, path: str, to: Path, attempt: int | None) -> list[Path]:
    """Fetch a file, or all files below a directory, into the directory ``to``. Returns where they are.

    A file that cannot be written, or is gone, does not keep others from being fetched; NotFetched then names it.
    """
    done: list[Path] = []
    failed: list[str] = []
    for entry in listed(ask, task, path, attempt):
        if entry.kind == "file":
            target = to / entry.path
            try:
                done.append(_fetch(ask, task, entry, target, attempt))
            except OSError as error:
                failed.append(f"{target} cannot be written: {error.strerror or error}")
            except UnicodeError:
                failed.append(f"{target} cannot be written: its name is no text here")
            except NotFound as error:
                failed.append(f"{target} cannot be fetched: {error}")
    if failed:
        raise NotFetched([str(one) for one in done], failed)
    if not done:
        raise NotFound(f"task {task} has left no file at {path or 'its directory'!r}")
    return done


def _fetch(ask: Ask, task: int, entry: TaskFile, target: Path, attempt: int | None) -> Path:
    part = target.with_name(part_of(entry))
    target.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as file:
        while True:
            params = _params(path=entry.path, offset=file.tell(), attempt=attempt)
            answer = ask(f"tasks/{task}/files/content", params)
            file.write(answer.content)
            if not answer.content or file.tell() >= int(answer.headers["X-Size"]):
                break
    os.replace(part, target)
    return target


def part_of(entry: TaskFile) -> str:
    """Name of a file that is not complete yet, short whatever the file's own is.

    It tells what it is a part of: a file that has changed meanwhile is fetched from its beginning.
    """
    known = f"{entry.path.rpartition('/')[2]}/{entry.size}/{entry.modified:.6f}"
    return f".{hashlib.sha256(known.encode(errors='surrogatepass')).hexdigest()[:32]}{PART}"


def _params(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def check_target(to: Path) -> None:
    """Raise ConfigError if nothing can be fetched into this directory."""
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--to {to} is no directory")
