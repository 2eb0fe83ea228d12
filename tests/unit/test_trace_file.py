"""Workload files and the arrivals read from them."""

from pathlib import Path

import numpy as np
import pytest

from tapfinger.config import load_scenario, parse_scenario
from tapfinger.core.events import TaskFinished
from tapfinger.errors import ConfigError, DataError, MissingDependency
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.base import WorkloadContext
from tapfinger.workloads.files import WorkloadFile, read_workload, to_file, write_workload
from tapfinger.workloads.trace import Trace
from tapfinger.workloads.world import build_world, draw_workload

CONTEXT = WorkloadContext(
    tasks=None, type_names=("a", "b"), cluster_names=("x", "y", "z"), slot_seconds=10.0, directory="."
)


def write(folder: Path, text: str, name: str = "workload.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def arrivals(file: str, context: WorkloadContext = CONTEXT, seed: int = 0, **options):
    return Trace(file, **options).arrivals(context, np.random.default_rng(seed))


def test_seconds_become_slots_and_names_become_indices(tmp_path):
    file = write(tmp_path, "arrival,type,eligible\n0,a,x;z\n9.99,b,*\n10,a, y \n35,b,x;y;z\n")
    drawn = arrivals(file)
    assert drawn.slot.tolist() == [0, 0, 1, 3]
    assert drawn.type.tolist() == [0, 1, 0, 1]
    assert drawn.eligible.tolist() == [[1, 0, 1], [1, 1, 1], [0, 1, 0], [1, 1, 1]]


def test_columns_in_any_order_comments_and_no_eligible(tmp_path):
    drawn = arrivals(write(tmp_path, "# two tasks\ntype,arrival\na,1\n\nb,20\n"))
    assert drawn.slot.tolist() == [0, 2]
    assert drawn.eligible is None


def test_slots_of_a_tenth_of_a_second_do_not_slip():
    context = WorkloadContext(None, ("a",), ("x",), 0.1, ".")
    trace = Trace("unused")
    rows = to_rows([i * 0.1 for i in range(1000)])
    slots = trace._slots(rows, np.arange(1000), 0.0, context.slot_seconds)
    assert slots.tolist() == list(range(1000))


def to_rows(times):
    count = len(times)
    return WorkloadFile("test", np.array(times), ("a",) * count, ("",) * count, tuple(range(1, count + 1)))


def test_scale_start_end_and_number_of_tasks(tmp_path):
    file = write(tmp_path, "arrival,type\n" + "".join(f"{10 * i},a\n" for i in range(10)))
    assert arrivals(file, time_scale=0.5).slot.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert arrivals(file, start=30, end=60).slot.tolist() == [0, 1, 2]
    few = WorkloadContext(4, ("a", "b"), ("x",), 10.0, ".")
    assert arrivals(file, few).slot.tolist() == [0, 1, 2, 3]


def test_a_window_depends_on_the_seed_and_is_consecutive(tmp_path):
    file = write(tmp_path, "arrival,type\n" + "".join(f"{i * i},a\n" for i in range(100)))
    drawn = [arrivals(file, seed=seed, window=5).slot.tolist() for seed in range(20)]
    assert all(len(slots) == 5 and slots[0] == 0 for slots in drawn)
    assert len({tuple(slots) for slots in drawn}) > 5
    assert drawn[3] == arrivals(file, seed=3, window=5).slot.tolist()
    assert len(arrivals(file, window=1000).slot) == 100


def test_unsorted_times_are_an_error_or_sorted_stably(tmp_path):
    file = write(tmp_path, "arrival,type\n20,a\n5,b\n20,b\n5,a\n")
    with pytest.raises(DataError, match=r"workload\.csv:3: arrival 5 comes before 20 .*sort = true"):
        arrivals(file)
    drawn = arrivals(file, sort=True)
    assert drawn.slot.tolist() == [0, 0, 2, 2]
    assert drawn.type.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty"]),
        ("arrival,type\n", ["no tasks"]),
        ("time,type\n1,a\n", [":1:", "unknown column 'time'", "arrival"]),
        ("arrival,type,elligible\n1,a,x\n", ["'elligible'", "Did you mean 'eligible'"]),
        ("arrival,eligible\n1,x\n", ["no column 'type'"]),
        ("arrival,type,type\n1,a,a\n", ["doubled column 'type'"]),
        ("arrival,type\n1,a\nsoon,a\n", [":3:", "'soon'"]),
        ("arrival,type\n-1,a\n", [":2:", "'-1'"]),
        ("arrival,type\nnan,a\n", [":2:", "'nan'"]),
        ("arrival,type\n# note\n1,a,x\n", [":3:", "3 values"]),
        ("arrival,type\n1,\n", [":2:", "type is empty"]),
        ('arrival,type\n1,"a\n2,b"\n', [":3:", "task type 'b\"'"]),  # a quote never goes on in the next line
        ("arrival,type\n1,a\n2,c\n", [":3:", "task type 'c'", "Known: a, b"]),
        ("arrival,type,eligible\n1,a,x;w\n", [":2:", "cluster 'w'", "Known: x, y, z"]),
        ("arrival,type,eligible\n1,a,x\n2,a,\n", [":3:", "eligible is empty", "in every row"]),
        ("arrival,type\n1507532515,a\n", [":2:", "150753251", "arrivals.start"]),
    ],
)
def test_bad_files_are_named_with_line_and_value(tmp_path, text, words):
    file = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        arrivals(file)
    for word in [file, *words]:
        assert word in str(caught.value)


