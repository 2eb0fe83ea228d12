"""A wall clock that jumps: what every process of a site under test sees of it is moved by whole days.

Jumps are whole days so that the checker can tell them from the time that passes: a run lasts hours at most.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

#: Seconds of the smallest jump.
DAY = 86_400.0

#: Python runs this at its start, where a folder of its path has it.
_SITE = """
import os, time
_time, _path = time.time, os.environ["JUMPING_CLOCK"]
def moved():
    with open(_path) as file:
        return _time() + float(file.read() or 0.0)
time.time = moved
time.time_ns = lambda: int(1e9 * moved())
"""


class WallClock:
    """The wall clock of all processes that are started from now on."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        """``folder``: where to keep it; must not exist."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SITE)
        self._file = folder / "offset"
        self.jump(0)
        patch.setenv("JUMPING_CLOCK", str(self._file))
        # With the path of the tests: agents find their backend there.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))

    def jump(self, days: int) -> None:
        """Stand this many days ahead of the truth, or behind it."""
        part = self._file.with_suffix(".part")
        part.write_text(str(days * DAY))
        part.replace(self._file)


def real_time(at: float) -> float:
    """A time of the last hours as it really was, whatever the clock said."""
    return at - DAY * round((at - time.time()) / DAY)
