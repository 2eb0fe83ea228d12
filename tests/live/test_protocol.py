"""200 random histories of the whole protocol, each with every kind of trouble; and the checker itself is checked.

tests/soak/test_protocol.py plays thousands.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from live.histories import check_histories
from live.protocol import play

from tapfinger.core.contract import Phase
from tapfinger.core.events import StartTask, TaskArrived
from tapfinger.core.model import Resources
from tapfinger.errors import TapfingerError
from tapfinger.live.agent.machine import Agent, AgentInstruction
from tapfinger.live.coordinator.agent_links import Link
from tapfinger.live.coordinator.decisions import Answer
from tapfinger.live.coordinator.inputs import Instructions, Stimulus
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.protocol.messages import AttemptId, Orders, Outcome, Report
from tapfinger.live.protocol.records import TaskRecord

CHANGES: list[dict[str, Any]] = [{}, {"replicas": True}, {"older": True}, {"shared": True}]


@pytest.mark.parametrize("changes", CHANGES, ids=["one", "replicas", "older", "shared"])
def test_nothing_is_lost_and_nothing_runs_twice(changes: dict[str, Any]) -> None:
    check_histories(range(100), **changes)


# Each of these breaks one rule of the protocol; if the checker did not notice, it would prove nothing.


class TrustsOldReports(Coordinator):
    """Draws conclusions from reports that were made before it began."""

    def _report(self, report: Report, now: float) -> list[Orders]:
        return super()._report(replace(report, epoch=self.epoch), now)


class GrantsTooSoon(Coordinator):
    """Does not wait until the agent's lease is over."""

    def _until(self, now: float) -> float:
        return now + 2.5


class LeadsForEver(Coordinator):
    """Answers reports when its term is over and another one leads."""

    def handle(self, stimulus: Stimulus, now: float) -> Instructions:
        self.leads_until = math.inf
        return super().handle(stimulus, now)


class CancelsOnPaper(Coordinator):
    """Records a cancelled task as ended although nobody has confirmed it."""

    def _cancel(self, ident: int, now: float) -> list[Orders]:
        orders = super()._cancel(ident, now)
        if ident in self.tasks:
            self._end(self.tasks[ident], Outcome("stopped"), now)
        return orders


class TakesAnyResult(Coordinator):
    """Takes the result of an old attempt for that of the latest."""

    def _compare(self, report: Report, now: float) -> tuple[list[AttemptId], list[AttemptId]]:
        runs = []
        for run in report.runs:
            record = self.tasks.get(run.id[0])
            runs.append(run if record is None or not record.on_cluster else replace(run, id=record.attempt_id))
            if record is not None:
                record.cluster, record.agent = record.cluster and report.cluster, record.agent and report.agent
        return super()._compare(replace(report, runs=tuple(runs)), now)


class ForgetsTheAttempt(Coordinator):
    """Numbers every attempt alike."""

    def _grant(self, start: StartTask, now: float, why: str) -> str:
        cluster = super()._grant(start, now, why)
        self.tasks[start.task.id].attempt = 1
        return cluster


class CreditsTooSoon(Coordinator):
    """Gives away what a task was only asked to give back."""

    def _resize(self, record: TaskRecord, size: Resources, now: float) -> str:
        cluster = super()._resize(record, size, now)
        self._rounds.resized(record.id, size)
        record.allocation = tuple(size)
        return cluster


class ForgetsSizes(Coordinator):
    """Grants what growing tasks get without debiting it."""

    def _decided(self, answer: Answer, now: float) -> list[Orders]:
        for task, size in answer.sizes.items():
            record = self.tasks.get(task)
            if record is not None and record.phase is Phase.RUNNING and record.wanted is None:
                record.wanted, record.resized = tuple(size), record.resized + 1
        return super()._decided(replace(answer, sizes={}), now)


