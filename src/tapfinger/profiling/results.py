"""The profiler's results: the profile, and lines for a scenario that are proven to load."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from tapfinger.config import parse_scenario
from tapfinger.errors import ConfigError, DataError
from tapfinger.profiles.table import ProfileRow, write_profile
from tapfinger.profiling.campaign import Findings
from tapfinger.profiling.grid import Cell, Grid
from tapfinger.workloads.world import build_world

#: Most boxes to examine; beyond this, only their lower ends vary.
MOST_BOXES = 50_000


@dataclass(frozen=True)
class Files:
    """Paths of all files, derived from that of the profile."""

    profile: Path

    def beside(self, ending: str) -> Path:
        """``my_task.csv`` -> ``my_task`` + ending."""
        return self.profile.with_name(self.profile.stem + ending)

    @property
    def runs(self) -> Path:
        """Journal of all runs, from which a profiler continues."""
        return self.beside(".runs.jsonl")

    @property
    def work(self) -> Path:
        """Directory in which tasks run; removed when the profiler ends."""
        return self.profile.with_name(f".{self.profile.stem}.work")


def save_profile(files: Files, task_type: str, findings: Findings, hardware: str = "") -> None:
    """Write one row per run that counts; the file is replaced atomically. ``hardware``: its kind, if that is known."""
    order = {cell: i for i, cell in enumerate(findings.grid.cells())}
    rows = [
        ProfileRow(task_type, findings.grid.named(cell), seconds, hardware)
        for cell, runs in sorted(findings.counted.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
        for seconds in runs
    ]
    part = files.profile.with_name(f".{files.profile.name}.part")
    try:
        write_profile(part, rows, f"A row is a run. {findings.spread}".strip())
        os.replace(part, files.profile)
    except OSError as error:
        raise ConfigError(f"{files.profile} cannot be written: {error.strerror}; choose another --out") from None


def usable_box(grid: Grid, measured: Mapping[Cell, object], failed: Mapping[Cell, object]) -> tuple[Cell, Cell]:
    """Smallest and largest amounts between which nothing failed and as much as possible was measured."""
    cells = [*measured, *failed]
    axes = [sorted({cell[r] for cell in cells}) for r in range(len(grid.resources))]
    good, bad = (np.zeros([len(axis) for axis in axes], dtype=np.int64) for _ in range(2))
    for counts, which in ((good, measured), (bad, failed)):
        for cell in which:
            counts[tuple(axis.index(a) for axis, a in zip(axes, cell, strict=True))] = 1
    spans = [list(combinations_with_replacement(range(len(axis)), 2)) for axis in axes]
    if math.prod(map(len, spans)) > MOST_BOXES:
        spans = [[(low, len(axis) - 1) for low in range(len(axis))] for axis in axes]
    best, most = None, 0
    for box in product(*spans):
        part = tuple(slice(low, high + 1) for low, high in box)
        count = int(good[part].sum())
        if count > most and not bad[part].any():
            best, most = box, count
    if best is None:
        raise DataError("no allocation was measured, so there is nothing to put into a scenario")
    used = [c for c in measured if all(ax[lo] <= a <= ax[hi] for a, ax, (lo, hi) in zip(c, axes, best, strict=True))]
    columns = list(zip(*used, strict=True))
    return tuple(map(min, columns)), tuple(map(max, columns))


def units(cells: Mapping[Cell, object], resources: tuple[str, ...]) -> dict[str, float]:
    """The unit of each resource: the largest one, at most 1, in which all its amounts are whole."""
    found = {}
    for r, name in enumerate(resources):
        fractions = [Fraction(cell[r]).limit_denominator(1000) for cell in cells]
        found[name] = 1.0 / math.lcm(1, *(f.denominator for f in fractions))
    return found


_SIDES = ("minimum", "maximum")


def task_type_table(task_type: str, findings: Findings, profile: Path) -> dict[str, Any]:
    """A task type for a scenario next to the profile."""
    low, high = usable_box(findings.grid, findings.counted, findings.failed)
    return {
        "name": task_type,
        "minimum": findings.grid.named(low),
        "maximum": findings.grid.named(high),
        "speed": {"kind": "table", "file": profile.name},
    }


def _as_lines(table: dict[str, Any]) -> str:
    """A task type as TOML that can stand next to others; tomli-w would write a short one as ``task_types = [...]``."""
    box = {side: ", ".join(f"{name} = {amount:.12g}" for name, amount in table[side].items()) for side in _SIDES}
    return "\n".join(
        [
            "[[task_types]]",
            f"name = {json.dumps(table['name'])}",
            *(f"{side} = {{ {amounts} }}" for side, amounts in box.items()),
            f'speed = {{ kind = "table", file = {json.dumps(table["speed"]["file"], ensure_ascii=False)} }}',
        ]
    )


def scenario_lines(task_type: str, findings: Findings, profile: Path, hardware: str = "") -> str:
    """Lines for a scenario or a site; a world is built with them first, to prove that they load."""
    table = task_type_table(task_type, findings, profile)
    smallest = units(findings.counted, findings.grid.resources)
    scenario = {
        "name": "proof",
        "mode": "multi",
        "tasks": 1,
        "resources": smallest,
        "clusters": [{"name": "this", "capacity": table["maximum"], "kind": hardware}],
        "task_types": [table],
    }
    build_world(parse_scenario(scenario, str(profile), str(profile.parent)))
    lines = _as_lines(table)
    usual = {"cpu": 1.0, "gpu": 1.0}
    if any(usual.get(name) != unit for name, unit in smallest.items()):
        lines = tomli_w.dumps({"resources": {**usual, **smallest}}).strip() + "\n\n" + lines
    return lines
