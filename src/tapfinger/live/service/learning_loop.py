"""Runs `Learning.digest` periodically in a thread of its own and hands its results to the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from tapfinger.core.contract import Phase
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.learning import Digest, Learning, lesson_of
from tapfinger.live.store.store import Store

logger = logging.getLogger(__name__)

#: Number of latest finished tasks that a new leader reads, to learn from those that ended after the last save.
LOOK_BACK = 2_000
#: Seconds without learning after it has failed.
AFTER_FAULT = 60.0


class LearningLoop:
    """Digests the inbox of one ``Learning`` periodically."""

    def __init__(self, learning: Learning, worker: Worker, clock: Callable[[], float]) -> None:
        """``worker``: a thread of its own: learning goes on while a scheduler thinks. It hands over whole beliefs."""
        self.learning = learning
        self._worker = worker
        self._clock = clock
        self._busy: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def take_up(self, store: Store) -> Digest:
        """Restore what was learned, for a coordinator that begins to lead, and save what is new."""
        lessons = [lesson for lesson in map(lesson_of, store.tasks([Phase.FINISHED], LOOK_BACK)) if lesson is not None]
        kept = store.learned()
        try:
            found = self.learning.take_up(kept, lessons, self._clock())
        except Exception:
            logger.exception("what was learnt about speeds cannot be used; learning begins from the configuration")
            found = self.learning.take_up((), (), self._clock())
        store.save([], found.events, learned=found.learned)
        return found

    def look(self, then: Callable[[Digest], None], failed: Callable[[BaseException], None]) -> None:
        """Start to digest the inbox if it is due; ``then`` gets the result, in the event loop."""
        idle = self._busy is None or self._busy.done()
        if idle and self._clock() >= self._not_before and self.learning.due(self._clock()):
            self._busy = asyncio.create_task(self._digest(then, failed))

    async def _digest(self, then: Callable[[Digest], None], failed: Callable[[BaseException], None]) -> None:
        try:
            found = await self._worker.run(partial(self.learning.digest, self._clock()))
        except Exception:
            # Only the store may stop a coordinator. Speeds stay as they are believed to be now.
            logger.exception("learning about speeds failed; it is tried again in %g s", AFTER_FAULT)
            self._not_before = self._clock() + AFTER_FAULT
            return
        try:
            then(found)
        except Exception as error:  # what was learnt could not be handed to the store
            failed(error)

    def close(self, store: Store) -> None:
        """Save what is not saved yet."""
        if self._busy is not None:
            self._busy.cancel()
        try:
            store.save([], [], learned=self.learning.last(self._clock()))
        except Exception:  # the next coordinator learns it from the stored tasks
            logger.warning("what was learnt of the last runs could not be saved", exc_info=True)
