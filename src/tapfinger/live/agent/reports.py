"""Follows the progress reports of a task."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tapfinger.live.agent.leases import boot_clock, boot_id
from tapfinger.live.agent.machine import Said
from tapfinger.live.agent.starts import Began
from tapfinger.progress import ProgressCheck, ProgressReader

#: Seconds between reads of a report file.
LOOK = 0.5
#: Bytes and lines that are read at once, the last ones: one thread looks at all tasks, and the latest report counts.
BYTES, LINES = 1 << 16, 200
#: Seconds by which the wall clock may differ from the boot clock before it has jumped.
JUMP = 2.0


@dataclass(slots=True)
class Following:
    """The reports of one attempt. After a restart of the agent, they are read from the beginning."""

    path: Path
    #: When the attempt began; None if unknown.
    began: Began | None
    #: Whether an earlier agent has followed them.
    taken_over: bool = False

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
            self._reader, self._check = ProgressReader(self.path, BYTES, LINES), ProgressCheck()
            if self.taken_over:
                self._catch_up(self._reader, self._check)
        new = self._check.read_of(self._reader)
        said = self._said(self._check, bool(new))
        if said == self._last or (said.progress is None and not said.faults):
            return None
        self._last = said
        return said

    def _catch_up(self, reader: ProgressReader, check: ProgressCheck) -> None:
        """Take the end of what was reported to an earlier agent: nobody misses what is passed over."""
        check.take(reader.read())
        reader.skipped = 0

    def _said(self, check: ProgressCheck, new: bool) -> Said:
        last = check.last
        if last is None:
            return Said(None, {}, None, tuple(check.faults))
        if not new and self._last is not None:
            return Said(last.progress, dict(last.metrics), self._last.ran, tuple(check.faults))
        return Said(last.progress, dict(last.metrics), self._ran(last.t), tuple(check.faults))

    def _ran(self, said: float) -> float | None:
        """Seconds from the start to a report; ``said``: when it was, by the task, which may say anything."""
        if self.began is None:
            return None
        passed = time.time() - self.began.wall
        if self.began.boot_id == boot_id():
            really = max(0.0, boot_clock() - self.began.boot)
            if abs(really - passed) > JUMP:
                return really  # the wall clock has jumped: the report was made just before it was read
            passed = really
        return max(0.0, min(said - self.began.wall, passed))
