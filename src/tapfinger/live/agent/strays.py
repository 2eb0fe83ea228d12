"""Ends what runs without the agent's knowledge: where tasks are not isolated, one may remove what was noted of it.

The coordinator hears that its agent knows nothing of such a run, and grants the task again.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tapfinger.live.backends import supervise
from tapfinger.live.backends.process_reader import command_lines, is_beside_us

logger = logging.getLogger(__name__)

#: Most seconds to wait for the end of what was killed, and seconds between looks at it.
PATIENCE, PAUSE = 10.0, 0.05
_PROGRAM = os.fsencode(os.path.basename(supervise.__file__))
#: Names of directories of runs.
_RUN = re.compile(rb"\d+\.\d+")


def end_strays(runs: Path, known: Collection[str], patience: float = PATIENCE) -> None:
    """End the supervisors below this directory, with their tasks, besides those of runs with these names."""
    place = os.fsencode(runs.resolve())
    said: set[int] = set()
    deadline = time.monotonic() + patience
    while strays := {pid: name for pid, name in supervisors(place) if name not in known}:
        for pid, name in strays.items():
            if pid not in said:
                logger.warning("run %s is ended: nothing is known of it, and its supervisor %d is alive", name, pid)
            _kill(pid)
        said |= strays.keys()
        if time.monotonic() >= deadline:
            logger.error("runs of which nothing is known cannot be ended: %s", ", ".join(strays.values()))
            return
        time.sleep(PAUSE)


def supervisors(place: bytes) -> Iterator[tuple[int, str]]:
    """Process id and directory's name of every supervisor of a run below a directory.

    A supervisor is never in a sandbox, and its command line can be read at any time.
    """
    found, _ = command_lines.of(pid for pid, _ in supervise.parents() if is_beside_us(pid))
    for pid, line in found.items():
        for program, directory in pairwise(line.split(b"\0")):
            parent, name = os.path.split(directory)
            if os.path.basename(program) == _PROGRAM and parent == place and _RUN.fullmatch(name):
                yield pid, os.fsdecode(name)


def _kill(supervisor: int) -> None:
    """Kill all below a supervisor; itself only when nothing is left, since until then nothing can leave it."""
    killed = False
    for pid in supervise.descendants(supervisor):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed = True
    if not killed:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(supervisor, signal.SIGKILL)
