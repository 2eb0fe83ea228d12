"""Running tasks that get more or less: in the books of the coordinator, in the hands of an agent, and for real."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from live.sites import CONFIG, RealSite
from live.test_machines import Driven, new_agent, orders
from waiting import wait_for

import tapfinger
from tapfinger.core.contract import Decision, Phase, Placement, Resize, SchedulerContext, Snapshot
from tapfinger.core.model import Resources
from tapfinger.errors import UnsupportedOperation
from tapfinger.live.agent import allotment
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.agent.machine import AgentTick, Found, Resized, ResizeRun, StopRun
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import BackendContext
from tapfinger.live.backends.fake import Fake
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.events import SchedulerFault
from tapfinger.live.protocol.messages import Launch, Orders, Report, RunReport, SizeOrder
from tapfinger.live.protocol.records import TaskSpec

ELASTIC = TaskSpec(argv=("work",), type="small", clusters=("c0",), resizable=True)


class Scripted:
    """Starts tasks with four cpus each on the first cluster, and wants running ones to have what is written here."""

    one_shot = True

    def __init__(self) -> None:
        self.sizes: dict[int, tuple[int, int]] = {}

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        room = snapshot.clusters[0].free[0] // 4 if not self.sizes else len(snapshot.queue)
        starts = tuple(Placement(task.id, 0, Resources((4, 0))) for task in snapshot.queue[:room])
        running = {task.id for task in snapshot.clusters[0].running if task.phase is Phase.RUNNING}
        resizes = (Resize(task, Resources(size)) for task, size in self.sizes.items() if task in running)
        return Decision(starts, tuple(resizes))


def two_running() -> tuple[Driven, Scripted]:
    """Tasks 1 and 2 fill c0 with four of its eight cpus each; task 3 waits."""
    script = Scripted()
    driven = Driven(scheduler=script)
    driven.report(0.0)
    driven.tell(Submit([ELASTIC, ELASTIC]), 0.1)
    driven.tell(Tick(), 0.2)
    driven.report(0.3, RunReport((1, 1)), RunReport((2, 1)))
    driven.tell(Submit([ELASTIC]), 0.4)
    driven.tell(Tick(), 0.5)
    return driven, script


def free(driven: Driven) -> dict[str, float]:
    amounts: dict[str, float] = driven.machine.clusters(0.0)[0]["free"]  # type: ignore[assignment]
    return amounts


def test_what_a_task_gives_back_is_free_when_its_agent_has_confirmed_it() -> None:
    driven, script = two_running()
    script.sizes = {1: (1, 0), 2: (3, 0)}
    (told,) = driven.tell(Tick(), 1.5)
    assert told.sizes == (
        SizeOrder((1, 1), 1, {"cpu": 1.0, "gpu": 0.0}),
        SizeOrder((2, 1), 1, {"cpu": 3.0, "gpu": 0.0}),
    )
    assert told.starts == ()
    assert free(driven)["cpu"] == 0.0
    assert driven.saved[1].wanted == (1, 0)
    assert driven.report(1.6, RunReport((1, 1)), RunReport((2, 1))).sizes == told.sizes, "until it is confirmed"
    driven.report(1.7, RunReport((1, 1), size=1, allocation={"cpu": 1.0, "gpu": 0.0}), RunReport((2, 1)))
    assert free(driven)["cpu"] == 3.0
    assert (driven.saved[1].allocation, driven.saved[1].wanted) == ((1, 0), None)
    done = (
        RunReport((1, 1), size=1, allocation={"cpu": 1.0, "gpu": 0.0}),
        RunReport((2, 1), size=1, allocation={"cpu": 3.0, "gpu": 0.0}),
    )
    driven.report(1.8, *done)
    (told,) = driven.tell(Tick(), 2.5)
    assert [launch.id for launch in told.starts] == [(3, 1)], "now there is room"
    assert "fault" not in driven.kinds


def test_what_a_task_is_to_get_is_debited_before_its_agent_hears_of_it() -> None:
    driven, script = two_running()
    script.sizes = {1: (1, 0)}
    driven.tell(Tick(), 1.5)
    driven.report(1.6, RunReport((1, 1), size=1, allocation={"cpu": 1.0, "gpu": 0.0}), RunReport((2, 1)))
    script.sizes = {1: (2, 2)}
    (told,) = driven.tell(Tick(), 2.5)
    assert told.sizes == (SizeOrder((1, 1), 2, {"cpu": 2.0, "gpu": 2.0}),)
    assert free(driven) == {"cpu": 2.0, "gpu": 2.0}
    # Back again before the agent has said anything: it may have done the first, so nothing is free yet.
    script.sizes = {1: (1, 0)}
    (told,) = driven.tell(Tick(), 3.5)
    assert told.sizes == (SizeOrder((1, 1), 3, {"cpu": 1.0, "gpu": 0.0}),)
    old = RunReport((1, 1), size=1, allocation={"cpu": 1.0, "gpu": 0.0})
    driven.report(3.6, old, RunReport((2, 1)))
    assert free(driven) == {"cpu": 2.0, "gpu": 2.0}, "of an earlier change: the size is right, but may not last"
    driven.report(3.7, RunReport((1, 1), size=3, allocation={"cpu": 1.0, "gpu": 0.0}), RunReport((2, 1)))
    assert free(driven) == {"cpu": 3.0, "gpu": 4.0}


@pytest.mark.parametrize("size", [(1, 0), (5, 0)])
def test_no_task_gets_a_size_out_of_its_bounds(size: tuple[int, int]) -> None:
    """Its type begins at one cpu; its own bounds do not."""
    scheduler = Scripted()
    driven = Driven(scheduler=scheduler)
    driven.report(0.0)
    driven.tell(Submit([replace(ELASTIC, minimum={"cpu": 2.0})]), 0.1)
    driven.tell(Tick(), 0.2)
    driven.report(0.3, RunReport((1, 1)))
    scheduler.sizes = {1: size}
    driven.tell(Tick(), 1.0)
    record = driven.machine.tasks[1]
    assert (record.allocation, record.wanted) == ((4, 0), None)
    (fault,) = [line for line in driven.history if isinstance(line, SchedulerFault)]
    assert "task 1 (small[2,0:4,2]): allocation" in fault.text


def test_a_task_that_cannot_be_resized_keeps_its_size_and_is_left_alone() -> None:
    driven, script = two_running()
    script.sizes = {1: (1, 0)}
    driven.tell(Tick(), 1.5)
    driven.report(1.6, RunReport((1, 1), size=1, allocation={"cpu": 4.0, "gpu": 0.0}), RunReport((2, 1)))
    assert free(driven)["cpu"] == 0.0
    assert driven.tell(Tick(), 2.5) == ()
    for nonsense in ({"cpu": 9.0, "gpu": 0.0}, {"cpu": 0.0, "gpu": 0.0}, {"cpu": -1.0}, {}):
        driven, script = two_running()
        script.sizes = {1: (1, 0)}
        driven.tell(Tick(), 1.5)
        driven.report(1.6, RunReport((1, 1), size=1, allocation=nonsense), RunReport((2, 1)))
        assert free(driven)["cpu"] == 0.0, "what cannot be is not believed"


def test_a_new_coordinator_goes_on_with_a_change_of_size() -> None:
    old, script = two_running()
    script.sizes = {1: (1, 0)}
    old.tell(Tick(), 1.5)
    new = Driven([old.saved[task] for task in (1, 2, 3)], epoch=2)
    assert free(new)["cpu"] == 0.0
    told = new.report(0.1, RunReport((1, 1)), RunReport((2, 1)))
    assert told.sizes == (SizeOrder((1, 1), 1, {"cpu": 1.0, "gpu": 0.0}),)
    new.report(0.2, RunReport((1, 1), size=1, allocation={"cpu": 1.0, "gpu": 0.0}), RunReport((2, 1)))
    assert free(new)["cpu"] == 3.0


# --------------------------------------------------------------------------- agent

LAUNCH = Launch((1, 1), ("work",), {"cpu": 4.0}, {})


def test_an_agent_carries_out_each_change_once() -> None:
    agent = new_agent()
    agent.handle(AgentTick(), 100.0)
    agent.handle(orders(starts=(LAUNCH,)), 100.1)
    small = SizeOrder((1, 1), 1, {"cpu": 1.0})
    assert ResizeRun(small) in agent.handle(orders(2, sizes=(small,)), 100.2)
    (report,) = agent.handle(Resized((1, 1), 1, {"cpu": 1.0}), 100.3)
    assert isinstance(report, Report)
    assert report.runs == (RunReport((1, 1), None, 1, {"cpu": 1.0}),)
    assert ResizeRun(small) not in agent.handle(orders(3, sizes=(small,)), 100.4)
    assert ResizeRun(SizeOrder((9, 1), 1, {})) not in agent.handle(orders(4, sizes=(SizeOrder((9, 1), 1, {}),)), 100.5)
    stopped = agent.handle(orders(5, stops=((1, 1),), sizes=(SizeOrder((1, 1), 2, {"cpu": 2.0}),)), 100.6)
    assert [i for i in stopped if isinstance(i, StopRun | ResizeRun)] == [StopRun((1, 1), at_once=False)]


def test_a_restarted_agent_knows_what_it_has_changed() -> None:
    agent = new_agent(found=[Found((1, 1), "stop", None, 3, {"cpu": 2.0})], lease_until=200.0)
    (report,) = agent.handle(AgentTick(), 100.0)
    assert isinstance(report, Report)
    assert report.runs == (RunReport((1, 1), None, 3, {"cpu": 2.0}),)


class Rigid(Fake):
    """Cannot resize."""

    def resize(self, *_: object) -> None:
        raise UnsupportedOperation("no")


def make_host(directory: Path, backend: Fake) -> tuple[Host, Devices]:
    devices = Devices({"cpu": range(4)})
    return Host(BackendContext(directory, "c0"), backend, devices, 1.0, clock=lambda: 10.0), devices


def told(host: Host, seq: int, **more: object) -> tuple[RunReport, ...]:
    machine = host.machine
    echo = host.report().seq
    message = Orders("c0", machine.agent, machine.incarnation, 1, seq, echo, 60.0, **more)  # type: ignore[arg-type]
    host.step(message)
    wait_for(lambda: not host.step() and not host.busy)  # until all of it is carried out
    return host.report().runs


def test_a_host_changes_devices_and_remembers(tmp_path: Path) -> None:
    backend = Fake(clock=lambda: 10.0)
    host, devices = make_host(tmp_path, backend)
    told(host, 1, starts=(Launch((1, 1), ("x",), {"cpu": 1.0}, {}), Launch((2, 1), ("x",), {"cpu": 2.0}, {})))
    told(host, 2, sizes=(SizeOrder((2, 1), 1, {"cpu": 3.0}),))
    assert devices.free == {"cpu": 0}
    (_, second) = told(host, 3, sizes=(SizeOrder((2, 1), 2, {"cpu": 1.0}),))
    assert (second.size, second.allocation, devices.free) == (2, {"cpu": 1.0}, {"cpu": 2})
    (_, second) = told(host, 4, sizes=(SizeOrder((2, 1), 3, {"cpu": 9.0}),))
    assert (second.size, second.allocation, devices.free) == (3, {"cpu": 1.0}, {"cpu": 2}), "there are not that many"
    host.close()
    host, devices = make_host(tmp_path, backend)
    assert host.report().runs[1] == RunReport((2, 1), None, 3, {"cpu": 1.0})
    assert devices.free == {"cpu": 2}
    host.close()


def test_a_backend_that_cannot_resize_is_no_fault(tmp_path: Path) -> None:
    host, devices = make_host(tmp_path, Rigid(clock=lambda: 10.0))
    told(host, 1, starts=(Launch((1, 1), ("x",), {"cpu": 1.0}, {}),))
    (run,) = told(host, 2, sizes=(SizeOrder((1, 1), 1, {"cpu": 3.0}),))
    assert (run.size, run.allocation, devices.free) == (1, {"cpu": 1.0}, {"cpu": 3})
    host.close()


# ------------------------------------------------------------------ told to a task


def test_a_task_can_ask_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAPFINGER_CPUS", "TAPFINGER_GPUS", allotment.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert allotment.allotment() == {}, "outside TapFinger"
    monkeypatch.setenv("TAPFINGER_CPUS", "2")
    monkeypatch.setenv("TAPFINGER_GPUS", "0.5")
    monkeypatch.setenv("TAPFINGER_OTHERS", "words")
    assert allotment.allotment() == {"cpu": 2.0, "gpu": 0.5}, "as it was started"
    monkeypatch.setenv(allotment.VARIABLE, str(tmp_path / "allotment.json"))
    assert allotment.allotment() == {"cpu": 2.0, "gpu": 0.5}, "where nobody has written anything"
    replace_file(tmp_path / "allotment.json", {"cpu": 3.0, "gpu": 0.5})
    assert allotment.allotment() == {"cpu": 3.0, "gpu": 0.5}
    for nonsense in ("", "3", "{", '{"cpu": null}', "[1]"):
        (tmp_path / "allotment.json").write_text(nonsense)
        assert allotment.allotment() == {"cpu": 2.0, "gpu": 0.5}


# ---------------------------------------------------------------------------- real

#: Says how many cores it may use, whenever that changes.
WATCHES = """
import time
from tapfinger.live.agent.allotment import allotment
seen = None
while True:
    now = allotment()["cpu"]
    if now != seen: print("cores", now, flush=True)
    seen = now
    time.sleep(0.02)
