"""``tapfinger workload``: the commands end to end, on small files of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapfinger.commands.workload import app
from tapfinger.errors import ConfigError, DataError, UnknownNameError
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler

TRACE = "timestamp,duration,num_gpus,cluster\n" + "".join(
    f"2020-01-01 0{i % 6}:00:0{i % 10},{600 + i},{1 + i % 2},vc{i % 2}\n" for i in range(40)
)


def run(*arguments: str | Path) -> str:
    """Output of a command; its errors are raised, for the main program to print."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "2020-01-01 01:00:00,0,1,vc0\n")
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_generate_then_describe_and_plot(tmp_path, suffix):
    out = tmp_path / f"w.{suffix}"
    assert "192 tasks written" in run("generate", "multi-3", "--out", out, "--seed", "3")
    text = run("describe", out, "--scenario", "multi-3")
    assert "192 tasks" in text
    assert "insensitive" in text
    assert "load under minimum allocations" in text
    assert "edge-2" in text
    run("plot", out, "--out", tmp_path / "w.png")
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")


def test_a_workload_of_clusters_with_nodes_names_whole_clusters_and_can_be_read_again(tmp_path):
    run("generate", "nodes-3", "--out", tmp_path / "w.csv", "--set", "tasks=40")
    assert ":" not in (tmp_path / "w.csv").read_text()
    text = run("describe", tmp_path / "w.csv", "--scenario", "nodes-3")
    assert "40 tasks" in text
    assert text.splitlines()[-4:] == run("describe", "nodes-3", "--set", "tasks=40").splitlines()[-4:]


def test_generate_takes_seed_and_overrides(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("generate", "multi-3", "--out", tmp_path / f"{name}.csv", "--seed", seed, "--set", "tasks=20")
    a, b, c = ((tmp_path / f"{name}.csv").read_text() for name in "abc")
    assert a == b != c
    assert a.count("\n") == 21


def test_describe_a_file_alone(tmp_path):
    (tmp_path / "w.csv").write_text("arrival,type,eligible\n0,a,x;y\n1800,b,x\n3600,a,y\n")
    text = run("describe", tmp_path / "w.csv")
    assert "3 tasks in 60.0 min" in text
    assert "2 tasks per hour" in text
    assert "66.7%" in text
    assert "1.33 eligible clusters per task" in text


def test_load_is_work_over_capacity_and_span(tmp_path):
    # Two tasks of 4 slots on 2 cpu and 1 gpu, in slots 0 and 9: 16 cpu slots of 3 x 16 x 10, 8 gpu slots.
    (tmp_path / "w.csv").write_text("arrival,type,eligible\n0,insensitive,*\n90,insensitive,*\n")
    assert "cpu 3.3%, gpu 1.7%" in run("describe", tmp_path / "w.csv", "--scenario", "multi-3")


@pytest.mark.parametrize("extra", [[], ["--parquet"], ["--clusters", "2", "--capacity", "cpu=16,gpu=8"]])
def test_import_writes_a_scenario_that_runs(tmp_path, trace, extra):
    from tapfinger.config import load_scenario
    from tapfinger.workloads.world import build_world

    text = run("import", trace, "--out", tmp_path / "site", *extra)
    assert "format philly: 40 tasks used, 1 rows dropped" in text
    assert "1 dropped: duration is not above 0" in text
    assert "tapfinger compare" in text
    world = build_world(load_scenario(str(tmp_path / "site" / "scenario.toml")))
    assert world.scenario.name == "site"
    for scheduler in ("min", "random"):
        assert run_scheduler(world, create("scheduler", scheduler, {}), 0).tasks == 40
    assert "40 tasks" in run("describe", tmp_path / "site" / "scenario.toml")


def test_import_does_not_overwrite_unless_told(tmp_path, trace):
    run("import", trace, "--out", tmp_path / "site")
    with pytest.raises(ConfigError, match=r"scenario\.toml exists.*--force"):
        run("import", trace, "--out", tmp_path / "site")
    run("import", trace, "--out", tmp_path / "site", "--force")


def test_import_warns_when_clusters_cannot_keep_up(tmp_path, trace):
    text = run(
        "import", trace, "--out", tmp_path / "s", "--clusters", "1", "--capacity", "cpu=4,gpu=2", "--time-scale", "0.1"
    )
    assert "warning: the load of cpu is" in text
    assert "warning" not in run("import", trace, "--out", tmp_path / "t")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["describe", "gone.csv"], DataError, "there is no workload file gone.csv"),
        (["describe", "multi-4"], UnknownNameError, "Did you mean 'multi-3'"),
        (["describe", "gone.csv", "--set", "tasks=3"], ConfigError, "--scenario"),
        (["generate", "multi-3", "--out", "w.txt"], DataError, "ends in .csv or .parquet"),
        (["generate", "multi-3", "--out", "no/such/folder/w.csv"], DataError, "cannot be written"),
        (["plot", "multi-3", "--out", "w.pdf"], ConfigError, "let its name end in .png"),
        (["import", "gone.csv", "--out", "x"], DataError, "there is no trace file gone.csv"),
        (["import", "gone.csv", "--out", "x", "--capacity", "cpu"], ConfigError, "'cpu' must look like name=number"),
        (["import", "gone.csv", "--out", "x", "--capacity", "cpu=-1"], ConfigError, "'cpu=-1' must be above 0"),
        (["import", "gone.csv", "--out", "x", "--cpus-per-gpu", "0"], ConfigError, "--cpus-per-gpu 0 must be above 0"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, arguments, error, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        run(*arguments)
    assert words in str(caught.value)


def test_a_mode_that_does_not_exist_names_the_key_and_writes_nothing(tmp_path, trace):
    with pytest.raises(ConfigError, match="mode"):
        run("import", trace, "--out", tmp_path / "site", "--mode", "double")
    assert not (tmp_path / "site").exists()


def test_help_needs_nothing_heavy():
    code = (
        "import sys, tapfinger.commands.workload; "
        "print([m for m in ('numpy', 'pydantic', 'matplotlib', 'duckdb') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
