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
    "nodes": ("openb",),
    "gpu_unit": ("openb",),
}

#: Most columns that a message lists.
MOST_NAMES = 12

#: Names for ``--format``.
FORMATS = tuple(_READERS)


def detect(text: str) -> str:
    """The format whose columns the file has."""
    if swf.looks_like(text):
        return "swf"
    names = header(text)
    for format_name, columns in _COLUMNS.items():
        if set(columns) <= set(names):
            return format_name
    needs = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in _COLUMNS.items())
    raise DataError(
        f"its columns {', '.join(names[:MOST_NAMES]) or '(none: the file is empty)'} are of no known trace format. "
        f"Needed are {needs}; swf: {swf.FIELDS} numbers a line. Rename the columns, or write a workload file "
        "(docs/workloads.md) yourself"
    )


def read_trace(path: Path, format_name: str | None, options: ReadOptions) -> tuple[str, RecordedTrace]:
    """Read a foreign trace; returns the format's name and the usable tasks, earliest first."""
    if format_name is not None and format_name not in _READERS:
        raise UnknownNameError("trace format", format_name, FORMATS)
    text = read_text(path)
    try:
        format_name = format_name or detect(text)
        names = header(text) if format_name in _COLUMNS else []
        missing = [name for name in _COLUMNS.get(format_name, ()) if name not in names]
        if missing:
            shown = ", ".join(names[:MOST_NAMES]) or "none"
            raise DataError(f"format {format_name} needs the column {missing[0]!r}; the file has {shown}")
        _check_options(format_name, options)
        trace = _READERS[format_name](text, options)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not trace.tasks:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in trace.dropped.most_common())
        raise DataError(f"{path}: no usable task in this {format_name} trace ({reasons or 'it has no rows'})")
    trace.kinds_from = str(options.nodes or path)
    trace.tasks.sort(key=lambda task: task.arrival)  # stable: public traces are unsorted in places
    return format_name, trace


def _check_options(format_name: str, options: ReadOptions) -> None:
    """Refuse options that have no effect on this format: a user who gives one expects an effect.

    --flat is not among them: an import that is flat in any case is what was asked for.
    """
    for option, formats in _OPTIONS.items():
        if format_name not in formats and getattr(options, option) != getattr(ReadOptions(), option):
            raise ConfigError(
                f"--{option.replace('_', '-')} has no effect on a trace of format {format_name}, only on "
                f"{' and '.join(formats)}; leave it out"
            )
    if options.flat and options.nodes is not None:
        raise ConfigError("--flat leaves out the nodes that --nodes reads; give only one of the two")
