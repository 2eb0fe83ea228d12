"""A user's scheduler cannot stop a site, whatever it does: a process of its own, bounds, and a fallback."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live.services import services
from live.sites import CONFIG, RealSite, python
from live.test_insight import Never, question
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Decision, Snapshot
from tapfinger.errors import ConfigError
from tapfinger.live.coordinator import asking
from tapfinger.live.coordinator.decisions import LONGEST, Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.scheduler_process import PASSED_ON, ProcessScheduler
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.recent_sizes import RecentSizes
from tapfinger.live.insight.shadow import Shadows
from tapfinger.live.service.deciding import Deciding
from tapfinger.registry import create, is_built_in

#: What a scheduler does -> what is told of it.
FAULTS = {
    "raises": "ValueError:  ]0;boo xxx",
    "rude": "Rude: an error that cannot be put into words",
    "leaves": "SystemExit: 3",
    "interrupts": "KeyboardInterrupt",
    "dies": "its process has ended with code 7",
    "eats": "it needs more memory than 512 MB (live.scheduler_memory_mb)",
    "nothing": "a scheduler must return a Decision, got None",
    "fractions": "holds a float; amounts are whole units",
    "unknown": "there is no task 1000000000 in the snapshot",
    "too_large": "is above its maximum",
    "nowhere": "a cluster is named by its index",
    "many": "a decision has 3000000 placements",
    "sly": "LookupError: do not look",
    "babbles": "its answer has 18446744073709551615 bytes",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the scheduler does."""
    found = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(Path(__file__).parent), found))))
    path = tmp_path / "how"
    path.write_text("good")
    return path


def naughty(file: Path) -> ProcessScheduler:
    return ProcessScheduler("naughty", "naughty:Naughty", {"file": str(file)}, 512)


@pytest.fixture
def own(file: Path) -> Iterator[ProcessScheduler]:
    scheduler = naughty(file)
    yield scheduler
    scheduler.close()


def deciding(scheduler: object, seconds: float = PATIENCE) -> tuple[Deciding, dict[str, str]]:
    faults: dict[str, str] = {}
    deciders = [Decider(scheduler), Decider(create("scheduler", "min", {}))]  # type: ignore[arg-type]
    return Deciding(deciders, seconds, time.monotonic, faults, Worker("decisions")), faults


async def until_well(decider: Deciding, faults: dict[str, str], asked: RoundQuestion) -> Answer:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await decider.answer(asked)
            if not faults:
                return answer
            await asyncio.sleep(0.02)


def test_a_scheduler_in_a_process_decides_as_it_would_here(file: Path, own: ProcessScheduler) -> None:
    asked = question()
    there, here = Decider(own), Decider(create("scheduler", "min", {}))
    assert there.name == "naughty"
    for _ in range(2):
        assert there.play(asked).starts == here.play(asked).starts
    assert here.play(asked).starts


