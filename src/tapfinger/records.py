"""What a run leaves behind: the event log (JSON lines) and the record of its measurements.

The first line of a log is a header; every other line is one event in canonical order. The same seed
always gives the same bytes: nothing in a log depends on the clock or on the machine.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from tapfinger import __version__
from tapfinger.core.events import (
    ABOUT_CLUSTERS,
    CapacityChanged,
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    Event,
    OthersChanged,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskOutOfMemory,
    TaskRequeued,
    TaskResized,
    TaskStaging,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.model import Cluster, Resources, Task, TaskType
from tapfinger.errors import DataError

#: Version of the log format; incremented when a line changes meaning.
LOG_FORMAT = 1
#: Last slot, and largest amount of a resource, that a log may name: measures are kept for every slot.
MAX_SLOT = 50_000_000
MAX_AMOUNT = 10**12

_NAMES: dict[type, str] = {
    TaskArrived: "arrived",
    TaskStaging: "staging",
    TaskStarted: "started",
    TaskResized: "resized",
    TaskFinished: "finished",
    TaskFailed: "failed",
    TaskOutOfMemory: "out of memory",
    ClusterLost: "lost",
    ClusterJoined: "joined",
    ClusterClosed: "closed",
    CapacityChanged: "capacity",
    OthersChanged: "others",
    TaskWithdrawn: "withdrawn",
    TaskRequeued: "requeued",
}
#: Fields of a header that are left out where they are empty.
_SOMETIMES = ("with_data", "higher_steps")
_TYPES = {name: kind for kind, name in _NAMES.items()}
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class LogHeader:
    """The first line of an event log: which run this is, and how to read its numbers."""

    scenario: str
    #: Scheduler as requested, with its options.
    scheduler: str
    seed: int
    #: Resource names, in the order used by every allocation.
    resources: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    #: TapFinger version that wrote the log.
    version: str = __version__
    format: int = LOG_FORMAT
    #: Seconds per slot; None in logs of versions that did not record it.
    slot_seconds: float | None = None
    #: Minimum of each task type, by name; None in logs of versions that did not record it.
    minimums: Mapping[str, Resources] | None = None
    #: Names of the task types that need data, and of the higher steps of ladders (``workloads.needs``).
    with_data: tuple[str, ...] = ()
    higher_steps: tuple[str, ...] = ()


def encode_event(event: Event) -> dict[str, Any]:
    """An event as plain data, with keys in the order of its log line."""
    line: dict[str, Any] = {"event": _NAMES[type(event)], "slot": event.slot}
    if isinstance(event, TaskArrived):
        task = event.task
        line |= {"task": task.id, "type": task.type.name, "arrival": task.arrival, "eligible": task.eligible}
        return line
    if not isinstance(event, ABOUT_CLUSTERS):
        line["task"] = event.task
    if not isinstance(event, TaskWithdrawn):
        line["cluster"] = event.cluster
    if isinstance(event, TaskStarted | TaskResized | TaskStaging):
        line["allocation"] = event.allocation
        if event.parts:
            line["parts"] = event.parts
    if isinstance(event, TaskStaging):
        line["until"] = event.until
    elif isinstance(event, TaskOutOfMemory):
        line["type"] = event.type.name
    elif isinstance(event, CapacityChanged):
        line["capacity"] = event.capacity
    elif isinstance(event, OthersChanged):
        line["amounts"] = event.amounts
    elif isinstance(event, TaskFailed):
        line["reason"] = event.reason
    return line


def decode_event(line: Mapping[str, Any], task_types: Mapping[str, TaskType]) -> Event:
    """Plain data -> event; raises KeyError, TypeError or ValueError if the data is not an event."""
    kind = _TYPES[line["event"]]
    given = {name: value for name, value in line.items() if name != "event"}
    _whole(given["slot"] + 1, MAX_SLOT)  # a cluster may be closed before the first slot
    for name in ("task", "cluster", "arrival", "until"):
        if name in given:
            _whole(given[name])
    if kind is TaskArrived:
        task = Task(given["task"], task_types[given["type"]], given["arrival"], tuple(map(_whole, given["eligible"])))
        return TaskArrived(given["slot"], task)
    if kind is TaskOutOfMemory:
        given["type"] = task_types[given["type"]]
    for name in ("allocation", "capacity", "amounts"):
        if name in given:
            given[name] = _amounts(given[name])
    if "parts" in given:
        given["parts"] = tuple(map(_amounts, given["parts"]))
    event: Event = kind(**given)
    return event


class EventLog:
    """Writes events as they happen; usable as a sink of a session. Files named .gz are compressed.

    The file gets its final name only when the run ends well, so a log that exists is complete.
    """

    def __init__(self, path: Path, header: LogHeader) -> None:
        """Open ``path`` (under a temporary name) and write the header."""
        self.path = path
        self._part = path.with_name(f"{path.name}.{os.getpid()}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._raw: IO[bytes] = self._part.open("wb")
        # No name and no time in the gzip header: the same events must give the same bytes.
        zipped = path.suffix == ".gz"
        self._file: IO[bytes] = gzip.GzipFile("", "wb", 6, self._raw, mtime=0) if zipped else self._raw  # type: ignore[assignment]
        line = asdict(header)
        for cluster in line["clusters"]:
            for key in ("part_of", "hardware", "nodes"):
                if not cluster[key]:
                    del cluster[key]
        line = {key: value for key, value in line.items() if value or key not in _SOMETIMES}
        self._write(line)

    def __call__(self, event: Event) -> None:
        """Write one event."""
        self._write(encode_event(event))

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(_encode(line).encode() + b"\n")

    def __enter__(self) -> Self:
        """Use as a context: the file is kept on success and removed on error."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Close the file, and give it its final name if the run ended well."""
        self._file.close()
        self._raw.close()
        if kind is None:
            self._part.replace(self.path)
        else:
            self._part.unlink()


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                yield number, _object(path, number, text)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after line {number}: {error}; is it an event log?") from None


