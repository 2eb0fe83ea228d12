"""Why tasks wait, when they will start, what others would have done, and metrics of it all."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import R, constant_type
from live.sites import CONFIG
from live.test_machines import Driven
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import ClusterView, Decision, Phase, SchedulerContext, Snapshot, TaskView
from tapfinger.core.model import Cluster, ResourceTypes
from tapfinger.live.config import build_site, load_site
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.http.app import make_app
from tapfinger.live.insight import recent_sizes as recent_sizes_module
from tapfinger.live.insight.explain import summary, verdicts
from tapfinger.live.insight.forecast import forecast
from tapfinger.live.insight.recent_sizes import RecentSizes
from tapfinger.live.insight.shadow import Shadows
from tapfinger.live.protocol.messages import Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.live.protocol.wire import decode, encode
from tapfinger.live.service.service import Service
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient

#: Takes ten slots whatever it gets.
TEN = constant_type((2, 0), (4, 2), 10.0, "ten")
RESOURCES = ResourceTypes()


def waiting(ident: int, eligible: tuple[int, ...] = (0,), kind: object = TEN) -> TaskView:
    return TaskView(ident, kind, 0, eligible, Phase.QUEUED)  # type: ignore[arg-type]


def running(ident: int, size: tuple[int, int], elapsed: int) -> TaskView:
    return TaskView(ident, TEN, 0, (0,), Phase.RUNNING, 0, R(size), elapsed)


def cluster(
    index: int, free: tuple[int, int], *on: TaskView, capacity: tuple[int, int] = (4, 2), up: bool = True
) -> ClusterView:
    return ClusterView(index, f"c{index}", R(capacity), R(free), on, (), up, None)


# ------------------------------------------------------------------------ explain


def test_every_cluster_says_why_a_task_is_not_there() -> None:
    task = waiting(9, (0, 1, 2, 4))
    clusters = (
        cluster(0, (1, 2), running(3, (3, 0), 1)),
        cluster(1, (1, 1), capacity=(1, 1)),
        cluster(2, (4, 2), up=False),
        cluster(3, (4, 2)),
        cluster(4, (4, 2)),
    )
    snapshot = Snapshot(0, 0, clusters, (task,))
    configured = [Cluster(c.name, c.capacity) for c in clusters]
    found = verdicts(task, snapshot, RESOURCES, configured, {"c2": "it is drained"}, {(9, 4): 0.25}, 1.0)
    larger = [Cluster(c.name, R((4, 2))) for c in clusters]
    assert verdicts(task, snapshot, RESOURCES, larger, {}, {}, 1.0)[1].text == (
        "it needs at least 2 cpu; 4 cpu, 2 gpu are configured, but its agent has 1 cpu, 1 gpu: correct one of them"
    )
    assert [v.verdict for v in found] == ["does not fit now", "never fits", "closed", "not eligible", "fits"]
    assert found[0].text == "it needs at least 2 cpu; 1 cpu, 2 gpu free of 4 cpu, 2 gpu, held by task 3"
    assert found[1].text == "it needs at least 2 cpu, and the whole cluster has 1 cpu, 1 gpu"
    assert found[2].text == "it is drained"
    assert (found[4].probability, "25.0 %" in found[4].text) == (0.25, True)
    assert summary(task, found, 0) == ("Task 9 waits: it could start on c4, and the scheduler has not started it yet.")
    assert summary(task, found[:4], 2) == (
        "Task 9 waits: there is no room on c0, and c2 takes no tasks now; 2 later tasks were started before it."
    )
    assert summary(task, found[1:3], 1).endswith("c2 takes no tasks now; 1 later task was started before it.")


def test_nodes_are_named_by_their_cluster_and_kind() -> None:
    task, big = waiting(9, (0, 1, 2)), waiting(8, (0, 1), constant_type((2, 2), (4, 2), 10.0, "big"))
    lab = [Cluster(f"lab:{n}", R((4, 2 - n)), "lab", kind) for n, kind in enumerate(("a100", "t4"))]
    configured = [*lab, Cluster("c2", R((4, 2)), "", "t4")]
    views = [
        replace(cluster(0, (0, 2)), name="lab:0", others=R((4, 0))),
        replace(cluster(1, (1, 1), running(3, (3, 0), 1), capacity=(4, 1)), name="lab:1", others=R((0, 0))),
        cluster(2, (4, 2)),
    ]
    found = verdicts(task, Snapshot(0, 0, tuple(views), (task,)), RESOURCES, configured, {}, {}, 1.0)
    assert [(v.kind, v.part_of) for v in found] == [("a100", "lab"), ("t4", "lab"), ("t4", "")]
    assert found[0].text == "it needs at least 2 cpu; 2 gpu free of 4 cpu, 2 gpu, others use 4 cpu"
    assert found[1].text == "it needs at least 2 cpu; 1 cpu, 1 gpu free of 4 cpu, 1 gpu, held by task 3"
    assert summary(task, found[:2], 0) == "Task 9 waits: there is no room on lab (all 2 nodes)."
    found = verdicts(big, Snapshot(0, 0, tuple(views), (big,)), RESOURCES, configured, {}, {}, 1.0)
    assert found[1].text == "it needs at least 2 cpu, 2 gpu, and the whole node has 4 cpu, 1 gpu"
    assert summary(big, found, 0) == "Task 8 waits: there is no room on lab:0.", "the other node is another matter"


# ----------------------------------------------------------------------- forecast


def test_the_queue_is_played_forward() -> None:
    # Four cpus: one task has 2 s left, the other 7 s; then the four that wait take 10 s each, two at a time.
    on = (running(1, (2, 0), 8), running(2, (2, 0), 3))
    queue = tuple(waiting(ident) for ident in (3, 4, 5, 6))
    recent_sizes = RecentSizes(1.0, sizes={"ten": R((2, 0))})
    found = forecast(Snapshot(8, 0, (cluster(0, (0, 2), *on),), queue), recent_sizes)
    assert found.starts == {3: 2.0, 4: 7.0, 5: 12.0, 6: 17.0}
    assert found.of(6, 3)[0] == 17.0
    assert found.clusters == dict.fromkeys((3, 4, 5, 6), 0)


def test_a_task_that_fits_does_not_wait_for_one_that_does_not() -> None:
    wide = constant_type((4, 0), (4, 0), 5.0, "wide")
    queue = (waiting(2, kind=wide), waiting(3))
    found = forecast(Snapshot(8, 0, (cluster(0, (2, 2), running(1, (2, 0), 4)),), queue), RecentSizes(1.0))
    assert found.starts == {3: 0.0, 2: 10.0}


def test_what_cannot_be_told_is_not() -> None:
    shut = forecast(Snapshot(0, 0, (cluster(0, (4, 2), up=False),), (waiting(1),)), RecentSizes(1.0))
    assert shut.of(1, 0) == (None, "none of its clusters takes tasks now, or nothing there is known to end")
    queue = tuple(waiting(ident) for ident in range(1, 101))
    long = forecast(Snapshot(0, 0, (cluster(0, (4, 2)),), queue), RecentSizes(1.0), most=10)
    assert long.of(10, 9)[0] == 90.0, "each takes the whole cluster for 10 s"
    assert long.of(100, 99) == (900.0, "at the rate at which the first 10 will start")


def test_what_is_believed_counts_and_not_what_is_configured() -> None:
    fast = constant_type((2, 0), (4, 2), 2.0, "ten")
    assert RecentSizes(1.0).seconds(TEN, TEN.minimum) == 10.0
    recent_sizes = RecentSizes(1.0, lambda _: fast)
    assert recent_sizes.seconds(TEN, TEN.minimum) == 2.0
    on = (running(1, (4, 0), 8),)
    found = forecast(Snapshot(8, 0, (cluster(0, (0, 2), *on),), (waiting(2),)), recent_sizes)
    assert found.starts == {2: pytest.approx(0.8)}, "longer than all others so far: a tenth of its time more"


def test_the_sizes_that_were_granted_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sizes_module, "MOST", 3)
    found = RecentSizes(1.0)
    for name in ("a", "b", "c", "a", "d"):
        found.granted(constant_type((1, 0), (4, 0), 5.0, name), R((2, 0)))
    assert list(found.sizes) == ["c", "a", "d"]


def test_a_task_that_says_how_far_it_is_goes_on_at_its_pace() -> None:
    on = (replace(running(1, (4, 0), 8), progress=0.4), replace(running(2, (4, 0), 3), progress=0.01))
    for task, seconds in zip(on, (12.0, 7.0), strict=True):  # the other has said too little to go by
        found = forecast(Snapshot(8, 0, (cluster(0, (0, 2), task),), (waiting(3),)), RecentSizes(1.0))
        assert found.starts == {3: pytest.approx(seconds)}


# ------------------------------------------------------------------------- shadow


class Never:
    """Starts nothing, or fails."""

    one_shot = True

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        if self.fails:
            raise ZeroDivisionError("oh")
        return Decision()


def question() -> RoundQuestion:
    """Two tasks wait for an empty cluster."""
    driven = Driven()
    driven.report(0.0)
    driven.tell(Submit([TaskSpec(("work",), "small")] * 2), 0.1)
    driven.machine.handle(Tick(), 0.2)
    asked = driven.machine.ask()
    assert asked is not None
    return asked


def test_shadows_are_compared_round_by_round(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tapfinger.live.insight.shadow")
    asked = question()
    answer = asked.answer()
    shadows = Shadows({"min": create("scheduler", "min", {}), "never": Never(), "fails": Never(fails=True)})
    asyncio.run(shadows.watch(asked, answer, RecentSizes(1.0), 5.0))
    same, never, fails = shadows.report()
    assert (same["rounds"], same["agreed"], same["both"], same["same_size"], same["only_real"]) == (1, 1, 2, 2, 0)
    assert same["shadow_seconds"] == same["real_seconds"] == 6.0
    assert (never["rounds"], never["agreed"], never["only_real"]) == (1, 0, 2)
    (round_,) = never["latest"]
    assert (round_["at"], round_["waiting"], round_["agrees"], round_["shadow"]) == (5.0, 2, False, [])
    assert round_["real"][0] == {"task": 1, "cluster": "c0", "allocation": {"cpu": 1.0, "gpu": 0.0}}
    assert (fails["rounds"], fails["failed"]) == (0, 1)
    said = [record.getMessage() for record in caplog.records if record.name == "tapfinger.live.insight.shadow"]
    # Each has a thread of its own.
    assert sorted(said) == ["shadow min slot=0 would do the same", "shadow never slot=0 would start nothing"]
    caplog.clear()
    opposite = Shadows({"min": create("scheduler", "min", {})})
    asyncio.run(opposite.watch(asked, asked.put_to([Decider(Never(), "never")]), RecentSizes(1.0), 5.0))
    (record,) = caplog.records
    assert record.getMessage().endswith("would start task=1 cluster=c0 cpu=1 gpu=0; task=2 cluster=c0 cpu=1 gpu=0")


def test_a_busy_shadow_is_left_out_and_counted() -> None:
    asked = question()
    answer = asked.answer()
    begun, blocked = threading.Event(), threading.Event()

    class Slow(Never):
        def decide(self, snapshot: Snapshot) -> Decision:
            begun.set()
            blocked.wait(PATIENCE)
            return Decision()

    async def two_rounds(shadows: Shadows) -> None:
        first = asyncio.create_task(shadows.watch(asked, answer, RecentSizes(1.0), 0.0))
        await asyncio.to_thread(begun.wait)
        await shadows.watch(asked, answer, RecentSizes(1.0), 1.0)
        blocked.set()
        await first

    shadows = Shadows({"slow": Slow()})
    asyncio.run(two_rounds(shadows))
    (report,) = shadows.report()
    assert (report["rounds"], report["dropped"]) == (1, 1)


def test_a_round_in_which_nothing_could_start_is_not_put_to_anyone() -> None:
    driven = Driven()
    driven.tell(Submit([TaskSpec(("work",), "large")]), 0.1)
    assert driven.machine.ask() is None, "no cluster is open"
    driven.report(0.2, cluster="c2", agent="b")
    driven.tell(Submit([TaskSpec(("work",), "small", clusters=("c2",), minimum={"cpu": 4})]), 0.3)
    driven.tell(Tick(), 0.4)
    driven.machine.handle(Tick(), 1.5)
    asked = driven.machine.ask()
    assert asked is not None
    assert asked.put_to([Decider(Never(fails=True))]) == Answer(), "two cpus are left, and it needs three"


# ------------------------------------------------------------------------ over HTTP


class Slow:
    """Min; where ``begun`` is set, it waits in the middle of deciding until it is let go."""

    one_shot = True
    begun: threading.Event | None = None
    go = threading.Event()

    def __init__(self) -> None:
        self._min = create("scheduler", "min", {})

    def reset(self, context: SchedulerContext) -> None:
        self._min.reset(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        if self.begun is not None:
            self.begun.set()
            assert self.go.wait(PATIENCE)
        decision: Decision = self._min.decide(snapshot)
        return decision


@pytest.fixture
def service(tmp_path: Path) -> Service:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG + 'shadow = "greedy"\n')
    scenario, config = load_site(path)
    assert config.shadow == ("greedy",)
    fallback = create("scheduler", "min", {})
    shadows = {"greedy": create("scheduler", "greedy", {})}
    return Service(tmp_path / "state", build_site(scenario), config, Slow(), fallback, shadows)


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


class ByHand:
    """An agent of one cluster that runs nothing."""

    def __init__(self, http: TestClient, cluster: str = "left") -> None:
        self._cluster = cluster
        body = {"name": "left", "role": "agent", "cluster": cluster}
        token = http.post("/api/v1/tokens", json=body).json()["token"]
        self._socket = http.websocket_connect("/api/v1/agent", headers={"Authorization": f"Bearer {token}"})
        self._seq = 1

    def __enter__(self) -> ByHand:
        self._socket.__enter__()
        self._socket.send_text(encode(Report(self._cluster, "a", 1, 1, 0)))
        self._epoch = self.hear().epoch
        self.say()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.__exit__(None, None, None)

    def hear(self) -> Orders:
        message = decode(self._socket.receive_text())
        assert isinstance(message, Orders)
        return message

    def say(self, *runs: RunReport) -> None:
        self._seq += 1
        self._socket.send_text(encode(Report(self._cluster, "a", 1, self._seq, self._epoch, runs)))

    def starts(self, task: int) -> None:
        while (task, 1) not in {launch.id for launch in self.hear().starts}:
            pass


def submit(http: TestClient, **more: object) -> int:
    task: int = http.post("/api/v1/tasks", json={"tasks": [{"argv": ["x"], "type": "demo", **more}]}).json()["ids"][0]
    return task


def test_a_task_is_explained_from_its_submission_to_its_end(http: TestClient) -> None:
    first = submit(http, minimum={"cpu": 4})
    told = http.get(f"/api/v1/tasks/{first}/explain").json()
    assert {"task", "phase", "summary", "waiting_since", "waited", "estimate", "clusters"} <= set(told)
    assert told["summary"] == "Task 1 waits: left and right take no tasks now."
    assert [(c["cluster"], c["verdict"], c["text"]) for c in told["clusters"]] == [
        ("left", "closed", "its agent is silent"),
        ("right", "closed", "its agent is silent"),
    ]
    assert told["estimate"]["seconds"] is None
    with ByHand(http) as agent:
        agent.starts(first)
        agent.say(RunReport((1, 1)))
        second = submit(http, clusters=["left"])
        wait_for(lambda: http.get("/api/v1/tasks/1").json()["phase"] == "running")
        told = http.get(f"/api/v1/tasks/{second}/explain").json()
        assert told["summary"] == "Task 2 waits: there is no room on left."
        assert [c["verdict"] for c in told["clusters"]] == ["does not fit now", "not eligible"]
        assert 0 < told["estimate"]["seconds"] <= 7.0, "four cpus of which half is parallel: 6.25 s"
        assert told["waiting_since"] == pytest.approx(time.time(), abs=60)
        (row,) = http.get("/api/v1/queue").json()["tasks"]
        assert (row["task"], row["summary"]) == (2, "Task 2 waits: there is no room on left.")
        told = http.get(f"/api/v1/tasks/{first}/explain").json()
        assert (told["phase"], told["clusters"], told["waiting_since"]) == ("running", [], None)
        assert told["placement"]["cluster"] == "left"
        assert told["placement"]["allocation"] == {"cpu": 4.0, "gpu": 0.0}
        assert told["placement"]["text"].startswith("4 cpu, 0 gpu: 6.2 s expected; nothing else waited, 4 cpu free")
        agent.say(RunReport((1, 1), Outcome("finished", 0)))
        wait_for(lambda: http.get("/api/v1/tasks/1").json()["phase"] == "finished")
        assert http.get("/api/v1/tasks/1/explain").json()["placement"]["text"]
    assert http.get("/api/v1/tasks/99/explain").status_code == 404
    assert http.get("/api/v1/queue?limit=0").status_code == 422


NODES = """
slot_seconds = 10
[[clusters]]
name = "lab"
nodes = [{ cpu = 4, gpu = 1, kind = "new" }, { cpu = 4, gpu = 1, kind = "old", count = 2 }]
[[task_types]]
name = "demo"
minimum = { cpu = 1, gpu = 1 }
speed = { kind = "constant", seconds = 60 }
on.new = 3
on.old = 1
[live]
scheduler = "fifo"
lease_seconds = 120.0
"""


def test_node_and_kind_are_named_where_a_task_runs_and_where_it_will(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(NODES)
    scenario, config = load_site(path)
    fallback = create("scheduler", "min", {})
    made = Service(tmp_path / "state", build_site(scenario), config, create("scheduler", "min", {}), fallback, {})
    with TestClient(make_app(made), headers={"Authorization": f"Bearer {made.token}"}) as http:
        first = submit(http)
        with ByHand(http, "lab:0") as agent:
            agent.starts(first)
            agent.say(RunReport((1, 1)))
            wait_for(lambda: http.get("/api/v1/tasks/1").json()["phase"] == "running")
            placed = http.get(f"/api/v1/tasks/{first}/explain").json()["placement"]
            assert (placed["cluster"], placed["kind"]) == ("lab:0", "new")
            assert placed["expected_seconds"] == pytest.approx(20.0), "a third of what it takes on the others"
            estimate = http.get(f"/api/v1/tasks/{submit(http)}/explain").json()["estimate"]
            assert (estimate["cluster"], estimate["kind"]) == ("lab:0", "new")


def test_metrics_and_history_tell_what_happened(http: TestClient) -> None:
    with ByHand(http) as agent:
        task = submit(http)
        agent.starts(task)
        agent.say(RunReport((1, 1)))
        agent.say(RunReport((1, 1), Outcome("finished", 0)))
        wait_for(lambda: http.get("/api/v1/tasks/1").json()["phase"] == "finished")
        for n in range(20):  # whatever strangers make up
            http.request(f"MADEUP{n}", "/api/v1/tasks", headers={"Authorization": ""})
        text = http.get("/metrics").text
    assert "MADEUP" not in text
    assert 'tapfinger_http_requests_total{method="other"' in text
    for line in (
        'tapfinger_tasks{phase="finished"} 1.0',
        'tapfinger_submitted_tasks_total{type="demo"} 1.0',
        'tapfinger_outcomes_total{outcome="finished",type="demo"} 1.0',
        'tapfinger_attempts_total{result="finished"} 1.0',
        'tapfinger_wait_seconds_count{type="demo"} 1.0',
        'tapfinger_completion_seconds_count{type="demo"} 1.0',
        'tapfinger_agent_connected{cluster="left"} 1.0',
        'tapfinger_agent_connected{cluster="right"} 0.0',
        'tapfinger_cluster_utilisation{cluster="left",resource="cpu"} 0.0',
        'tapfinger_http_requests_total{method="POST",route="/api/v1/tasks",status="201"} 1.0',
        'tapfinger_decision_seconds_count{scheduler="Slow"} 1.0',
    ):
        assert line in text
    assert float(text.partition("tapfinger_store_commit_seconds_count ")[2].partition("\n")[0]) > 3
    (row,) = http.get("/api/v1/history").json()["tasks"]
    assert (row["task"], row["type"], row["cluster"], row["allocation"]["cpu"]) == (1, "demo", "left", 1.0)
    (shadow,) = wait_for(lambda: [s for s in http.get("/api/v1/shadow").json()["shadows"] if s["rounds"]])
    assert (shadow["scheduler"], shadow["both"]) == ("greedy", 1)
    assert http.get("/api/v1/site").json()["scenario"]["clusters"][0]["name"] == "left"
    http.headers.pop("Authorization")
    for path in ("/metrics", "/api/v1/queue", "/api/v1/shadow", "/api/v1/site", "/api/v1/history"):
        assert http.get(path).status_code == 401


def test_answers_come_at_once_while_a_scheduler_thinks(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr(Slow, "begun", begun)
    monkeypatch.setattr(Slow, "go", go)
    with ByHand(http) as agent:
        task = submit(http)
        assert begun.wait(PATIENCE)
        assert http.get("/api/v1/tasks").json()["tasks"][0]["phase"] == "queued"
        other = submit(http)
        assert http.post(f"/api/v1/tasks/{other}/cancel").json()["phase"] == "cancelled"
        agent.say()
        assert agent.hear().echo, "a report is answered"
        go.set()
        agent.starts(task)


def test_the_grafana_dashboard_asks_only_for_metrics_that_there_are(http: TestClient) -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "tapfinger.json").read_text())
    known = set(re.findall(r"^# TYPE (\w+)", http.get("/metrics").text, flags=re.MULTILINE))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        assert {"type", "title", "gridPos", "targets"} <= set(panel)
        for target in panel["targets"]:
            used = set(re.findall(r"\b(?:tapfinger|process)_\w+", target["expr"]))
            assert used, target
            assert {name.removesuffix("_bucket") for name in used} <= known, target
