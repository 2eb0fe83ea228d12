"""What people use of live clusters who are not scheduled there: asked of backends, reported, and left free."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.sites import RealSite
from live.test_machines import SPEC, Driven
from waiting import wait_for

from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.agent import others as others_module
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.machine import LIVELY, Agent, Condition
from tapfinger.live.agent.others import EVERY, OthersWatch
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import BackendContext
from tapfinger.live.backends.bystanders import Bystanders, CoreTimes, core_times
from tapfinger.live.backends.check import faults
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.coordinator.agent_links import used_by_others
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.insight.explain import verdicts
from tapfinger.live.protocol.messages import Report
from tapfinger.live.protocol.wire import decode, encode

TYPES = ResourceTypes()


def report(driven: Driven, now: float, others: Mapping[str, float] | None) -> None:
    driven.seq += 1
    driven.tell(Report("c0", "a", 1, driven.seq, 1, others=dict(others) if others is not None else None), now)


def free(driven: Driven) -> Any:
    return driven.machine.clusters(0.0)[0]["free"]


# -------------------------------------------------------------------- coordinator


def test_what_others_use_is_free_for_nobody() -> None:
    driven = Driven()
    report(driven, 0.0, None)
    assert (free(driven), driven.machine.clusters(0.0)[0]["others"]) == ({"cpu": 8.0, "gpu": 4.0}, None)
    report(driven, 1.0, {"cpu": 6.2})
    assert free(driven) == {"cpu": 1.0, "gpu": 4.0}, "whole units, rounded up"
    assert driven.machine.clusters(0.0)[0]["others"] == {"cpu": 7.0, "gpu": 0.0}
    driven.tell(Submit([replace(SPEC, type="large")]), 1.1)
    driven.tell(Tick(), 1.2)
    snapshot, site = driven.machine.snapshot, driven.site
    (view,) = snapshot.queue
    text = verdicts(view, snapshot, site.resources, site.clusters, {}, {}, 1.0)[0].text
    assert text == "it needs at least 3 cpu, 1 gpu; 1 cpu, 4 gpu free of 8 cpu, 4 gpu, others use 7 cpu"
    report(driven, 2.0, {"cpu": 1.0})
    driven.tell(Tick(), 2.1)
    assert driven.machine.tasks[1].on_cluster
    report(driven, 3.0, {"cpu": 1e300, "gpu": 2.0, "licences": 3.0})
    assert free(driven)["cpu"] == 0.0, "they never use more than there is"
    report(driven, 4.0, None)
    assert driven.machine.clusters(0.0)[0]["others"] == {"cpu": 0.0, "gpu": 0.0}


def test_a_report_that_says_the_same_changes_nothing() -> None:
    driven = Driven()
    report(driven, 0.0, {"cpu": 2.0})
    driven.tell(Tick(), 0.1)
    assert not driven.machine.wants_round
    for now, used in ((1.0, {"cpu": 2.0}), (2.0, {"cpu": 1.4})):
        report(driven, now, used)
        assert not driven.machine.wants_round
    report(driven, 3.0, {"cpu": 2.1})
    assert driven.machine.wants_round


def test_amounts_are_of_whole_units_and_bounded() -> None:
    types = ResourceTypes(("cpu", "memory"), (1.0, 4.0))
    found = used_by_others({"cpu": 0.1 + 0.2 + 0.7, "memory": 9.0}, Resources((8, 16)), types)
    assert found == Resources((1, 3))


@pytest.mark.parametrize("used", [{"cpu": -1.0}, {"cpu": 1e300}, {"cpu": math.nan}, {str(n): 1.0 for n in range(1001)}])
def test_reports_have_bounds(used: dict[str, float]) -> None:
    with pytest.raises(CoordinatorError):
        decode(encode(Report("c0", "a", 1, 1, 1, others=used)))
    fine = Report("c0", "a", 1, 1, 1, others={"cpu": 1.5})
    assert decode(encode(fine)) == fine


def test_agents_of_before_do_not_tell() -> None:
    text = encode(Report("c0", "a", 1, 1, 1)).replace(',"others":null', "")
    assert "others" not in text
    assert decode(text) == Report("c0", "a", 1, 1, 1)


# -------------------------------------------------------------------------- agent


def test_the_agent_reports_a_change_soon() -> None:
    agent = Agent("c0", "a", 1, 0.0, 5.0)
    agent.report(0.0)
    assert not agent.handle(Condition(1.0, others={"cpu": 2.0}), 0.1)
    (said,) = agent.handle(Condition(1.0, others={"cpu": 2.0}), LIVELY)
    assert isinstance(said, Report)
    assert said.others == {"cpu": 2.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Says:
    """A backend that only says what others use."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def others(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def answered(watch: OthersWatch, clock: Clock) -> Mapping[str, float] | None:
    """Let the backend be asked once more, and answer."""
    clock.now += EVERY
    watch.step()
    watch.workers.settle(10.0)
    return watch.amounts


def test_a_backend_is_asked_every_few_seconds() -> None:
    clock, backend = Clock(), Says({"cpu": 1}, {"cpu": 3})
    watch = OthersWatch(backend, TYPES, clock)
    assert answered(watch, clock) == {"cpu": 1.0}
    for _ in range(20):
        watch.step()
    assert (watch.amounts, backend.asked) == ({"cpu": 1.0}, 1)
    assert answered(watch, clock) == {"cpu": 3.0}
    assert answered(watch, clock) is None


