"""An older copy of the store: however it is noticed, nothing starts that agents may still run without its knowledge."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from live.protocol import make_site
from live.services import services
from live.test_machines import SPEC
from live.test_starting_over import TASK, Agent, run, until

from tapfinger.core.contract import Phase
from tapfinger.errors import AgentRefused
from tapfinger.live.coordinator.inputs import Decided, Instructions, Leases, Submit, Tick
from tapfinger.live.coordinator.machine import MOST_REFUSED, Coordinator, Predecessor
from tapfinger.live.coordinator.older_store import FAR, FAR_ATTEMPTS, FIRST_ATTEMPTS, most_attempts
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.protocol.messages import AttemptId, Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service.service import Service
from tapfinger.live.store.copies import copy_store, put_back
from tapfinger.live.store.store import OLDER
from tapfinger.registry import create

CLUSTERS = ("c0", "c1", "c2")
WAITING = TaskRecord(1, SPEC, "", 0.0)
#: In the copy, the task was granted to c2 and not reported by it yet.
PLACED = TaskRecord(1, SPEC, "", 0.0, Phase.PLACED, 1, "c2", "c2's", (1, 0))


class Restored:
    """A coordinator of epoch 2 with the store's only task. Its agents have obeyed epoch 3."""

    def __init__(self, record: TaskRecord, older: str | None = None, epoch: int = 2) -> None:
        site = make_site()
        rounds = Rounds(site, create("scheduler", "fifo", {}), 100)
        left = Predecessor([replace(record)], next_id=2, older=older)
        self.machine = Coordinator(site, rounds, Leases(60.0, 10.0), epoch, 100.0, left)
        self.seq = 0
        #: Whether it is saved that it holds.
        self.saved: bool | None = None
        self.kinds: list[str] = []

    def tell(self, stimulus: object, now: float) -> Instructions:
        done = self.machine.handle(stimulus, now)  # type: ignore[arg-type]
        self.machine.validate()
        self.saved = self.saved if done.holding is None else done.holding
        self.kinds += [line.kind for line in done.history]
        return done

    def report(self, cluster: str, *running: AttemptId, epoch: int | None = None, now: float = 100.1) -> Instructions:
        self.seq += 1
        runs = tuple(RunReport(ident) for ident in running)
        told = self.machine.epoch if epoch is None else epoch
        return self.tell(Report(cluster, f"{cluster}'s", 1, self.seq, told, runs), now)

    def started(self, now: float) -> list[AttemptId]:
        """What is started after a round, if there is one."""
        self.tell(Tick(), now)
        if (question := self.machine.ask()) is None:
            return []
        orders = self.tell(Decided(question.answer()), now).orders
        return [launch.id for one in orders for launch in one.starts]


def test_one_that_is_told_that_its_store_is_older_holds_until_every_agent_was_heard() -> None:
    site = Restored(WAITING, older="tapfinger restore")
    site.tell(Submit([SPEC]), 100.0)
    assert (site.saved, site.kinds) == (True, ["older store", "submitted"])
    for cluster in CLUSTERS[1:]:
        site.report(cluster)
    assert site.started(100.2) == [], "c0 may run it"
    site.report("c0", (1, 1))
    assert site.started(100.3) == [], "and does"
    site.report("c0")
    assert site.saved is False
    assert sorted(site.started(100.4)) == [(1, 2), (2, 1)]


def test_leases_that_are_over_are_not_waited_for() -> None:
    site = Restored(WAITING, older="tapfinger restore")
    site.report("c1")
    assert site.started(100.2) == []
    site.report("c1", now=169.9)
    assert site.started(169.9) == []
    assert site.started(170.0) == [(1, 1)]


def test_one_that_dies_while_it_holds_goes_on_holding() -> None:
    first = Restored(WAITING)
    first.report("c1", epoch=3)
    assert first.saved, "with the epoch"
    second = Restored(WAITING, older="", epoch=first.machine.epoch + 1)
    for cluster in CLUSTERS[1:]:
        second.report(cluster)
    assert second.started(100.2) == [], "c0 may run it"
    assert "older store" not in second.kinds, "the history has it"
    assert second.saved is None, "it is saved already"
    second.report("c0")
    assert second.saved is False
    assert second.started(100.3) == [(1, 1)]


