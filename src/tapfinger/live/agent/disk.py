"""The agent's disk: how much is free, and who has put too much there."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tapfinger.live.agent.trees import Extent
from tapfinger.live.protocol.messages import AttemptId

MB, GB = 1 << 20, 1 << 30
#: Number of free inodes below which a disk counts as full, or this share of all its inodes, if that is less.
FILES, FILES_SHARE = 1000, 0.05
#: Share beyond ``min_free_mb``, and beyond ``FILES``, that must be free before a full disk is taken to be well again.
RELIEF = 1.25
#: How many times larger than any other the largest directory is if it alone is to blame for a full disk.
BY_FAR = 2.0
#: Size below which a directory is not to blame in any case, as a share of what should be free.
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
        #: Why the disk has lately not taken another file, whatever it says of its room; empty if it has.
        self.refuses = ""
        #: What was free when last looked; None before the first look.
        self.free: Extent | None = None
        self._lacks_room = self._lacks_files = False
        self._files = float(FILES)

    def look(self) -> str:
        """What is wrong; empty if nothing is."""
        try:
            status = os.statvfs(self._directory)
        except OSError as error:
            return f"its disk cannot be read: {error.strerror}"
        refuses = self.refuses = self._try() if self.refuses else ""
        free = status.f_bavail * status.f_frsize
        self.free = Extent(free, status.f_favail)
        self._lacks_room = free < self._least * (RELIEF if self._lacks_room else 1.0)
        if status.f_files:  # else the file system does not count them
            self._files = min(FILES, FILES_SHARE * status.f_files)
            self._lacks_files = status.f_favail < self._files * (RELIEF if self._lacks_files else 1.0)
        self.full = self._lacks_room or self._lacks_files or bool(refuses)
        if status.f_flag & os.ST_RDONLY:
            return "its disk is read-only"
        if self.full:
            what = f"with less than live.min_free_mb = {self._least / MB:g} MB free"
            if not self._lacks_room:
                what = f"with room for less than {self._files:.0f} more files" if self._lacks_files else refuses
            return f"its disk is nearly full, {what}; remove something from the file system of {self._directory}"
        return f"its disk cannot be written: {self.unwritable}" if self.unwritable else ""

    def _try(self) -> str:
        """Why the disk does not take another file; empty if it does."""
        path = self._directory / ".room"
        try:
            path.write_bytes(b" " * 4096)
        except OSError as error:
            return str(error)
        finally:
            with suppress(OSError):
                path.unlink()
        return ""

    def blame(self, extents: Mapping[AttemptId, Extent], before: Extent | None = None) -> AttemptId | None:
        """The attempt whose directory explains what is lacking, room or files, if it helps to remove it; else nobody.

        ``before``: what was free before any of them began. What has gone since and is in no directory speaks against
        blaming anybody: files that are open and removed, for example, belong to somebody who cannot be told.
        """
        free = self.free or Extent(0, 0)
        before = before or free
        doubtful = [ident for ident, extent in extents.items() if not extent.complete]
        found = None
        if self._lacks_room or not self._lacks_files:
            sizes = {ident: extent.size for ident, extent in extents.items()}
            found = _culprit(sizes, doubtful, before.size - free.size, _helps(self._least, free.size))
        if found is None and (self._lacks_files or self.refuses):
            files = {ident: extent.files for ident, extent in extents.items()}
            found = _culprit(files, doubtful, before.files - free.files, _helps(self._files, free.files))
        return found


def _helps(least: float, free: int) -> float:
    """What must be removed at least to be of help. ``least``: what should be free."""
    return max(LEAST * least, RELIEF * least - free)


def _culprit(
    amounts: Mapping[AttemptId, int], doubtful: Collection[AttemptId], taken: int, least: float
) -> AttemptId | None:
    """Who has not less than ``least``, by far the most, and more than all others and whatever is not seen.

    ``doubtful``: those who may have more than was seen. The only one is taken to have all that is not seen; where
    there is one, nobody else is blamed. ``taken``: by anybody, as the disk says.
    """
    if not amounts:
        return None
    unseen = max(0, taken - sum(amounts.values()))
    supposed = {ident: amount + (unseen if [*doubtful] == [ident] else 0) for ident, amount in amounts.items()}
    largest, *others = sorted(supposed, key=lambda ident: -supposed[ident])
    most, second = supposed[largest], supposed[others[0]] if others else 0
    explains = most >= BY_FAR * second and 2 * most > max(taken, sum(supposed.values()))
    return largest if most >= least and explains and {*doubtful} <= {largest} else None
