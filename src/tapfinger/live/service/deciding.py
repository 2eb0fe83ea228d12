"""Rounds of a live site: the scheduler decides, and its fallback whenever the scheduler does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tapfinger.live.coordinator.asking import Asking
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.reasons import DECIDERS


class Deciding:
    """Puts questions to a scheduler and its fallback, each in a thread of its own and for a bounded time."""

    def __init__(
        self,
        deciders: Sequence[Decider],
        seconds: float,
        clock: Callable[[], float],
        faults: dict[str, str],
        worker: Worker,
    ) -> None:
        """``faults``: what is wrong now, by name; kept up to date. ``worker``: the thread of the first scheduler."""
        workers = (worker, *(Worker(f"{name} decisions") for name in DECIDERS[1:]))
        self._seats = [
            Asking(decider, seconds, clock, worker) for decider, worker in zip(deciders, workers, strict=False)
        ]
        self._faults = faults

    def forget(self) -> None:
        """Reset both before their next round."""
        for seat in self._seats:
            seat.decider.forget()

    async def answer(self, question: RoundQuestion) -> Answer:
        """The answer of the first one that has one. A fault is in the answer once, not in every round."""
        answer, failed = Answer(failed=True), False
        for seat in self._seats:
            if seat.available:
                answer = await seat.ask(question)
                if not answer.failed:
                    break
            failed = True
        if not answer.failed and not answer.by:
            return answer  # nothing could be started, so nobody was asked
        news = "".join(seat.news() for seat in self._seats)
        self._show(answer.by)
        return replace(answer, fault=news, failed=failed)

    def _show(self, by: str) -> None:
        well = not self._seats[0].fault
        for name, seat in zip(DECIDERS, self._seats, strict=False):
            if seat.fault and not well:
                instead = f"{by} decides instead" if by else "no task can be started until one of them decides"
                self._faults[name] = f"{seat.fault}At the moment {instead}."
            else:
                self._faults.pop(name, None)

    def close(self) -> None:
        """End the processes of schedulers; threads are not waited for."""
        for seat in self._seats:
            seat.close()
