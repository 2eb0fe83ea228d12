"""Shadow mode: what other schedulers would have done. They get the same questions; their decisions are never executed.

Each round is compared on its own: a shadow always sees the state that the real scheduler has produced. So the tally
shows where they differ, not what the site would look like if the shadow had always decided; for that, see ``what-if``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tapfinger.core.contract import Scheduler
from tapfinger.core.events import StartTask
from tapfinger.live.coordinator.asking import Asking
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.recent_sizes import RecentSizes

logger = logging.getLogger(__name__)

#: Most recent rounds that are kept, and most starts kept of each.
ROUNDS = 100
STARTS = 20


@dataclass(slots=True)
class Tally:
    """How often a shadow agrees with the real scheduler, since the coordinator started."""

    #: Rounds in which anything could start and both schedulers answered.
    rounds: int = 0
    #: Of these, rounds in which both started the same tasks on the same clusters with the same sizes.
    agreed: int = 0
    #: Rounds in which the shadow was not asked, since it was still busy with an earlier one, or had to rest.
    dropped: int = 0
    #: Rounds in which the shadow failed or was too slow, and what was wrong in the last round; empty if nothing was.
    failed: int = 0
    fault: str = ""
    #: Tasks that both started; of these, on the same cluster, and with the same size.
    both: int = 0
    same_cluster: int = 0
    same_size: int = 0
    #: Tasks that only one of them started in a round.
    only_real: int = 0
    only_shadow: int = 0
    #: Sum over the tasks that both started: expected seconds with the shadow's sizes, and with the real sizes.
    shadow_seconds: float = 0.0
    real_seconds: float = 0.0


@dataclass(slots=True)
class _Shadow:
    seat: Asking
    tally: Tally = field(default_factory=Tally)
    rounds: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=ROUNDS))


class Shadows:
    """Schedulers that are asked, but whose decisions are never executed."""

    def __init__(
        self,
        schedulers: Mapping[str, Scheduler],
        decide_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``schedulers``: by the name shown to people. ``decide_seconds``: longest round of one of them."""
        self._shadows = {
            name: _Shadow(Asking(Decider(scheduler, name), decide_seconds, clock, Worker(f"shadow {name}")))
            for name, scheduler in schedulers.items()
        }

    async def watch(self, question: RoundQuestion, answer: Answer, recent_sizes: RecentSizes, at: float) -> None:
        """Put a question that the real scheduler has answered to the shadows, unless they are busy."""
        if not self._shadows or not answer.by:
            return
        asked = {name: shadow for name, shadow in self._shadows.items() if _idle(shadow)}
        # Each has a thread or process of its own, so that none waits for another.
        await asyncio.gather(
            *(_compare(name, shadow, question, answer, recent_sizes, at) for name, shadow in asked.items())
        )

    def forget(self) -> None:
        """Reset all of them before their next round."""
        for shadow in self._shadows.values():
            shadow.seat.decider.forget()

    def close(self) -> None:
        """Ask nobody any more; nothing is waited for."""
        for shadow in self._shadows.values():
            shadow.seat.close()

    def report(self) -> list[dict[str, Any]]:
        """Each shadow's tally and latest rounds, newest first."""
        return [
            {"scheduler": name, **asdict(shadow.tally), "latest": list(reversed(shadow.rounds))}
            for name, shadow in self._shadows.items()
        ]


def _idle(shadow: _Shadow) -> bool:
    idle = shadow.seat.idle
    shadow.tally.dropped += not idle
    return idle


async def _compare(
    name: str, shadow: _Shadow, question: RoundQuestion, real: Answer, recent_sizes: RecentSizes, at: float
) -> None:
    opinion = await shadow.seat.ask(question)
    if opinion.failed:
        shadow.seat.news()  # in the log, once
    shadow.tally.fault = shadow.seat.fault
    _note(name, shadow, question, real, opinion, recent_sizes, at)


def _note(
    name: str,
    shadow: _Shadow,
    question: RoundQuestion,
    real: Answer,
    opinion: Answer,
    recent_sizes: RecentSizes,
    at: float,
) -> None:
    tally = shadow.tally
    if opinion.failed:
        tally.failed += 1
        return
    mine = {start.task.id: start for start in opinion.starts}
    theirs = {start.task.id: start for start in real.starts}
    agrees = {t: (s.cluster, s.allocation) for t, s in mine.items()} == {
        t: (s.cluster, s.allocation) for t, s in theirs.items()
    }
    tally.rounds += 1
    tally.agreed += agrees
    both = [(mine[task], theirs[task]) for task in mine.keys() & theirs.keys()]
    tally.both += len(both)
    tally.same_cluster += sum(a.cluster == b.cluster for a, b in both)
    tally.same_size += sum(a.allocation == b.allocation for a, b in both)
    tally.only_real += len(theirs.keys() - mine.keys())
    tally.only_shadow += len(mine.keys() - theirs.keys())
    tally.shadow_seconds += sum(recent_sizes.seconds(a.task.type, a.allocation) for a, _ in both)
    tally.real_seconds += sum(recent_sizes.seconds(b.task.type, b.allocation) for _, b in both)
    if mine or theirs:
        names = [cluster.name for cluster in question.context.clusters]
        waiting = len(question.state.snapshot().queue)
        rows = {"real": _rows(theirs, names, question), "shadow": _rows(mine, names, question)}
        shadow.rounds.append({"at": at, "slot": question.state.slot, "waiting": waiting, "agrees": agrees, **rows})
        _log(name, question.state.slot, agrees, rows["shadow"])


def _log(name: str, slot: int, agrees: bool, rows: list[dict[str, Any]]) -> None:
    """Log the round: unlike memory, the coordinator's log can hold every round."""
    if not logger.isEnabledFor(logging.INFO):
        return
    told = "; ".join(
        f"task={row['task']} cluster={row['cluster']} {' '.join(f'{k}={v:g}' for k, v in row['allocation'].items())}"
        for row in rows
    )
    verdict = "would do the same" if agrees else f"would start {told or 'nothing'}"
    logger.info("shadow %s slot=%d %s", name, slot, verdict, extra={"event": "shadow", "detail": verdict})


def _rows(starts: Mapping[int, StartTask], names: list[str], question: RoundQuestion) -> list[dict[str, Any]]:
    natural = question.context.resources.natural
    return [
        {"task": task, "cluster": names[start.cluster], "allocation": natural(start.allocation)}
        for task, start in sorted(starts.items())[:STARTS]
    ]