def test_what_was_placed_is_not_sent_meanwhile() -> None:
    site = Restored(PLACED)
    site.report("c0", (1, 2), epoch=3)
    site.report("c2", epoch=3)
    assert site.report("c2").orders[0].starts == (), "c0 runs it"
    site.report("c1")
    site.report("c0", (1, 2))
    site.report("c0")
    (launch,) = site.report("c2").orders[0].starts
    assert launch.id == (1, 1)


def test_it_holds_until_unknown_attempts_are_gone() -> None:
    site = Restored(WAITING)
    for cluster in CLUSTERS:
        site.report(cluster, *([(1, 2)] if cluster == "c0" else []), epoch=3)
    for cluster in CLUSTERS[1:]:
        site.report(cluster)
    assert site.report("c0", (1, 2)).orders[0].stops == ((1, 2),)
    assert site.started(100.2) == [], "it is still being stopped"
    site.report("c0")
    assert site.started(100.3) == [(1, 3)]


def test_an_agent_that_stops_unknown_attempts_is_told_no_sizes() -> None:
    """What they hold is not free: no task may grow into it."""
    elastic = TaskSpec(argv=("work",), type="small", resizable=True)
    grows = TaskRecord(
        1, elastic, "", 0.0, Phase.RUNNING, 1, "c2", "c2's", (4, 0), started=50.0, wanted=(4, 0), resized=1
    )
    site = Restored(grows)
    assert site.report("c2", (1, 1), (1, 0)).orders[0].sizes == ()
    assert [size.id for size in site.report("c2", (1, 1)).orders[0].sizes] == [(1, 1)]


def test_an_agent_cannot_use_up_the_attempts_of_a_task_bit_by_bit() -> None:
    """Another cluster will run it: its agent cannot name a number that no message can hold, and would be cut off."""
    site = Restored(WAITING)
    for cluster in CLUSTERS:
        site.report(cluster)
    site.report("c1", (1, FIRST_ATTEMPTS))
    with pytest.raises(AgentRefused, match="too far apart"):
        site.report("c1", (1, FIRST_ATTEMPTS + 1))
    assert site.machine.tasks[1].attempt == FIRST_ATTEMPTS


def test_an_agent_knows_no_more_attempts_than_a_task_can_have_made_since_it_was_submitted() -> None:
    assert [most_attempts(WAITING, 3600.0 * hours) for hours in (-1, 0, 1, 10, 1000)] == [100, 100, 124, 340, 1000]
    assert FAR_ATTEMPTS == 1000
    site = Restored(replace(WAITING, failures=50))
    site.report("c1", (1, 150))
    with pytest.raises(AgentRefused, match="too far apart"):
        site.report("c1", (1, 151))


@pytest.mark.parametrize("epoch", [None, 3])
def test_an_agent_cannot_make_a_task_older_that_may_not_run_on_its_cluster(epoch: int | None) -> None:
    site = Restored(replace(WAITING, spec=replace(SPEC, clusters=("c0", "c2"))))
    with pytest.raises(AgentRefused, match="its agent has task 1, which may not run there"):
        site.report("c1", (1, 2), epoch=epoch)
    assert (site.machine.tasks[1].attempt, site.machine.epoch) == (0, 2)
    site.report("c0", (1, 2), epoch=epoch)
    assert site.machine.tasks[1].attempt == 2


def test_an_agent_cannot_use_up_the_numbers_of_tasks_bit_by_bit() -> None:
    site = Restored(WAITING)
    site.report("c1", (FAR, 1))
    with pytest.raises(AgentRefused, match="again; restart the agent"):
        site.report("c1", (2 * FAR, 1))
    site.tell(Submit([SPEC]), 100.2)
    assert max(site.machine.tasks) == FAR + 1


def test_refused_results_do_not_fill_the_history() -> None:
    site = Restored(replace(WAITING, failures=MOST_REFUSED))
    site.report("c1", (1, 2 * MOST_REFUSED))
    runs = tuple(RunReport((1, attempt), Outcome("finished", 0)) for attempt in range(1, 2 * MOST_REFUSED + 1))
    site.tell(Report("c1", "c1's", 1, 100, site.machine.epoch, runs), 100.2)
    site.tell(Report("c1", "c1's", 1, 101, site.machine.epoch, runs), 100.3)
    assert site.kinds.count("refused") == MOST_REFUSED


def copied_by_hand(source: Path, target: Path) -> None:
    for leftover in target.parent.glob(f"{target.name}*"):
        leftover.unlink()
    shutil.copy(source, target)


