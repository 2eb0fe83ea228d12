"""What all importers share: the record of a task, reading tables, and dropping unusable rows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tapfinger.errors import DataError
from tapfinger.profiles.table import MAX_NUMBER, csv_rows

if TYPE_CHECKING:
    from tapfinger.workloads.importers.nodes import NodeShape


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """One task of a foreign trace, in common terms."""

    #: Seconds on the trace's own clock.
    arrival: float
    #: Running time in seconds, with the requested resources.
    seconds: float
    #: Requested natural quantities by resource name.
    request: Mapping[str, float]
    #: Kind of work, if the trace says it (an application's name); tasks of different groups never share a type.
    group: str = ""
    #: The cluster it ran on, if the trace says it.
    cluster: str = ""
    #: Kinds of GPU it may run on, if the trace says it; tasks of one group have the same.
    kinds: tuple[str, ...] = ()


@dataclass
class RecordedTrace:
    """The usable tasks of a trace, in the order of its rows, and why the other rows were dropped."""

    #: Resource names and their smallest units.
    resources: dict[str, float]
    tasks: list[RecordedTask] = field(default_factory=list)
    #: Reason -> number of rows.
    dropped: Counter[str] = field(default_factory=Counter)
    #: Resources of which a task may have parts of a device.
    shares: tuple[str, ...] = ()
    #: Number of nodes of every shape, if there is a list of them.
    nodes: Mapping[NodeShape, int] = field(default_factory=dict)
    #: The file that names kinds of GPU, for messages: the node list, or else the trace.
    kinds_from: str = "the trace"
    _requests: dict[tuple[float, ...], Mapping[str, float]] = field(default_factory=dict)

    def request(self, **amounts: float) -> Mapping[str, float]:
        """A request, the same object for equal amounts: a trace has millions of tasks, but few different requests."""
        return self._requests.setdefault(tuple(amounts.values()), amounts)

    def collect(self, rows: Iterable[Mapping[str, str]], convert: Callable[[Mapping[str, str]], RecordedTask]) -> None:
        """Convert row by row; a row that cannot be used is dropped with its reason counted."""
        for row in rows:
            try:
                self.tasks.append(convert(row))
            except UnusableRow as problem:
                self.dropped[str(problem)] += 1


class UnusableRow(Exception):  # noqa: N818 - never leaves the importers
    """A row that lacks something needed; the message is the reason under which it is counted."""


def number(row: Mapping[str, str], name: str, above: float | None = None, least: float | None = None) -> float:
    """A plausible number from a row, or the row is unusable; it must be above ``above``, and at least ``least``."""
    text = (row.get(name) or "").strip()
    if not text:
        raise UnusableRow(f"{name} is empty")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UnusableRow(f"{name} is not a number")
    if abs(value) > MAX_NUMBER:
        raise UnusableRow(f"{name} is beyond {MAX_NUMBER:g}")
    if least is not None and value < least:
        raise UnusableRow(f"{name} is below {least:g}")
    if above is not None and value <= above:
        raise UnusableRow(f"{name} is not above {above:g}")
    return value


def read_text(path: Path, what: str = "trace file") -> str:
    """The whole file as text, with an error a user understands."""
    if not path.is_file():
        raise DataError(f"there is no {what} {path}; correct the path")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a text file: {error}") from None


def header(text: str) -> list[str]:
    """The column names of a CSV text: its first line that is neither empty nor a comment."""
    _, names = next(csv_rows(text), (0, []))
    return [name.strip() for name in names]


def table(text: str, dropped: Counter[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV text by column name, one at a time; rows of another length are dropped."""
    names = header(text)
    for _, cells in itertools.islice(csv_rows(text), 1, None):
        if len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))
        else:
            dropped["row has another number of values than the header"] += 1
