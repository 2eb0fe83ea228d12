"""A live site with nodes of unlike hardware: what each kind has shown is believed of it, and by half of the others."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import R

from tapfinger.commands import insight, tasks
from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.contract import Phase
from tapfinger.live.config import build_site, cluster_capacities
from tapfinger.live.coordinator.inputs import Leases
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.coordinator.site import Site
from tapfinger.live.insight.learning import Learning
from tapfinger.live.insight.profile_views import cells, described
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.service import standby
from tapfinger.live.store.store import Store
from tapfinger.registry import create

SPEC = TaskSpec(("x",), "known")
NODES = [{"cpu": 8, "gpu": 2, "kind": "new"}, {"cpu": 8, "gpu": 1, "kind": "old"}]


def scenario(**known: Any) -> Scenario:
    speed = {"kind": "constant", "seconds": 60}
    types = [
        {"name": "known", "minimum": {"cpu": 1, "gpu": 1}, "speed": speed, "on": {"new": 3, "old": 1}, **known},
        {"name": "unknown", "minimum": {"cpu": 1, "gpu": 0}, "on": {"old": 0.5}},
    ]
    clusters = [{"name": "lab", "nodes": NODES}, {"name": "edge", "capacity": {"cpu": 4, "gpu": 1}, "kind": "old"}]
    return parse_scenario({"name": "x", "mode": "multi", "slot_seconds": 10, "clusters": clusters, "task_types": types})


def ran(ident: int, cluster: str, took: float) -> TaskRecord:
    times = {"started": 100.0 + ident, "ended": 100.0 + ident + took}
    return TaskRecord(
        ident, SPEC, "ann", 0.0, phase=Phase.FINISHED, attempt=1, cluster=cluster, allocation=(1, 1), **times
    )


def seconds(site: Site, hardware: str) -> float:
    return site.seconds(site.task_types["known"].on(hardware), R((1, 1)))


def test_every_node_is_a_cluster_with_an_agent_of_its_own() -> None:
    site = build_site(scenario())
    assert [(c.name, c.hardware) for c in site.clusters] == [("lab:0", "new"), ("lab:1", "old"), ("edge", "old")]
    assert cluster_capacities(scenario())["lab:1"] == {"cpu": 8, "gpu": 1}
    named = site.task(1, TaskSpec(("x",), "known", clusters=("lab",)), 0)
    assert named.eligible == (0, 1)
    assert site.task(2, TaskSpec(("x",), "known", clusters=("lab:1", "edge")), 0).eligible == (1, 2)


def test_an_unknown_speed_differs_by_what_is_said_of_hardware() -> None:
    unknown = build_site(scenario()).task_types["unknown"]
    new, old = (unknown.on(kind).profile for kind in ("new", "old"))
    assert new.rates == pytest.approx([2 * rate for rate in old.rates])
    assert new.doubt == old.doubt is not None
    own = build_site(scenario(speed={"kind": "unknown"}, on={"new": {"kind": "constant", "seconds": 20}}))
    assert own.task_types["known"].on("new").profile.rates == (0.5,)
    assert own.task_types["known"].on("new").profile.doubt is None


def test_runs_teach_the_hardware_they_ran_on() -> None:
    site = build_site(scenario())
    learning = Learning(site)
    assert (seconds(site, "new"), seconds(site, "old")) == (pytest.approx(20), pytest.approx(60))
    for n in range(8):
        learning.saw(ran(n, "lab:1", 30.0))
    found = learning.digest(1.0)
    site.believe(found.revised)
    assert seconds(site, "old") == pytest.approx(30, rel=0.03)
    assert 13 < seconds(site, "new") < 17, "half of it in logarithms: 14"
    known = found.known["known"]
    assert known.usual == R((1, 1))
    assert known.factor == pytest.approx(0.5, rel=0.03)
    (row,) = cells(known, site)
    assert (row["kind"], row["runs"], row["configured_seconds"]) == ("old", 8, pytest.approx(60))
    assert [row["kind"] for row in cells(known, site, every=True)] == ["new", "old"]
    assert described(known, site)["runs"] == 8


def test_what_was_learned_is_kept_by_hardware() -> None:
    site = build_site(scenario())
    learning = Learning(site)
    for n in range(8):
        learning.saw(ran(n, "lab:0", 5.0))
    rows = learning.last(1000.0)
    again = Learning(site)
    site.believe(again.take_up(rows, [], 2000.0).revised)
    assert seconds(site, "new") == pytest.approx(5, rel=0.03)
    other = build_site(scenario(on={"new": 2, "old": 1}))
    events = Learning(other).take_up(rows, [], 2000.0).events
    assert [type(event).__name__ for event in events] == ["SpeedForgotten"], "another speed is configured now"


def test_people_see_the_whole_cluster_and_the_kind(tmp_path: Path) -> None:
    site = build_site(scenario())
    rounds = Rounds(site, create("scheduler", "min", {}), 0, fallback=create("scheduler", "min", {}))
    seen = Coordinator(site, rounds, Leases(6.0, 1.0), 1, 0.0).clusters(0.0)
    told = [("lab:0", "lab", "new", None), ("lab:1", "lab", "old", None), ("edge", "", "old", None)]
    assert [(c["name"], c["part_of"], c["kind"], c["others"]) for c in seen] == told
    with closing(Store(tmp_path / "store.db")) as store:
        kept = standby.clusters(site, store)
        assert [(c["name"], c["part_of"], c["kind"], c["others"]) for c in kept] == told


def test_nodes_are_listed_below_their_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"agent": "a", "connected": True, "drained": False, "disagreement": None, "last_heard": 0.0, "tasks": [7]}
    node = {**plain, "part_of": "lab", "capacity": {"cpu": 8.0, "gpu": 2.0}, "kind": "new"}
    rows = [
        {**node, "name": "lab:0", "free": {"cpu": 1.0, "gpu": 0.0}, "others": {"cpu": 3.0, "gpu": 0.0}},
        {**node, "name": "lab:1", "free": {"cpu": 8.0, "gpu": 2.0}, "others": None, "kind": "old", "tasks": []},
        {**plain, "name": "edge", "part_of": "", "kind": "", "capacity": {"cpu": 4.0}, "free": {"cpu": 4.0}},
    ]
    client = SimpleNamespace(clusters=lambda: rows)
    monkeypatch.setattr(tasks, "open_client", lambda *_: nullcontext(client))
    monkeypatch.setenv("COLUMNS", "140")
    tasks.clusters()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "cluster kind agent free tasks"
    assert lines[2] == "lab 2 nodes 9 of 16 cpu, 2 of 4 gpu 1"
    assert lines[3] == "lab:0 new connected 1 of 8 cpu, 0 of 2 gpu; others use 3 cpu 7"
    assert lines[4] == "lab:1 old connected 8 of 8 cpu, 2 of 2 gpu"
    assert lines[5] == "edge connected 4 of 4 cpu 7"
    rows[:] = [{**rows[2], "name": "left"}]
    tasks.clusters()
    assert capsys.readouterr().out.split()[:4] == ["cluster", "agent", "free", "tasks"], "nothing new where nothing is"


def test_explanations_name_node_and_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"cluster": "lab:0", "kind": "new", "verdict": "closed", "probability": None, "text": "it is drained"}
    waits = {
        "phase": "queued", "summary": "Task 1 waits.", "waited": 1.0, "overtaken_by": [], "clusters": [row],
        "estimate": {"seconds": 40.0, "how": "as it was", "cluster": "lab:0", "kind": "new"},
    }  # fmt: skip
    placement = {"cluster": "lab:0", "kind": "new", "allocation": {"gpu": 2.0}, "text": ""}
    runs = {"phase": "running", "summary": "Task 1 runs.", "waited": 1.0, "placement": placement}
    monkeypatch.setenv("COLUMNS", "140")
    for found, told in (
        (waits, "Start: in about 40 s on lab:0 (new) (as it was)."),
        (runs, "It waited for 1.0 s and got 2 gpu on lab:0 (new)."),
        (runs | {"placement": placement | {"kind": ""}}, "It waited for 1.0 s and got 2 gpu on lab:0."),
    ):
        client = SimpleNamespace(explain=lambda _, found=found: found)
        monkeypatch.setattr(insight, "open_client", lambda *_, client=client: nullcontext(client))
        insight.explain(1)
        out = " ".join(capsys.readouterr().out.split())
        assert told in out
        assert ("lab:0 new closed it is drained" in out) == (found is waits)
