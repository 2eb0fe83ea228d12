"""Data sets of a live site: schedulers prefer clusters that have them, and people are told of the wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.test_machines import Driven

from tapfinger.config import load_scenario, parse_scenario
from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError
from tapfinger.live.config import build_site, load_site
from tapfinger.live.coordinator.inputs import Submit, Tick
from tapfinger.live.coordinator.site import Site
from tapfinger.live.insight.explain import summary, verdicts
from tapfinger.live.insight.forecast import forecast
from tapfinger.live.insight.recent_sizes import RecentSizes
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import Granted
from tapfinger.live.protocol.messages import Outcome, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec

#: c1 has the data; to c0 it takes 40 s.
SPEC = TaskSpec(("work",), "reader")
DATA: dict[str, Any] = {
    "clusters": [
        {"name": "c0", "capacity": {"cpu": 4, "gpu": 0}},
        {"name": "c1", "capacity": {"cpu": 4, "gpu": 0}},
    ],
    "data": [{"name": "corpus", "gb": 1, "at": ["c1"]}],
    "links": {"mbps": 200},
    "task_types": [
        {
            "name": "reader",
            "minimum": {"cpu": 2, "gpu": 0},
            "maximum": {"cpu": 2},
            "speed": {"kind": "constant", "seconds": 20},
            "data": ["corpus"],
        }
    ],
}


def site() -> Site:
    return build_site(parse_scenario({"name": "site", "mode": "multi", "slot_seconds": 1.0, **DATA}))


def driven(records: list[TaskRecord] | None = None) -> Driven:
    made = Driven(records, scheduler="greedy", site=site())
    for cluster in ("c0", "c1"):
        made.report(0.0, cluster=cluster)
    return made


def where(found: Driven, task: int) -> str | None:
    return found.saved[task].cluster


def test_tasks_start_where_their_data_lies_and_then_where_it_was_brought() -> None:
    found = driven()
    found.tell(Submit([SPEC, SPEC, replace(SPEC, clusters=("c0",))]), 0.1)
    found.tell(Tick(), 0.2)
    assert [where(found, task) for task in (1, 2, 3)] == ["c1", "c1", "c0"]
    grants = [line for line in found.history if isinstance(line, Granted)]
    assert sorted(line.grounds.data for line in grants if line.grounds) == [0.0, 0.0, 40.0]
    late = next(line for line in grants if line.cluster == "c0")
    assert "20 s expected, and its data would be there in 40 s;" in words.detail(late)
    found.report(1.0, RunReport((3, 1)))
    found.report(60.0, RunReport((3, 1), Outcome("finished", 0)))
    assert found.saved[3].phase is Phase.FINISHED
    found.tell(Submit([SPEC]), 60.1)
    (view,) = found.machine.snapshot.queue
    assert found.machine.snapshot.staging_of(view) == {0: 0, 1: 0}, "it was brought to c0"


def test_what_a_running_task_has_is_there_after_a_restart() -> None:
    runs = TaskRecord(
        1, SPEC, "ann", 0.0, phase=Phase.RUNNING, attempt=1, cluster="c0", agent="a", allocation=(2, 0), started=0.0
    )
    found = driven([runs])
    found.tell(Submit([SPEC]), 0.2)
    (view,) = found.machine.snapshot.queue
    assert found.machine.snapshot.staging_of(view) == {0: 0, 1: 0}


def test_explain_and_forecast_name_the_wait() -> None:
    found = driven()
    found.tell(Submit([SPEC]), 0.1)
    (view,), snapshot, here = found.machine.snapshot.queue, found.machine.snapshot, found.site
    told = verdicts(view, snapshot, here.resources, here.clusters, {}, {}, here.slot_seconds)
    assert [v.data for v in told] == [40.0, 0.0]
    assert told[0].text.endswith("; its data would be there in 40 s")
    assert "data" not in told[1].text
    assert "data" not in summary(view, told, 0), "it can start where its data lies"
    assert "(its data would be there in 40 s at the earliest)" in summary(view, told[:1], 0)
    for _ in range(2):  # c1 is full, so the next ones wait for data, and the last for both
        found.tell(Submit([SPEC] * 3), 0.1)
    snapshot = found.machine.snapshot
    starts = forecast(snapshot, RecentSizes(1.0)).starts
    assert sorted(starts.values()) == [0.0, 0.0, 0.0, 0.0, 20.0, 20.0, 40.0], "those on c0 hold it for 60 s"


def test_links_that_are_drawn_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        '[[clusters]]\nname = "c0"\ncapacity = {cpu = 4, gpu = 0}\n[[data]]\nname = "corpus"\ngb = 1\n'
        '[links]\nkind = "uniform"\n[[task_types]]\nname = "t"\nminimum = {cpu = 1, gpu = 0}\ndata = ["corpus"]\n'
        'speed = {kind = "constant", seconds = 5}\n'
    )
    with pytest.raises(ConfigError, match="those of a live site are what they are; set kind = 'fixed'"):
        load_site(path)
    path.write_text(path.read_text().replace("uniform", "fixed"))
    made = build_site(load_site(path)[0])
    assert made.data is not None
    assert made.data.names == ("corpus",)


def test_needs_of_a_scenario_are_for_tasks_to_show() -> None:
    scenario = load_scenario("memory-3")
    assert [t.name for t in scenario.task_types] == list(build_site(scenario).task_types)
