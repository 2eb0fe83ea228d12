"""Follows the progress reports of a task."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tapfinger.live.agent.machine import Said
from tapfinger.progress import ProgressCheck, ProgressReader

#: Seconds between reads of a report file.
LOOK = 0.5


@dataclass(slots=True)
class Following:
    """The reports of one attempt. After a restart of the agent, they are read from the beginning."""

    path: Path
    #: When the attempt started, in seconds since the epoch (the clock of the task's reports); None if unknown.
    started: float | None

    _reader: ProgressReader | None = None
    _check: ProgressCheck | None = None
    _next: float = 0.0
    _last: Said | None = None

    def look(self, now: float, at_once: bool = False) -> Said | None:
        """What is new, or None. ``at_once``: read even if the last read was less than ``LOOK`` seconds ago."""
        if now < self._next and not at_once:
            return None
        self._next = now + LOOK
        if self._reader is None or self._check is None:
            self._reader, self._check = ProgressReader(self.path), ProgressCheck()
        self._check.read_of(self._reader)
        said = self._said(self._check)
        if said == self._last or (said.progress is None and not said.faults):
            return None
        self._last = said
        return said

    def _said(self, check: ProgressCheck) -> Said:
        last = check.last
        if last is None:
            return Said(None, {}, None, tuple(check.faults))
        # The task says when it was, and may say anything: nothing has run for longer than has passed.
        ran = None if self.started is None else max(0.0, min(last.t, time.time()) - self.started)
        return Said(last.progress, dict(last.metrics), ran, tuple(check.faults))
