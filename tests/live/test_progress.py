"""Progress from a task's mouth to schedulers, the store and people; and tasks that say nonsense."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live import protocol
from live.sites import RealSite, python
from live.test_machines import Driven, granted
from typer.testing import CliRunner
from waiting import PATIENCE, wait_for

from tapfinger import progress as progress_module
from tapfinger.cli import app
from tapfinger.core.model import Resources
from tapfinger.evaluation.live_history import read_history
from tapfinger.live.agent.leases import boot_clock, boot_id
from tapfinger.live.agent.machine import LIVELY, Agent, AgentTick, Observed, Progressed, Said
from tapfinger.live.agent.reports import LINES, Following
from tapfinger.live.agent.starts import Began
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.coordinator import machine as coordinator_module
from tapfinger.live.coordinator.inputs import Instructions, Stimulus, Tick
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.progress import ALMOST, SAVE
from tapfinger.live.http.client import Client
from tapfinger.live.protocol.messages import AttemptId, Launch, Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.protocol.wire import decode, encode

# ---------------------------------------------------------------- state machines


def said(progress: float, attempt: int = 1, **more: object) -> RunReport:
    return replace(RunReport((1, attempt), progress=progress, metrics={"loss": 1 - progress}), **more)  # type: ignore[arg-type]


def seen(driven: Driven) -> float | None:
    """Progress of the only running task as schedulers see it."""
    (task,) = driven.machine.snapshot.clusters[0].running
    return task.progress


def test_progress_reaches_schedulers_with_the_next_slot() -> None:
    driven = granted()
    driven.report(0.5, said(0.25))
    assert seen(driven) is None
    driven.tell(Tick(), 1.0)
    assert seen(driven) == 0.25
    driven.report(1.2, said(1.0))
    driven.tell(Tick(), 2.0)
    assert seen(driven) == ALMOST


def test_it_is_saved_now_and_then_and_with_the_end() -> None:
    driven = granted()
    driven.report(0.5, said(0.0))  # it starts, which is saved
    driven.saved.clear()
    for n in range(1, 20):
        driven.report(0.5 + n / 2, said(n / 100))
    assert not driven.saved
    driven.report(0.5 + SAVE, said(0.3))
    assert driven.saved.pop(1).progress == 0.3
    driven.report(11.0, said(0.4))
    assert not driven.saved
    driven.report(11.1, said(1.0, outcome=Outcome("finished", 0)))
    record = driven.saved[1]
    assert (record.progress, record.metrics, record.incomplete, record.warnings) == (1.0, {"loss": 0.0}, False, ())


def test_what_an_old_attempt_said_counts_for_nothing() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", retries=1))
    driven.report(0.5, said(0.7))
    driven.report(0.9, said(0.8, outcome=Outcome("failed", 1), faults=("odd",)))
    record = driven.machine.tasks[1]
    assert (record.progress, record.metrics, record.warnings) == (None, {}, ())
    driven.tell(Tick(), 1.9)
    driven.report(1.96, said(0.9, attempt=1), RunReport((1, 2)))
    driven.tell(Tick(), 2.0)
    assert driven.machine.tasks[1].progress is None
    assert seen(driven) is None
    driven.report(1.1, said(0.1, attempt=2))
    assert driven.machine.tasks[1].progress == 0.1


def test_a_coordinator_that_takes_over_goes_on_with_it() -> None:
    driven = granted()
    driven.report(0.5, said(0.2, ran=1.0))
    driven.report(0.5 + SAVE, said(0.6, ran=5.0))
    new = Driven([driven.saved[1]], epoch=2)
    new.report(0.1, RunReport((1, 1)))  # its agent has nothing new
    new.tell(Tick(), 1.0)
    assert seen(new) == 0.6
    new.report(1.2, said(0.4))  # cannot be
    assert new.machine.tasks[1].progress == 0.6
    new.report(1.3, said(0.7))
    assert new.machine.tasks[1].progress == 0.7


class Notes:
    def __init__(self) -> None:
        self.told: list[tuple[int, Resources, float, float, float]] = []

    def progressed(self, task: TaskRecord, allocation: Resources, before: float, now: float, seconds: float) -> None:
        self.told.append((task.id, allocation, before, now, seconds))


def test_whoever_learns_is_told_how_far_in_how_many_seconds() -> None:
    driven = granted()
    driven.machine.progress.learner = notes = Notes()
    size = Resources(driven.machine.tasks[1].allocation or ())
    for progress, ran in ((0.25, 3.0), (0.25, 4.0), (0.5, 5.0), (0.5, None), (0.6, None), (0.7, 7.0), (0.8, 6.0)):
        driven.report(0.5, said(progress, ran=ran))
    driven.report(9.0, said(1.0, ran=11.0, outcome=Outcome("finished", 0)))
    assert notes.told == [(1, size, 0.0, 0.25, 3.0), (1, size, 0.25, 0.5, 2.0), (1, size, 0.8, 1.0, 5.0)]


def test_nobody_learns_across_a_change_of_size_or_of_coordinator() -> None:
    driven = granted()
    driven.machine.progress.learner = notes = Notes()
    driven.report(0.5, said(0.1, ran=1.0))
    record = driven.machine.tasks[1]
    record.wanted = record.allocation
    driven.report(0.6, said(0.2, ran=2.0))
    record.wanted = None
    driven.report(0.7, said(0.3, ran=3.0))
    driven.report(0.8, said(0.4, ran=4.0))
    assert [told[2:] for told in notes.told] == [(0.0, 0.1, 1.0), (0.3, 0.4, 1.0)]
    new = Driven([record], epoch=2)
    new.machine.progress.learner = notes = Notes()
    new.report(0.1, said(0.5, ran=5.0))
    new.report(0.2, said(0.6, ran=7.0))
    assert [told[2:] for told in notes.told] == [(0.5, 0.6, 2.0)]


def test_an_end_before_all_was_done_is_marked() -> None:
    driven = granted()
    driven.report(0.5, said(0.5))
    driven.report(0.9, said(0.6, outcome=Outcome("finished", 0)))
    record = driven.saved[1]
    assert (record.phase.value, record.incomplete) == ("finished", True)
    assert "0.6" in record.warnings[0]
    assert driven.kinds[-3:] == ["ended", "warning", "finished"]


def test_a_task_that_never_reports_is_not_incomplete() -> None:
    driven = granted()
    driven.report(0.9, RunReport((1, 1), Outcome("finished", 0)))
    assert driven.saved[1].incomplete is False


def test_warnings_are_noted_once_also_after_a_restart() -> None:
    driven = granted()
    driven.report(0.5, said(0.5, faults=("below 0",)))
    driven.report(0.6, said(0.6, faults=("below 0", "above 1")))
    assert driven.kinds.count("warning") == 2
    assert driven.saved[1].warnings == ("below 0", "above 1")
    new = Driven([driven.saved[1]], epoch=2)
    new.report(0.1, said(0.7, faults=("below 0", "above 1")))
    assert "warning" not in new.kinds
    new.report(0.2, said(0.7, faults=tuple(f"{n}" * 1000 for n in range(100))))
    assert len(new.machine.tasks[1].warnings) == 10
    assert max(map(len, new.machine.tasks[1].warnings)) <= 300


def test_an_agent_is_not_believed_more_than_its_tasks() -> None:
    driven = granted()
    for progress in (math.nan, -0.1, 1.1, math.inf):
        driven.report(0.5, said(progress))
    assert driven.machine.tasks[1].progress is None
    many = {f"{n}" * 60: float(n) for n in range(10, 99)}
    driven.report(0.6, said(0.5, metrics={"nan": math.nan, **many}))
    assert len(driven.machine.tasks[1].metrics) == 10
    assert max(map(len, driven.machine.tasks[1].metrics)) == 40


def test_a_task_that_stands_still_is_said_to() -> None:
    driven = granted()
    for second in range(100):
        driven.report(float(second), said(second / 1000))  # a change each second
    assert "warning" not in driven.kinds
    for second in range(100, 300):
        driven.report(float(second), said(0.1))
    (text,) = driven.machine.tasks[1].warnings
    assert re.fullmatch(r"its progress has stood still at 0.1 for 6\d s; it may hang", text)
    driven.report(300.0, said(0.2))
    driven.report(9000.0, said(0.3))  # no word of it for long is another matter: its agent was silent
    assert driven.kinds.count("warning") == 1


def test_words_of_agents_and_coordinators_of_other_versions_are_understood() -> None:
    report = Report("c0", "a", 1, 1, 1, (said(0.5, ran=2.0, faults=("x",)),))
    assert decode(encode(report)) == report
    plain = json.loads(encode(report))
    (run,) = plain["Report"]["runs"]
    for name in ("progress", "metrics", "ran", "faults"):
        del run[name]
    assert decode(json.dumps(plain)) == Report("c0", "a", 1, 1, 1, (RunReport((1, 1)),))
    run["something_new"] = 1
    assert decode(json.dumps(plain)) == Report("c0", "a", 1, 1, 1, (RunReport((1, 1)),))


def test_an_agent_tells_soon_but_not_all_the_time() -> None:
    agent = Agent("c0", "a", 1, 0.0, 5.0)
    agent.handle(AgentTick(), 0.0)
    launch = Launch((1, 1), ("work",), {"cpu": 1.0}, {})
    agent.handle(Orders("c0", "a", 1, 1, 1, 1, 60.0, (launch,)), 0.1)
    reports = []
    for tenth in range(2, 42):
        now = tenth / 10
        told = Progressed({(1, 1): Said(now / 10, {"loss": 1.0}), (9, 9): Said(0.5)})
        reports += [i for i in agent.handle(told, now) if isinstance(i, Report)]
    assert len(reports) == int(4.0 / LIVELY)
    assert [run.id for run in reports[-1].runs] == [(1, 1)]
    assert reports[-1].runs[0].metrics == {"loss": 1.0}
    end = agent.handle(Observed({(1, 1): Outcome("finished", 0)}), 4.2)
    assert isinstance(end[0], Report)
    assert end[0].runs[0].progress == pytest.approx(0.41)


def test_a_look_takes_the_end_of_what_a_task_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    real = progress_module._parsed
    monkeypatch.setattr(progress_module, "_parsed", lambda line: (parsed.append(line), real(line))[1])
    path, following = tmp_path / "reports", Following(tmp_path / "reports", None, taken_over=True)

    def say(*lines: str) -> Said | None:
        with path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        parsed.clear()
        return following.look(0.0, at_once=True)

    def report(percent: int) -> str:
        return json.dumps({"t": 1.0, "progress": percent / 100})

    # An agent of before has read all of this.
    assert say(*[report(1)] * 5000, report(20)) == Said(0.2, {}, None, ())
    assert len(parsed) == LINES
    told = say(*["x"] * 500_000, report(30))
    assert told is not None
    assert (told.progress, len(parsed)) == (0.3, LINES)
    assert any("no reports" in fault for fault in told.faults)
    assert any("more than 200 lines or 65536 bytes at once" in fault for fault in told.faults)
    assert say(report(40)) == replace(told, progress=0.4)
    path.write_text("")
    assert say(*[report(50)] * (LINES - 1), report(60)) == replace(told, progress=0.6)
    assert len(parsed) == LINES, "all of what an ordinary task says"


class Talkative(protocol.Host):
    """Its tasks say which attempt they are."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.told: Counter[AttemptId] = Counter()

    def step(self) -> None:
        if self.agent is not None:
            running = [ident for ident in self.agent.running if ident in self.runs]
            self.told.update(running)
            said = {i: Said(min(1.0, self.told[i] / 50), {"attempt": float(i[1])}) for i in running}
            self.obey(self.agent.handle(Progressed(said), self.clock()))
        super().step()


