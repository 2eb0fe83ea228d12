"""Prunes the store of a coordinator that leads, in a thread of its own, in small steps with rests between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from tapfinger.errors import NotLeading, StoreFailed, StoreUnavailable
from tapfinger.live.store.retention import Retention

logger = logging.getLogger(__name__)

#: Seconds after the start, when others have more important things to do, and between two looks.
FIRST, EVERY = 5.0, 10.0
#: Seconds between two measurements of the output on disk.
MEASURE = 6 * 3600.0
#: Rest after a step, as a multiple of its duration and in seconds: commits get the disk most of the time.
SHARE, REST = 4.0, 0.005


class RetentionLoop:
    """Runs one ``Retention``. Must be used from one event loop."""

    def __init__(self, retention: Retention, leads: Callable[[], bool]) -> None:
        """``leads``: whether this coordinator may change the store now."""
        self.retention = retention
        self._leads = leads
        self._thread = ThreadPoolExecutor(1, "retention")
        self._closed = Event()
        self._asked = asyncio.Event()
        #: Until when tasks that somebody wants removed have ended, as long as there may be any.
        self._before: float | None = None
        self._measured = float("-inf")

    def ask(self, before: float) -> None:
        """Remove tasks that ended before this time as well, once, and soon."""
        self._before = max(before, self._before or 0.0)
        self._asked.set()

    async def run(self, failed: Callable[[BaseException], None]) -> None:
        """Prune now and then until cancelled; ``failed`` gets an error of the store."""
        pause = FIRST
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            except TimeoutError:
                pass
            pause = EVERY
            self._asked.clear()
            if not self._leads():
                continue
            before = self._before
            try:
                done = await asyncio.get_running_loop().run_in_executor(self._thread, self._prune, before)
                if done and self._before == before:  # nobody has asked for more meanwhile
                    self._before = None
            except (NotLeading, StoreUnavailable):
                pass  # the commits find that out as well, and say so
            except StoreFailed as error:
                failed(error)
            except Exception:
                logger.exception("what is old could not be removed; it is tried again")

    def _prune(self, before: float | None) -> bool:
        """Remove what is beyond the limits. Returns whether all of it is gone."""
        if time.monotonic() > self._measured + MEASURE:
            self.retention.measure(self._rest)
            self._measured = time.monotonic()
        while not self._closed.is_set() and self._leads():
            began = time.perf_counter()
            if not self.retention.step(before):
                return True
            self._rest(max(REST, SHARE * (time.perf_counter() - began)))
        return False

    def _rest(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def close(self) -> None:
        """Wait for the step that is under way."""
        self._closed.set()
        self._thread.shutdown(wait=True)
