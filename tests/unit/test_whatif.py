"""A live site's history as files, and its future in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers import R

from tapfinger.config import parse_scenario
from tapfinger.core.model import Cluster
from tapfinger.errors import ConfigError
from tapfinger.evaluation.live_history import export, read_history, scaled
from tapfinger.evaluation.specs import parse_spec
from tapfinger.evaluation.whatif import Player, Present, Variant, read_present
from tapfinger.live.config import load_site
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.files import write_workload
from tapfinger.workloads.world import build_world, draw_workload

SITE = """
[[clusters]]
name = "lab"
capacity = {cpu = 4, gpu = 0}
[[clusters]]
name = "attic"
capacity = {cpu = 2, gpu = 0}
[[task_types]]
name = "steady"
minimum = {cpu = 2, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "constant", seconds = 10}
[[task_types]]
name = "elastic"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 40, parallel = {cpu = 1.0}}
"""
OPEN = [{"name": name, "connected": True, "drained": False} for name in ("lab", "attic")]


@pytest.fixture
def told(tmp_path) -> dict[str, Any]:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return {"scenario": load_site(path)[0].model_dump(mode="json"), "scheduler": "fifo"}


def row(task: int, submitted: float, started: float | None = None, took: float | None = None, **more: Any) -> Any:
    base = {"task": task, "type": "steady", "minimum": {}, "maximum": {}, "clusters": [], "submitted": submitted}
    ended = None if started is None or took is None else started + took
    placed = {"cluster": "lab", "allocation": {"cpu": 2.0, "gpu": 0.0}} if started is not None else {}
    phase = "finished" if ended is not None else "running" if placed else "queued"
    rest = {"started": started, "ended": ended, "cluster": None, "allocation": None, "phase": phase}
    return {**base, **rest, **placed, **more}


def test_a_history_becomes_a_file_and_a_scenario_that_plays_it(told, tmp_path) -> None:
    rows = [
        row(3, 104.5, 105.0, 20.0, type="elastic", maximum={"cpu": 2}, clusters=["attic"]),
        row(1, 100.0, 100.0, 5.0),
        row(2, 102.0, 103.0, 5.0, clusters=["lab", "attic"]),
        row(4, 105.0, 106.0, 1.0, type="gone"),
    ]
    history = read_history(told, rows)
    assert [task.id for task in history.tasks] == [1, 2, 3]
    assert sum(history.left_out.values()) == 1
    made = export(history, "mine", plain=False)
    assert made.workload.arrival.tolist() == [0.0, 2.0, 4.5]
    assert made.workload.type == ("steady", "steady", "elastic[1,0:2,0]")
    assert made.workload.eligible == ("*", "lab;attic", "attic")
    steady, elastic, own = made.scenario["task_types"]
    half = {"kind": "constant", "seconds": pytest.approx(5.0, rel=0.05)}
    assert steady["speed"] == half, "as measured: half of what the profile says"
    assert elastic["speed"]["seconds"] == pytest.approx(40.0, rel=0.01), "20 s with 2 cpus is what its profile says"
    forty = pytest.approx([40.0, 20.0], rel=0.01)
    assert own["speed"] == {"kind": "grid", "amounts": {"cpu": [1.0, 2.0]}, "seconds": forty}
    write_workload(tmp_path / "mine.csv", made.workload)
    plan = {**made.scenario, "arrivals": {"kind": "trace", "file": "mine.csv"}}
    world = build_world(parse_scenario(plan, "mine", str(tmp_path)))
    assert draw_workload(world, 0).eligible.tolist() == [[True, True], [True, True], [False, True]]
    for name in ("fifo", "greedy"):
        assert run_scheduler(world, create("scheduler", name, {}), 0).tasks == 3
    assert export(history, "mine", plain=True).workload.type == ("steady", "steady", "elastic")
    assert export(history, "mine", plain=True).widened == 1


def test_nothing_cannot_be_exported(told) -> None:
    with pytest.raises(ConfigError, match="nothing has run yet"):
        export(read_history(told, []), "mine", plain=False)


@pytest.mark.parametrize(
    ("speed", "slower"),
    [
        ({"kind": "rebound", "compute": 8.0, "feeding": 1.0}, {"kind": "rebound", "compute": 4.0, "feeding": 0.5}),
        ({"kind": "tanh"}, {"kind": "tanh", "slots": 0.5}),
        ({"kind": "grid", "seconds": [4.0, 2.0]}, {"kind": "grid", "seconds": [2.0, 1.0]}),
        ({"kind": "testbed"}, {"kind": "testbed"}),
    ],
)
def test_speeds_are_scaled_by_what_was_measured(speed, slower) -> None:
    assert scaled(speed, 0.5) == slower


# ------------------------------------------------------------------------ what if


def present(told, *alive: Any, past: Any = (), now: float = 100.0) -> Present:
    return read_present(read_history(told, past), OPEN, alive, now)


def variant(here: Present, scheduler: str = "fifo", *more: Cluster, **changes: Any) -> Variant:
    return Variant(scheduler, parse_spec(scheduler), (*here.clusters, *more), **changes)


def test_the_queue_and_what_runs_are_played_to_their_end(told) -> None:
    # One task has run for 5 of 10 s on the lab; of the four that wait since 10 s ago, two start at once (lab, attic),
    # one when the first has ended and the last 10 s after now. All were submitted at once, so nothing more arrives.
    here = present(told, row(1, 90.0, 95.0), *(row(task, 90.0) for task in (2, 3, 4, 5)))
    assert here.rate == 0.0
    player = Player(here)
    assert player.slot_seconds == 1.0
    found = player.play(variant(here), 0)
    assert found.wait == (10 + 10 + 15 + 20) / 4
    assert found.completion == (15 + 20 + 20 + 25 + 30) / 5
    assert (found.queue_gone, found.tasks, found.homeless) == (10.0, 5, 0)
    assert found.utilisation == {"cpu": (5 + 4 * 10) * 2 / (6 * 60)}
    more = player.play(variant(here, "fifo", Cluster("big", R((4, 0)))), 0)
    assert (more.wait, more.queue_gone) == (10.0, 0.0)


def test_tasks_of_a_removed_cluster_begin_anew(told) -> None:
    here = present(told, row(1, 90.0, 95.0))
    lab, attic = here.clusters
    assert Player(here).play(variant(here), 0).completion == 15.0
    assert Player(here).play(replace(variant(here), clusters=(attic,)), 0).completion == 20.0
    here = present(told, row(1, 90.0, 95.0, minimum={"cpu": 3}), row(2, 90.0))
    found = Player(here).play(replace(variant(here), clusters=(attic,)), 0)
    assert (found.tasks, found.homeless) == (1, 1)
    assert lab.name == "lab"


def test_every_variant_meets_the_same_future(told) -> None:
    past = [row(task, 10.0 * task, 10.0 * task, 12.0) for task in range(1, 9)]
    here = present(told, row(9, 90.0), past=past)
    player = Player(here)
    first, again, other = (player.play(variant(here, name), 3) for name in ("fifo", "fifo", "greedy"))
    assert first == again
    assert first.tasks == other.tasks > 1
    assert player.play(variant(here, rate=3.0), 3).tasks > first.tasks
    assert player.play(variant(here, rate=0.0), 3).tasks == 1


def test_what_cannot_be_played_is_said(told) -> None:
    with pytest.raises(ConfigError, match="nothing to play forward"):
        Player(present(told))
    with pytest.raises(ConfigError, match="no cluster takes tasks"):
        read_present(read_history(told, []), [{**c, "drained": True} for c in OPEN], [], 0.0)
    shut = [{**OPEN[0], "connected": False}, OPEN[1]]
    here = read_present(read_history(told, []), shut, [row(1, 0.0, 1.0), row(2, 0.0, type="x"), row(3, 0.0)], 5.0)
    assert sorted(here.left_out.values()) == [1, 1]
    assert [task.id for task in here.waiting] == [3]
