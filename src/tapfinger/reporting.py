"""Progress of a task, said by the task: ``tapfinger.report(0.25, loss=1.2)``.

Outside TapFinger this does nothing. It needs the standard library alone, so this one file may also be copied beside a
task. Whatever it is given, it neither raises nor keeps the task waiting.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

#: Environment variable with the path of the file to which reports go, one JSON object a line.
VARIABLE = "TAPFINGER_REPORT"
#: Seconds between lines; what comes in between is left out but for the last.
INTERVAL = 0.2
#: Bytes after which the file begins anew: whoever reads it has read the old lines long ago.
LONGEST = 900_000
#: Numbers that may go with a report, and characters of the name of each.
MOST_METRICS, LONGEST_NAME = 10, 40


class _Reporter:
    """Writes what is due, and keeps the last that was not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = -math.inf
        self._held = ""
        self._by = 0  # the process that holds it: a forked child has a copy, which is none of its business
        self._warned = False

    def report(self, path: str, progress: float, metrics: Mapping[str, object]) -> None:
        line = json.dumps({"t": time.time(), "progress": progress, "metrics": self._numbers(metrics)})
        # A child that was forked while another thread held the lock must not wait for it for ever.
        if not self._lock.acquire(timeout=0.1):
            return
        try:
            if progress >= 1.0 or time.monotonic() >= self._written + INTERVAL:
                self._write(path, line)
            else:
                self._held, self._by = line, os.getpid()
        finally:
            self._lock.release()

    def _numbers(self, metrics: Mapping[str, object]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in metrics.items():
            number = _number(value)
            if number is None or not math.isfinite(number) or len(name) > LONGEST_NAME or len(found) == MOST_METRICS:
                self.warn(
                    f"metric {name[:LONGEST_NAME]} is left out: there may be {MOST_METRICS}, each a finite number with "
                    f"a name of at most {LONGEST_NAME} characters"
                )
            else:
                found[name] = number
        return found

    def _write(self, path: str, line: str) -> None:
        self._held, self._written = "", time.monotonic()
        # Not blocking: the path may be anything, also a pipe that nobody reads.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size + len(line) > LONGEST:
                os.ftruncate(handle, 0)
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)

    def finish(self) -> None:
        """The last report counts, however soon after the one before it came."""
        path = os.environ.get(VARIABLE)
        if self._held and path and self._by == os.getpid():
            with suppress(Exception):
                self._write(path, self._held)

    def warn(self, text: str) -> None:
        """Once: a task may report in its innermost loop."""
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                sys.stderr.write(f"tapfinger.report: {text}\n")


_reporter = _Reporter()
atexit.register(_reporter.finish)


def _number(value: object) -> float | None:
    """Anything that is one number: also of numpy or torch, which are not imported for this."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # it is the user's object, and may raise anything
        return None


def report(progress: float, **metrics: float) -> None:
    """Say how far the task is, from 0 to 1, and any numbers worth seeing, such as its loss.

    Call it as often as you like: at most five times a second something is written. A number that is no progress (below
    0, above 1, not a number, less than before) is passed on and then not believed; what is no number at all is not
    even passed on. Either is said once on standard error.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        number = _number(progress)
        if number is None:
            _reporter.warn(f"progress must be a number from 0 to 1, got {type(progress).__name__}")
            return
        if not 0.0 <= number <= 1.0:
            _reporter.warn(f"progress must be from 0 to 1, got {number}")
        _reporter.report(path, number, metrics)
    except Exception as error:  # a full disk, a directory that is gone: no reason to end a task
        _reporter.warn(f"not reported: {error}")
