"""Progress that a task reports itself: ``tapfinger.report(0.25, loss=1.2)``.

Outside TapFinger this does nothing. It needs only the standard library, so this file can also be copied next to a
task. It never raises and never blocks the task, whatever it is given.
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

#: Environment variable with the path of the report file, which holds one JSON object per line.
VARIABLE = "TAPFINGER_REPORT"
#: Minimum seconds between lines; reports in between are dropped, except for the last.
INTERVAL = 0.2
#: Bytes after which the file is truncated: by then any reader has read the old lines.
LONGEST = 900_000
#: Maximum number of metrics per report, and maximum characters of a metric's name.
MOST_METRICS, LONGEST_NAME = 10, 40


class _Reporter:
    """Writes reports that are due, and holds back the latest one that is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = -math.inf
        self._held = ""
        self._by = 0  # process that holds the line: a forked child has a copy, and must not write it
        self._warned = False

    def report(self, path: str, progress: float, metrics: Mapping[str, object]) -> None:
        line = json.dumps({"t": time.time(), "progress": progress, "metrics": self._numbers(metrics)})
        # A child that was forked while another thread held the lock must not wait for it forever.
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
        # Non-blocking: the path may be anything, even a pipe that nobody reads.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size + len(line) > LONGEST:
                os.ftruncate(handle, 0)
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)

    def finish(self) -> None:
        """Write the last report, however soon it came after the one before."""
        path = os.environ.get(VARIABLE)
        if self._held and path and self._by == os.getpid():
            with suppress(Exception):
                self._write(path, self._held)

    def warn(self, text: str) -> None:
        """Warn once: a task may report in its innermost loop."""
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                sys.stderr.write(f"tapfinger.report: {text}\n")


_reporter = _Reporter()
atexit.register(_reporter.finish)


def _number(value: object) -> float | None:
    """A float from any scalar, including those of numpy and torch, which are not imported for this."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # the user's object may raise anything
        return None


def report(progress: float, **metrics: float) -> None:
    """Report how far the task is, from 0 to 1, with any metrics worth seeing, such as its loss.

    Call it as often as you like: it writes at most five times a second. A number that is not a valid progress (below
    0, above 1, NaN, less than before) is passed on but not believed; a value that is not a number at all is not
    passed on. Either fault prints one warning on standard error.
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
    except Exception as error:  # a full disk or a missing directory must not end the task
        _reporter.warn(f"not reported: {error}")
