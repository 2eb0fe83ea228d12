"""Measured speed profiles: a CSV of seconds per allocation, read with its holes filled (docs/profiles.md).

Between measured amounts the logarithm of the seconds is interpolated linearly in the logarithm of each
amount, which is exact at measured cells and follows any shape: nothing is assumed monotone.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tapfinger.errors import DataError, UnknownNameError

#: Largest number that is read: thirty thousand years in seconds; more is a typing error, and its powers would overflow.
MAX_NUMBER = 1e12

#: Maximum number of grid cells (distinct amounts multiplied over the resources); beyond it the data is not a grid at
#: all.
MAX_GRID = 100_000

#: Columns that are no resources; ``kind`` is of hardware, and may be missing.
_COLUMNS = ("task_type", "kind", "seconds")

Cell = tuple[float, ...]


class Profile:
    """Seconds a task type takes under any allocation, from measured cells."""

    def __init__(self, resources: Sequence[str], cells: Mapping[Cell, float], source: str = "profile") -> None:
        """``cells``: amounts of ``resources``, in that order -> seconds; ``source`` is for error messages."""
        self.resources = tuple(resources)
        self._source = source
        # Logarithms of amounts are the coordinates: times like a + b / amount are nearly straight there, and
        # rather curved in the amounts themselves.
        amounts = [sorted({cell[r] for cell in cells}) for r in range(len(self.resources))]
        size = math.prod(map(len, amounts))
        if size > MAX_GRID:
            raise DataError(
                f"{source}: the distinct amounts of {', '.join(self.resources)} span a grid of {size:,} cells, over "
                f"{MAX_GRID:,}; measure at common amounts, or round them"
            )
        self._axes = [_coordinates(axis) for axis in amounts]
        grid = np.full([len(axis) for axis in amounts], np.nan)
        for cell, seconds in cells.items():
            grid[tuple(axis.index(a) for axis, a in zip(amounts, cell, strict=True))] = math.log(seconds)
        #: Number of grid cells that were not measured.
        self.holes = int(np.isnan(grid).sum())
        self._grid = _fill_holes(grid, self._axes)
        self._flat = self._grid.ravel().tolist()

    def seconds(self, amounts: Mapping[str, float]) -> float:
        """Seconds under natural quantities by name; resources without a column do not matter."""
        base = [(0, 1.0)]  # (flat position, weight) of the corners around the allocation
        for name, axis in zip(self.resources, self._axes, strict=True):
            if name not in amounts:
                raise DataError(
                    f"{self._source}: column {name!r} is not a resource of the scenario (it has {', '.join(amounts)}); "
                    "rename or remove the column, or add the resource"
                )
            low, share = _bracket(axis, amounts[name])
            base = [
                (position * len(axis) + low + step, weight * part)
                for position, weight in base
                for step, part in ((0, 1.0 - share), (1, share))
                if part > 0.0
            ]
        return math.exp(sum(weight * self._flat[position] for position, weight in base))


def _coordinates(amounts: Sequence[float]) -> list[float]:
    """Logarithms of ascending amounts; half of the least one above 0 stands for 0."""
    least = next((a for a in amounts if a > 0.0), 1.0)
    return [math.log(a or 0.5 * least) for a in amounts]


def _bracket(axis: Sequence[float], amount: float) -> tuple[int, float]:
    """Position below the amount and how far it is to the next one; the ends extend outwards."""
    if amount <= 0.0 or (at := math.log(amount)) <= axis[0]:
        return 0, 0.0
    if at >= axis[-1]:
        return len(axis) - 1, 0.0
    low = bisect_right(axis, at) - 1
    return low, (at - axis[low]) / (axis[low + 1] - axis[low])


def _fill_holes(grid: npt.NDArray[np.float64], axes: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Interpolate holes between known cells, pass by pass; the rest get the value of the nearest known cell."""
    while np.isnan(grid).any():
        filled = _interpolated(grid, axes)
        if np.isnan(filled).sum() == np.isnan(grid).sum():
            return _extended(grid, axes)
        grid = filled
    return grid


