"""Errors of the coordinator's own that nobody foresaw: whoever caused them waits, and nobody else does."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from live.services import services
from live.sites import CONFIG
from live.test_store import DONE
from waiting import PATIENCE

from tapfinger.core.contract import Phase
from tapfinger.errors import AgentRefused, StoreUnavailable, TooMany
from tapfinger.live.config import build_site, load_site
from tapfinger.live.coordinator.decisions import Decider
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.messages import AttemptId, Orders, Report, RunReport
from tapfinger.live.protocol.wire import LogChunk, LogSize, Message
from tapfinger.live.service import service as service_module
from tapfinger.live.service import starting_over
from tapfinger.live.service.service import Service
from tapfinger.live.service.starting_over import Suspects
from tapfinger.live.store.logs import Logs
from tapfinger.registry import create

TASK = make_spec(argv=["x"], type="demo", maximum={"cpu": 1})


class Agent:
    """Reports for a cluster, and keeps the orders that it gets."""

    def __init__(self, service: Service, cluster: str) -> None:
        self.service, self.cluster = service, cluster
        self.seq, self.epoch = 0, 0
        self.orders: list[Orders] = []

    def hear(self, message: Message) -> None:
        if isinstance(message, Orders):
            self.orders.append(message)
            self.epoch = message.epoch

    def report(self, *running: AttemptId) -> None:
        self.seq += 1
        runs = tuple(RunReport(ident) for ident in running)
        self.service.report(Report(self.cluster, f"{self.cluster}'s", 1, self.seq, self.epoch, runs), self.hear)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def run(service: Service, story: Callable[[], Awaitable[None]]) -> None:
    """Play a story beside the service's loop."""

    async def both() -> None:
        loop = asyncio.create_task(service.run())
        told = asyncio.ensure_future(story())
        async with asyncio.timeout(120):
            await asyncio.wait({loop, told}, return_when=asyncio.FIRST_COMPLETED)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        if told.done():
            await told
        else:
            told.cancel()
            await loop  # its error tells more

    asyncio.run(both())


def raising(monkeypatch: pytest.MonkeyPatch, of: Callable[[object], bool]) -> None:
    """Let the machine change half of what it should, and raise, for some stimuli."""
    plain = Coordinator.handle

    def handle(self: Coordinator, stimulus: object, now: float) -> object:
        if of(stimulus):
            self.tasks.clear()
            raise RuntimeError("nobody foresaw this")
        return plain(self, stimulus, now)  # type: ignore[arg-type]

    monkeypatch.setattr(Coordinator, "handle", handle)


def test_a_report_that_cannot_be_handled_silences_its_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services(tmp_path) as make:
        service = make()
        left, right = Agent(service, "left"), Agent(service, "right")

        async def story() -> None:
            for agent in (left, right):
                agent.report()
                agent.report()
            (first,) = await service.submit([TASK], "ann")
            await until(lambda: any(orders.starts for orders in left.orders + right.orders))
            mine, other = (left, right) if any(o.starts for o in left.orders) else (right, left)
            mine.report((first, 1))
            await until(lambda: service.task(first).phase is Phase.RUNNING)
            raising(monkeypatch, lambda s: isinstance(s, Report) and s.cluster == other.cluster)
            for n in range(3):
                epoch = mine.epoch
                with pytest.raises(StoreUnavailable, match="starts over"):
                    other.report()
                await until(lambda: service.role == "leader")
                assert service.faults[starting_over.FAULT]
                with pytest.raises(AgentRefused, match=f"again in {4**n} s"):
                    other.report()
                mine.report((first, 1))  # of the epoch before
                mine.report((first, 1))
                await until(lambda epoch=epoch: mine.epoch > epoch and mine.orders[-1].lease > 0)
                assert (service.task(first).phase, service.task(first).attempt) == (Phase.RUNNING, 1)
                clock.append(4.0**n + 1)
            await service.submit([TASK], "ann")

        clock: list[float] = []
        plain = service.now
        monkeypatch.setattr(service, "now", lambda: plain() + sum(clock))
        run(service, story)


