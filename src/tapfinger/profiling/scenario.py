"""Profiles -> a scenario: measured task types, clusters for them, and a rate of arrivals that gives the wanted load."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tapfinger.errors import ConfigError, DataError, UnknownNameError
from tapfinger.profiles.shape import Curve, Shape, fit_shape, from_losses
from tapfinger.profiles.surface import fit_surface
from tapfinger.profiles.table import ProfileRow, read_rows
from tapfinger.profiling.grid import MAX_CELLS, Cell, Grid
from tapfinger.profiling.journal import read_runs
from tapfinger.profiling.options import ScenarioChoices
from tapfinger.profiling.results import units, usable_box
from tapfinger.settings import check_settings
from tapfinger.workloads.importers.convert import MEDIAN_SLOTS, round_up

#: Columns of a file of loss curves, besides those of resources and an optional repeat.
LOSS_COLUMNS = ("task_type", "elapsed_seconds", "validation_loss")


@dataclass
class MeasuredType:
    """One task type as measured in its files."""

    resources: tuple[str, ...]
    cells: dict[Cell, list[float]] = field(default_factory=dict)
    #: Cells in which it did not run, and why.
    failed: dict[Cell, str] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    #: Kinds of hardware that it was measured on; an empty one where the file says nothing of it.
    hardware: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Built:
    """The scenario and profile to write."""

    scenario: dict[str, Any]
    #: Rows for the CSV next to it: measured, and modelled where the grid has holes.
    rows: Sequence[ProfileRow]
    #: What was done with each type, as text.
    notes: Sequence[str]


def read_measured(profiles: Sequence[Path], losses: Path | None = None) -> dict[str, MeasuredType]:
    """All task types of these files, with failures and curves from the journals next to them."""
    found: dict[str, MeasuredType] = {}
    origin: dict[str, Path] = {}
    for path in profiles:
        for line, row in read_rows(path):
            kind = found.setdefault(row.task_type, MeasuredType(tuple(row.amounts)))
            if origin.setdefault(row.task_type, path) != path:
                raise DataError(
                    f"{path}:{line}: {row.task_type} is in {origin[row.task_type]} already; rename one of both"
                )
            if set(kind.resources) != set(row.amounts):
                raise DataError(
                    f"{path}:{line}: {row.task_type} has amounts of {', '.join(row.amounts)}, but of "
                    f"{', '.join(kind.resources)} before; fill the same columns in every row of a task type"
                )
            cell = tuple(row.amounts[name] for name in kind.resources)
            kind.cells.setdefault(cell, []).append(row.seconds)
            kind.hardware.add(row.hardware)
        beside = path.with_name(f"{path.stem}.runs.jsonl")
        if beside.exists():
            _add_runs(found, beside)
    if losses is not None:
        _add_losses(found, losses)
    return found


def _add_runs(found: Mapping[str, MeasuredType], path: Path) -> None:
    name, runs = read_runs(path)
    if name not in found:
        return
    kind = found[name]
    for run in runs:
        if set(run.cell) != set(kind.resources):
            continue
        cell = tuple(run.cell[resource] for resource in kind.resources)
        if run.result != "finished" and cell not in kind.cells:
            kind.failed[cell] = run.reason
        elif run.result == "finished" and run.curve:
            kind.curves.append([(seconds, progress) for seconds, progress, _ in run.curve])


def _add_losses(found: Mapping[str, MeasuredType], path: Path) -> None:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of loss curves: {error}") from None
    missing = [name for name in LOSS_COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise DataError(f"{path}: no column {missing[0]!r}; loss curves have the columns {', '.join(LOSS_COLUMNS)}")
    runs: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for line, row in enumerate(rows, start=2):
        key = tuple(str(value) for name, value in row.items() if name not in LOSS_COLUMNS[1:])
        try:
            point = (float(row["elapsed_seconds"]), float(row["validation_loss"]))
        except (TypeError, ValueError):
            point = (math.nan, math.nan)
        if not all(map(math.isfinite, point)):
            given = f"{row['elapsed_seconds']!r}, {row['validation_loss']!r}"
            raise DataError(f"{path}:{line}: elapsed_seconds and validation_loss must be numbers, got {given}")
        runs[row["task_type"], *key].append(point)
    for (name, *_), points in runs.items():
        if name in found:
            found[name].curves.append(from_losses(sorted(points)))


def build(measured: Mapping[str, MeasuredType], options: ScenarioChoices, profile: str) -> Built:
    """``profile``: name of the CSV next to the scenario."""
    chosen = _chosen(measured, options)
    _check(options, chosen)
    on = _hardware(chosen)
    names = tuple(dict.fromkeys(name for kind in chosen.values() for name in kind.resources))
    scale = options.time_scale
    rows: list[ProfileRow] = []
    types: list[dict[str, Any]] = []
    notes: list[str] = []
    best: dict[str, dict[Cell, float]] = {}
    for name, kind in chosen.items():
        low, high = usable_box(_grid(kind), kind.cells, kind.failed)
        filled, modelled = _filled(kind, low, high)
        best[name] = {cell: sum(runs) / len(runs) / scale for cell, runs in filled.items()}
        rows += [
            ProfileRow(name, _named(kind, c), s / scale, on.get("kind", "")) for c, runs in filled.items() for s in runs
        ]
        shape = fit_shape(kind.curves)
        types.append(_task_type(name, kind, names, (low, high), options, shape, profile))
        missing = f", {modelled} not measured and taken from the speed model" if modelled else ""
        notes.append(f"{name}: {len(filled)} allocations{missing}; {shape.describe()}")
    capacity = {name: 2.0 * max(t["maximum"].get(name, 0.0) for t in types) for name in names}
    capacity |= dict(options.capacity or {})
    _check_room(types, capacity)
    slot = options.slot_seconds or round_up(median(min(cells.values()) for cells in best.values()) / MEDIAN_SLOTS)
    total = {name: amount * options.clusters for name, amount in capacity.items()}
    rate = options.rate or options.load / _mean_work(chosen, best, total, options)
    scenario = {
        "name": options.name,
        "description": f"Profiled tasks: {', '.join(chosen)}" + (f"; time scale {scale:g}" if scale != 1.0 else ""),
        "mode": options.mode,
        "tasks": options.tasks,
        "slot_seconds": slot,
        "resources": _units(chosen, names),
        "arrivals": {"kind": "poisson", "rate": float(f"{rate * slot:.6g}")},
        "clusters": [{"name": "cluster", "count": options.clusters, "capacity": capacity, **on}],
        "task_types": types,
    }
    return Built(scenario, rows, notes)


def _hardware(chosen: Mapping[str, MeasuredType]) -> dict[str, str]:
    """The kind of all clusters, if the profiles name one."""
    kinds = sorted({kind for one in chosen.values() for kind in one.hardware})
    if len(kinds) > 1:
        raise ConfigError(
            f"these profiles are of different hardware ({', '.join(kind or 'none named' for kind in kinds)}), and the "
            "clusters made here are alike; give profiles of one kind, or write the clusters yourself (docs/clusters.md)"
        )
    return {"kind": kinds[0]} if kinds and kinds[0] else {}


def _chosen(measured: Mapping[str, MeasuredType], options: ScenarioChoices) -> dict[str, MeasuredType]:
    for name in (*options.types, *options.weights):
        if name not in measured:
            raise UnknownNameError("task type", name, measured)
    return {name: kind for name, kind in measured.items() if not options.types or name in options.types}


def _check(options: ScenarioChoices, chosen: Mapping[str, MeasuredType]) -> None:
    check_settings(options, options=True)
    if options.rate is not None and options.load != ScenarioChoices.load:
        raise ConfigError("--load has no effect: --rate says how fast tasks come; leave one of both out")
    known = {name for kind in chosen.values() for name in kind.resources}
    strange = [name for name in options.capacity or {} if name not in known]
    if strange:
        raise ConfigError(
            f"--capacity: there is no resource {strange[0]!r} in these profiles; they have {', '.join(known)}"
        )


def _check_room(types: Sequence[Mapping[str, Any]], capacity: Mapping[str, float]) -> None:
    for one in types:
        over = [name for name, amount in one["minimum"].items() if amount > capacity[name]]
        if over:
            raise ConfigError(
                f"{one['name']} was measured with {one['minimum'][over[0]]:g} {over[0]} or more, but clusters have "
                f"{capacity[over[0]]:g}; raise --capacity"
            )


def _grid(kind: MeasuredType) -> Grid:
    columns = list(zip(*kind.cells, strict=True))
    return Grid({name: tuple(sorted(set(column))) for name, column in zip(kind.resources, columns, strict=True)})


def _named(kind: MeasuredType, cell: Cell) -> dict[str, float]:
    return dict(zip(kind.resources, cell, strict=True))


def _filled(kind: MeasuredType, low: Cell, high: Cell) -> tuple[dict[Cell, list[float]], int]:
    """Cells of the box with their seconds, with holes of the grid filled by the speed model; and number of holes."""

    def inside(cell: Cell) -> bool:
        return all(a <= amount <= b for a, amount, b in zip(low, cell, high, strict=True))

    measured = {cell: runs for cell, runs in kind.cells.items() if inside(cell)}
    grid = _grid(kind)
    if math.prod(map(len, grid.amounts.values())) > MAX_CELLS:
        return measured, 0  # not a grid; the profile is interpolated when it is read
    holes = [cell for cell in grid.cells() if inside(cell) and cell not in measured]
    if not holes:
        return measured, 0
    seconds = np.exp(fit_surface(kind.resources, kind.cells).predict(holes)[0])
    modelled = {cell: [float(f"{s:.6g}")] for cell, s in zip(holes, seconds.tolist(), strict=True)}
    return dict(sorted({**measured, **modelled}.items())), len(holes)


def _task_type(
    name: str,
    kind: MeasuredType,
    names: Sequence[str],
    box: tuple[Cell, Cell],
    options: ScenarioChoices,
    shape: Shape,
    profile: str,
) -> dict[str, Any]:
    low, high = (_named(kind, cell) for cell in box)
    weight = options.weights.get(name, 1.0)
    speed: dict[str, Any] = {"kind": "table", "file": profile}
    if shape.offset is not None:
        speed["shape_offset"] = shape.offset
    return {
        "name": name,
        **({"weight": weight} if weight != 1.0 else {}),
        # A resource that a type was not measured with is not used by it.
        "minimum": {resource: low.get(resource, 0.0) for resource in names},
        "maximum": {resource: high.get(resource, 0.0) for resource in names},
        "speed": speed,
    }


def _units(chosen: Mapping[str, MeasuredType], names: Sequence[str]) -> dict[str, float]:
    found = dict.fromkeys(names, 1.0)
    for kind in chosen.values():
        for name, unit in units(kind.cells, kind.resources).items():
            found[name] = min(found[name], unit)
    return found


def _mean_work(
    chosen: Mapping[str, MeasuredType],
    best: Mapping[str, Mapping[Cell, float]],
    total: Mapping[str, float],
    options: ScenarioChoices,
) -> float:
    """Seconds for which a mean task keeps all clusters busy, with each task at its most economical size."""
    work, weights = 0.0, 0.0
    for name, kind in chosen.items():
        weight = options.weights.get(name, 1.0)
        shares = [
            seconds * max(amount / total[r] for r, amount in zip(kind.resources, cell, strict=True) if total[r])
            for cell, seconds in best[name].items()
        ]
        work += weight * min(shares)
        weights += weight
    if not weights:
        raise ConfigError("every --weight is 0, so no task would ever come; give one above 0")
    return work / weights
