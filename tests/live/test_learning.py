"""A live site learns how fast its tasks are, from runs that count and from nothing else, and keeps that."""

from __future__ import annotations

import csv
import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import R
from live.sites import CONFIG, RealSite, python
from live.test_insight import ByHand, submit
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Decision, Phase, SchedulerContext, Snapshot
from tapfinger.core.model import Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.errors import ConfigError
from tapfinger.live.config import build_site, load_site
from tapfinger.live.coordinator.decisions import Decider
from tapfinger.live.coordinator.site import Site, seconds_at
from tapfinger.live.http.app import make_app
from tapfinger.live.insight.learning import SAVE, Learning, Lesson, lesson_of
from tapfinger.live.protocol import words
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.messages import Outcome, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Store
from tapfinger.profiles.initial_knowledge import usual_profile
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient

SPEC = TaskSpec(("x",), "elastic")


def elastic(name: str = "elastic", slots: float = 60.0) -> TaskType:
    """Twice as fast with four times the cpus."""
    rates = tuple(math.sqrt(n) / slots for n in range(1, 9))
    return TaskType(name, R((1, 0)), R((8, 0)), SpeedProfile(R((1, 0)), R((8, 0)), rates))


def make_site(*types: TaskType) -> Site:
    clusters = (Cluster("lab", R((16, 0))),)
    return Site(ResourceTypes(), clusters, {t.name: t for t in types or (elastic(),)}, slot_seconds=1.0)


def record(ident: int, cpus: int, took: float, spec: TaskSpec = SPEC, **more: Any) -> TaskRecord:
    base = {"phase": Phase.FINISHED, "attempt": 1, "cluster": "lab", "allocation": (cpus, 0)}
    return TaskRecord(
        ident, spec, "ann", 0.0, **{**base, "started": 100.0 + ident, "ended": 100.0 + ident + took, **more}
    )


def taught(site: Site, *records: TaskRecord) -> Learning:
    learning = Learning(site)
    for one in records:
        learning.saw(one)
    site.believe(learning.digest(1.0).revised)
    return learning


def seconds(site: Site, cpus: int, name: str = "elastic") -> float:
    return seconds_at(site.believed(site.task_types[name]), R((cpus, 0)), 1.0)


# ------------------------------------------------------------------------- what teaches


def test_finished_runs_teach_their_type_and_all_its_sizes() -> None:
    site = make_site(elastic(), elastic("other"))
    own = TaskSpec(("x",), "elastic", minimum={"cpu": 2}, maximum={"cpu": 4})
    site.accepted(first := site.task(1, own, 0), "me")
    narrowed = first.type
    taught(site, *(record(n, 4, 15.0, own) for n in range(1, 9)))
    assert seconds(site, 4) == pytest.approx(15.0, rel=0.03), "configured were 30 s"
    assert seconds(site, 8) == pytest.approx(15.0 / math.sqrt(2.0), rel=0.15), "others follow"
    assert site.believed(narrowed).profile.rate((4, 0)) == site.believed(site.task_types["elastic"]).profile.rate(
        (4, 0)
    )
    assert site.believed(narrowed).minimum == (2, 0)
    assert site.believed(site.task_types["other"]) is site.task_types["other"]
    site.accepted(second := site.task(2, replace(own, maximum={"cpu": 8}), 0), "me")
    later = second.type
    assert site.believed(later).profile.rate((4, 0)) == site.believed(narrowed).profile.rate((4, 0))
    assert [t.name for t in site.context().task_types] == ["elastic", "other", narrowed.name, later.name]


@pytest.mark.parametrize(
    "more",
    [
        {"phase": Phase.FAILED},
        {"phase": Phase.CANCELLED},
        {"phase": Phase.LOST},
        {"phase": Phase.QUEUED},
        {"phase": Phase.RUNNING},
        {"resized": 1},
        {"started": None},
        {"allocation": (9, 0)},
        {"allocation": (4,)},
    ],
)
def test_what_is_no_whole_run_does_not(more: dict[str, Any]) -> None:
    site = make_site()
    learning = taught(site, *(record(n, 4, 3.0, **more) for n in range(1, 9)))
    assert site.believed(site.task_types["elastic"]) is site.task_types["elastic"]
    assert learning.known["elastic"].finished == 0