def test_its_process_gets_few_variables_of_the_coordinator(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "swordfish")
    monkeypatch.setenv("WANDB_API_KEY", "swordfish")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    own = naughty(file)
    try:
        assert own._process is not None
        given = Path(f"/proc/{own._process.pid}/environ").read_bytes()
    finally:
        own.close()
    found = dict(line.split("=", 1) for line in given.decode().split("\0") if line)
    assert "swordfish" not in given.decode()
    assert found.keys() <= {*PASSED_ON}
    assert (found["TZ"], found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("Asia/Tokyo", "3", "1")
    assert found["PYTHONPATH"] == os.environ["PYTHONPATH"], "or its module could not be found"


@pytest.mark.parametrize("how", FAULTS)
def test_whatever_a_scheduler_does_the_fallback_decides(
    how: str, file: Path, own: ProcessScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FIRST_REST", 0.01)

    async def rounds() -> None:
        decider, faults = deciding(own)
        asked = question()
        assert (await decider.answer(asked)).by == "naughty"
        file.write_text(how)
        answer = await decider.answer(asked)
        assert answer.by == "Min"
        assert len(answer.starts) == 2
        assert FAULTS[how] in answer.fault
        assert answer.fault.isprintable()
        assert len(answer.fault) < 2 * LONGEST
        assert FAULTS[how] in faults["scheduler"]
        assert "Min decides instead" in faults["scheduler"]
        again = await decider.answer(asked)
        assert (again.by, again.fault, again.failed) == ("Min", "", True), "the history has it once"
        file.write_text("good")
        assert (await until_well(decider, faults, asked)).by == "naughty"
        decider.close()

    asyncio.run(rounds())


def test_a_scheduler_that_hangs_is_killed_and_started_again(
    file: Path, own: ProcessScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FIRST_REST", 0.01)

    async def rounds() -> None:
        decider, faults = deciding(own, seconds=2.0)
        asked = question()
        file.write_text("hangs")
        answer = await decider.answer(asked)
        assert answer.by == "Min"
        assert "no decision after 2 s (live.decide_seconds)" in answer.fault
        process = own._process
        assert process is not None
        wait_for(lambda: process.poll() is not None)
        file.write_text("good")
        assert (await until_well(decider, faults, asked)).by == "naughty"
        decider.close()
        wait_for(lambda: not own.ready)

    asyncio.run(rounds())


def alive(file: Path) -> bool:
    """Whether what the scheduler has started is alive."""
    status = Path("/proc") / file.with_name("child").read_text() / "stat"
    try:
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_a_scheduler_that_has_ended_leaves_behind_is_ended_and_holds_nothing_up(
    file: Path, own: ProcessScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FIRST_REST", 0.01)

    async def rounds() -> None:
        decider, faults = deciding(own, seconds=2.0)
        asked = question()
        file.write_text("abandons")
        answer = await decider.answer(asked)
        assert answer.by == "Min"
        assert "no decision after 2 s" in answer.fault
        wait_for(lambda: not alive(file))
        file.write_text("good")
        assert (await until_well(decider, faults, asked)).by == "naughty"
        decider.close()

    asyncio.run(rounds())


@pytest.mark.parametrize("how", ["closed", "killed by somebody"])
def test_what_a_scheduler_has_started_ends_with_it(how: str, file: Path, own: ProcessScheduler) -> None:
    file.write_text("starts")
    assert Decider(own).play(question()).starts
    assert alive(file)
    if how != "closed":
        assert own._process is not None
        os.kill(own._process.pid, signal.SIGKILL)
        wait_for(lambda: not own.ready)
        assert alive(file)
    own.close()
    wait_for(lambda: not alive(file))


def test_pauses_between_restarts_grow(file: Path, own: ProcessScheduler) -> None:
    now = 0.0

    async def rounds() -> list[float]:
        nonlocal now
        faults: dict[str, str] = {}
        deciders = [Decider(own), Decider(create("scheduler", "min", {}))]
        decider = Deciding(deciders, PATIENCE, lambda: now, faults, Worker("decisions"))
        asked, deaths, dead = question(), [], None
        file.write_text("dies")
        while len(deaths) < 4:
            answer = await decider.answer(asked)
            assert answer.by == "Min"
            if own._process is not dead and not own.ready:
                dead = own._process
                deaths.append(now)
            now += 0.5
            await asyncio.sleep(0.05)
        return deaths

    first, second, third, fourth = asyncio.run(rounds())
    assert second - first >= 1.0
    assert third - second >= 2.0
    assert fourth - third >= 4.0


def test_a_scheduler_that_cannot_be_made_is_refused_at_the_start(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs file"):
        ProcessScheduler("naughty", "naughty:Naughty", {}, 512)
    with pytest.raises(ConfigError, match=r"no module 'nowhere'"):
        ProcessScheduler("nowhere:X", "nowhere:X", {}, 512)


def test_only_code_of_the_package_decides_in_the_coordinator() -> None:
    assert is_built_in("scheduler", "greedy", {"patience": 2})
    assert is_built_in("scheduler", "exploring", {"of": "fifo"})
    assert not is_built_in("scheduler", "exploring", {"of": "mine:Mine"})
    assert not is_built_in("scheduler", "mine:Mine", {})


class Slow(Never):
    """A scheduler in this process that does not return before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.resets = 0

    def reset(self, context: object) -> None:
        self.resets += 1

    def decide(self, snapshot: Snapshot) -> Decision:
        self.may.wait(PATIENCE)
        return Decision()


def test_a_thread_that_does_not_return_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_REST", 0.01)
    slow = Slow()

    async def rounds() -> None:
        decider, faults = deciding(slow, seconds=1.0)
        asked = question()
        for expected in ("no decision after 1 s", "", ""):
            answer = await decider.answer(asked)
            assert answer.by == "Min"
            assert expected in answer.fault
            assert bool(answer.fault) == bool(expected), "the history has it once"
        slow.may.set()
        assert (await until_well(decider, faults, asked)).by == "Slow"

    asyncio.run(rounds())
    assert slow.resets == 2, "it has missed rounds"


def test_a_thread_that_never_returns_is_the_only_one_and_is_told_as_long_as_it_hangs() -> None:
    slow, now = Slow(), 0.0

    async def rounds() -> None:
        nonlocal now
        faults: dict[str, str] = {}
        deciders = [Decider(slow), Decider(create("scheduler", "min", {}))]
        decider = Deciding(deciders, 2.0, lambda: now, faults, Worker("hangs here"))
        asked, told = question(), 0
        for _ in range(100):
            answer = await decider.answer(asked)
            assert answer.by == "Min"
            told += bool(answer.fault)
            assert "Slow: no decision after 2 s" in faults["scheduler"]
            assert "Min decides instead" in faults["scheduler"]
            assert [thread.name for thread in threading.enumerate()].count("hangs here") == 1
            now += 10_000.0  # its rest is over each time, but its thread has not returned
        assert told == 100, "the history has it again after an hour"
        assert slow.resets == 1
        decider.close()

    asyncio.run(rounds())
    slow.may.set()


def test_a_coordinator_goes_on_and_ends_while_its_scheduler_hangs(tmp_path: Path) -> None:
    slow = Slow()

    async def lead() -> None:
        with services(tmp_path) as make:
            service = make()
            service._deciders = Decider(slow), service._deciders[1]
            service._schedulers = Deciding(service._deciders, 0.2, service.now, service.faults, Worker("slow"))
            asked = question()
            answer = await service._schedulers.answer(asked)
            assert answer.by == "Min"
            assert "Slow: no decision after 0.2 s" in service.faults["scheduler"]
            text = " ".join(service.insight.reasons._faulty())
            assert text.startswith("The scheduler does not decide: Slow: no decision after 0.2 s")

    asyncio.run(lead())
    slow.may.set()


def test_a_shadow_that_hangs_or_dies_delays_nobody(file: Path, own: ProcessScheduler) -> None:
    slow = Slow()
    file.write_text("dies")

    async def rounds() -> None:
        asked = question()
        shadows = Shadows({"slow": slow, "own": own, "min": create("scheduler", "min", {})}, decide_seconds=1.0)
        await shadows.watch(asked, asked.answer(), RecentSizes(1.0), 0.0)
        await shadows.watch(asked, asked.answer(), RecentSizes(1.0), 1.0)
        hung, dead, well = shadows.report()
        assert (hung["failed"], hung["dropped"], well["rounds"]) == (1, 1, 2)
        assert dead["failed"] == 1
        assert "ended with code 7" in dead["fault"]
        assert "no decision after 1 s" in hung["fault"]
        shadows.close()

    asyncio.run(rounds())
    slow.may.set()


# ------------------------------------------------------------------------ a real site


def test_a_real_site_outlives_what_its_scheduler_does(file: Path, tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    own = f"naughty:Naughty@file={file}"
    bounds = 'decide_seconds = 2.0\nscheduler_memory_mb = 512\nfallback = "fifo"\n'
    site.config.write_text(CONFIG.replace('"fifo"', f'"{own}"') + bounds + f'shadow = ["{own}"]\n')
    try:
        client = site.serve()
        site.agent("left")
        wait_for(lambda: client.clusters()[0]["connected"])

        def health() -> dict[str, object]:
            return dict(httpx.get(f"{site.url}/api/v1/health").json())

        for how, told in (
            ("dies", "code 7"),
            ("hangs", "no decision after 2 s"),
            ("eats", "512 MB"),
            ("sly", "Lookup"),
        ):
            file.write_text(how)
            (task,) = client.submit(python("pass"))
            assert client.wait(task, PATIENCE).phase.value == "finished"
            found = health()
            assert (found["status"], found["faults"]) == ("degraded", ["scheduler"])
            assert told in str(client._call("GET", "overview").json()["faults"]), "the header of the dashboard"
            metrics = httpx.get(f"{site.url}/metrics", headers=client._headers)
            assert 'tapfinger_faults{what="scheduler"} 1.0' in metrics.text
            file.write_text("good")
            wait_for(lambda: _decided_by(site, client) == "naughty")
            assert health()["status"] == "ok"
        faults = [line for line in client.events() if line["kind"] == "fault"]
        assert 1 <= len(faults) <= 4

        def running() -> list[str]:
            return [pid for pid in os.listdir("/proc") if pid.isdigit() and str(file) in _command(pid)]

        # The scheduler and the shadow, which may rest after its last fault and is then asked in a later round.
        wait_for(lambda: _decided_by(site, client) == "naughty" and len(running()) == 2)
        site.kill("coordinator")
        wait_for(lambda: not running())
    finally:
        site.close()


def _decided_by(site: RealSite, client: object) -> str:
    (task,) = client.submit(python("pass"))  # type: ignore[attr-defined]
    client.wait(task, PATIENCE)  # type: ignore[attr-defined]
    grants = [line for line in client.events() if line["kind"] == "granted" and line["task"] == task]  # type: ignore[attr-defined]
    return str(grants[-1]["data"]["grounds"]["by"])


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
