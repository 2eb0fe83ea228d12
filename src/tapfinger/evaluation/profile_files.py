"""Speed profiles from files, in the same form as those of a live site: profile CSVs, scenarios, sites."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tapfinger.config import load_scenario, read_toml
from tapfinger.live.config import build_site, load_site
from tapfinger.live.insight.learning import Known
from tapfinger.live.insight.profile_views import cells, described
from tapfinger.profiles.repeats import summarise
from tapfinger.profiles.table import read_rows

#: Kind of hardware, empty if the file does not say, and amounts by resource.
_Size = tuple[str, tuple[tuple[str, float], ...]]


@dataclass(frozen=True)
class FileType:
    """A task type: a row about it, and its sizes."""

    row: dict[str, Any]
    cells: list[dict[str, Any]]


def file_types(path: Path) -> dict[str, FileType]:
    """All task types of a profile CSV, or of a TOML file of a scenario or site, by name."""
    return _of_toml(path) if path.suffix == ".toml" else _of_csv(path)


def _of_toml(path: Path) -> dict[str, FileType]:
    # The file of a site is a scenario with one more table and other defaults.
    scenario = load_site(path)[0] if "live" in read_toml(path)[0] else load_scenario(path)
    site = build_site(scenario)
    known = {t.name: Known(t, t) for t in site.task_types.values()}
    return {name: FileType(described(one, site), cells(one, site, True)) for name, one in known.items()}


def _of_csv(path: Path) -> dict[str, FileType]:
    repeats: dict[str, dict[_Size, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, row in read_rows(path):
        repeats[row.task_type][row.hardware, tuple(row.amounts.items())].append(row.seconds)
    return {name: _measured(name, found) for name, found in repeats.items()}


def _measured(name: str, found: dict[_Size, list[float]]) -> FileType:
    # Two runs that happen to agree prove nothing: the scatter of all sizes counts for each.
    together = summarise(list(found.values()))
    rows: list[dict[str, Any]] = [
        {
            **({"kind": kind} if kind else {}),
            "allocation": dict(size),
            "seconds": fmean(seconds),
            "configured_seconds": None,
            "doubt": math.sqrt(variance),
            "runs": float(len(seconds)),
        }
        for ((kind, size), seconds), variance in zip(found.items(), together.variance.tolist(), strict=True)
    ]
    usual = max(rows, key=lambda cell: (cell["runs"], -sum(cell["allocation"].values())))
    row = {
        "name": name,
        "runs": sum(map(len, found.values())),
        "sizes": len(rows),
        "usual": usual["allocation"],
        "seconds": usual["seconds"],
        "configured_seconds": None,
        "doubt": usual["doubt"],
        "scatter": math.sqrt(together.noise) if any(len(seconds) > 1 for seconds in found.values()) else 0.0,
        "factor": 1.0,
        "since": 0.0,
        "drift": None,
    }
    return FileType(row, rows)