class Attentive(Coordinator):
    """Looks at what it believes after each stimulus."""

    heard = 0

    def handle(self, stimulus: Stimulus, now: float) -> Instructions:
        done = super().handle(stimulus, now)
        for record in self.tasks.values():
            if record.progress is not None:
                Attentive.heard += 1
                if not record.on_cluster or record.metrics != {"attempt": record.attempt}:
                    raise protocol.Broken(f"task {record.id}, attempt {record.attempt}: {record.metrics}")
        return done


def play_some() -> None:
    for seed in range(20_000, 20_008):
        protocol.play(seed, coordinator=Attentive)


def test_in_no_history_does_an_old_attempt_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "Host", Talkative)
    Attentive.heard = 0
    play_some()
    assert Attentive.heard > 5_000
    # If attempts were not told apart, that would be seen.
    monkeypatch.setattr(coordinator_module, "forget", lambda _record: None)
    with pytest.raises(protocol.Broken):
        play_some()


def test_a_pretended_task_reports_when_it_is_told_to(tmp_path: Path) -> None:
    now = 0.0
    backend = Fake(lambda: now)
    run = Run(Launch((1, 1), ("x",), {"cpu": 1.0}, {"FAKE_SECONDS": "2", "FAKE_REPORTS": "1"}), tmp_path)
    backend.start(run)
    following = Following(run.reports, None)
    heard = []
    for now in (0.5, 1.0, 2.0):
        backend.poll(run)
        heard.append(following.look(now, at_once=True))
    assert [news.progress for news in heard if news is not None] == [0.25, 0.5, 1.0]


