"""One scheduler with a thread of its own that is never waited for longer than a bound.

Python cannot end a thread: one that does not return is left alone, and its scheduler is not asked before it has. A
scheduler in a process of its own is killed and started again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from tapfinger.core.contract import Scheduler
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion, told
from tapfinger.live.coordinator.worker_thread import Worker

logger = logging.getLogger(__name__)

#: Seconds before a scheduler that was too slow, or whose process has ended, is asked again; doubled each time.
FIRST_REST, LONGEST_REST = 1.0, 600.0
#: Seconds before a fault of the same kind, or of any kind, is noted in the history again.
SAME_AGAIN, ANY_AGAIN = 3600.0, 60.0


@runtime_checkable
class RunsApart(Protocol):
    """A scheduler in a process of its own."""

    @property
    def ready(self) -> bool:
        """Whether its process can be asked."""
        ...

    def start(self) -> None:
        """Start its process; takes a bounded time, and raises if the process cannot be used."""
        ...

    def kill(self) -> None:
        """End its process at once; may be called from any thread."""
        ...

    def close(self) -> None:
        """End its process and the connection to it."""
        ...


def process_of(scheduler: Scheduler) -> RunsApart | None:
    """The process of a scheduler, also below wrappers; None for one that decides in this process."""
    while isinstance(scheduler, SchedulerWrapper):
        scheduler = scheduler.inner
    return scheduler if isinstance(scheduler, RunsApart) else None


class Asking:
    """Asks one scheduler. Must be used from one thread, that of the event loop."""

    def __init__(self, decider: Decider, seconds: float, clock: Callable[[], float], worker: Worker) -> None:
        """``seconds``: longest time for a round. ``worker``: the thread in which this scheduler decides."""
        self.decider = decider
        self._process = process_of(decider)
        self._seconds = seconds
        self._clock = clock
        self._worker = worker
        self._starting: asyncio.Task[None] | None = None
        #: What was wrong when it was last asked; empty if nothing was.
        self.fault = ""
        self._given_up = False
        self._rest = 0.0
        self._rests_until = 0.0
        self._noted: tuple[float, str] | None = None

    @property
    def available(self) -> bool:
        """Whether it can be asked now. If its process has ended, and has rested, it is started in the background."""
        if self._given_up and not self._worker.busy:
            self._given_up = False
        if self._given_up or self._clock() < self._rests_until:
            return False
        if self._process is None or self._process.ready:
            return True
        self.fault = self.fault or f"{self.decider.name}: its process has ended. "
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(self._process))
        return False

    @property
    def idle(self) -> bool:
        """Whether it can be asked now, and nobody else waits for it."""
        return self.available and not self._worker.busy

    async def _start(self, process: RunsApart) -> None:
        try:
            await self._worker.run(process.start)
        except Exception as error:
            self._failed(f"{self.decider.name}: {told(error)}. ", rest=True)
        else:
            logger.warning("the process of scheduler %s was started again", self.decider.name)

    async def ask(self, question: RoundQuestion) -> Answer:
        """The answer of this scheduler; if it failed, ``fault`` says how. Call only when it is available."""
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._worker.run(partial(question.put_to, [self.decider]))
        except TimeoutError:
            self._give_up()
            text = f"{self.decider.name}: no decision after {self._seconds:g} s (live.decide_seconds). "
            answer = Answer(fault=text, failed=True, gone=True)
        if answer.failed:
            self._failed(answer.fault, answer.gone)
        elif answer.by:
            if self.fault:
                logger.warning("scheduler %s decides again", self.decider.name)
            self.fault, self._rest = "", 0.0
        return answer

    def _give_up(self) -> None:
        """Stop waiting for a round that takes too long."""
        self._given_up = True
        self.decider.forget()
        if self._process is not None:
            self._process.kill()

    def _failed(self, text: str, rest: bool) -> None:
        self.fault = text
        if rest:
            self.decider.forget()
            self._rest = min(LONGEST_REST, 2.0 * self._rest or FIRST_REST)
            self._rests_until = self._clock() + self._rest

    def news(self) -> str:
        """The present fault if the history does not have it yet, or had it long ago; otherwise empty."""
        if not self.fault:
            return ""
        kind = re.sub(r"\d+", "", self.fault)
        at, before = self._noted or (float("-inf"), "")
        if self._clock() < at + (SAME_AGAIN if kind == before else ANY_AGAIN):
            return ""
        self._noted = self._clock(), kind
        logger.warning("scheduler failed: %s", self.fault)
        return self.fault

    def close(self) -> None:
        """Give the scheduler up for good; nothing is waited for."""
        if self._starting is not None:
            self._starting.cancel()
        if self._process is not None:
            self._process.close()
