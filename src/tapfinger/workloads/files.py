"""Workload files: one task per row with arrival, type and eligible clusters, as CSV or Parquet (docs/workloads.md)."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tapfinger.errors import DataError, MissingDependency
from tapfinger.profiles.table import MAX_NUMBER, csv_rows
from tapfinger.workloads.base import Workload

if TYPE_CHECKING:
    from tapfinger.workloads.world import World

#: In the ``eligible`` column: stands for every cluster of the scenario.
ALL_CLUSTERS = "*"
#: In the ``eligible`` column: separates names of clusters.
SEPARATOR = ";"

COLUMNS = ("arrival", "type", "eligible")


@dataclass(frozen=True)
class WorkloadFile:
    """The columns of a workload file, in its order."""

    #: Where it was read from, for error messages.
    source: str
    #: (tasks,) seconds from the start of the workload.
    arrival: npt.NDArray[np.float64]
    #: (tasks,) name of the task type.
    type: tuple[str, ...]
    #: (tasks,) names of clusters joined by ``;``, ``*`` for all, or empty: drawn by the scenario's model.
    eligible: tuple[str, ...]
    #: (tasks,) line of a CSV file or row of a Parquet file.
    line: tuple[int, ...]

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.type)

    def where(self, task: int) -> str:
        """``file:line`` of a task."""
        return f"{self.source}:{self.line[task]}"


def read_workload(path: str | Path, sort: bool = False) -> WorkloadFile:
    """Read and check a workload file; times that go backwards are an error unless ``sort``."""
    path = Path(path)
    _check_suffix(path)
    if not path.is_file():
        raise DataError(f"there is no workload file {path}; `tapfinger workload generate` or `import` write one")
    stat = path.stat()
    workload = _read(path, stat.st_mtime_ns, stat.st_size)
    backwards = np.flatnonzero(np.diff(workload.arrival) < 0)
    if len(backwards) == 0:
        return workload
    if not sort:
        task = int(backwards[0]) + 1
        raise DataError(
            f"{workload.where(task)}: arrival {workload.arrival[task]:g} comes before {workload.arrival[task - 1]:g} "
            "of the row above; sort the file by arrival, or set arrivals.sort = true"
        )
    order = np.argsort(workload.arrival, kind="stable").tolist()  # rows of the same time keep their order
    return WorkloadFile(
        workload.source,
        workload.arrival[order],
        tuple(workload.type[i] for i in order),
        tuple(workload.eligible[i] for i in order),
        tuple(workload.line[i] for i in order),
    )


@lru_cache(maxsize=8)  # a comparison draws the same trace once per seed and scheduler
def _read(path: Path, modified: int, size: int) -> WorkloadFile:  # noqa: ARG001 - a changed file is read again
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    arrival: list[float] = []
    types: list[str] = []
    eligible: list[str] = []
    lines: list[int] = []
    for line, (time, task_type, clusters) in rows:
        arrival.append(_arrival(f"{path}:{line}", time))
        if not task_type:
            raise DataError(f"{path}:{line}: type is empty; name the task type")
        if not isinstance(task_type, str) or not isinstance(clusters or "", str):
            raise DataError(f"{path}:{line}: type and eligible must be text, got {task_type!r} and {clusters!r}")
        types.append(task_type)
        eligible.append(clusters or "")
        lines.append(line)
    if not types:
        raise DataError(f"{path} has no tasks; add rows of arrival,type,eligible")
    return WorkloadFile(str(path), np.array(arrival), tuple(types), tuple(eligible), tuple(lines))


def _arrival(where: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_NUMBER:
        raise DataError(
            f"{where}: arrival = {value!r} must be seconds from the start, a number from 0 to {MAX_NUMBER:g}"
        )
    return seconds


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{path}: a workload file ends in .csv or .parquet")


def _check_columns(where: str, names: Sequence[str]) -> None:
    """Every column must be known: a misspelt ``eligible`` would otherwise be silently ignored."""
    expected = "columns are arrival (seconds), type and, if known, eligible"
    for name in names:
        if name not in COLUMNS or list(names).count(name) > 1:
            close = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close and name not in COLUMNS else ""
            problem = "doubled" if name in COLUMNS else "unknown"
            raise DataError(
                f"{where}: {problem} column {name!r}.{hint} A workload file's {expected}; "
                "`tapfinger workload import` makes one of a recorded trace"
            )
    for name in ("arrival", "type"):
        if name not in names:
            raise DataError(f"{where}: no column {name!r} in {','.join(names)!r}; {expected}")


def _csv_rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    try:
        rows = csv_rows(path.read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None
    first, head = next(rows, (0, []))
    if not head:
        raise DataError(f"{path} is empty; its first line must be arrival,type,eligible")
    names = [name.strip() for name in head]
    _check_columns(f"{path}:{first}", names)
    places = [names.index(name) if name in names else -1 for name in COLUMNS]
    for number, cells in rows:
        if len(cells) != len(names):
            raise DataError(f"{path}:{number}: {len(cells)} values for the columns {','.join(names)}; complete the row")
        time, task_type, clusters = (cells[place].strip() if place >= 0 else "" for place in places)
        yield number, (time, task_type, clusters)


def _parquet_rows(path: Path) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
    duckdb = _duckdb(path)
    try:
        result = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [str(path)])
    except duckdb.Error as error:
        raise DataError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    except Exception as error:  # a damaged file makes its reader fail in ways that it does not list
        raise DataError(f"{path} cannot be read as Parquet: {type(error).__name__}: {error}") from None
    names = [column[0] for column in result.description]
    _check_columns(str(path), names)
    places = [names.index(name) if name in names else -1 for name in COLUMNS]
    try:
        found = result.fetchall()
    except Exception as error:  # as above
        raise DataError(f"{path} cannot be read as Parquet: {type(error).__name__}: {error}") from None
    for number, cells in enumerate(found, start=1):
        time, task_type, clusters = (cells[place] if place >= 0 else "" for place in places)
        yield number, (time, task_type, clusters)


def _duckdb(path: Path) -> Any:
    """The Parquet reader and writer; optional, because CSV is enough for most people."""
    try:
        import duckdb
    except ImportError:
        raise MissingDependency(
            f"{path}: Parquet needs an extra package; install it with `pip install 'tapfinger[parquet]'`, or use .csv"
        ) from None
    return duckdb


def write_workload(path: Path, workload: WorkloadFile) -> None:
    """Write a workload file; the suffix says which format."""
    _check_suffix(path)
    try:
        if path.suffix == ".parquet":
            _write_parquet(path, workload)
        else:
            _write_csv(path, workload)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from None


def _write_csv(path: Path, workload: WorkloadFile) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        times = (f"{time:.0f}" if time.is_integer() else repr(time) for time in workload.arrival.tolist())
        writer.writerows(zip(times, workload.type, workload.eligible, strict=True))


def _write_parquet(path: Path, workload: WorkloadFile) -> None:
    duckdb = _duckdb(path)
    columns = {
        "arrival": workload.arrival,
        "type": np.array(workload.type, dtype=object),
        "eligible": np.array(workload.eligible, dtype=object),
    }
    target = str(path).replace("'", "''")
    try:
        connection = duckdb.connect()
        connection.register("tasks", columns)
        connection.execute(f"COPY (SELECT * FROM tasks) TO '{target}' (FORMAT parquet)")
    except duckdb.Error as error:
        raise DataError(f"{path} cannot be written: {str(error).splitlines()[0]}") from None


def to_file(world: World, workload: Workload, source: str = "workload") -> WorkloadFile:
    """A drawn workload as the rows of a file: everything but the noise, which comes from the seed."""
    # A task that may run on a cluster may run on each of its nodes, or on each of its spans.
    firsts = np.flatnonzero(np.diff(world.whole_of, prepend=-1))
    eligible_wholes = np.logical_or.reduceat(workload.eligible, firsts, axis=1)
    types = [task_type.name for task_type in world.task_types]
    eligible = [
        ALL_CLUSTERS if row.all() else SEPARATOR.join(world.wholes[n] for n in np.flatnonzero(row))
        for row in eligible_wholes
    ]
    return WorkloadFile(
        source,
        np.asarray(workload.slot * world.scenario.slot_seconds, dtype=np.float64),
        tuple(types[i] for i in workload.type),
        tuple(eligible),
        tuple(range(1, len(workload) + 1)),
    )
