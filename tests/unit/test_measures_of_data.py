"""Measures of staging and of attempts out of memory, from a run and from its log alike."""

from __future__ import annotations

import pytest

from tapfinger.config import load_scenario
from tapfinger.core.events import TaskFinished, TaskOutOfMemory, TaskStaging, TaskStarted
from tapfinger.evaluation.cells import run_once
from tapfinger.evaluation.event_logs import measure_log
from tapfinger.evaluation.gantt import Gantt
from tapfinger.evaluation.specs import parse_spec
from tapfinger.evaluation.stats import DATA_MEASURES, measures
from tapfinger.workloads.world import build_world


@pytest.mark.parametrize("name", ["data-3", "memory-3", "labs-4", "multi-3"])
def test_measures_follow_from_the_events_and_from_the_log(name, tmp_path):
    world = build_world(load_scenario(name, ["tasks=80"]))
    events, log = [], tmp_path / "log.jsonl"
    record = run_once(world, parse_spec("min"), 3, log, events.append)
    found = measures(record)
    read = measures(measure_log(log).record)
    assert {name: value for name, value in read.items() if "decision" not in name and name != "conflicts"} == {
        name: value for name, value in found.items() if "decision" not in name and name != "conflicts"
    }
    if name == "multi-3":
        assert not set(DATA_MEASURES) & set(found)
        return
    assert found.get("out_of_memory", 0) == sum(isinstance(e, TaskOutOfMemory) for e in events)
    waits = [e.until - e.slot for e in events if isinstance(e, TaskStaging)]
    assert found.get("staging", 0.0) * len(record.task) == pytest.approx(sum(waits))
    if name == "data-3":
        starts = [e for e in events if isinstance(e, TaskStarted)]
        assert found["staged_share"] == len(waits) / sum(
            bool(world.task_types[t].data) for t in types_of(starts, record)
        )
    assert (record.running + record.staging <= record.completion).all()
    assert len(record.task) == sum(isinstance(e, TaskFinished) for e in events)


def types_of(starts, record):
    kinds = dict(zip(record.task.tolist(), record.type.tolist(), strict=True))
    return [kinds[event.task] for event in starts]


@pytest.mark.parametrize("name", ["data-3", "memory-3"])
def test_a_gantt_chart_shows_waits_for_data_and_ends_attempts_that_ran_out_of_memory(name):
    world = build_world(load_scenario(name, ["tasks=60"]))
    gpu = world.resources.names.index("gpu")
    events, chart = [], Gantt(world.clusters, world.task_types, gpu)
    record = run_once(world, parse_spec("min"), 3, None, events.append, chart)
    bars = [(kind, units * (end - begin)) for _, kind, _, _, units, begin, end in chart._drawn]
    staged = sum(e.allocation[gpu] * (e.until - e.slot) for e in events if isinstance(e, TaskStaging))
    assert sum(held for kind, held in bars if kind == -1) == staged
    used = (record.used * record.bin_lengths[:, None, None]).sum(axis=0)[:, gpu].sum()
    assert sum(held for _, held in bars) == pytest.approx(used)
    figure = chart.draw("chart", "gpu", 10.0, range(50), 0.25)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("waits for data" in labels) == (name == "data-3")
    assert not [label for label in labels if "[" in label]