@pytest.mark.parametrize("more", [{"incomplete": True}, {"warnings": ("it went backwards",)}])
def test_a_run_that_ended_without_finishing_does_not(more: dict[str, Any]) -> None:
    assert lesson_of(record(1, 4, 3.0)).allocation is not None
    assert lesson_of(record(1, 4, 3.0, **more)).allocation is None


def test_progress_counts_until_the_run_ends_and_then_its_duration_does() -> None:
    site = make_site()
    learning = Learning(site)
    running = record(1, 4, 0.0, phase=Phase.RUNNING, ended=None)
    for n in range(5):  # ten times as fast as configured: 0.1 in 0.3 s
        learning.progressed(running, (4, 0), n / 10, (n + 1) / 10, 0.3)
    site.believe(learning.digest(1.0).revised)
    assert seconds(site, 4) < 6.0
    learning.saw(record(1, 4, 30.0))
    site.believe(learning.digest(2.0).revised)
    assert seconds(site, 4) == pytest.approx(30.0, rel=0.03), "as configured, after all"
    assert learning.known["elastic"].runs == {3: pytest.approx(1.0)}


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED, Phase.LOST, Phase.QUEUED])
def test_progress_of_a_run_that_comes_to_nothing_is_forgotten(phase: Phase) -> None:
    site = make_site()
    learning = Learning(site)
    running = record(1, 4, 0.0, phase=Phase.RUNNING, ended=None)
    learning.progressed(running, (4, 0), 0.0, 0.5, 1.0)
    learning.saw(record(1, 4, 9.0, phase=phase))
    found = learning.digest(2.0)
    assert not found.revised
    assert learning.known["elastic"].runs == {}


def test_a_resized_task_teaches_by_its_progress_size_by_size() -> None:
    site = make_site()
    learning = Learning(site)
    running = record(1, 1, 0.0, phase=Phase.RUNNING, ended=None)
    for begin, end, cpus, took in ((0.0, 0.25, 1, 7.5), (0.25, 0.5, 1, 7.5), (0.5, 1.0, 4, 7.5)):
        learning.progressed(running, (cpus, 0), begin, end, took)
    learning.saw(record(1, 4, 22.5, resized=1))
    site.believe(learning.digest(2.0).revised)
    assert learning.known["elastic"].runs == {0: pytest.approx(0.5), 3: pytest.approx(0.5)}
    assert seconds(site, 1) == pytest.approx(30.0, rel=0.1)
    assert seconds(site, 4) == pytest.approx(15.0, rel=0.1)


@pytest.mark.parametrize(
    ("before", "now", "took"),
    [(0.5, 0.4, 1.0), (0.0, 1.5, 1.0), (-0.1, 0.5, 1.0), (0.0, math.nan, 1.0), (0.0, 0.5, 0.0), (0.0, 0.5, math.inf)],
)
def test_progress_that_cannot_be_teaches_nothing(before: float, now: float, took: float) -> None:
    learning = Learning(make_site())
    learning.progressed(record(1, 4, 0.0, phase=Phase.RUNNING), (4, 0), before, now, took)
    assert not learning.digest(1.0).revised
    assert learning.known["elastic"].runs == {}


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.FAILED, Phase.QUEUED])
def test_what_is_not_listened_to_is_forgotten_when_it_ends(phase: Phase) -> None:
    learning = Learning(make_site())
    running = record(1, 4, 0.0, phase=Phase.RUNNING, ended=None)
    learning.progressed(running, (4, 0), 0.0, 5e-324, 1e300)
    assert [event.kind for event in learning.digest(1.0).events] == ["warning"]
    learning.progressed(running, (4, 0), 0.0, 0.5, 1.0)
    learning.saw(record(1, 4, 9.0, phase=phase))
    assert not learning.digest(2.0).revised
    assert learning.known["elastic"].runs == {}, "nor is its end"
    assert not learning._unteachable


def test_what_ended_while_no_coordinator_was_there_teaches_nothing() -> None:
    learning = Learning(make_site())
    learning.take_up([], [], 150.0)
    learning.saw(record(1, 4, 52.0))  # started at 101, and told of at 153
    learning.saw(record(2, 4, 70.0))  # told of at 172: its agent was there
    learning.saw(record(53, 4, 1.0))  # started at 153
    learning.digest(200.0)
    assert learning.known["elastic"].finished == 2