def test_what_one_submitter_sends_holds_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with services(tmp_path) as make:
        service = make()

        async def story() -> None:
            raising(monkeypatch, lambda s: isinstance(s, Submit) and s.owner == "bob")
            (mine,) = await service.submit([TASK], "ann")
            with pytest.raises(StoreUnavailable, match="starts over"):
                await service.submit([TASK], "bob")
            await until(lambda: service.role == "leader")
            with pytest.raises(TooMany, match="fault of the coordinator"):
                await service.submit([TASK], "bob")
            (next_one,) = await service.submit([TASK], "ann")
            assert next_one == mine + 1
            assert service.store.counts() == {"queued": 2}

        run(service, story)


def test_errors_that_nobody_sends_end_it_after_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with services(tmp_path) as make:
        service = make()
        raising(monkeypatch, lambda s: isinstance(s, Tick))

        async def story() -> None:
            await until(lambda: False)

        with pytest.raises(RuntimeError, match="nobody foresaw"):
            run(service, story)
        assert service.store.epoch == 1 + starting_over.MOST


def test_trust_comes_back() -> None:
    suspects, stimulus = Suspects(), Submit([TASK], "bob")
    assert suspects.calm(0.0)
    assert suspects.note(stimulus, 0.0)
    assert suspects.note(stimulus, 2.0)
    for now, refused in ((5.9, True), (6.0, False)):
        check = partial(suspects.check, stimulus, now)
        if refused:
            with pytest.raises(TooMany):
                check()
        else:
            check()
    assert not suspects.calm(100.0)
    assert suspects.calm(2.0 + starting_over.RECENT)
    later = 3.0 + starting_over.TRUSTED
    assert suspects.note(stimulus, later)
    suspects.check(stimulus, later + 1.0)


@pytest.mark.parametrize("broken", [("size",), ("size", "add")])
def test_output_that_cannot_be_read_or_written_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    monkeypatch.setattr(service_module, "ASK_AGAIN", 0.01)
    said: list[LogSize] = []
    piece = LogChunk((7, 1), 0, "hello")

    def fails(*_: object) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    with services(tmp_path) as make:
        service = make()
        service.store.save([replace(DONE, id=7, cluster="left", attempt=1)], [])

        async def story() -> None:
            with monkeypatch.context() as now:
                for name in broken:
                    now.setattr(Logs, name, fails)
                saving = asyncio.ensure_future(service.submit([TASK], "ann"))
                await asyncio.sleep(0.0)
                service.output("left", piece, said.append)
                await saving
                await until(lambda: said)
            assert said == [LogSize((7, 1), 0)]
            service.output("left", piece, said.append)
            await until(lambda: len(said) > 1)
            assert said[1] == LogSize((7, 1), 5)

        run(service, story)
        assert service.failure == ""


def test_shadows_begin_anew_with_a_coordinator_that_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[Decider] = []
    monkeypatch.setattr(Decider, "forget", lambda decider: forgotten.append(decider))
    (tmp_path / "site.toml").write_text(CONFIG)
    scenario, config = load_site(tmp_path / "site.toml")
    real, fallback, shadow = (create("scheduler", name, {}) for name in ("fifo", "min", "min"))
    service = Service(tmp_path / "state", build_site(scenario), config, real, fallback, {"shadow": shadow})
    service.close()
    assert [decider.name for decider in forgotten] == ["Fifo", "Min", "shadow"]


def test_one_that_stands_by_ends_quietly_while_it_looks_who_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks, may = threading.Event(), threading.Event()

    def look() -> None:
        looks.set()
        may.wait(PATIENCE)

    async def play() -> None:
        service._leading = None
        monkeypatch.setattr(service, "_look", look)
        running = asyncio.create_task(service.run())
        await until(looks.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        may.set()

    with services(tmp_path) as make:
        service = make()
        asyncio.run(play())
        assert (service._broken, caplog.text) == (None, "")
