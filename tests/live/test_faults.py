"""Nothing that a task or a backend does ends an agent, its connection or a coordinator, or troubles another task."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from live.services import services
from live.sites import RealSite, opened, python
from live.test_learning import make_site, record
from live.test_machines import SPEC, Driven
from live.test_resize import make_host, told
from waiting import PATIENCE

from tapfinger.core.contract import Decision, Phase, SchedulerContext, Snapshot
from tapfinger.errors import LaunchFailed
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.runtime import Host
from tapfinger.live.agent.starts import Began
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.insight.learning import Digest, Learning, Lesson
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.messages import Launch, Outcome, Report, RunReport, SizeOrder
from tapfinger.live.protocol.records import ENDED
from tapfinger.live.protocol.wire import LogSize, Message
from tapfinger.live.service.service import Service


@contextmanager
def hosting(directory: Path, backend: Fake) -> Iterator[tuple[Host, Devices]]:
    """An agent's host, closed at the end."""
    host, devices = make_host(directory, backend)
    try:
        yield host, devices
    finally:
        host.close()


LAUNCH = Launch((1, 1), ("x",), {"cpu": 1.0}, {})
OTHER = Launch((2, 1), ("x",), {"cpu": 1.0}, {})


class Faulty(Fake):
    """Raises what nobody foresaw, where task 1 is concerned."""

    def __init__(self, *where: str) -> None:
        super().__init__(clock=lambda: 10.0)
        self.where = set(where)
        self.stopped: list[tuple[int, bool]] = []

    def _fault(self, where: str, run: Run) -> None:
        if where in self.where and run.id[0] == 1:
            raise RuntimeError(f"odd {where}")

    def start(self, run: Run) -> None:
        self._fault("start", run)
        super().start(run)

    def poll(self, run: Run) -> Outcome | None:
        self._fault("poll", run)
        return super().poll(run)

    def stop(self, run: Run, at_once: bool) -> None:
        self._fault("stop", run)
        self.stopped.append((run.id[0], at_once))
        super().stop(run, at_once)

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        self._fault("resize", run)
        super().resize(run, allocation, devices)


# -------------------------------------------------------------------------- agents


def test_a_start_that_raises_fails_that_attempt_alone(tmp_path: Path) -> None:
    backend = Faulty("start")
    with hosting(tmp_path, backend) as (host, devices):
        first, second = told(host, 1, starts=(LAUNCH, OTHER))
    assert first.outcome == Outcome("failed", 127, "the backend failed to start it: RuntimeError: odd start")
    assert second.outcome is None
    assert backend.stopped == [(1, True)], "whatever of it had started"
    assert devices.free == {"cpu": 3}


def test_a_disk_that_cannot_be_written_loses_the_attempt(tmp_path: Path) -> None:
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, devices):
        (tmp_path / "runs" / "1.1").write_text("in the way")
        first, second = told(host, 1, starts=(LAUNCH, OTHER))
    assert first.outcome is not None
    assert first.outcome.result == "lost"
    assert first.outcome.reason.startswith("the agent cannot write to its disk: ")
    assert (second.outcome, devices.free) == (None, {"cpu": 3})


def test_a_task_whose_state_the_backend_cannot_tell_is_taken_to_run(tmp_path: Path) -> None:
    backend = Faulty("poll")
    with hosting(tmp_path, backend) as (host, _):
        assert [run.outcome for run in told(host, 1, starts=(LAUNCH, OTHER))] == [None, None]
    with hosting(tmp_path, backend) as (host, _):  # also by the next agent
        assert [run.outcome for run in host.report().runs] == [None, None]


def test_a_stop_that_raises_is_tried_again(tmp_path: Path) -> None:
    backend = Faulty("stop")
    with hosting(tmp_path, backend) as (host, _):
        told(host, 1, starts=(LAUNCH, OTHER))
        told(host, 2, stops=((1, 1), (2, 1)))
        assert backend.stopped == [(2, False)]
        backend.where.clear()
        host.step()
        assert backend.stopped == [(2, False), (1, False)]
        host.step()
        assert len(backend.stopped) == 2


def test_a_resize_that_raises_leaves_the_task_as_it_is(tmp_path: Path) -> None:
    with hosting(tmp_path, Faulty("resize")) as (host, devices):
        told(host, 1, starts=(LAUNCH,))
        (run,) = told(host, 2, sizes=(SizeOrder((1, 1), 1, {"cpu": 2.0}),))
    assert (run.outcome, run.allocation, devices.free) == (None, {"cpu": 1.0}, {"cpu": 3})


def test_a_task_may_put_anything_in_the_place_of_its_files(tmp_path: Path) -> None:
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, _):
        told(host, 1, starts=(LAUNCH, OTHER))
        directory = tmp_path / "runs" / "1.1"
        (directory / "reports").mkdir()
        (directory / "output").mkdir()
        (directory / "output.tail").mkdir()
        (directory / "output.tail" / "not a number").touch()
        (tmp_path / "runs" / "2.1" / "output").write_text("hello")
        host.connected()
        assert len(host.chunks()) == 2  # asks how much the coordinator has
        for ident in ((1, 1), (2, 1)):
            host.arrived(LogSize(ident, 0))
        assert [chunk.data for chunk in host.chunks()] == ["hello"]
        assert [run.outcome for run in host.report().runs] == [None, None]