def _object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({error}); is it an event log?") from None
    if not isinstance(line, dict):
        raise DataError(f"{path}, line {number}: expected an object, got {text.strip()[:40]!r}")
    return line


def read_header(path: Path) -> LogHeader:
    """The header of an event log."""
    for _, line in _lines(path):
        known = {field.name for field in fields(LogHeader)}
        if not known - {"slot_seconds", "minimums", *_SOMETIMES} <= set(line) <= known:
            raise DataError(
                f"{path}, line 1: not the header of an event log; it has {sorted(line)}, not {sorted(known)}"
            )
        if line["format"] != LOG_FORMAT:
            raise DataError(f"{path}, line 1: log format {line['format']!r}, but this version reads {LOG_FORMAT}")
        try:
            return _header(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, line 1: the header of the event log is damaged: {error}") from None
    raise DataError(f"{path} is empty: an event log begins with a header")


def _header(line: Mapping[str, Any]) -> LogHeader:
    """The header from its line; raises KeyError, TypeError, ValueError or AttributeError if it is damaged."""
    names = tuple(map(_text, line["resources"]))
    clusters = tuple(
        Cluster(
            _text(c["name"]),
            _amounts(c["capacity"], len(names)),
            _text(c.get("part_of", "")),
            _text(c.get("hardware", "")),
            tuple(_whole(n, len(line["clusters"]) - 1) for n in c.get("nodes", ())),
        )
        for c in line["clusters"]
    )
    minimums = line.get("minimums")
    if minimums is not None:
        minimums = {_text(name): _amounts(least, len(names)) for name, least in minimums.items()}
    slot_seconds = line.get("slot_seconds")
    if slot_seconds is not None and not (type(slot_seconds) in (int, float) and 0 < slot_seconds < math.inf):
        raise ValueError(f"slot_seconds = {slot_seconds!r} must be a number above 0")
    if not names or not clusters:
        raise ValueError("it names no resources or no clusters")
    some = {key: tuple(map(_text, line.get(key, ()))) for key in _SOMETIMES}
    changed = {**some, "resources": names, "clusters": clusters, "minimums": minimums}
    plain = {"scenario": _text(line["scenario"]), "scheduler": _text(line["scheduler"]), "seed": _whole(line["seed"])}
    return LogHeader(**{**line, **plain, **changed})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not text")
    return value


def _whole(value: Any, most: int = 2**63 - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number from 0 to {most}")
    return value


def _amounts(values: Any, count: int | None = None) -> Resources:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ValueError(f"{str(values)[:40]!r} are not {'' if count is None else count} amounts")
    return Resources([_whole(value, MAX_AMOUNT) for value in values])


def read_events(path: Path, task_types: Mapping[str, TaskType]) -> Iterator[Event]:
    """Events of a log, one by one; ``task_types`` maps the names in the log to task types."""
    read_header(path)
    for number, line in _lines(path):
        if number == 1:
            continue
        try:
            yield decode_event(line, task_types)
        except (KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}, line {number}: no event TapFinger knows ({why}): {_encode(line)[:120]}") from None


IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunRecord:
    """Everything measured in one run; docs/evaluation.md defines each quantity."""

    scenario: str
    scheduler: str
    seed: int
    resources: tuple[str, ...]
    clusters: tuple[str, ...]
    #: (clusters,) name of the whole cluster that each belongs to; empty where no cluster has nodes.
    wholes: tuple[str, ...]
    #: (clusters,) kind of hardware of each; empty where all are alike.
    hardware: tuple[str, ...]
    task_types: tuple[str, ...]
    #: Slots until the last task ended.
    slots: int
    #: Tasks that arrived.
    tasks: int
    #: Tasks that failed; the arrays below leave them out.
    failed: int
    #: Share of placements of tasks with data that had to wait for it; None where no task needs data.
    staged_share: float | None
    #: Attempts that ran out of memory; None where the need of every type is known.
    out_of_memory: int | None
    #: Proposals that lost a conflict.
    conflicts: int
    #: Slots in which at least one task still waited after the decisions.
    waiting_slots: int
    #: Most tasks in the system in any slot; the series below holds only means over its bins.
    in_system_max: int
    #: Slots per entry of the series; a power of two.
    bin_slots: int
    #: (clusters, resources) in units; 0 of spans, which share that of their nodes.
    capacity: IntArray
    #: (finished,) id of each finished task, ascending; the arrays below are in this order.
    task: IntArray
    #: (finished,) index into ``task_types``.
    type: IntArray
    #: (finished,) cluster the task ended on.
    cluster: IntArray
    #: (finished,) slot of arrival.
    arrival: IntArray
    #: (finished,) slot of the task's first start.
    start: IntArray
    #: (finished,) slot the task ended in.
    end: IntArray
    #: (finished,) slots in which the task held resources and ran.
    running: IntArray
    #: (finished,) slots in which the task held resources and waited for data.
    staging: IntArray
    #: (finished,) number of later arrivals that started earlier on clusters this task could have used.
    overtaken: IntArray
    #: (finished, resources) allocation at the end.
    allocation: IntArray
    #: (bins,) mean tasks in the system.
    in_system: FloatArray
    #: (bins,) mean waiting tasks.
    waiting: FloatArray
    #: (bins, clusters, resources) mean units in use.
    used: FloatArray
    #: (resources,) share of capacity that was free in waiting slots.
    idle: FloatArray
    #: (resources,) the part of ``idle`` on clusters where tasks wait and none fits.
    stranded: FloatArray
    #: (resources,) the part of ``idle`` on clusters where a waiting task would fit.
    held_back: FloatArray
    #: (clusters, resources) ``stranded`` of each cluster by itself: share of its own capacity.
    stranded_by_cluster: FloatArray
    #: (4,) seconds of decisions per slot that began with a task waiting: mean, 95th percentile, largest, sum.
    decision: FloatArray

    @property
    def completion(self) -> IntArray:
        """(finished,) completion time in slots."""
        return self.end - self.arrival + 1

    @property
    def waiting_time(self) -> IntArray:
        """(finished,) slots in the queue, paused, or waiting for data."""
        return self.completion - self.running

    @property
    def bin_lengths(self) -> IntArray:
        """(bins,) slots in each entry of the series; only the last entry may be shorter."""
        lengths = np.full(len(self.in_system), self.bin_slots, dtype=np.int64)
        if len(lengths):
            lengths[-1] = self.slots - self.bin_slots * (len(lengths) - 1)
        return lengths

    @property
    def cluster_utilisation(self) -> FloatArray:
        """(clusters, resources) mean share of capacity in use; 0 where a cluster has none of a resource."""
        return _share(self._mean_used, self.capacity)

    @property
    def utilisation(self) -> FloatArray:
        """(resources,) mean share of all clusters' capacity in use."""
        return self._utilisation_of(np.arange(len(self.clusters)))

    @property
    def hardware_utilisation(self) -> dict[str, FloatArray]:
        """Kind of hardware -> (resources,) mean share of its capacity in use; empty where all clusters are alike."""
        kinds = np.array(self.hardware)
        return {kind: self._utilisation_of(np.flatnonzero(kinds == kind)) for kind in dict.fromkeys(self.hardware)}

    @property
    def _mean_used(self) -> FloatArray:
        """(clusters, resources) mean units in use."""
        return np.tensordot(self.bin_lengths, self.used, axes=1) / max(1, self.slots)

    def _utilisation_of(self, clusters: IntArray) -> FloatArray:
        return _share(self._mean_used[clusters].sum(axis=0), self.capacity[clusters].sum(axis=0))

    def save(self, path: Path) -> None:
        """Write as .npz (no pickle inside)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in values.items() if name not in arrays}
        with path.open("wb") as file:
            np.savez_compressed(file, _plain=np.array(json.dumps(plain)), **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> RunRecord:
        """Read what ``save`` wrote."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            plain = json.loads(str(data["_plain"]))
            arrays = {name: data[name] for name in data.files if name != "_plain"}
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        return cls(**plain, **arrays)


def _share(amount: FloatArray, capacity: IntArray) -> FloatArray:
    return np.divide(amount, capacity, out=np.zeros_like(amount), where=capacity > 0)
