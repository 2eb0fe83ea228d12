"""What agents say about themselves: their capacity, that they are there, and that the store is older than they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from live.services import services
from live.test_machines import SPEC, Driven, granted

from tapfinger.core.contract import Phase
from tapfinger.errors import AgentRefused, CoordinatorError
from tapfinger.live.agent.machine import Agent, HostFacts
from tapfinger.live.coordinator.agent_links import FLAPPING
from tapfinger.live.coordinator.inputs import Disconnected, Drain, Submit, Tick
from tapfinger.live.coordinator.older_store import FAR
from tapfinger.live.protocol.messages import Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.live.protocol.wire import decode, encode
from tapfinger.live.service.service import Service
from tapfinger.live.store.logs import Logs

# ------------------------------------------------------------------------ capacity


def says(driven: Driven, now: float, capacity: dict[str, float] | None, *runs: RunReport) -> None:
    driven.seq += 1
    driven.tell(Report("c0", "a", 1, driven.seq, driven.machine.epoch, runs, capacity=capacity), now)


def test_an_agent_reports_what_it_has() -> None:
    agent = Agent("c0", "a", 1, 0.0, 5.0, about=HostFacts({"cpu": 2.0}))
    assert agent.report(0.0).capacity == {"cpu": 2.0}
    assert decode(encode(agent.report(0.0))) == Report("c0", "a", 1, 2, 0, capacity={"cpu": 2.0})
    old = encode(agent.report(0.0)).replace(',"capacity":{"cpu":2.0}', "")
    message = decode(old)
    assert isinstance(message, Report)
    assert message.capacity is None, "older agents tell none"


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "-1", "1e300"])
@pytest.mark.parametrize("where", ['"capacity":{"cpu":%s}', '"runs":[{"id":[1,1],"size":1,"allocation":{"cpu":%s}}]'])
def test_amounts_that_nobody_can_count_with_are_refused(amount: str, where: str) -> None:
    about = '"cluster":"c0","agent":"a","incarnation":1,"seq":1,"epoch":1'
    decode(f'{{"Report":{{{about},{where % 1}}}}}')
    with pytest.raises(CoordinatorError, match="not a message TapFinger knows"):
        decode(f'{{"Report":{{{about},{where % amount}}}}}')


def test_the_smaller_capacity_counts() -> None:
    driven = Driven()
    driven.tell(Submit([SPEC] * 9), 0.0)
    says(driven, 0.1, {"cpu": 2.0, "gpu": 9.0, "magic": 1.0})
    (shown, other, _) = driven.machine.clusters(0.1)
    assert (shown["capacity"], other["disagreement"]) == ({"cpu": 2.0, "gpu": 4.0}, None)
    assert shown["disagreement"] == {"configured": {"cpu": 8.0, "gpu": 4.0}, "agent": {"cpu": 2.0, "gpu": 9.0}}
    (orders,) = driven.tell(Tick(), 0.2)
    assert len(orders.starts) == 2
    assert driven.kinds.count("capacity") == 1
    says(driven, 20.0, {"cpu": 8.0, "gpu": 4.0})
    assert driven.machine.clusters(20.0)[0]["disagreement"] is None
    assert driven.kinds.count("capacity") == 2


def test_running_tasks_stay_when_a_cluster_shrinks() -> None:
    driven = Driven()
    driven.tell(Submit([SPEC] * 6), 0.0)
    driven.report(0.1)
    (orders,) = driven.tell(Tick(), 0.2)
    runs = [RunReport(launch.id) for launch in orders.starts]
    assert len(runs) == 6
    says(driven, 0.3, {"cpu": 4.0, "gpu": 4.0}, *runs)
    assert driven.machine.clusters(0.3)[0]["free"] == {"cpu": 0.0, "gpu": 4.0}, "never below nothing"
    driven.tell(Submit([SPEC]), 0.4)
    for ended in range(3):
        assert driven.tell(Tick(), 0.5) == ()
        runs[ended] = RunReport(runs[ended].id, Outcome("finished", 0))
        says(driven, 0.6, {"cpu": 4.0, "gpu": 4.0}, *runs)
    assert len(driven.tell(Tick(), 0.7)) == 1, "now there is room"


def test_an_agent_that_changes_its_mind_all_the_time_adds_few_lines() -> None:
    driven = Driven()
    for n in range(1000):
        says(driven, n / 100, {"cpu": float(n % 7), "gpu": 4.0})
        driven.tell(Disconnected("c0"), n / 100)
    assert driven.kinds.count("capacity") <= 2
    assert driven.kinds.count("away") + driven.kinds.count("joined") <= 3
    assert driven.machine.clusters(10.0)[0]["capacity"] == {"cpu": float(999 % 7), "gpu": 4.0}


# ------------------------------------------------------------------------- silence


def test_a_closed_connection_is_seen_at_once_and_takes_nothing_away() -> None:
    driven = granted()
    driven.report(0.5, RunReport((1, 1)))
    driven.tell(Disconnected("c0"), 1.5)
    shown = driven.machine.clusters(2.5)[0]
    assert (shown["connected"], shown["last_heard"], shown["tasks"]) == (False, 2.0, [1])
    assert shown["lease_ends_in"] == 5.0, "from the report, as ever"
    driven.tell(Submit([SPEC]), 2.6)
    assert driven.tell(Tick(), 2.7) == ()
    assert driven.machine.tasks[1].phase is Phase.RUNNING
    driven.report(3.0, RunReport((1, 1)))
    assert driven.machine.clusters(3.0)[0]["connected"]
    assert len(driven.tell(Tick(), 3.1)) == 1
    assert driven.kinds.count("joined") == 1
    assert "away" not in driven.kinds, f"it was back within {FLAPPING} s"


def test_missed_reports_are_seen_before_the_lease_ends() -> None:
    driven = Driven()
    driven.machine._leases = type(driven.machine._leases)(60.0, 10.0, 5.0)
    driven.report(0.0)
    driven.tell(Tick(), 15.0)
    assert driven.machine.clusters(15.0)[0]["connected"]
    driven.tell(Tick(), 15.1)
    assert not driven.machine.clusters(15.1)[0]["connected"]
    assert driven.kinds == ["joined", "away"]
    driven.tell(Tick(), 71.0)
    assert driven.kinds == ["joined", "away", "silent"]
    driven.tell(Drain("c0"), 72.0)
    driven.report(73.0)
    assert driven.kinds[-1] == "joined"


def test_a_cluster_that_stops_old_attempts_takes_no_new_ones_meanwhile() -> None:
    driven = Driven()
    driven.tell(Submit([SPEC]), 0.0)
    driven.tell(Submit([SPEC], "x"), 0.0)
    assert driven.report(0.1, RunReport((1, 0))).stops == ((1, 0),)
    assert driven.tell(Tick(), 0.2) == ()
    driven.report(0.3)
    assert len(driven.tell(Tick(), 0.4)) == 1


# -------------------------------------------------------------------- an older store


def ahead(epoch: int, *runs: RunReport, cluster: str = "c0", seq: int = 1) -> Report:
    return Report(cluster, f"agent of {cluster}", 1, seq, epoch, runs)


def test_a_coordinator_goes_on_above_the_epoch_of_its_agents() -> None:
    driven = Driven(epoch=4)
    done = driven.machine.handle(ahead(9), 0.0)
    assert (done.epoch, driven.machine.epoch) == (10, 10), "saved before anyone is told"
    (orders,) = done.orders
    assert (orders.epoch, orders.lease) == (10, 0.0)
    assert [line.kind for line in done.history] == ["older store"]
    again = driven.machine.handle(ahead(10, seq=2), 0.1)
    assert (again.epoch, again.orders[0].lease) == (None, 6.0)


def test_nothing_is_granted_until_every_agent_was_heard_or_is_out_of_its_lease() -> None:
    driven = Driven(epoch=4)
    driven.tell(Submit([SPEC]), 0.0)
    driven.tell(ahead(9), 0.1)
    driven.tell(ahead(10, seq=2), 0.2)
    driven.tell(ahead(10, cluster="c1"), 0.3)
    assert driven.tell(Tick(), 0.4) == (), "c2 may run it"
    driven.tell(ahead(10, seq=3), 6.9)
    assert len(driven.tell(Tick(), 7.0)) == 1


def test_numbers_that_agents_know_are_not_given_out_again() -> None:
    driven = Driven(epoch=4)
    driven.tell(Submit([SPEC]), 0.0)
    for name in ("c1", "c2"):
        driven.tell(ahead(4, cluster=name), 0.1)
    orders = driven.tell(ahead(4, RunReport((1, 2)), RunReport((7, 1), Outcome("finished", 0))), 0.2)[0]
    assert (orders.stops, orders.forgets) == (((1, 2),), ((7, 1),))
    driven.tell(Submit([TaskSpec(argv=("other",), type="small")]), 0.3)
    assert sorted(driven.machine.tasks) == [1, 8]
    driven.tell(ahead(4, RunReport((1, 2), Outcome("finished", 0)), seq=2), 0.4)
    assert driven.machine.tasks[1].phase is Phase.QUEUED, "its end is not that of an attempt that the store knows"
    given = [launch.id for orders in driven.tell(Tick(), 0.5) for launch in orders.starts]
    assert sorted(given) == [(1, 3), (8, 1)]
    assert driven.kinds.count("older store") == 1


def test_an_agent_that_is_too_far_ahead_is_refused_alone() -> None:
    driven = Driven(epoch=4)
    for report in (ahead(5 + FAR), ahead(4, RunReport((FAR + 2, 1)))):
        with pytest.raises(AgentRefused, match="too far apart"):
            driven.tell(report, 0.0)
    driven.tell(ahead(9), 0.1)
    with pytest.raises(AgentRefused, match="again; restart the agent"):
        driven.tell(ahead(20, seq=2), 0.2)
    assert (driven.machine.epoch, driven.machine._next_id) == (10, 1)


def test_the_epoch_is_saved_before_an_agent_hears_of_it(tmp_path: Path) -> None:
    heard: list[Orders] = []

    async def hear(service: Service) -> None:
        def send(message: object) -> None:
            assert isinstance(message, Orders)
            assert service.store.meta("epoch") == message.epoch
            heard.append(message)

        service.report(Report("left", "a", 1, 1, 41), send)
        await service._commits.flush()
        service.report(Report("left", "a", 1, 2, 42), send)
        await service._commits.flush()
        assert service.clusters()[0]["connected"]
        service.disconnect("left", send)
        assert not service.clusters()[0]["connected"]

    with services(tmp_path) as make:
        service = make()
        asyncio.run(hear(service))
        assert [orders.epoch for orders in heard] == [42, 42]
        assert service.store.lead("") == 43


def test_output_that_an_older_store_does_not_know_is_not_taken_for_another_task_s(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 64)
    logs.add((7, 1), 0, b"x" * 200)
    logs.discard((7, 1))
    assert (logs.size((7, 1)), list(tmp_path.iterdir())) == (0, [])
    logs.discard((7, 1))