async def reports(agent: Agent, *running: AttemptId) -> Orders:
    """What answers its first report that counts."""
    while True:
        heard = len(agent.orders)
        agent.report(*running)
        await until(lambda heard=heard: len(agent.orders) > heard)
        if agent.orders[-1].lease:
            return agent.orders[-1]


async def starts_nothing(service: Service) -> None:
    right = Agent(service, "right")
    await reports(right)
    await reports(right)
    assert not service._machine.wants_round, "it would be started where it does not run"


@pytest.mark.parametrize("how", ["by command", "by hand", "by hand, of an earlier epoch"])
def test_a_copy_in_which_a_running_task_waits_starts_it_nowhere_else(tmp_path: Path, how: str) -> None:
    """Neither does a coordinator that is started once more meanwhile."""
    store, copy, earlier = tmp_path / "state" / "store.db", tmp_path / "copy.db", tmp_path / "earlier.db"

    async def submits() -> None:
        await service.submit([TASK], "ann")

    async def is_started() -> None:
        copy_store(store, copy)
        await reports(left)
        await until(lambda: left.orders[-1].starts)

    async def goes_on() -> None:
        left.service, right.service = last, last
        await reports(right)
        assert (await reports(left, (1, 1))).stops == ((1, 1),)
        assert last.task(1).phase is Phase.QUEUED
        await reports(left)
        await until(lambda: last.task(1).attempt == 2)

    with services(tmp_path) as make:
        service = make()
        run(service, submits)
        service.close()
        shutil.copy(store, earlier)
        service = make()
        left, right = Agent(service, "left"), Agent(service, "right")
        run(service, is_started)
        service.close()
        if how == "by command":
            put_back(copy, store)
        else:
            copied_by_hand(copy if how == "by hand" else earlier, store)
        for _ in range(2):
            again = make()
            run(again, partial(starts_nothing, again))
            again.close()
        last = make()
        run(last, goes_on)
        lines = [line for _, line in last.store.history(0, 100) if line.kind == "older store"]
        assert [line.cluster for line in lines] == [None, "left"]
        assert last.store.meta(OLDER) is None


def test_one_agent_s_word_holds_the_others_up_for_a_lease_at_most() -> None:
    site = Restored(WAITING, epoch=3)
    for cluster in CLUSTERS:
        site.report(cluster)
    site.report("c2", (50, 1), now=101.0)
    assert site.saved, "c2 may tell the truth"
    assert site.machine.held_for.startswith("The store is an older copy")
    now = 101.0
    while now < 170.0:
        now += 1.0
        for cluster in CLUSTERS:
            site.report(cluster, *([(50, 1)] if cluster == "c2" else []), now=now)
        assert site.started(now) == []
    for cluster in CLUSTERS:
        site.report(cluster, *([(50, 1)] if cluster == "c2" else []), now=171.0)
    assert site.started(171.0) == [(1, 1)], "it had time to stop what it has"
    assert (site.saved, site.machine.held_for) == (False, "")
    site.tell(Submit([SPEC]), 172.0)
    site.report("c2", (90, 1), now=172.0)
    assert (51, 1) in site.started(172.1), "it does not hold them up again"


def test_numbers_that_agents_know_are_not_given_out_after_a_restart() -> None:
    site = Restored(WAITING, epoch=3)
    done = site.report("c0", (50, 1), (1, 4))
    assert done.last_id == 50, "saved, as the attempt is"
    assert [(record.id, record.attempt) for record in done.records] == [(1, 4)]
    assert site.report("c0", (50, 1)).last_id is None, "once"


def test_ids_that_agents_know_are_kept_by_the_store(tmp_path: Path) -> None:
    with services(tmp_path) as make:
        service = make()
        agent = Agent(service, "left")

        async def story() -> None:
            agent.report()
            agent.report((50, 1))
            await service.submit([TASK], "ann")
            await until(lambda: service.store.next_id() == 52)

        run(service, story)


def test_explanations_say_that_nothing_is_started(tmp_path: Path) -> None:
    with services(tmp_path) as make:
        service = make()

        async def story() -> None:
            for cluster in ("left", "right"):
                agent = Agent(service, cluster)
                agent.report()
                agent.report()
            agent.report((50, 1))
            (task,) = await service.submit([TASK], "ann")
            await until(lambda: "older store" in service.faults)
            said = await service.insight.reasons.explain(service.task(task))
            assert "The store is an older copy: nothing is started until every agent" in said["summary"]

        run(service, story)
