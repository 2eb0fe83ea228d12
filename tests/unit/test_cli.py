import csv
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tapfinger import __version__
from tapfinger.cli import main
from tapfinger.config import load_scenario
from tapfinger.evaluation import plots
from tapfinger.records import read_header

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in an empty directory; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "cells"))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tapfinger", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


COMPARE = ("compare", "multi-3", "--set", "tasks=20", "--schedulers", "min,random@pending=3", "--seeds", "0:3")


def test_compare_writes_a_directory(run, tmp_path):
    code, out, err = run(*COMPARE, "--baseline", "min", "--out", "here")
    assert code == 0, err
    assert "here/report.html" in out
    here = tmp_path / "here"
    results = json.loads((here / "results.json").read_text())
    assert (results["scenario"], results["seeds"], results["baseline"]) == ("multi-3", [0, 1, 2], "min")
    assert set(results["schedulers"]) == {"min", "random@pending=3"}
    for scheduler in results["schedulers"].values():
        assert len(scheduler["per_seed"]) == 3
        assert scheduler["mean"] == pytest.approx(sum(scheduler["per_seed"]) / 3)
        assert scheduler["median"] <= scheduler["p95"] <= scheduler["p99"] <= scheduler["max"]
    logs = sorted((here / "events").iterdir())
    assert len(logs) == 6
    assert {read_header(log).scheduler for log in logs} == {"min", "random@pending=3"}
    with gzip.open(here / "tasks.csv.gz", "rt") as file:
        tasks = list(csv.DictReader(file))
    assert len(tasks) == 2 * 3 * 20
    mine = [int(row["completion"]) for row in tasks if (row["scheduler"], row["seed"]) == ("min", "1")]
    assert sum(mine) / 20 == pytest.approx(results["schedulers"]["min"]["per_seed"][1])
    with (here / "seeds.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    config = json.loads((here / "config.json").read_text())
    assert config["scenario"]["tasks"] == 20
    assert config["versions"]["tapfinger"] == __version__
    assert len(list((here / "figures").glob("*.png"))) == 6


@pytest.fixture
def one_figure(monkeypatch):
    """Drawing is slow, and tests of other things need not draw it all."""
    monkeypatch.setattr(plots, "FIGURES", {"differences": plots.FIGURES["differences"]})


@pytest.mark.usefixtures("one_figure")
def test_the_command_in_the_report_gives_the_same_again(run, tmp_path):
    run(*COMPARE, "--out", "one")
    words = json.loads((tmp_path / "one" / "config.json").read_text())["command"].split()
    code, _, err = run(*words[1:], "--out", "two", "--no-cache")
    assert code == 0, err
    for name in ("tasks.csv.gz", "figures/differences.png", "events/min-2.jsonl.gz"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_json_alone_writes_only_that(run, tmp_path):
    code, out, _ = run(*COMPARE, "--json", "deep/r.json")
    assert code == 0
    assert "random@pending=3" in out
    assert json.loads((tmp_path / "deep" / "r.json").read_text())["schedulers"]["min"]["mean"] > 0
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("one_figure")
def test_default_directory_and_reuse(run, tmp_path):
    _, first, _ = run(*COMPARE, "--no-event-logs")
    _, second, err = run(*COMPARE, "--no-event-logs")
    assert "6 runs were finished before" in err
    assert first == second
    (folder,) = (tmp_path / "results" / "multi-3").iterdir()
    assert folder.name in first
    assert not (folder / "events").exists()
    run(*COMPARE, "--set", "arrivals.rate=2", "--no-event-logs")
    assert len(list((tmp_path / "results" / "multi-3").iterdir())) == 2


def test_the_usual_schedulers_and_one_seed(run):
    code, out, err = run("compare", "multi-3", "--set", "tasks=8", "--seeds", "4", "--json", "r.json")
    assert code == 0, err
    assert "minus greedy" in out
    assert all(name in out for name in ("min", "random", "optimus", "tiresias"))


def test_simulate_writes_log_chart_and_measurements(run, tmp_path):
    words = ("simulate", "synthetic-3", "--scheduler", "greedy", "--seed", 3, "--set", "tasks=30")
    code, out, err = run(*words, "--events", "e.jsonl", "--gantt", "g.png", "--json", "r.json")
    assert code == 0, err
    assert "completion time, mean [slots]" in out
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["scheduler"], found["seed"], found["tasks"]) == ("greedy", 3, 30)
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "e.jsonl").read_bytes()
    run(*words, "--events", "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == first


def test_scenarios_and_schedulers_are_listed(run, tmp_path):
    _, out, _ = run("scenarios")
    assert "hetero-6" in out
    _, toml, _ = run("scenarios", "show", "hetero-6")
    (tmp_path / "mine.toml").write_text(toml)
    assert load_scenario(str(tmp_path / "mine.toml")).resolved() == load_scenario("hetero-6").resolved()
    _, out, _ = run("schedulers")
    assert "random" in out
    assert "pending=10" in out


def test_version_and_help(run):
    assert run("--version")[1].strip() == f"tapfinger {__version__}"
    for words in (("--help",), ("compare", "-h"), ("simulate", "-h"), ("scenarios", "-h"), ("workload", "-h")):
        code, out, _ = run(*words)
        assert code == 0
        assert out.startswith("Usage: tapfinger")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("compare", "multi-4"), ["'multi-4'", "Did you mean 'multi-3'"]),
        (("compare", "nowhere.toml"), ["nowhere.toml"]),
        (("compare", "multi-3", "--schedulers", "gredy"), ["'gredy'", "Did you mean 'greedy'"]),
        (("compare", "multi-3", "--schedulers", "min@pendng=1"), ["'pendng'", "'pending'"]),
        (("compare", "multi-3", "--seeds", "9:3"), ["'9:3'", "0:30"]),
        (("compare", "multi-3", "--set", "arrivals.rat=2"), ["'rat'", "'rate'"]),
        (("compare", "multi-3", "--set", "task=2"), ["'task'", "'tasks'"]),
        (("compare", "multi-3", "--set", "tasks=no"), ["tasks", "'no'"]),
        (("compare", "multi-3", "--set", "tasks"), ["key=value"]),
        (("compare", "multi-3", "--schedulers", "min", "--baseline", "greedy"), ["'greedy'", "min"]),
        (("compare", "multi-3", "--schedulers", "min", "--out", "taken"), ["taken", "--out"]),
        (
            ("compare", "multi-3", "--schedulers", "min", "--seeds", "0", "--json", "taken/r"),
            ["taken/r", "another path"],
        ),
        (("compare", "multi-3", "--jobs", "0"), ["--jobs"]),
        (("simulate", "multi-3", "--scheduler", "x.y:Z"), ["x.y", "Python path"]),
        (("simulate", "multi-3", "--scheduler", "min", "--gantt", "taken/g.png"), ["taken/g.png"]),
        (("simulate", "multi-3", "--scheduler", "min", "--events", "taken/e"), ["taken/e"]),
        (("simulate", "multi-3", "--scheduler", "min", "--resource", "ram"), ["'ram'", "cpu, gpu"]),
        (("simulate", "multi-3"), ["--scheduler"]),
        (("scenarios", "show", "multi"), ["'multi'", "multi-3"]),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(run, tmp_path, words, expected):
    (tmp_path / "taken").write_text("a file, not a directory")
    code, _, err = run(*words)
    assert code == 2
    assert "Traceback" not in err
    assert all(word in err for word in expected), err
    assert err.lower().lstrip().startswith(("error: ", "usage: "))


def test_ctrl_c_says_how_to_go_on(run, monkeypatch):
    monkeypatch.setattr("tapfinger.evaluation.runner.run_cell", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = run(*COMPARE, "--json", "r.json")
    assert code == 130
    assert "interrupted after 0 of 6 runs" in err
    assert "same command" in err


def test_starting_is_quick():
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    spent = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tapfinger", "--help"], check=True, capture_output=True, env=environment)
        spent.append(time.perf_counter() - begin)
    assert min(spent) < 1.0