# ------------------------------------------------------------------ real processes


#: For tests of one site, which is started once.
ONE_WORKER = pytest.mark.xdist_group("progress site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    made = RealSite(tmp_path_factory.mktemp("progress"))
    try:
        made.up()
        yield made
    finally:
        made.close()


def _said(site: RealSite, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--state", str(site.state)])
    assert result.exit_code == 0, result.output
    return result.output


@ONE_WORKER
def test_progress_is_seen_while_a_task_runs_and_outlives_restarts(site: RealSite) -> None:
    assert site.client is not None
    code = """
import os, time, tapfinger
tapfinger.report(0.1, loss=2.0); time.sleep(0.25); tapfinger.report(0.4, loss=1.5)
while not os.path.exists("go"): time.sleep(0.05)
tapfinger.report(0.8, loss=0.5); time.sleep(0.25)
while not os.path.exists("end"): time.sleep(0.05)
tapfinger.report(1, loss=0.25)
"""
    place = site.state / "place"
    place.mkdir()
    (task,) = site.client.submit(python(code, cwd=str(place), clusters=["left"]))
    info = wait_for(lambda: (i := site.client.show(task)).progress == 0.4 and i)  # type: ignore[union-attr]
    assert info.metrics == {"loss": 1.5}
    assert "███░░░░░  40 %" in _said(site, "list")
    assert "40 %  loss 1.5" in _said(site, "show", str(task))
    view = site.client._call("GET", "overview").json()
    assert view["progress"] == [{"task": task, "attempt": 1, "progress": 0.4, "metrics": {"loss": 1.5}}]
    site.kill("left")
    site.kill("coordinator")
    site.serve()
    site.agent("left")
    wait_for(lambda: site.client.show(task).progress == 0.4)  # type: ignore[union-attr]
    (place / "go").touch()
    wait_for(lambda: site.client.show(task).progress == 0.8)  # type: ignore[union-attr]
    # What it says last, while no agent looks, is read with its end.
    site.kill("left")
    (place / "end").touch()
    site.agent("left")
    info = site.client.wait(task, PATIENCE)
    assert (info.phase.value, info.progress, info.metrics, info.incomplete) == ("finished", 1.0, {"loss": 0.25}, False)
    (row,) = [row for row in site.client.history() if row["task"] == task]
    assert (row["progress"], row["metrics"], row["incomplete"]) == (1.0, {"loss": 0.25}, False)


NONSENSE = """
import os, sys, time, tapfinger
say = lambda p: (tapfinger.report(p), time.sleep(0.21))
for p in (0.2, -3, 2, float("nan"), 0.1, 0.6): say(p)
with open(os.environ["TAPFINGER_REPORT"], "ab") as file: file.write(b"\\xff garbage\\n{}\\n")
say(1)
"""


@ONE_WORKER
def test_nonsense_is_said_and_not_believed(site: RealSite) -> None:
    assert site.client is not None
    (task,) = site.client.submit(python(NONSENSE))
    info = site.client.wait(task, PATIENCE)
    assert (info.phase.value, info.progress, info.incomplete) == ("finished", 1.0, False)
    shown = _said(site, "show", str(task))
    for word in ("below 0", "above 1", "NaN", "backwards", "no reports"):
        assert shown.count(word) == 2, (word, shown)  # as a warning, and in the history
    assert len(info.warnings) == 5


@ONE_WORKER
def test_an_end_without_finishing_teaches_nobody(site: RealSite) -> None:
    assert site.client is not None
    (task,) = site.client.submit(python("import tapfinger; tapfinger.report(0.3)"))
    info = site.client.wait(task, PATIENCE)
    assert (info.phase.value, info.code, info.progress, info.incomplete) == ("finished", 0, 0.3, True)
    assert "(incomplete)" in _said(site, "show", str(task))
    assert _lessons(site.client, task) == 0
    (whole,) = site.client.submit(python("import tapfinger; tapfinger.report(1.0)"))
    assert site.client.wait(whole, PATIENCE).incomplete is False
    assert _lessons(site.client, whole) == 1, "one that did finish teaches"


def _lessons(client: Client, task: int) -> int:
    """What somebody learns who knows of this task alone: other tests share the site, and teach it too."""
    rows = [row for row in client.history() if row["task"] == task]
    known = read_history({**client.site(), "learned": ()}, rows).known
    return sum(of_type.finished for of_type in known.values())


@ONE_WORKER
def test_a_task_that_reports_a_flood_or_hangs_harms_nobody(site: RealSite) -> None:
    assert site.client is not None
    flood = "import os; f = open(os.environ['TAPFINGER_REPORT'], 'wb')\nfor _ in range(64): f.write(b'x' * (1 << 20))"
    chatty = "import sys\nfor _ in range(64): sys.stdout.write('y' * (1 << 20))"
    hangs = "import tapfinger, time; tapfinger.report(0.5); time.sleep(3600)"
    tasks = site.client.submit(python(flood), python(chatty), python(hangs, time_limit=4.0))
    ends = [site.client.wait(task, PATIENCE) for task in tasks]
    assert [info.phase.value for info in ends] == ["finished", "finished", "failed"]
    assert any("bytes at once" in text or "no reports" in text for text in ends[0].warnings)
    assert ends[1].output == 64 << 20
    assert (ends[2].progress, ends[2].incomplete) == (0.5, False)
    assert re.search("longer than 4 s", ends[2].reason)


@ONE_WORKER
def test_run_says_how_far_it_is_when_asked(site: RealSite, tmp_path: Path) -> None:
    code = (
        "import os, tapfinger, time\ntapfinger.report(0.25, loss=0.5)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\ntapfinger.report(1.0)"
    )
    words = ["run", "--state", str(site.state), "--progress", "--max", "cpu=1", "--", sys.executable, "-c", code]
    with subprocess.Popen(
        [sys.executable, "-m", "tapfinger", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        said = run.stderr.readline()
        assert re.search(r"task \d+: \S+ +25 %  loss", said), said + run.stderr.read()
        (tmp_path / "go").touch()
    assert run.returncode == 0


@pytest.mark.parametrize("jump", [-5000.0, 5000.0])
def test_a_wall_clock_that_jumps_does_not_change_how_long_a_task_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Reports carry the wall clock's time; that the clock was set meanwhile shows on the clock since boot."""
    wall, boot = time.time(), boot_clock()
    path = tmp_path / "reports"
    following = Following(path, Began(wall, boot, boot_id()))
    monkeypatch.setattr("tapfinger.live.agent.reports.time.time", lambda: wall + jump + 60.0)
    monkeypatch.setattr("tapfinger.live.agent.reports.boot_clock", lambda: boot + 60.0)
    path.write_text(json.dumps({"t": wall + jump + 60.0, "progress": 0.5}) + "\n")
    said = following.look(0.0)
    assert said is not None
    assert (said.progress, said.ran) == (0.5, 60.0)
    assert following.look(10.0) is None, "time passes, and nothing new was said"