@pytest.mark.parametrize(
    "bad",
    [
        ValueError("no"),
        SystemExit(1),
        {"cpu": -1},
        {"cpu": math.inf},
        {"licences": 1},
        {"cpu": "many"},
        {"cpu": None},
        7,
    ],
)
def test_a_wrong_answer_changes_nothing_but_a_warning(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = OthersWatch(Says({"cpu": 2}, bad, bad, {"cpu": 1}), TYPES, clock)
    for expected in (2.0, 2.0, 2.0, 1.0):
        assert answered(watch, clock) == {"cpu": expected}
    warned = [record for record in caplog.records if "what it said last still counts" in record.message]
    assert len(warned) == 1, "the same is said once"


def test_one_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(others_module, "HANGING", 0.0)
    clock, go = Clock(), threading.Event()

    class Hangs(Says):
        def others(self) -> Any:
            return go.wait(30.0) and super().others()

    backend = Hangs({"cpu": 1})
    watch = OthersWatch(backend, TYPES, clock)
    began = time.monotonic()
    for _ in range(5):
        clock.now += EVERY
        watch.step()
    wait_for(lambda: watch.step() or "has not answered" in caplog.text)
    assert (time.monotonic() - began < 10.0, backend.asked, watch.amounts) == (True, 0, None)
    go.set()
    wait_for(lambda: watch.step() or watch.amounts)
    assert backend.asked == 1


def test_a_host_tells_what_its_backend_says(tmp_path: Path) -> None:
    host = Host(BackendContext(tmp_path, "c0"), Fake(people={"cpu": 2.0}), Devices({}), 0.0)
    try:
        told = wait_for(lambda: next((r.others for r in host.step() if r.others is not None), None))
        assert told == {"cpu": 2.0}
    finally:
        host.close()


def test_backends_are_checked(tmp_path: Path) -> None:
    def told(people: Any, place: str) -> list[str]:
        (tmp_path / place).mkdir()
        return list(faults(lambda: Fake(people=people), tmp_path / place, outlives=False))

    assert told({"cpu": 1.0}, "fine") == []
    (fault,) = told({"cores": 1.0}, "wrong")
    assert fault.startswith("others() must return natural amounts by resource, or None: BackendError: others() speaks")


# ------------------------------------------------------------------------ process


def readings(*rows: tuple[float, float, float, int]) -> Callable[[], CoreTimes]:
    """Time, seconds of all and of our own, and a supervisor of an earlier agent (0: none)."""
    left: Iterator[CoreTimes] = iter(
        CoreTimes(at, busy, own, frozenset([pid] if pid else [])) for at, busy, own, pid in rows
    )
    return lambda: next(left)


def test_cores_that_are_busy_with_something_else_are_of_others() -> None:
    rows = [(5.0 * n, 15.0 * n, 5.0 * n, 0) for n in range(3)]
    watch = Bystanders(0, readings(*rows))
    assert [watch.look() for _ in rows] == [None, 2, 2]
    spared = Bystanders(2, readings(*rows))
    assert [spared.look() for _ in rows] == [None, 0, 0], "two cores are given to no task anyway"


def test_what_cannot_be_known_counts_for_nothing() -> None:
    rows = [
        (0.0, 0.0, 0.0, 7),
        (5.0, 5.0, 0.0, 7),
        (10.0, 25.0, 0.0, 0),  # the task of an earlier agent has ended, and nobody knows its time
        (15.0, 40.0, -9.0, 0),  # a process ended while it was read
        (15.1, 45.0, 0.0, 0),  # too soon
        (20.0, 45.0, 0.0, 0),
    ]
    watch = Bystanders(0, readings(*rows))
    assert [watch.look() for _ in rows] == [None, 1, 1, 1, 1, 1]


def test_the_use_is_smoothed_and_whole() -> None:
    rows = [(5.0 * n, 20.0 * max(0, n - 1), 0.0, 0) for n in range(15)]
    watch = Bystanders(0, readings(*rows))
    said = [watch.look() for _ in rows]
    assert said[:3] == [None, 0, 1]
    assert said[-1] == 4
    assert sorted(said[1:], key=str) == said[1:], "it grows step by step"


def test_processes_of_this_machine_are_told_apart() -> None:
    cores = os.sched_getaffinity(0)
    burns = [
        sys.executable,
        "-c",
        "import time; end = time.process_time() + 1.0\nwhile time.process_time() < end: pass",
    ]
    before = core_times(cores, [])
    subprocess.run(burns, check=True)  # as a task: what has ended counts as well
    after = core_times(cores, [1 << 22, os.getpid()])
    assert after.own - before.own >= 0.9
    assert after.busy - before.busy >= 0.9
    assert after.inherited == {1 << 22}, "a child is not counted twice"


def test_the_process_backend_observes_only_if_asked_to(tmp_path: Path) -> None:
    context = BackendContext(tmp_path, "c0", {"cpu": 1.0, "gpu": 0.0})
    plain, observing = Process(), Process(observe_others=True)
    for backend in (plain, observing):
        backend.open(context)
    assert plain.others() is None
    assert observing.others() is None, "not before there are two readings to compare"
    time.sleep(1.1)
    said = observing.others()
    assert said is not None
    assert (said.keys(), said["cpu"] >= 0.0) == ({"cpu"}, True)
    nothing = ResourceTypes(("gpu",), (1.0,))
    with pytest.raises(ConfigError, match="observe_others counts cores"):
        Process(observe_others=True).open(replace(context, resources=nothing))


# --------------------------------------------------------------------- a real site


def test_a_site_shows_them(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    site.config.write_text(site.config.read_text() + '[live.backends.left]\nkind = "fake"\npeople = {cpu = 2.5}\n')
    try:
        client = site.up()
        left = wait_for(lambda: (found := client.clusters()[0])["others"] and found)
        assert (left["others"], left["free"]) == ({"cpu": 3.0, "gpu": 0.0}, {"cpu": 1.0, "gpu": 0.0})
        assert client.clusters()[1]["others"] is None
    finally:
        site.close()
