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
#: Most files and directories of a task that are listed: a task may go on making them.
MOST_LISTED = 1_000_000
#: Longest path that is asked for, in characters: the coordinator takes no longer ones.
LONGEST_PATH = 4096

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


#: Told of a path below which nothing is listed, and why.
Missed = Callable[[str, str], None]


def listed(
    ask: Ask, task: int, path: str, attempt: int | None, missed: Missed = lambda _path, _why: None
) -> Iterator[TaskFile]:
    """Everything at or below a path, directories before what is in them; at most ``MOST_LISTED`` of it."""
    open_folders = [(path, _in_folder(ask, task, path, attempt))]
    count = 0
    while open_folders:
        folder, entries = open_folders[-1]
        try:
            entry = next(entries, None)
        except NotFound as error:  # a task that runs may have removed it
            if len(open_folders) == 1:
                raise
            missed(folder, str(error))
            entry = None
        if entry is None:
            open_folders.pop()
        elif count == MOST_LISTED:
            missed(entry.path, f"only the first {MOST_LISTED:,} files and directories of a task are listed")
            return
        elif len(entry.path) > LONGEST_PATH:
            missed(entry.path, f"its path has more than {LONGEST_PATH} characters")
        else:
            count += 1
            yield entry
            if entry.kind == "directory":
                open_folders.append((entry.path, _in_folder(ask, task, entry.path, attempt)))


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
            if "/" in name or "\0" in name or name in (".", "..") or (name <= after and not (itself and not more)):
                raise CoordinatorError(f"the coordinator names a file {name!r}, which cannot be there")
            after = name
            inner = "/".join(part for part in (path.strip("/"), name) if part)
            yield TaskFile(inner, entry["kind"], entry["size"], entry["modified"])


def fetch_all(ask: Ask, task: int, path: str, to: Path, attempt: int | None) -> list[Path]:
    """Fetch a file, or all files below a directory, into the directory ``to``. Returns where they are.

    A file that cannot be written, or is gone, does not keep others from being fetched; NotFetched then names it.
    Of a file that grows meanwhile, as much is fetched as it had when it was listed.
    """
    done: list[Path] = []
    failed: list[str] = []

    def missed(below: str, why: str) -> None:
        failed.append(f"{to / below} cannot be fetched: {why}")

    for entry in listed(ask, task, path, attempt, missed):
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
        while (left := entry.size - file.tell()) > 0:
            params = _params(path=entry.path, offset=file.tell(), attempt=attempt)
            content = ask(f"tasks/{task}/files/content", params).content
            file.write(content[:left])  # it may have grown since, and may go on growing
            if not content:
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
