"""Reads the progress that tasks report, and judges whether to believe it."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Bytes read at once. If more were written, only the latest are read; a file of reports stays below this.
MOST = 1 << 20
#: Maximum number of metrics per report, and maximum characters of a metric's name.
MOST_METRICS, LONGEST_NAME = 10, 40
#: Maximum number of kinds of fault remembered per task.
MOST_FAULTS = 10
#: Progress from which a task counts as complete: sums of many small steps rarely reach exactly 1.
COMPLETE = 0.999


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """One line of a task's report file."""

    #: Seconds since the epoch, by the task's clock.
    t: float
    #: Progress as the task stated it; valid from 0 to 1.
    progress: float
    metrics: dict[str, float] = field(default_factory=dict)


class ProgressReader:
    """Follows the file to which a task reports. A new reader starts at the beginning of the file."""

    def __init__(self, path: str | os.PathLike[str], most: int = MOST, lines: int | None = None) -> None:
        """The file need not exist yet. ``most``: bytes read at once, the last ones. ``lines``: the same of lines."""
        self._path = Path(path)
        self._most, self._lines = most, lines
        self._offset = 0
        self._rest = b""
        #: Number of lines that were not reports, and of bytes skipped because there were too many.
        self.garbage = 0
        self.skipped = 0

    @property
    def limit(self) -> str:
        """How much is read at once, in words."""
        return f"{self._most} bytes" if self._lines is None else f"{self._lines} lines or {self._most} bytes"

    def read(self) -> list[ProgressReport]:
        """Reports since the last call, oldest first; lines that are not reports are counted and skipped."""
        lines = self._new().split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._most // 4:  # no line is that long
            self._rest = b""
            self.garbage += 1
        if self._lines is not None and len(lines) > self._lines:
            self.skipped += sum(len(line) + 1 for line in lines[: -self._lines])
            lines = lines[-self._lines :]
        found = [_parsed(line) for line in lines if line.strip()]
        reports = [report for report in found if report is not None]
        self.garbage += len(found) - len(reports)
        return reports

    def _new(self) -> bytes:
        try:
            # Non-blocking: the path may be a pipe or a device. A link could lead to what the task itself cannot read.
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return self._rest
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return self._rest
            size = status.st_size
            if size < self._offset:  # the file was truncated
                self._offset, self._rest = 0, b""
            if size > self._offset + self._most:
                self.skipped += size - self._most - self._offset
                self._offset, self._rest = size - self._most, b""
                os.lseek(handle, self._offset, os.SEEK_SET)
                data = os.read(handle, self._most)
                self._offset += len(data)
                return data.partition(b"\n")[2]  # the data begins in the middle of a line
            os.lseek(handle, self._offset, os.SEEK_SET)
            data = os.read(handle, self._most)
        except OSError:
            return self._rest
        finally:
            os.close(handle)
        self._offset += len(data)
        return self._rest + data


def _parsed(line: bytes) -> ProgressReport | None:
    try:
        said = json.loads(line)
        t, progress = said["t"], said["progress"]
        metrics: Any = said.get("metrics", {})
        if not _is_number(t) or not _is_number(progress) or not math.isfinite(t) or not isinstance(metrics, dict):
            return None
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if _is_number(value) and math.isfinite(value) and len(name) <= LONGEST_NAME and name.isprintable()
        }
        return ProgressReport(float(t), float(progress), dict(list(numbers.items())[:MOST_METRICS]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ProgressCheck:
    """Judges the reports of one run, in order. Reports that are not believed are ignored everywhere."""

    def __init__(self) -> None:
        """Start with no reports."""
        #: Faults found, the first of each kind.
        self.faults: list[str] = []
        #: The latest report that is believed.
        self.last: ProgressReport | None = None
        #: Whether the most recent report was believed.
        self.trusted = True
        self._kinds: set[str] = set()

    def take(self, reports: Iterable[ProgressReport]) -> list[ProgressReport]:
        """Judge these reports; return the ones that are believed."""
        believed = []
        for report in reports:
            kind, fault = self._judge(report)
            self.trusted = not fault
            if fault:
                self.fault(kind, fault)
            else:
                self.last = report
                believed.append(report)
        return believed

    def fault(self, kind: str, text: str) -> None:
        """Record a fault; only the first of each kind is kept."""
        if kind not in self._kinds and len(self.faults) < MOST_FAULTS:
            self._kinds.add(kind)
            self.faults.append(text)

    def read_of(self, reader: ProgressReader) -> list[ProgressReport]:
        """Judge what is new in a file, including lines that are not reports."""
        believed = self.take(reader.read())
        if reader.garbage:
            self.fault("garbage", "its file of reports has lines that are no reports; they are passed over")
        if reader.skipped:
            self.fault(
                "skipped", f"its file of reports grew by more than {reader.limit} at once; some were passed over"
            )
        return believed

    def _judge(self, report: ProgressReport) -> tuple[str, str]:
        progress = report.progress
        ignored = "it is not used"
        if math.isnan(progress):
            return "nan", f"it reported a progress that is not a number (NaN); {ignored}"
        if progress < 0.0:
            return "negative", f"it reported a progress of {progress:g}, below 0; {ignored}"
        if progress > 1.0:
            return "above", f"it reported a progress of {progress:g}, above 1; {ignored}"
        if self.last is not None and progress < self.last.progress:
            return "backwards", (
                f"it reported a progress of {progress:g} after {self.last.progress:g}: it goes backwards; {ignored}"
            )
        return "", ""

    @property
    def complete(self) -> bool:
        """Whether the task's reports, if any, end at complete."""
        return self.last is None or self.last.progress >= COMPLETE