class NeverRests(Coordinator):
    """Tries a task again at once, however often that was in vain."""

    def _requeue(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        record.setbacks = 0
        super()._requeue(record, outcome, now)


class ForgetsNeeds(Coordinator):
    """Lets a task that ran out of a resource try with what it had."""

    def _give_more(self, record: TaskRecord, outcome: Outcome, least: Any, now: float) -> None:
        super()._give_more(record, outcome, least, now)
        record.least = {}
        self._site.needs.restore([])


class ForgetsTheFamily(Coordinator):
    """Lets other tasks find out again what one has shown."""

    def _give_more(self, record: TaskRecord, outcome: Outcome, least: Any, now: float) -> None:
        super()._give_more(record, outcome, least, now)
        self._site.needs.restore([])


class ShowsTheResting(Coordinator):
    """Leaves tasks that rest in the queue, where others wait behind them."""

    def _requeue(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        super()._requeue(record, outcome, now)
        if self._resting.discard(record.id):
            self._rounds.take(TaskArrived(self._rounds.slot, self._task(record)))


class IgnoresCapacity(Coordinator):
    """Believes the configuration, whatever an agent says that it has."""

    def _measure(self, report: Report, link: Link) -> None:
        pass


class IgnoresOthers(Coordinator):
    """Gives away what others use."""

    def _share(self, report: Report, link: Link) -> None:
        pass


class IgnoresClosedConnections(Coordinator):
    """Gives tasks to agents that have hung up."""

    def _disconnected(self, cluster: str, now: float) -> None:
        pass


class StaysInItsEpoch(Coordinator):
    """Does not notice that agents obey a later epoch than its own."""

    def _catch_up(self, report: Report, link: Link, now: float) -> None:
        pass


class GivesOutNumbersAgain(Coordinator):
    """Raises its epoch above that of agents, but not its numbers of tasks and attempts."""

    def _catch_up(self, report: Report, link: Link, now: float) -> None:
        before = self._next_id
        super()._catch_up(report, link, now)
        self._next_id = before

    def _skip_attempts(self, record: TaskRecord, attempt: int) -> None:
        pass


class DoesNotHold(Coordinator):
    """Grants at once what agents that have not reported yet may run as well."""

    def _catch_up(self, report: Report, link: Link, now: float) -> None:
        super()._catch_up(report, link, now)
        self._holding = False


class ForgetsToHold(Coordinator):
    """Takes no notice of what its store says of itself: that it is a copy, or that its predecessor held."""

    def _restore(self, records: list[TaskRecord], now: float) -> None:
        super()._restore(records, now)
        self._holding = False


class TakesLateResultsOfAnyone(Coordinator):
    """Takes the result of a lost attempt although a newer one may be alive."""

    def _hear_late(
        self, record: TaskRecord | None, ident: AttemptId, outcome: Outcome, report: Report, now: float
    ) -> None:
        if record is not None and record.on_cluster:
            self._end(record, outcome, now)
        else:
            super()._hear_late(record, ident, outcome, report, now)


class LeaseFromArrival(Agent):
    """Counts its lease from when the answer came."""

    def _renew(self, orders: Orders) -> list[AgentInstruction]:
        if self._sent:
            self._sent[orders.echo] = max(self._sent.values())
        return super()._renew(orders)


class StartsWithoutLease(Agent):
    """Starts whatever it is told to, however long the orders took."""

    def _obey(self, orders: Orders, now: float) -> list[AgentInstruction]:
        return super()._obey(orders, -1000.0)


class ObeysLateOrders(Agent):
    """Does not look at the number of orders."""

    def _obey(self, orders: Orders, now: float) -> list[AgentInstruction]:
        self._heard = 0
        return super()._obey(orders, now)


class ObeysForItsPredecessor(Agent):
    """Does not look whom orders are meant for."""

    def _obey(self, orders: Orders, now: float) -> list[AgentInstruction]:
        return super()._obey(replace(orders, incarnation=self.incarnation), now)


#: With a seed from which on it does not take long until the fault shows.
BROKEN: list[tuple[dict[str, Any], int]] = [
    ({"coordinator": TrustsOldReports}, 0),
    ({"coordinator": GrantsTooSoon}, 0),
    ({"coordinator": LeadsForEver, "replicas": True}, 1120),
    ({"coordinator": CancelsOnPaper}, 0),
    ({"coordinator": TakesAnyResult}, 0),
    ({"coordinator": ForgetsTheAttempt}, 0),
    ({"coordinator": CreditsTooSoon}, 0),
    ({"coordinator": ForgetsSizes}, 0),
    ({"coordinator": NeverRests}, 0),
    ({"coordinator": ForgetsNeeds}, 0),
    ({"coordinator": ForgetsTheFamily}, 0),
    ({"coordinator": ShowsTheResting}, 0),
    ({"coordinator": IgnoresCapacity}, 0),
    ({"coordinator": IgnoresOthers, "shared": True}, 0),
    ({"coordinator": IgnoresClosedConnections}, 0),
    ({"coordinator": StaysInItsEpoch, "older": True}, 0),
    ({"coordinator": GivesOutNumbersAgain, "older": True}, 0),
    ({"coordinator": DoesNotHold, "older": True}, 1900),
    ({"coordinator": ForgetsToHold, "older": True}, 1220),
    ({"coordinator": TakesLateResultsOfAnyone}, 0),
    ({"agent": LeaseFromArrival, "late": 0.6}, 0),
    ({"agent": StartsWithoutLease, "late": 0.6}, 0),
    ({"agent": ObeysLateOrders}, 0),
    ({"agent": ObeysForItsPredecessor}, 12),
]


@pytest.mark.parametrize(("classes", "first"), BROKEN, ids=[next(iter(c.values())).__name__ for c, _ in BROKEN])
def test_the_checker_notices_a_broken_rule(classes: dict[str, Any], first: int) -> None:
    for seed in range(first, first + 100):
        try:
            play(seed, **classes)
        except (AssertionError, TapfingerError, KeyError):
            return
    pytest.fail("100 histories went by without a complaint")
