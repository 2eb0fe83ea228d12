"""How late the service's loop is: leases depend on it, so it is measured all the time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: Seconds between two measurements.
EVERY = 0.25
#: Seconds over which the longest lateness is remembered.
WINDOW = 60.0


class LoopLag:
    """Measures by how much the running loop wakes too late."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        """``observe`` is called with each measurement, in seconds."""
        self._observe = observe
        self._latest: deque[tuple[float, float]] = deque()

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + EVERY
            await asyncio.sleep(EVERY)
            now = time.monotonic()
            self.note(now, max(0.0, now - due))

    def note(self, now: float, late: float) -> None:
        """Take a measurement of ``late`` seconds at ``now``."""
        self._observe(late)
        while self._latest and self._latest[0][0] < now - WINDOW:
            self._latest.popleft()
        while self._latest and self._latest[-1][1] <= late:  # it can never be the longest again
            self._latest.pop()
        self._latest.append((now, late))

    def longest(self) -> float:
        """The longest lateness of the last minute, in seconds."""
        since = time.monotonic() - WINDOW
        return max((late for at, late in tuple(self._latest) if at >= since), default=0.0)
