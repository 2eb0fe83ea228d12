"""The agent's disk: how much is free, what tasks have put there, and how it is removed again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tapfinger.live.protocol.messages import AttemptId

MB, GB = 1 << 20, 1 << 30
#: Share beyond ``min_free_mb`` that must be free before a full disk is taken to be well again.
RELIEF = 1.25
#: Files that are removed or measured in one go, and seconds to rest after them, so that nobody waits for the disk.
STEP, REST = 500, 0.01
#: How many times larger than any other the largest directory is if it alone is to blame for a full disk.
BY_FAR = 2.0
#: Size below which a directory is not to blame, as a share of ``min_free_mb``: removing it would not help.
LEAST = 0.5


@dataclass(frozen=True, slots=True)
class DiskRules:
    """Keys of ``[live]`` about an agent's disk."""

    #: Hours for which the files of an ended task are kept (``live.keep_results_hours``).
    keep_results_hours: float = 72.0
    #: Gigabytes that the files of all ended tasks may take together (``live.max_results_gb``).
    max_results_gb: float = 10.0
    #: Megabytes that must be free for the cluster to take tasks (``live.min_free_mb``).
    min_free_mb: float = 512.0


class DiskWatch:
    """Says what is wrong with the disk of a directory."""

    def __init__(self, directory: Path, min_free_mb: float) -> None:
        """``min_free_mb``: megabytes that should be free."""
        self._directory = directory
        self._least = min_free_mb * MB
        #: Whether there was too little room when last looked.
        self.full = False
        #: Why the lease could not be written lately; empty if it could.
        self.unwritable = ""

    def look(self) -> str:
        """What is wrong; empty if nothing is."""
        try:
            status = os.statvfs(self._directory)
        except OSError as error:
            return f"its disk cannot be read: {error.strerror}"
        free = status.f_bavail * status.f_frsize
        self.full = free < self._least * (RELIEF if self.full else 1.0)
        if status.f_flag & os.ST_RDONLY:
            return "its disk is read-only"
        if self.full:
            return (
                f"its disk is nearly full, with less than live.min_free_mb = {self._least / MB:g} MB free; remove "
                f"something from the file system of {self._directory}"
            )
        return f"its disk cannot be written: {self.unwritable}" if self.unwritable else ""

    def blame(self, sizes: Mapping[AttemptId, int]) -> AttemptId | None:
        """The attempt that has by far the largest directory, if the disk would be well without it."""
        if not sizes:
            return None
        largest, second = [*sorted(sizes, key=lambda ident: -sizes[ident]), None][:2]
        if largest is None or sizes[largest] < LEAST * self._least:
            return None
        return largest if second is None or sizes[largest] >= BY_FAR * sizes[second] else None


def size_of(directory: Path) -> int:
    """Bytes that a directory takes on disk, with all below it. What cannot be read counts nothing."""
    total, left, seen = 0, [os.fspath(directory)], 0
    while left:
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                seen = _rest_after(seen)
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        left.append(entry.path)
    return total


def remove_tree(path: Path) -> None:
    """Remove a directory with all below it, in small steps, also where its permissions forbid it."""
    seen = 0
    for folder, folders, files in _bottom_up(path):
        for name in files:
            seen = _rest_after(seen)
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        for name in folders:
            with suppress(OSError):
                os.rmdir(os.path.join(folder, name))
    with suppress(OSError):
        os.rmdir(path)


def _bottom_up(path: Path) -> Iterable[tuple[str, list[str], list[str]]]:
    """Every directory below ``path`` after those that it holds. A task may have closed its own to itself."""
    for folder, folders, _ in os.walk(path):
        for name in folders:
            if not os.path.islink(os.path.join(folder, name)):
                with suppress(OSError):
                    os.chmod(os.path.join(folder, name), 0o700)
    for folder, folders, files in os.walk(path, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        yield folder, [name for name in folders if name not in links], files + links


def _rest_after(seen: int) -> int:
    if (seen + 1) % STEP == 0:
        time.sleep(REST)
    return seen + 1
