"""Computes the proposals of an agent's cluster in a thread: tasks, lease and reports never wait for it."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from tapfinger.core.exchange import MOST_OBSERVED, AgentChoice
from tapfinger.errors import TapfingerError
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.protocol.wire import ProposalAnswer, ProposalRequest
from tapfinger.registry import find

logger = logging.getLogger(__name__)

#: (model, digest, data, row) -> the choice of the row's cluster.
Choose = Callable[[str, str, bytes, int], AgentChoice]
Answer = Callable[[ProposalAnswer], Awaitable[None]]


class Inferring:
    """Answers requests one at a time. Of those that come meanwhile only the newest counts: the others are too late."""

    def __init__(self, choose: Choose | None = None) -> None:
        """``choose``: the networks of this package if it is None; they are imported with the first request."""
        self._choose = choose
        self._worker = Worker("inference")
        self._next: tuple[ProposalRequest, Answer] | None = None
        self._working: asyncio.Task[None] | None = None
        self._told = ""

    def take(self, request: ProposalRequest, answer: Answer) -> None:
        """Answer a request as soon as the one before is done."""
        self._next = request, answer
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._next is not None:
            (request, answer), self._next = self._next, None
            await answer(await self._worker.run(partial(self._answer, request)))

    def _answer(self, request: ProposalRequest) -> ProposalAnswer:
        """The answer to a request, whatever goes wrong. Runs in the thread."""
        fault = ""
        try:
            if len(request.data) > 2 * MOST_OBSERVED:
                raise ValueError(f"{len(request.data)} characters are more than an observation has")
            if self._choose is None:
                self._choose = find("inference", "network")
            data = base64.b64decode(request.data, validate=True)
            choice = self._choose(request.model, request.digest, data, request.row)
            return ProposalAnswer(request.number, choice.place, choice.amounts, choice.score)
        except TapfingerError as error:  # its message says it all
            fault = str(error)
        except Exception as error:  # onnxruntime's errors have no common base
            fault = f"{type(error).__name__}: {error}"
        if fault != self._told:
            logger.error("no proposal can be computed: %s", fault)
            self._told = fault
        return ProposalAnswer(request.number, fault=fault)
