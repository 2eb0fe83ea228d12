"""How much others used the cores of a run meanwhile: measured times are worth little if that was much."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Columns of a cpu in /proc/stat that count as work: user, nice, system, irq, softirq and steal.
#: Nice processes count too: if the kernel groups processes by session, they yield only within their own session.
_WORK = (0, 1, 2, 5, 6, 7)
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Load:
    """Time spent working so far."""

    #: Seconds on the monotonic clock.
    at: float
    #: Seconds of work on the watched cores, by any process; None if the kernel does not report it.
    cores: float | None
    #: Seconds of work of this process and of its ended children, on any core.
    ours: float


def read_load(cores: Sequence[int], stat: Path = _STAT) -> Load:
    """``cores``: the cores to watch."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime
    return Load(time.monotonic(), _work(set(cores), stat), ours)


def _work(cores: set[int], stat: Path) -> float | None:
    found = 0
    total = 0.0
    try:
        for line in stat.read_text(encoding="ascii").splitlines():
            name, *columns = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
                total += sum(float(columns[i]) for i in _WORK if i < len(columns))
                found += 1
    except (OSError, ValueError):
        return None
    return total / os.sysconf("SC_CLK_TCK") if found == len(cores) else None


def others_share(before: Load, after: Load, cores: int) -> float | None:
    """Share of the cores' time that others used in between: 0 if we were alone, None if unknown.

    The kernel counts work in ticks, so for short runs it is known only to within a few hundredths of a second.
    """
    if before.cores is None or after.cores is None or not cores:
        return None
    passed = (after.at - before.at) * cores
    others = (after.cores - before.cores) - (after.ours - before.ours)
    tick = 2.0 * cores / os.sysconf("SC_CLK_TCK")
    return min(1.0, max(0.0, (others - tick) / passed)) if passed > 0.0 else None
