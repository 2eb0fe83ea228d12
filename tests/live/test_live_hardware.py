"""A live site with nodes of unlike hardware: what each kind has shown is believed of it, and by half of the others."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import R

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.contract import Phase
from tapfinger.live.config import build_site, cluster_capacities
from tapfinger.live.coordinator.site import Site
from tapfinger.live.insight.learning import Learning
from tapfinger.live.insight.profile_views import cells, described
from tapfinger.live.protocol.records import TaskRecord, TaskSpec

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