# ------------------------------------------------------------------------------- drift


def test_a_change_of_speed_is_told_and_followed() -> None:
    site, rng = make_site(), np.random.default_rng(20_010)
    learning = Learning(site)
    for n in range(1, 41):
        learning.saw(record(n, 1 + n % 4, 60.0 / math.sqrt(1 + n % 4) * math.exp(0.03 * rng.normal())))
    assert learning.digest(500.0).events == ()
    for n in range(41, 56):
        learning.saw(record(n, 1 + n % 4, 120.0 / math.sqrt(1 + n % 4) * math.exp(0.03 * rng.normal())))
    found = learning.digest(600.0)
    (line,) = found.events
    assert (line.kind, line.at) == ("profile drift", 600.0)
    assert words.detail(line).startswith("elastic: tasks take 1.9")
    assert words.detail(line).endswith(" since 1970-01-01 00:03:44 UTC"), "when the first slower one ended"
    site.believe(found.revised)
    assert seconds(site, 1) == pytest.approx(120.0, rel=0.05)
    assert seconds(site, 8) == pytest.approx(120.0 / math.sqrt(8), rel=0.15), "never seen, and follows"
    assert learning.known["elastic"].drift == (pytest.approx(224.0, abs=1.0), pytest.approx(2.0, rel=0.05))


# --------------------------------------------------------------------------- what is kept


def test_what_is_kept_is_written_seldom_and_brings_it_all_back() -> None:
    site = make_site()
    learning = Learning(site)
    learning.saw(record(1, 2, 20.0))
    assert learning.digest(1.0).learned == ()
    assert not learning.due(SAVE - 0.1)
    assert learning.due(SAVE + 0.1)
    learning.progressed(record(9, 1, 0.0, phase=Phase.RUNNING), (1, 0), 0.0, 0.5, 2.0)
    (row,) = learning.digest(SAVE + 0.1).learned
    assert (row.type, row.at) == ("elastic", 121.0)
    again = Learning(make_site())
    found = again.take_up([row], [], 50.0)
    assert again.known["elastic"].runs == {1: 1.0}, "what runs still report is not kept"
    assert found.revised[0].profile.rate((2, 0)) == pytest.approx(1 / 20.0, rel=0.15)


def test_tasks_that_finished_since_and_types_of_which_nothing_was_kept_are_learnt_from_history() -> None:
    site = make_site(elastic(), elastic("other"))
    first = taught(site, record(1, 2, 20.0))
    (row,) = first.last(1000.0)
    lessons = [lesson_of(record(n, 2, 20.0)) for n in (1, 2)] + [Lesson((5, 1), "other", R((4, 0)), 9.0, at=5.0)]
    second = Learning(make_site(elastic(), elastic("other")))
    second.take_up([row], [one for one in lessons if one], 50.0)
    assert second.known["elastic"].finished == 2, "the first is part of what was kept"
    assert second.known["other"].finished == 1


def test_another_configured_profile_is_another_beginning() -> None:
    first = taught(make_site(), *(record(n, 2, 20.0) for n in range(1, 5)))
    (row,) = first.last(1000.0)
    second = Learning(make_site(elastic(slots=90.0)))
    found = second.take_up([row], filter(None, [lesson_of(record(3, 2, 20.0))]), 50.0)
    assert [line.kind for line in found.events] == ["profile restarted"]
    assert "elastic" in words.detail(found.events[0])
    assert second.known["elastic"].finished == 0
    (new,) = second.last(60.0)
    assert new.digest != row.digest


