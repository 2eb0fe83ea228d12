"""Measures and removes directories of tasks, which may be as deep as they like, full of links, and closed to everyone.

Nothing is reached by a path: each directory is opened from the one above it, and no link is followed. So a task that
changes its directory meanwhile leads nowhere else, and no name is too long. One directory is open at a time, whatever
the depth. And nothing takes longer than it is given: a task may go on filling a directory that is looked through.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: Files that are removed or measured in one go, and seconds to rest after them, so that nobody waits for the disk.
STEP, REST = 500, 0.01
#: Times that a directory is looked through again because its task has put something into it meanwhile.
AGAIN = 5
#: Most seconds for measuring a directory with all below it.
LOOK = 10.0
#: Files with several names that are remembered, so that each counts once: what is beyond counts with every name.
MOST_LINKED = 100_000
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _OverdueError(Exception):
    """The time that was given is over. Not an OSError, which would concern one entry only."""


class _WalkBudget:
    """Rests now and then, and ends what takes too long."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._seen = 0
        #: Directories that were moved to the top.
        self.lifted = 0

    def check(self) -> None:
        if time.monotonic() >= self._until:
            raise _OverdueError

    def count(self) -> None:
        self.check()
        self._seen += 1
        if self._seen % STEP == 0:
            time.sleep(REST)


@contextmanager
def _folder(name: str | Path, above: int | None = None, make_open: bool = False) -> Iterator[int]:
    """A directory, opened from the one above it. ``make_open``: change its permissions, if they forbid it."""
    if make_open:
        handle = os.open(name, _FLAGS | os.O_PATH, dir_fd=above)
        try:
            # This directory, whatever has its name by now.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode) | 0o700)
        finally:
            os.close(handle)
    handle = os.open(name, _FLAGS, dir_fd=above)
    try:
        yield handle
    finally:
        os.close(handle)


def make_open(path: Path) -> bool:
    """Let the owner read, change and move a directory, whatever its task has forbidden. Returns whether it is one."""
    try:
        with _folder(path, make_open=True):
            return True
    except OSError:
        return False


def _identity(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


# ------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class Extent:
    """What something takes on disk."""

    #: Bytes.
    size: int
    #: Files and directories, whatever number of names they have.
    files: int
    #: Whether all of it could be seen, in time.
    complete: bool = True


class _Scales:
    """Adds up files, each one once."""

    def __init__(self) -> None:
        self.size = self.files = 0
        self.complete = True
        #: Files that have more than one name and were counted, by device and number.
        self._known: set[tuple[int, int]] = set()

    def add(self, status: os.stat_result) -> None:
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            if identity in self._known:
                return
            if len(self._known) < MOST_LINKED:
                self._known.add(identity)
        self.size += status.st_blocks * 512
        self.files += 1

    def missed(self, error: OSError) -> None:
        """Note that something could not be seen, unless it has gone or was replaced meanwhile."""
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            self.complete = False


def size_of(directory: Path) -> int:
    """Bytes that a directory takes on disk, with all below it. What cannot be read counts nothing."""
    return extent_of(directory).size


def extent_of(directory: Path, seconds: float = LOOK) -> Extent:
    """What a directory takes on disk, with all below it. What cannot be read in time counts nothing."""
    scales = _Scales()
    try:
        _weigh(directory, scales, _WalkBudget(seconds))
    except OSError as error:
        scales.missed(error)
    except _OverdueError:
        scales.complete = False
    return Extent(scales.size, scales.files, scales.complete)


def _enter(name: str | Path, above: int | None = None) -> int:
    """A directory to be measured, opened although its task has closed it to its own user."""
    with suppress(PermissionError):
        handle = os.open(name, _FLAGS, dir_fd=above)
        try:
            os.stat(".", dir_fd=handle)  # fails where its entries may be listed, but not looked at
        except OSError:
            os.close(handle)
            raise
        return handle
    with _folder(name, above, make_open=True) as opened:
        return os.dup(opened)


def _weigh(directory: Path, scales: _Scales, pace: _WalkBudget) -> None:
    #: The directories from the top to the current one: which it is, and what in it was not entered yet.
    above: list[tuple[tuple[int, int], list[str]]] = []
    here = -1
    try:
        here = _enter(directory)
        folders = _measure(here, pace, scales)
        while True:
            if folders:
                name = folders.pop()
                try:
                    below = _enter(name, here)
                    above.append((_identity(here), folders))
                    os.close(here)
                    here, folders = below, []
                    folders = _measure(here, pace, scales)
                except OSError as error:
                    scales.missed(error)
            elif above:
                identity, folders = above.pop()
                back = os.open("..", _FLAGS, dir_fd=here)
                os.close(here)
                here = back
                if _identity(here) != identity:
                    return  # the task has moved it: the next look finds it elsewhere
            else:
                return
    finally:
        if here >= 0:
            os.close(here)


def _measure(handle: int, pace: _WalkBudget, scales: _Scales) -> list[str]:
    """Add the entries of a directory; returns the directories among them."""
    folders = []
    with os.scandir(handle) as entries:
        for entry in entries:
            pace.count()
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                scales.missed(error)
                continue
            scales.add(status)
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
    return folders


# -------------------------------------------------------------------------- removing


def remove_tree(path: Path, seconds: float = math.inf) -> None:
    """Remove a directory with all below it, in small steps, also where its permissions forbid it.

    Directories within directories are moved to the top before they are emptied, so depth does not matter. What cannot
    be removed in time is left, and so is what a living task goes on putting there.
    """
    if os.path.islink(path):  # not Path.is_symlink, which fails where the directory above is closed
        with suppress(OSError):
            path.unlink()
        return
    with suppress(OSError, _OverdueError), _folder(path, make_open=True) as top:
        pace = _WalkBudget(seconds)
        for _ in range(AGAIN):
            if not _empty(top, top, pace):
                break
    with suppress(OSError):
        path.rmdir()


def _empty(handle: int, top: int, pace: _WalkBudget) -> bool:
    """Remove the entries of a directory; those below others are moved to the top. Returns whether it had any.

    It removes not many more than there were at first.
    """
    seen, most = 0, _number(handle, pace) + STEP
    while seen < most + (pace.lifted if handle == top else 0) and (names := _some(handle)):
        gone = 0
        for name, is_folder in names:
            pace.count()
            with suppress(OSError):
                if not is_folder:
                    os.unlink(name, dir_fd=handle)
                elif handle == top:
                    _remove_folder(name, top, pace)
                else:
                    _lift(name, handle, top, pace)
                gone += 1
        seen += len(names)
        if not gone:
            break  # nothing of it can be removed
    return seen > 0


def _number(handle: int, pace: _WalkBudget) -> int:
    """Number of entries of a directory."""
    number = 0
    with os.scandir(handle) as entries:
        for _ in entries:
            pace.check()
            number += 1
    return number


def _some(handle: int) -> list[tuple[str, bool]]:
    """Some entries of a directory, each with whether it is a directory: there may be millions."""
    with os.scandir(handle) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(entries, STEP)]


def _remove_folder(name: str, top: int, pace: _WalkBudget) -> None:
    with _folder(name, top, make_open=True) as below:
        _empty(below, top, pace)
    os.rmdir(name, dir_fd=top)


def _lift(name: str, handle: int, top: int, pace: _WalkBudget) -> None:
    """Move a directory to the top, under a name that nobody can have taken."""
    with _folder(name, handle, make_open=True):
        pass  # only who may write to a directory may move it
    os.rename(name, f".up-{secrets.token_hex(8)}", src_dir_fd=handle, dst_dir_fd=top)
    pace.lifted += 1
