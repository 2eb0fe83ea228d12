"""Answers requests for files of a task. It never leaves the task's directory: no link in a path is followed."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tapfinger.live.protocol.wire import CHUNK, LARGEST, LATEST, FileAnswer, FileEntry, FileRequest

#: Most entries of a directory in one answer.
PAGE = 1000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: dict[int, Literal["file", "directory", "link"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}


class _NoSuchFile(Exception):  # noqa: N818 - named for what it is
    """A path that does not exist, or that may not be read."""


def answer(request: FileRequest, root: Path | None) -> FileAnswer:
    """Part of a directory's list or of a file; ``root``: the task's directory, None if it is not kept any more."""
    which = f"task {request.id[0]} attempt {request.id[1]}"
    if root is None:
        return FileAnswer(request.number, fault=f"no files of {which} are kept on its cluster (any more)")
    try:
        with _opened(root, request.path) as (handle, status):
            if request.listed:
                return _listing(request, handle, status)
            return _piece(request, handle, status)
    except _NoSuchFile as error:
        return FileAnswer(request.number, fault=f"{which} has no {error}")
    except OSError as error:
        return FileAnswer(request.number, fault=f"{request.path!r} of {which} cannot be read: {error.strerror}")


@contextmanager
def _opened(root: Path, path: str) -> Iterator[tuple[int, os.stat_result]]:
    """The file or directory at a path below ``root``; each part is opened relative to the one before."""
    handle = os.open(root, _FLAGS | os.O_DIRECTORY)
    try:
        for part in filter(None, path.split("/")):
            if part in (".", "..") or "\0" in part:
                raise _NoSuchFile(f"file {path!r}: paths have no {part!r} in them")
            try:
                kind = stat.S_IFMT(os.stat(part, dir_fd=handle, follow_symlinks=False).st_mode)
                if kind not in (stat.S_IFREG, stat.S_IFDIR):
                    raise _NoSuchFile(f"file {path!r} to read: {part!r} is a {_KINDS.get(kind, 'special file')}")
                following = os.open(part, _FLAGS, dir_fd=handle)
            except (FileNotFoundError, NotADirectoryError):
                raise _NoSuchFile(f"file {path!r}") from None
            os.close(handle)
            handle = following
        yield handle, os.fstat(handle)
    finally:
        os.close(handle)


def _listing(request: FileRequest, handle: int, status: os.stat_result) -> FileAnswer:
    if not stat.S_ISDIR(status.st_mode):
        return FileAnswer(request.number, entries=(_entry("", status),), size=_size(status))
    with os.scandir(handle) as found:
        # By the names that are shown: the next page is asked for by one of them.
        shown = ((_shown(e.name), e.name) for e in found)
        names = heapq.nsmallest(PAGE + 1, (pair for pair in shown if pair[0] > request.after))
    entries = []
    for told, name in names[:PAGE]:
        try:
            entries.append(_entry(told, os.stat(name, dir_fd=handle, follow_symlinks=False)))
        except OSError:
            continue  # removed at this moment
    return FileAnswer(request.number, entries=tuple(entries), more=len(names) > PAGE)


def _shown(name: str) -> str:
    """A name as text. The bytes of one that is no text are shown by their numbers, and it cannot be fetched."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _entry(name: str, status: os.stat_result) -> FileEntry:
    return FileEntry(name, _KINDS.get(stat.S_IFMT(status.st_mode), "special"), _size(status), _modified(status))


def _size(status: os.stat_result) -> int:
    """The size of a file; files with holes may have any."""
    return min(status.st_size, LARGEST)


def _modified(status: os.stat_result) -> float:
    """When a file was changed; its owner may say anything."""
    return max(-LATEST, min(status.st_mtime, LATEST))


def _piece(request: FileRequest, handle: int, status: os.stat_result) -> FileAnswer:
    if not stat.S_ISREG(status.st_mode):
        raise _NoSuchFile(f"file {request.path!r}: it is a directory; ask for its list")
    data = os.pread(handle, CHUNK, request.offset)
    return FileAnswer(request.number, data=data.decode("latin-1"), size=_size(status), modified=_modified(status))