def test_the_store_keeps_one_row_for_each_type(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.save([], [], learned=[Learned("a", "1", 2.0, {"x": [1]}), Learned("b", "1", 2.0, {})])
    store.save([], [], learned=[Learned("a", "2", 3.0, {"x": [2]})])
    assert store.learned() == [Learned("a", "2", 3.0, {"x": [2]}), Learned("b", "1", 2.0, {})]
    store.close()


# -------------------------------------------------------------------------- for schedulers


class Listening:
    """Notes what it is told of types."""

    one_shot = True

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self.saw: list[float] = []

    def reset(self, context: SchedulerContext) -> None:
        self.told.append(("reset", context.task_types[0].profile.rates[0]))

    def learn(self, context: SchedulerContext) -> None:
        self.told.append(("learn", context.task_types[0].profile.rates[0]))

    def decide(self, snapshot: Snapshot) -> Decision:
        self.saw += [task.type.profile.rates[0] for task in snapshot.queue]
        return Decision()


def test_schedulers_hear_of_new_beliefs_once_and_see_them_in_every_task() -> None:
    from tapfinger.core.events import TaskArrived
    from tapfinger.live.coordinator.rounds import Rounds

    site, scheduler = make_site(), Listening()
    rounds = Rounds(site, scheduler, 0)
    rounds.take(TaskArrived(0, site.task(1, SPEC, 0)))
    for _ in range(2):
        question = rounds.ask()
        assert question is not None
        question.answer()
    taught(site, *(record(n, 1, 6.0) for n in range(1, 9)))
    for _ in range(2):
        question = rounds.ask()
        assert question is not None
        question.answer()
    old, new = 1 / 60.0, pytest.approx(1 / 6.0, rel=0.05)
    assert scheduler.told == [("reset", old), ("learn", new)]
    assert scheduler.saw == [old, old, new, new]
    site.learn = False
    assert site.context().task_types[0].profile.rates[0] == old


def test_a_hundred_clusters_and_three_hundred_types_are_learnt_quickly() -> None:
    types = [elastic(f"t{n}", 20.0 + n) for n in range(100)]
    clusters = tuple(Cluster(f"c{n}", R((16, 0))) for n in range(100))
    site = Site(ResourceTypes(), clusters, {t.name: t for t in types}, slot_seconds=1.0)
    for n in range(100):
        for most in (4, 6):
            task = site.task(1000 * most + n, TaskSpec(("x",), f"t{n}", maximum={"cpu": most}), 0)
            site.accepted(task, "me")
    assert len(site.task_types) == 300
    learning, decider = Learning(site), Decider(create("scheduler", "greedy", {}))
    decider.know(site.context())
    for n in range(1000):
        learning.saw(record(n, 1 + n % 8, 5.0, TaskSpec(("x",), f"t{n % 100}")))
    began = time.thread_time()
    found = learning.digest(1.0)
    digested = time.thread_time() - began
    assert len(found.revised) == 300
    began = time.thread_time()
    site.believe(found.revised)
    context = site.context()
    in_loop = time.thread_time() - began
    decider.know(context)
    assert digested < 2.0
    assert in_loop < 0.05, "this is what nobody else can be answered in"


# ------------------------------------------------------------------------ over HTTP


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return begin(tmp_path)


def begin(folder: Path, config: str = CONFIG) -> Service:
    path = folder / "site.toml"
    path.write_text(config)
    scenario, live = load_site(path)
    made = [create("scheduler", name, {}) for name in ("min", "fifo")]
    return Service(folder / "state", build_site(scenario), live, made[0], made[1])


def client_of(service: Service) -> TestClient:
    return TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"})


def test_a_service_learns_keeps_it_and_begins_again_with_it(tmp_path: Path, service: Service) -> None:
    with client_of(service) as http:
        with ByHand(http) as agent:
            task = submit(http)
            agent.starts(task)
            agent.say(RunReport((task, 1)))
            wait_for(lambda: http.get(f"/api/v1/tasks/{task}").json()["phase"] == "running")
            agent.say(RunReport((task, 1), Outcome("finished", 0)))
            wait_for(lambda: http.get("/api/v1/profiles").json()["types"][0]["runs"] == 1)
        (row,) = http.get("/api/v1/profiles").json()["types"]
        assert (row["name"], row["usual"], row["sizes"]) == ("demo", {"cpu": 1.0, "gpu": 0.0}, 1)
        assert row["configured_seconds"] == 10.0
        assert row["seconds"] < 5.0, "it took a moment"
        shown = http.get("/api/v1/profiles/demo").json()
        assert [cell["allocation"]["cpu"] for cell in shown["cells"]] == [1.0]
        every = http.get("/api/v1/profiles/demo", params={"all": True}).json()["cells"]
        assert [cell["runs"] for cell in every] == [1.0, 0.0, 0.0, 0.0]
        assert http.get("/api/v1/profiles/dem").status_code == 404
        placement = http.get(f"/api/v1/tasks/{task}/explain").json()["placement"]
        assert placement["expected_seconds"] == pytest.approx(row["seconds"])
        assert placement["measured_factor"] < 0.5
    again = begin(tmp_path)
    assert [(r.type, r.state["finished"]) for r in again.store.learned()] == [("demo", 1)]
    with client_of(again) as http:
        (after,) = http.get("/api/v1/profiles").json()["types"]
        assert (after["runs"], after["seconds"]) == (1, pytest.approx(row["seconds"]))
    other = begin(tmp_path, CONFIG.replace("seconds = 10", "seconds = 20"))
    with client_of(other) as http:
        (after,) = http.get("/api/v1/profiles").json()["types"]
        assert (after["runs"], after["seconds"]) == (0, 20.0)
        kinds = [line["kind"] for line in http.get("/api/v1/events").json()["events"]]
        assert "profile restarted" in kinds


def test_schedulers_of_a_site_that_does_not_learn_know_what_is_configured(tmp_path: Path) -> None:
    service = begin(tmp_path, CONFIG + "learn = false\n")
    with client_of(service) as http:
        assert http.get("/api/v1/profiles").json()["learn"] is False
        service.site.believe([replace(service.site.task_types["demo"])])
        assert service.site.context().task_types[0] is service.site.task_types["demo"]


def test_a_type_without_a_speed_is_like_the_others_and_only_at_live_sites(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    new = '[[task_types]]\nname = "new"\nminimum = {cpu = 1, gpu = 0}\nmaximum = {cpu = 4}\n'
    path.write_text(CONFIG.replace("[live]", new + "[live]"))
    scenario, _ = load_site(path)
    site = build_site(scenario)
    profile = site.task_types["new"].profile
    assert profile.rates == pytest.approx(site.task_types["demo"].profile.rates)
    assert profile.doubt is not None
    assert min(profile.doubt) > 1.0
    from tapfinger.workloads.world import build_world

    with pytest.raises(ConfigError, match=r"task_types\.new\.speed is not known, and only live sites learn it"):
        build_world(scenario)
    path.write_text(CONFIG.replace('speed = {kind = "amdahl", seconds = 10, parallel = {cpu = 0.5}}', ""))
    alone = build_site(load_site(path)[0]).task_types["demo"]
    assert alone.profile == usual_profile(alone, ())


# ------------------------------------------------------------------- with real processes


def test_a_real_site_learns_and_exports_what_scenarios_read(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tapfinger.cli import app

    site = RealSite(tmp_path)
    try:
        client = site.up()
        tasks = client.submit(*[python("import time; time.sleep(0.5)") for _ in range(6)])
        tasks += client.submit(python("raise SystemExit(3)"))
        for task in tasks:
            client.wait(task, PATIENCE)
        row = wait_for(lambda: next((r for r in client.profiles() if r["runs"] == 6), None))
        assert 0.3 < row["seconds"] < 3.0, "configured were 10"
        assert client.explain(tasks[0])["placement"]["measured_factor"] < 0.5

        def run(*words: str) -> str:
            result = CliRunner().invoke(app, ["profiles", *words, "--state", str(site.state)])
            assert result.exit_code == 0, result.output
            return result.output

        assert "demo" in run("list")
        assert "6 runs seen" in run("show", "demo")
        run("plot", "demo", "--out", str(tmp_path / "demo.png"))
        assert (tmp_path / "demo.png").stat().st_size > 5000
        run("export", "demo", "--out", str(tmp_path / "demo.csv"), "--all")
        with (tmp_path / "demo.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [r["cpu"] for r in rows] == ["1", "2", "3", "4"]
        assert float(rows[0]["seconds"]) == pytest.approx(row["seconds"], rel=0.2)
        site.kill("coordinator")
        client = site.serve()
        (after,) = client.profiles()
        assert after["runs"] == 6
        assert after["seconds"] == pytest.approx(row["seconds"], rel=0.3)
    finally:
        site.close()