"""


def test_a_real_task_is_lent_what_is_spare_and_gives_it_back(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    config = CONFIG.replace('scheduler = "fifo"', 'scheduler = "greedy@lend=true"')
    site.config.write_text(config)
    try:
        client = site.up()
        here = {"type": "demo", "clusters": ["left"]}
        three = {"minimum": {"cpu": 3}, "maximum": {"cpu": 3}, **here}
        blocker = make_spec(argv=["sleep", "600"], **three)
        (first,) = client.submit(blocker)
        wait_for(lambda: client.show(first).phase is Phase.RUNNING)
        env = {"PYTHONPATH": str(Path(tapfinger.__file__).parents[1])}
        (elastic,) = client.submit(make_spec(argv=[sys.executable, "-c", WATCHES], env=env, resizable=True, **here))
        wait_for(lambda: b"".join(client.logs(elastic)) == b"cores 1.0\n")
        assert client.show(elastic).allocation == {"cpu": 1.0, "gpu": 0.0}
        client.cancel(first)
        wait_for(lambda: client.show(elastic).history[-1]["kind"] == "resized")
        assert client.show(elastic).allocation == {"cpu": 4.0, "gpu": 0.0}
        site.kill("left")  # the agent; its successor knows the size
        site.agent("left")
        (last,) = client.submit(blocker)
        wait_for(lambda: client.show(last).phase is Phase.RUNNING)
        assert client.show(elastic).allocation == {"cpu": 1.0, "gpu": 0.0}
        story = [line["kind"] for line in client.show(elastic).history]
        assert story == ["submitted", "granted", "started", "resizing", "resized", "resizing", "resized"]
        assert client.show(elastic).attempt == 1
        wait_for(lambda: b"".join(client.logs(elastic)) == b"cores 1.0\ncores 4.0\ncores 1.0\n")
    finally:
        site.close()