def test_nothing_has_run_for_longer_than_has_passed(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.write_text('{"t": 1e308, "progress": 1e-300}\n')
    said = Following(reports, Began(1_000.0, 0.0, "another boot")).look(0.0)
    assert said is not None
    assert said.ran is not None
    assert said.ran < 1e10


@pytest.mark.parametrize("kind", ["circle", "long", "file", "nul", "closed"])
def test_a_working_directory_that_cannot_be_used_is_said(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("circle", "file", "closed")}
    places["circle"].symlink_to(places["circle"])
    places["file"].touch()
    places["closed"].mkdir()
    if kind == "closed":  # root may enter everything
        monkeypatch.setattr("os.access", lambda *_: False)
    cwd = {"long": "/tmp/" + "x" * 300, "nul": "/tmp/\0"}.get(kind) or str(places[kind])
    directory = tmp_path / "run"
    directory.mkdir()
    run = Run(Launch((1, 1), ("true",), {"cpu": 1.0}, {}, cwd=cwd), directory)
    with pytest.raises(LaunchFailed, match=r"working directory .*(cannot be used|does not exist|may not be entered)"):
        opened(Process(), tmp_path).start(run)


def test_such_tasks_fail_once_and_others_run(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        bad = [
            client.submit(python("pass", cwd=cwd))[0]
            for cwd in (str(tmp_path / "circle"), "/tmp/" + "x" * 300)
            for _ in range(2)
        ]
        poison = """
import os, time
with open(os.environ["TAPFINGER_REPORT"], "a") as file:
    file.write('{"t": 1e308, "progress": 1e-300}\\n')
"""
        good = client.submit(python(poison), python("pass"))
        ended = {ident: client.wait(ident, PATIENCE) for ident in (*bad, *good)}
        assert {(ended[ident].phase, ended[ident].attempt) for ident in bad} == {(Phase.FAILED, 1)}
        assert {ended[ident].phase for ident in good} == {Phase.FINISHED}
        assert all(cluster["connected"] for cluster in client.clusters())
        assert all(process.poll() is None for process in site.processes.values())
        log = "".join((site.state / f"{name}.log").read_text() for name in site.processes)
        assert "Traceback" not in log
        assert "no connection to" not in log
    finally:
        site.close()


# -------------------------------------------------------------------- coordinators


def test_what_a_task_reports_cannot_stop_learning() -> None:
    learning = Learning(make_site())
    odd = record(1, 4, 1.0, phase=Phase.RUNNING, ended=None)
    learning.progressed(odd, (4, 0), 0.0, 5e-324, 1e308)
    learning.saw(record(2, 4, 1000.0))
    found = learning.digest(2_000.0)
    assert [(event.kind, event.task) for event in found.events] == [("warning", 1)]
    assert found.known["elastic"].finished == 1
    learning.progressed(odd, (4, 0), 5e-324, 0.5, 10.0)
    assert learning.digest(3_000.0).events == (), "it is not listened to any more, and that is said once"
    assert math.isfinite(found.known["elastic"].factor)


def broken(*_: object, **__: object) -> Digest:
    """In the place of something that must not fail."""
    raise ValueError("math domain error")


def test_only_the_store_stops_a_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[float] = []

    def digest(now: float) -> Digest:
        digests.append(now)
        return broken()

    async def lead(service: Service) -> None:
        monkeypatch.setattr(service.learning, "digest", digest)
        monkeypatch.setattr(service.learning, "due", lambda _now: True)
        monkeypatch.setattr(service.insight, "saw", broken)
        running = asyncio.create_task(service.run())
        await service.submit([python("pass")], "ann")
        async with asyncio.timeout(PATIENCE):
            while not digests:
                await asyncio.sleep(0.01)
        assert len(await service.submit([python("pass")], "ann")) == 1
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with services(tmp_path) as make:
        asyncio.run(lead(make()))
        monkeypatch.undo()
    assert len(digests) == 1, "not again at once"


def test_a_coordinator_begins_although_what_was_learnt_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    real = Learning.take_up

    def choosy(self: Learning, kept: Iterable[Learned], history: Iterable[Lesson], now: float) -> Digest:
        begun.append(1)
        return broken() if len(begun) == 1 else real(self, kept, history, now)

    monkeypatch.setattr(Learning, "take_up", choosy)
    with services(tmp_path) as make:
        assert make().role == "leader"
    assert len(begun) == 2


class Leaves:
    """A scheduler that ends the program."""

    one_shot = True

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        raise SystemExit(3)


def test_a_scheduler_that_exits_is_one_that_failed() -> None:
    driven = Driven(scheduler=Leaves())
    driven.report(0.0)
    driven.tell(Submit([SPEC]), 0.1)
    (orders,) = driven.tell(Tick(), 0.2)
    assert [launch.id for launch in orders.starts] == [(1, 1)], "the other one has decided"
    assert "fault" in driven.kinds


def test_after_a_pause_of_its_own_a_coordinator_hears_agents_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def lead(service: Service) -> None:
        told: list[Message] = []
        running = asyncio.create_task(service.run())
        service.report(Report("left", "a", 1, 1, 0), told.append)
        await until(lambda: told)
        epoch = told[0].epoch  # type: ignore[union-attr]
        service.report(Report("left", "a", 1, 2, epoch), told.append)
        (task,) = await service.submit([python("pass")], "ann")
        await until(lambda: service.store.task(task).attempt == 1)  # type: ignore[union-attr]
        service.report(Report("left", "a", 1, 3, epoch, (RunReport((task, 1)),)), told.append)
        service._offset += 10_000.0  # as a machine that slept: far longer than lease and grace
        await until(lambda: "stood still" in caplog.text)
        service.report(Report("left", "a", 1, 4, epoch, (RunReport((task, 1), Outcome("finished", 0)),)), told.append)
        await until(lambda: service.store.task(task).phase in ENDED)  # type: ignore[union-attr]
        record = service.store.task(task)
        assert record is not None
        assert (record.phase, record.attempt) == (Phase.FINISHED, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with services(tmp_path) as make:
        asyncio.run(lead(make()))