def _interpolated(grid: npt.NDArray[np.float64], axes: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Fill holes that have known cells on both sides along some axis; several axes are weighted by closeness."""
    total, weights = np.zeros_like(grid), np.zeros_like(grid)
    for dimension, axis in enumerate(axes):
        at = np.asarray(axis)
        lines, sums, shares = (np.moveaxis(a, dimension, -1) for a in (grid, total, weights))
        for line in np.ndindex(lines.shape[:-1]):
            values = lines[line]
            known = np.flatnonzero(~np.isnan(values))
            if len(known) < 2 or len(known) == len(values):
                continue
            holes = np.flatnonzero(np.isnan(values[known[0] : known[-1] + 1])) + known[0]
            after = np.searchsorted(known, holes)
            closeness = 1.0 / (at[known[after]] - at[known[after - 1]])
            sums[line][holes] += closeness * np.interp(at[holes], at[known], values[known])
            shares[line][holes] += closeness
    filled = grid.copy()
    reached = weights > 0
    filled[reached] = total[reached] / weights[reached]
    return filled


def _extended(grid: npt.NDArray[np.float64], axes: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Give every hole the value of the nearest known cell (mean of equally near ones)."""
    known = np.argwhere(~np.isnan(grid))
    points = np.stack([np.asarray(axis)[known[:, d]] for d, axis in enumerate(axes)], axis=1)  # (known, resources)
    values = grid[tuple(known.T)]
    filled = grid.copy()
    for hole in np.argwhere(np.isnan(grid)):
        where = np.array([axis[i] for axis, i in zip(axes, hole, strict=True)])
        distance = np.square(points - where).sum(axis=1)
        filled[tuple(hole)] = values[distance <= distance.min() + 1e-12].mean()
    return filled


@dataclass(frozen=True)
class ProfileRow:
    """One measurement: a task type under one allocation."""

    task_type: str
    #: Natural quantities by resource name.
    amounts: Mapping[str, float]
    seconds: float
    #: Kind of hardware it was measured on; empty if the file does not say.
    hardware: str = ""


def rows_of(path: str | Path, task_type: str, hardware: str = "") -> list[tuple[int, ProfileRow]]:
    """Measurements of a task type on a kind of hardware; those of a file that says nothing of kinds are for all."""
    rows = read_rows(path)
    mine = [(line, row) for line, row in rows if row.task_type == task_type]
    if not mine:
        raise DataError(f"{path}: {UnknownNameError('task type', task_type, {row.task_type for _, row in rows})}")
    kinds = {row.hardware for _, row in mine}
    if kinds == {""}:
        return mine
    if hardware not in kinds:
        known = ", ".join(sorted(kind or "an empty one" for kind in kinds))
        raise DataError(
            f"{path}: there is no measurement of {task_type} on kind {hardware!r}, only on {known}; measure it, or "
            "give that kind a factor"
        )
    return [(line, row) for line, row in mine if row.hardware == hardware]


def load_profile(path: str | Path, task_type: str, hardware: str = "") -> Profile:
    """The profile of one task type from a CSV file; repeats of an allocation are averaged."""
    mine = rows_of(path, task_type, hardware)
    first_line, first = mine[0]
    repeats: dict[Cell, list[float]] = defaultdict(list)
    for line, row in mine:
        if row.amounts.keys() != first.amounts.keys():
            raise DataError(
                f"{path}:{line}: {task_type} has amounts of {_names(row.amounts)} but of {_names(first.amounts)} in "
                f"line {first_line}; fill the column in every row of a task type, or in none if it does not matter"
            )
        repeats[tuple(row.amounts.values())].append(row.seconds)
    cells = {cell: math.fsum(seconds) / len(seconds) for cell, seconds in repeats.items()}
    return Profile(tuple(first.amounts), cells, f"{path} ({task_type})")


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "no resource"


def read_rows(path: str | Path) -> list[tuple[int, ProfileRow]]:
    """All measurements of a profile file with their line numbers, checked one by one."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no profile file {path}; give the path of a profile CSV (docs/profiles.md)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a profile CSV: {error}") from None
    lines = csv_rows(text, str(path))
    header_line, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    missing = [name for name in ("task_type", "seconds") if name not in names]
    resources = [name for name in names if name not in _COLUMNS]
    if missing or not resources or "" in names or len(set(names)) < len(names):
        what = f"no column {missing[0]!r}" if missing else "an empty, doubled or missing resource column"
        raise DataError(
            f"{path}:{header_line}: {what} in the header {','.join(names)!r}; "
            "columns are task_type, one per resource (for example cpu, gpu), seconds"
        )
    rows = [(line, _row(f"{path}:{line}", names, cells)) for line, cells in lines]
    if not rows:
        raise DataError(f"{path} has no measurements below its header; add rows of {','.join(names)}")
    return rows


def csv_rows(text: str, source: str | Path = "") -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line of a CSV text that is neither empty nor a # comment.

    ``source``: the file, for the message about a line that is not CSV.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                cells = next(csv.reader([line]))
            except csv.Error as error:
                where = f"{source}:{number}" if source else f"line {number}"
                raise DataError(f"{where}: {error}: {line[:60]!r}; is it a text file?") from None
            yield number, cells


def _row(where: str, names: Sequence[str], cells: Sequence[str]) -> ProfileRow:
    if len(cells) != len(names):
        raise DataError(
            f"{where}: {len(cells)} values for the {len(names)} columns {', '.join(names)}; complete the row"
        )
    row = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    if not row["task_type"]:
        raise DataError(f"{where}: task_type is empty; name the task type")
    amounts = {n: _number(where, n, v, zero=True) for n, v in row.items() if n not in _COLUMNS and v}
    if amounts and not any(amounts.values()):
        raise DataError(f"{where}: every amount is 0, and nothing runs with nothing; correct one or leave out the row")
    return ProfileRow(row["task_type"], amounts, _number(where, "seconds", row["seconds"]), row.get("kind", ""))


def _number(where: str, name: str, text: str, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0.0 or (value == 0.0 and not zero) or value > MAX_NUMBER:
        wanted = f"{'of 0 or more' if zero else 'above 0'}, at most {MAX_NUMBER:g}"
        raise DataError(f"{where}: {name} = {text!r} must be a number {wanted}; correct the value or leave out the row")
    return value + 0.0  # not -0


def write_profile(path: str | Path, rows: Sequence[ProfileRow], note: str = "") -> None:
    """Write measurements in the format that ``load_profile`` reads; ``note``: a comment line above them."""
    resources = list(dict.fromkeys(name for row in rows for name in row.amounts))
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        if note:
            file.write(f"# {note}\n")
        writer = csv.writer(file, lineterminator="\n")
        kinds = any(row.hardware for row in rows)
        writer.writerow(["task_type", *(["kind"] if kinds else []), *resources, "seconds"])
        for row in rows:
            amounts = [f"{row.amounts[name]:g}" if name in row.amounts else "" for name in resources]
            kind = [row.hardware] if kinds else []
            writer.writerow([row.task_type, *kind, *amounts, repr(float(row.seconds))])
