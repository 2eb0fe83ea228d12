"""What a run's measures say of nodes and kinds of hardware; nothing where a site has neither."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import R, constant_type, make_task

from tapfinger.config import load_scenario
from tapfinger.core.events import Event, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.model import Cluster
from tapfinger.evaluation.cells import CellStore
from tapfinger.evaluation.event_logs import measure_log
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.output import Request, write_all
from tapfinger.evaluation.runner import Runner
from tapfinger.evaluation.specs import parse_specs
from tapfinger.evaluation.stats import measures, summarise
from tapfinger.records import RunRecord

SMALL = constant_type((1, 1), (4, 4), name="small")
BIG = constant_type((3, 3), (4, 4), name="big")
LAB = (
    Cluster("lab:0", R((4, 4)), "lab", "new"),
    Cluster("lab:1", R((4, 4)), "lab", "old"),
    Cluster("lab:2", R((2, 2)), "lab", "old"),
)


def measure(*events: Event, clusters: tuple[Cluster, ...] = LAB) -> RunRecord:
    collector = MetricsCollector(("cpu", "gpu"), clusters, (SMALL, BIG))
    for event in events:
        collector(event)
    return collector.record("toy", "by hand", 0)


EVENTS = (
    TaskArrived(0, make_task(0, SMALL, 0, (0, 1, 2))),
    TaskArrived(0, make_task(1, SMALL, 0, (0, 1, 2))),
    TaskArrived(0, make_task(2, BIG, 0, (0, 1, 2))),
    TaskStarted(0, 0, 0, R((2, 2))),
    TaskStarted(0, 1, 1, R((2, 3))),
    TaskFinished(3, 0, 0),
    TaskFinished(3, 1, 1),
    TaskStarted(4, 2, 1, R((4, 4))),
    TaskFinished(4, 2, 1),
)


def test_utilisation_by_kind_is_of_that_kinds_capacity() -> None:
    record = measure(*EVENTS)
    assert record.wholes == ("lab", "lab", "lab")
    new, old = record.hardware_utilisation["new"], record.hardware_utilisation["old"]
    assert new == pytest.approx([4 * 2 / 20, 4 * 2 / 20])
    assert old == pytest.approx([(4 * 2 + 4) / 30, (4 * 3 + 4) / 30])
    found = measures(record)
    assert (found["utilisation_on_new.gpu"], found["utilisation_on_old.gpu"]) == pytest.approx((0.4, 16 / 30))


def test_what_is_stranded_is_told_by_node() -> None:
    record = measure(*EVENTS)
    # The big task waits for 4 slots. The small node could never hold it: what is free there is no fragment of its room.
    assert record.stranded_by_cluster.tolist() == [[2 / 4, 2 / 4], [2 / 4, 1 / 4], [0, 0]]
    assert record.stranded == pytest.approx([4 / 10, 3 / 10]), "one definition: the nodes' amounts add up"


def test_plain_sites_have_no_new_measures() -> None:
    record = measure(*EVENTS, clusters=tuple(Cluster(c.name.replace(":", "-"), c.capacity) for c in LAB))
    assert (record.wholes, record.hardware, record.hardware_utilisation) == ((), (), {})
    assert not [name for name in measures(record) if "_on_" in name]


def compared(name: str, folder: Path) -> dict[str, Any]:
    scenario, specs = load_scenario(name, ["tasks=25"]), parse_specs("min,greedy")
    outcome = Runner(CellStore(folder / "cells"), with_events=True).run(scenario, specs, (0,))
    summaries = summarise(outcome.records, "min")
    request = Request(name, scenario, (), specs, (0,), "min")
    write_all(folder, request, outcome, summaries, with_events=True)
    with gzip.open(folder / "tasks.csv.gz", "rt") as file:
        rows = list(csv.DictReader(io.StringIO(file.read())))
    return {
        "rows": rows,
        "results": json.loads((folder / "results.json").read_text())["schedulers"]["greedy"],
        "page": (folder / "report.html").read_text(),
        "measured": measure_log(folder / "events" / "greedy-0.jsonl.gz").record,
        "record": outcome.records["greedy"][0],
    }


def test_files_of_a_comparison_name_node_and_kind(tmp_path: Path) -> None:
    made = compared("hardware-3", tmp_path)
    kinds = {"new": "a100", "middle:0": "v100", "middle:1": "v100", "old:0": "t4", "old:1": "v100"}
    assert list(made["rows"][0])[3:6] == ["cluster", "whole_cluster", "kind"]
    for row in made["rows"]:
        assert row["whole_cluster"] == row["cluster"].split(":")[0]
        assert row["kind"] == kinds[row["cluster"]]
    results = made["results"]
    assert set(results["utilisation_per_kind"]) == {"a100", "v100", "t4"}
    capacity, record = {"a100": 4, "v100": 10, "t4": 8}, made["record"]
    whole = sum(results["utilisation_per_kind"][kind]["gpu"] * gpus for kind, gpus in capacity.items())
    assert whole / 22 == pytest.approx(results["utilisation"]["gpu"])
    assert set(results["fragmentation"]["stranded_per_node"]) == set(kinds)
    assert "gpu on v100" in made["page"]
    assert made["measured"].hardware_utilisation["v100"] == pytest.approx(record.hardware_utilisation["v100"])
    assert made["measured"].wholes == record.wholes


def test_files_of_a_plain_comparison_are_as_ever(tmp_path: Path) -> None:
    made = compared("multi-3", tmp_path)
    assert list(made["rows"][0])[2:5] == ["type", "cluster", "task"]
    assert "utilisation_per_kind" not in made["results"]
    assert set(made["results"]["fragmentation"]) == {"waiting_slots_share", "idle", "stranded", "held_back"}
    assert "kind of hardware" not in made["page"]
