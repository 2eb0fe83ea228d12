"""The agent's disk: how much is free, and who has put too much there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tapfinger.live.protocol.messages import AttemptId

MB, GB = 1 << 20, 1 << 30
#: Share beyond ``min_free_mb`` that must be free before a full disk is taken to be well again.
RELIEF = 1.25
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