def test_missing_files_and_other_suffixes(tmp_path):
    with pytest.raises(DataError, match="there is no workload file"):
        arrivals(str(tmp_path / "gone.csv"))
    with pytest.raises(DataError, match=r"ends in \.csv or \.parquet"):
        arrivals(write(tmp_path, "arrival,type\n1,a\n", "workload.txt"))
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        arrivals(str(tmp_path / "bad.parquet"))
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        arrivals(str(tmp_path / "bad.csv"))


@pytest.mark.parametrize(
    "options",
    [
        {"time_scale": 0},
        {"time_scale": "fast"},
        {"start": -1},
        {"start": 5, "end": 5},
        {"window": 0},
        {"window": 1.5},
        {"file": ""},
    ],
)
def test_bad_options_are_named(options):
    with pytest.raises(ConfigError, match=r"arrivals\."):
        Trace(**{"file": "x.csv", **options})


def test_a_span_without_tasks_says_where_they_are(tmp_path):
    with pytest.raises(DataError, match="arrive from 1 to 2 s"):
        arrivals(write(tmp_path, "arrival,type\n1,a\n2,a\n"), start=100)


def test_a_changed_file_is_read_anew(tmp_path):
    file = write(tmp_path, "arrival,type\n0,a\n")
    assert len(arrivals(file).slot) == 1
    write(tmp_path, "arrival,type\n0,a\n10,b\n")
    assert len(arrivals(file).slot) == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["multi-3", "hetero-6"])
def test_a_written_workload_plays_exactly_like_the_drawn_one(tmp_path, suffix, name):
    world = build_world(load_scenario(name))
    drawn = draw_workload(world, 5)
    path = tmp_path / f"it's a workload.{suffix}"
    write_workload(path, to_file(world, drawn))
    traced = build_world(load_scenario(name, [f"arrivals={{kind='trace', file=\"{path}\"}}"]))
    again = draw_workload(traced, 5)
    for field in ("slot", "type", "eligible", "noise_key"):
        np.testing.assert_array_equal(getattr(again, field), getattr(drawn, field))
    first: list = []
    second: list = []
    run_scheduler(world, create("scheduler", "min", {}), 5, [first.append])
    run_scheduler(traced, create("scheduler", "min", {}), 5, [second.append])
    assert first == second
    assert sum(isinstance(event, TaskFinished) for event in first) == len(drawn)


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    world = build_world(load_scenario("multi-3"))
    with pytest.raises(MissingDependency, match=r"pip install 'tapfinger\[parquet\]'"):
        write_workload(tmp_path / "w.parquet", to_file(world, draw_workload(world, 0)))


def test_file_names_are_relative_to_the_scenario(tmp_path):
    write(tmp_path, "arrival,type,eligible\n0,a,c\n25,a,c\n")
    (tmp_path / "scenario.toml").write_text(
        'name = "x"\nmode = "multi"\nclusters = [{ name = "c", capacity = { cpu = 1, gpu = 1 } }]\n'
        'arrivals = { kind = "trace", file = "workload.csv" }\n'
        'task_types = [{ name = "a", minimum = { cpu = 1, gpu = 1 }, speed = { kind = "constant", slots = 2 } }]\n'
    )
    world = build_world(load_scenario(str(tmp_path / "scenario.toml")))
    assert draw_workload(world, 0).slot.tolist() == [0, 2]
    # Slots 0-1 and 2-3: both take two slots and neither waits.
    assert run_scheduler(world, create("scheduler", "min", {}), 0).total_completion_time == 4


def test_a_task_that_fits_none_of_its_clusters_is_an_error(tmp_path):
    file = write(tmp_path, "arrival,type,eligible\n0,a,small\n")
    scenario = {
        "name": "x",
        "mode": "multi",
        "clusters": [
            {"name": "small", "capacity": {"cpu": 1, "gpu": 1}},
            {"name": "large", "capacity": {"cpu": 8, "gpu": 8}},
        ],
        "arrivals": {"kind": "trace", "file": file},
        "task_types": [{"name": "a", "minimum": {"cpu": 2, "gpu": 2}, "speed": {"kind": "constant", "slots": 2}}],
    }
    words = r"^mine\.toml: .*workload\.csv:2 \(a\): minimum 2 cpu, 2 gpu fits none .*clusters: small with 1 cpu"
    with pytest.raises(ConfigError, match=words):
        run_scheduler(build_world(parse_scenario(scenario, "mine.toml")), create("scheduler", "min", {}), 0)
    write(tmp_path, "arrival,type\n0,b\n5,a\n")
    scenario["task_types"] += [{**scenario["task_types"][0], "name": "b"}]
    scenario["task_types"][0]["minimum"] = {"cpu": 9, "gpu": 2}
    words = r"workload\.csv:3: task type 'a': minimum 9 cpu, 2 gpu fits no cluster: small .*; large with 8 cpu"
    with pytest.raises(ConfigError, match=words):
        draw_workload(build_world(parse_scenario(scenario)), 0)


def test_many_rows_are_read(tmp_path):
    file = write(tmp_path, "arrival,type,eligible\n" + "".join(f"{i},a,x;y\n" for i in range(50_000)))
    assert len(read_workload(Path(file))) == 50_000
