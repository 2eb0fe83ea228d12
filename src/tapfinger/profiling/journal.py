"""The journal of a profiler: all its runs, as JSON lines next to the profile. A later session continues from it.

The first line says what is profiled; each further line is a run. A line is on disk before the next run starts.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tapfinger.errors import ConfigError

#: Version of the format; incremented when a line changes meaning.
VERSION = 1

#: What reading a damaged line may raise.
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

#: finished: counts. failed: exit code, signal or no such program. limit: took too long. unfinished: exited with 0, but
#: reported that it was not done.
Result = Literal["finished", "failed", "limit", "unfinished"]


@dataclass(frozen=True)
class RunLine:
    """One run."""

    #: Natural amounts by resource.
    cell: Mapping[str, float]
    result: Result
    #: Seconds from the start of the task to its end.
    seconds: float
    code: int | None = None
    reason: str = ""
    #: Share of the cores' time that others used; None if unknown.
    others: float | None = None
    #: Start of the run, in seconds since 1970.
    started: float = 0.0
    #: Last believed progress, and the faults of the task's reports.
    progress: float | None = None
    faults: Sequence[str] = ()
    #: Reports during the run, thinned out: [seconds since its start, progress, metrics].
    curve: Sequence[tuple[float, float, Mapping[str, float]]] = ()
    #: Last lines of the task's output, if it did not finish.
    tail: str = ""


@dataclass(frozen=True)
class Subject:
    """What is profiled; runs of anything else do not belong in the same file."""

    type: str
    argv: Sequence[str]
    resources: Sequence[str]
    backend: str = "process"
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class Journal:
    """One file, locked by one profiler."""

    def __init__(self, path: Path, subject: Subject, fresh: bool = False) -> None:
        """Open the file and read its runs; ``fresh``: discard them."""
        self.path = path
        self._file = _open(path)
        #: Runs of all sessions so far, in order.
        self.runs: list[RunLine] = []
        try:
            if fresh:
                self._file.truncate(0)
            if not self._read(subject):
                self._write({"tapfinger_profile": VERSION, **asdict(subject)})
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def add(self, run: RunLine) -> None:
        """Add a run; it is on disk when this returns."""
        self._write(asdict(run))
        self.runs.append(run)

    def _write(self, data: Mapping[str, Any]) -> None:
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps(data, allow_nan=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}; free some room, then go on") from None

    def _read(self, subject: Subject) -> bool:
        """Read the runs; return whether there was anything. A last line cut off by a crash is dropped."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if not whole and not data.startswith(b'{"tapfinger_profile"'[: len(data)]):
            raise _foreign(self.path, 1, "it is no record of profiled runs")
        self._file.truncate(whole)
        lines = data[:whole].splitlines()
        if not lines:
            return False
        self._check_header(lines[0], subject)
        for number, line in enumerate(lines[1:], start=2):
            try:
                self.runs.append(_run(json.loads(line), subject.resources))
            except _DAMAGED as error:
                raise _foreign(self.path, number, f"it holds no run ({str(error)[:200]})") from None
        return True

    def _check_header(self, line: bytes, subject: Subject) -> None:
        try:
            header = json.loads(line)
            version = header.pop("tapfinger_profile")
        except _DAMAGED:
            raise _foreign(self.path, 1, "it is no record of profiled runs") from None
        if version != VERSION:
            raise _foreign(self.path, 1, f"it has version {version!r}, this program writes {VERSION}")
        wanted = json.loads(json.dumps(asdict(subject)))
        for key, value in wanted.items():
            if header.get(key) != value:
                raise _foreign(self.path, 1, f"its {key} is {header.get(key)!r}, now it is {value!r}")


def _foreign(path: Path, line: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path}:{line}: {why}, so its runs cannot be gone on from; choose another --out, or start again with --fresh"
    )


def _open(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another --out") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"{path} is in use by another profiler; wait for it, or choose another --out") from None
    return file


def _run(data: Mapping[str, Any], resources: Sequence[str]) -> RunLine:
    if set(data["cell"]) != set(resources):
        raise ValueError(f"amounts of {', '.join(data['cell'])}")
    cell = {name: _number(data["cell"][name]) for name in resources}
    if data["result"] not in ("finished", "failed", "limit", "unfinished"):
        raise ValueError(f"result {data['result']!r}")
    seconds = _number(data["seconds"])
    if data["result"] == "finished" and seconds <= 0.0:
        raise ValueError(f"seconds {seconds}")
    known = {key: value for key, value in data.items() if key in RunLine.__dataclass_fields__}
    curve = tuple((float(t), float(p), dict(m)) for t, p, m in data.get("curve", ()))
    return RunLine(**{**known, "cell": cell, "seconds": seconds, "curve": curve})


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def read_runs(path: Path) -> tuple[str, list[RunLine]]:
    """Task type and runs of a journal, finished or not, for read-only use."""
    try:
        lines = path.read_bytes().splitlines()
        header = json.loads(lines[0])
        kind, resources = str(header["type"]), [str(name) for name in header["resources"]]
        if header["tapfinger_profile"] != VERSION:
            raise ValueError("of another version")
        return kind, [_run(json.loads(line), resources) for line in lines[1:]]
    except (OSError, IndexError, *_DAMAGED) as error:
        raise ConfigError(
            f"{path} is no record of profiled runs ({str(error)[:200]}); give a file ending in .runs.jsonl"
        ) from None
