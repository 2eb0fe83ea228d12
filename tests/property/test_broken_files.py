"""Files of others, broken in every way: an importer works or raises an error that names the file, never a traceback."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import broken
from unit.test_trace_import import NODES, OPENB, PHILLY, POLLUX, SPECS, SWF

from tapfinger.config import parse_scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.event_logs import measure_log
from tapfinger.evaluation.profile_files import file_types
from tapfinger.policy.exported import load_model, models_folder
from tapfinger.profiles.table import load_profile
from tapfinger.profiling.journal import read_runs
from tapfinger.records import EventLog, LogHeader
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.files import WorkloadFile, read_workload, write_workload
from tapfinger.workloads.importers.convert import convert
from tapfinger.workloads.importers.formats import read_trace
from tapfinger.workloads.importers.options import ConvertOptions, ReadOptions
from tapfinger.workloads.world import build_world, draw_workload

WORKLOAD = b"arrival,type,eligible\n0,cifar10,*\n12.5,bert,left;right\n30,bert,left\n"
PROFILE = b"# measured\ntask_type,cpu,gpu,seconds\na,1,1,60\na,2,1,35.5\na,2,2,20\nb,1,,10\n"
RUNS = (
    b'{"tapfinger_profile": 1, "type": "a", "argv": ["x"], "resources": ["cpu"]}\n'
    b'{"cell": {"cpu": 1}, "result": "finished", "seconds": 3.5, "curve": [[1.0, 0.5, {"loss": 2.0}]]}\n'
)

Read = Callable[[Path], object]


def _trace(format_name: str | None) -> Read:
    def read(path: Path) -> object:
        _, trace = read_trace(path, format_name, ReadOptions())
        made = convert(trace, ConvertOptions(name="made", elastic=0.5))
        write_workload(path.parent / "workload.csv", made.workload)
        world = build_world(parse_scenario(made.scenario, str(path), str(path.parent)))
        return draw_workload(world, 0)

    return read


def _nodes(path: Path) -> object:
    pods = path.parent / "pods.csv"
    pods.write_text(OPENB + SPECS, encoding="utf-8")
    _, trace = read_trace(pods, None, ReadOptions(nodes=path))
    return build_world(parse_scenario(convert(trace, ConvertOptions(name="made")).scenario, str(path)))


def _workload(path: Path) -> object:
    return read_workload(path)


def _profile(path: Path) -> object:
    found = load_profile(path, "a").seconds({"cpu": 1.5, "gpu": 1.0})
    return found, file_types(path)


def _log(path: Path) -> object:
    return measure_log(path).numbers()


@cache
def _log_sample() -> bytes:
    """The log of a small run."""
    folder = Path(tempfile.mkdtemp())
    world = build_world(
        parse_scenario(
            {
                "name": "small",
                "mode": "multi",
                "tasks": 3,
                "arrivals": {"kind": "poisson", "rate": 1.0},
                "clusters": [{"name": "c", "capacity": {"cpu": 4, "gpu": 0}}],
                "task_types": [
                    {"name": "t", "minimum": {"cpu": 1, "gpu": 0}, "speed": {"kind": "constant", "slots": 2}}
                ],
            }
        )
    )
    header = LogHeader(
        "small",
        "fifo",
        0,
        world.resources.names,
        world.clusters,
        slot_seconds=10.0,
        minimums={t.name: t.minimum for t in world.task_types},
    )
    path = folder / "events.jsonl"
    with EventLog(path, header) as log:
        run_scheduler(world, create("scheduler", "fifo", {}), 0, sinks=[log])
    content = path.read_bytes()
    shutil.rmtree(folder)
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def check(read: Read, path: Path, content: bytes) -> None:
    """Read the file; any error must be one of ours, of bounded length, and name the file."""
    path.write_bytes(content)
    text = ""
    try:
        read(path)
    except TapfingerError as error:
        text = str(error)
    assert not text or path.name.partition(".")[0] in text, f"does not say which file: {text}"
    assert len(text) < 3000


#: name -> file name, sample, what reads it.
FILES: dict[str, tuple[str, bytes, Read]] = {
    "philly": ("trace.csv", PHILLY.encode(), _trace(None)),
    "pollux": ("trace.csv", POLLUX.encode(), _trace(None)),
    "openb": ("trace.csv", OPENB.encode(), _trace(None)),
    "openb with models": ("trace.csv", (OPENB + SPECS).encode(), _trace(None)),
    "nodes": ("nodes.csv", NODES.encode(), _nodes),
    "swf": ("trace.swf", SWF.encode(), _trace(None)),
    "philly by name": ("trace.csv", PHILLY.encode(), _trace("philly")),
    "swf by name": ("trace.swf", SWF.encode(), _trace("swf")),
    "workload": ("workload.csv", WORKLOAD, _workload),
    "profile": ("profile.csv", PROFILE, _profile),
    "runs": ("profile.runs.jsonl", RUNS, read_runs),
}

quick = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("name", FILES)
def test_the_samples_are_good(name: str, tmp_path: Path) -> None:
    file, sample, read = FILES[name]
    (tmp_path / file).write_bytes(sample)
    assert read(tmp_path / file) is not None


@pytest.mark.parametrize("name", FILES)
@quick
@given(data=st.data())
def test_broken_text_files(name: str, tmp_path: Path, data: st.DataObject) -> None:
    file, sample, read = FILES[name]
    check(read, tmp_path / file, data.draw(broken(sample)))


@quick
@given(data=st.data())
def test_broken_event_logs(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("log")
    content = data.draw(broken(_log_sample()))
    check(_log, folder / "events.jsonl", content)
    shutil.rmtree(folder)


@quick
@given(data=st.data())
def test_broken_packed_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("packed")
    content = data.draw(broken(gzip.compress(_log_sample(), mtime=0)))
    check(_log, folder / "events.jsonl.gz", content)
    shutil.rmtree(folder)


@settings(quick, max_examples=40)
@given(data=st.data())
def test_broken_parquet(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    pytest.importorskip("duckdb")
    import numpy as np

    folder = tmp_path_factory.mktemp("parquet")
    path = folder / "workload.parquet"
    write_workload(path, WorkloadFile("x", np.array([0.0, 2.0]), ("a", "b"), ("*", ""), (1, 2)))
    check(_workload, path, data.draw(broken(path.read_bytes())))
    shutil.rmtree(folder)


@settings(quick, max_examples=100)
@given(data=st.data())
def test_broken_model_cards(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("model")
    for name in ("multi-3.onnx", "multi-3.card.json"):
        shutil.copy(models_folder() / name, folder / name)
    card: dict[str, Any] = json.loads((folder / "multi-3.card.json").read_text())
    content = data.draw(broken(json.dumps(card, indent=1).encode()))
    check(lambda _: load_model(str(folder / "multi-3.onnx")), folder / "multi-3.card.json", content)
    shutil.rmtree(folder)
