"""The known trace formats, found by their columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tapfinger.errors import ConfigError, DataError, UnknownNameError
from tapfinger.workloads.importers import openb, philly, pollux, swf
from tapfinger.workloads.importers.base import RecordedTrace, header, read_text
from tapfinger.workloads.importers.options import ReadOptions

_READERS: dict[str, Callable[[str, ReadOptions], RecordedTrace]] = {
    "philly": philly.read,
    "pollux": pollux.read,
    "openb": openb.read,
    "swf": swf.read,
}
_COLUMNS: dict[str, tuple[str, ...]] = {
    "philly": philly.COLUMNS,
    "pollux": pollux.COLUMNS,
    "openb": openb.COLUMNS,
}

#: Options for reading, and the formats they apply to.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "cpus_per_gpu": ("philly", "pollux"),
    "gpu_hours": ("pollux",),
    "memory": ("openb",),
}

#: Names for ``--format``.
FORMATS = tuple(_READERS)


def detect(path: Path, text: str) -> str:
    """The format whose columns the file has."""
    names = header(text)
    for format_name, columns in _COLUMNS.items():
        if set(columns) <= set(names):
            return format_name
    if swf.looks_like(text):
        return "swf"
    needs = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in _COLUMNS.items())
    raise DataError(
        f"{path}: its columns {', '.join(names[:12]) or '(none: the file is empty)'} are of no known trace format. "
        f"Needed are {needs}; swf: {swf.FIELDS} numbers a line. Rename the columns, or write a workload file "
        "(docs/workloads.md) yourself"
    )


def read_trace(path: Path, format_name: str | None, options: ReadOptions) -> tuple[str, RecordedTrace]:
    """Read a foreign trace; returns the format's name and the usable tasks, earliest first."""
    text = read_text(path)
    if format_name is None:
        format_name = detect(path, text)
    elif format_name not in _READERS:
        raise UnknownNameError("trace format", format_name, FORMATS)
    missing = [name for name in _COLUMNS.get(format_name, ()) if name not in header(text)]
    if missing:
        raise DataError(
            f"{path}: format {format_name} needs the column {missing[0]!r}; "
            f"the file has {', '.join(header(text)) or 'none'}"
        )
    _check_options(format_name, options)
    try:
        trace = _READERS[format_name](text, options)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not trace.tasks:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in trace.dropped.most_common())
        raise DataError(f"{path}: no usable task in this {format_name} trace ({reasons or 'it has no rows'})")
    trace.tasks.sort(key=lambda task: task.arrival)  # stable: public traces are unsorted in places
    return format_name, trace


def _check_options(format_name: str, options: ReadOptions) -> None:
    """Refuse options that have no effect on this format: a user who gives one expects an effect."""
    for option, formats in _OPTIONS.items():
        if format_name not in formats and getattr(options, option) != getattr(ReadOptions(), option):
            raise ConfigError(
                f"--{option.replace('_', '-')} has no effect on a trace of format {format_name}, only on "
                f"{' and '.join(formats)}; leave it out"
            )
