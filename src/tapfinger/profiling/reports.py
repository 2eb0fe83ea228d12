"""The progress that a task reported while it was profiled, as far as it can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tapfinger.progress import ProgressCheck, ProgressReader

#: Most points kept of a curve.
MOST_POINTS = 200

Point = tuple[float, float, Mapping[str, float]]


@dataclass(frozen=True)
class Reported:
    """The believed reports of a run."""

    #: Last believed progress; None if there is none.
    progress: float | None
    #: Whether a task that ended well reported that it was done, or reported nothing.
    done: bool
    faults: tuple[str, ...]
    #: [seconds since the start, progress, metrics], thinned out evenly; always includes the last.
    curve: tuple[Point, ...]


def read_reports(path: Path, started: float) -> Reported:
    """``started``: start of the run in seconds since 1970. No file means no reports."""
    check = ProgressCheck()
    believed = check.read_of(ProgressReader(path))
    points = [(round(max(0.0, report.t - started), 4), report.progress, report.metrics) for report in believed]
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    progress = check.last.progress if check.last is not None else None
    return Reported(progress, check.complete, tuple(check.faults), tuple(points[::-1][::step][::-1]))
