import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tapfinger import __version__
from tapfinger.cli import COMMANDS, app, main
from tapfinger.commands import compare
from tapfinger.config import load_scenario
from tapfinger.evaluation import plots
from tapfinger.records import read_header
from tapfinger.registry import lookup
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.wide_sites import draw_wide_site

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
def test_a_directory_of_results_is_written_again_and_nothing_else_in_it_is_touched(run, tmp_path):
    assert run(*COMPARE, "--out", "here")[0] == 0
    here = tmp_path / "here"
    own = [here / "notes.txt", here / "events" / "notes.txt"]
    for path in own:
        path.write_text("mine")
    code, _, err = run(*COMPARE[:-1], "0:2", "--out", "here")
    assert code == 0, err
    assert len(list((here / "events").glob("*.jsonl.gz"))) == 4
    assert run(*COMPARE, "--out", "here", "--no-event-logs")[0] == 0
    assert not list((here / "events").glob("*.jsonl.gz"))
    assert [path.read_text() for path in own] == ["mine", "mine"]


@pytest.mark.parametrize("results", [None, "{}", "no json"])
def test_a_directory_with_other_files_is_refused_before_anything_runs(run, tmp_path, results):
    (tmp_path / "here" / "events").mkdir(parents=True)
    mine = tmp_path / "here" / "events" / "mine.jsonl.gz"
    mine.write_text("mine")
    if results is not None:
        (tmp_path / "here" / "results.json").write_text(results)
    code, _, err = run(*COMPARE, "--out", "here")
    assert code == 2
    assert "holds other files" in err
    assert "--out" in err
    assert mine.read_text() == "mine"
    assert not list(tmp_path.glob("cells/*"))


@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize("name", ["report.html", "tasks.csv.gz"])
def test_a_directory_in_the_place_of_a_file_is_found_before_anything_runs(run, tmp_path, name):
    run(*COMPARE, "--out", "here")
    target = tmp_path / "here" / name
    target.unlink()
    target.mkdir()
    code, _, err = run(*COMPARE, "--out", "here")
    assert code == 2
    assert err.startswith(f"error: cannot write here/{name}")
    assert "reused" not in err


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_keeps_names_and_differences_at_any_width(run, monkeypatch, width):
    monkeypatch.setattr(compare, "_WIDTH", width)
    words = ("--schedulers", "min,tiresias-nonpreemptive,random@pending=3", "--seeds", "0:3", "--baseline", "min")
    _, out, _ = run("compare", "multi-3", "--set", "tasks=12", *words, "--json", "r.json")
    lines = out.splitlines()
    assert max(map(len, lines[:-1])) <= width
    rows = [line for line in lines if "±" in line and "95 %" not in line]
    assert sorted(row.split()[0] for row in rows) == ["min", "random@pending=3", "tiresias-nonpreemptive"]
    assert all(row.count("±") == 2 for row in rows if row.split()[0] != "min")
    assert "minus min" in out
    assert ("p99" in lines[2]) == (width == 140)


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


def test_a_random_site_is_shown_and_can_be_run(run, tmp_path):
    _, toml, _ = run("scenarios", "site", "3", "--tasks", "12", "--distribution", "pools")
    (tmp_path / "site.toml").write_text(toml)
    assert load_scenario(str(tmp_path / "site.toml")).resolved() == draw_site(3, 12).resolved()
    _, out, _ = run("scenarios", "site", "3", "--tasks", "12", "--out", "wide.toml")
    assert "site 3 (wide) written to wide.toml" in out
    assert load_scenario(str(tmp_path / "wide.toml")).resolved() == draw_wide_site(3, 12).resolved()
    code, out, _ = run("simulate", "site.toml", "--scheduler", "greedy")
    assert code == 0
    assert "12" in out
    assert run("scenarios", "site", "-1")[0] == 2
    for words, message in (
        (("--distribution", "pool"), "Did you mean 'pools'"),
        (("--out", "site.txt"), "let its name end in .toml"),
        (("--out", "no/such/site.toml"), "cannot write no/such/site.toml"),
    ):
        code, _, error = run("scenarios", "site", "3", *words)
        assert code != 0
        assert message in error


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
        (("simulate", "multi-3", "--scheduler", "min", "--json", "."), ["cannot write .", "another path"]),
        (("simulate", "multi-3", "--scheduler", "min", "--gantt", "g.pdf"), ["g.pdf", ".png"]),
        (("simulate", "multi-3", "--scheduler", "min", "--slots", "0:9"), ["0:9", "--gantt"]),
        (("simulate", "multi-3", "--scheduler", "min", "--slots", "9:9", "--gantt", "g.png"), ["9:9", "100:200"]),
        (("simulate", "multi-3", "--scheduler", "min", "--slots", "0:900", "--gantt", "g.png"), ["0:900", "400"]),
        (("compare", "multi-3", "--schedulers", "min", "--json", "."), ["cannot write .", "another path"]),
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


FAULTY = """from tapfinger.schedulers.naive import Min

class InDecide(Min):
    def decide(self, snapshot):
        return snapshot.no_such_thing

class InInit(Min):
    def __init__(self):
        raise RuntimeError("cannot start")
"""


@pytest.mark.parametrize("command", [("simulate", "--scheduler"), ("compare", "--json", "r.json", "--schedulers")])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("InDecide", ["AttributeError", "no_such_thing", "line 5, in decide"]),
        ("InInit", ["RuntimeError: cannot start", "9"]),
    ],
)
def test_a_scheduler_that_raises_is_shown_where(run, tmp_path, monkeypatch, command, name, words):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_xyz.py").write_text(FAULTY)
    code, _, err = run(command[0], "multi-3", *command[1:], f"faulty_xyz:{name}")
    sys.modules.pop("faulty_xyz")
    lookup.cache_clear()
    assert code == 2
    assert "Traceback" not in err
    assert err.startswith(f"error: scheduler 'faulty_xyz:{name}'")
    assert all(word in err for word in ["faulty_xyz.py", *words]), err
    assert len(err.splitlines()) <= 3


def test_ctrl_c_says_how_to_go_on(run, monkeypatch):
    monkeypatch.setattr("tapfinger.evaluation.runner.run_cell", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = run(*COMPARE, "--json", "r.json")
    assert code == 130
    assert "interrupted after 0 of 6 runs" in err
    assert "same command" in err


def _imported(*words):
    """Modules that a fresh interpreter has imported after these words of the command line; without any, the package."""
    call = f"sys.argv = ['tapfinger', *{list(words)}]; from tapfinger.cli import main; main()" if words else "pass"
    code = f"""
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: print("\\n".join(sorted(set(sys.modules) - before)), file=sys.stderr))
import tapfinger
{call}
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    return set(done.stderr.split())


#: Packages that take longer to import than everything that help needs.
HEAVY = {
    "numpy",
    "scipy",
    "pydantic",
    "rich",
    "httpx",
    "asyncio",
    "fastapi",
    "matplotlib",
    "numba",
    "torch",
    "onnxruntime",
}


def test_importing_the_package_imports_next_to_nothing():
    """The figure is 0.05 s. Modules are counted, because seconds depend on what else the machine does."""
    assert len(_imported()) < 10


def test_help_imports_no_command_and_nothing_heavy():
    """The figure is 0.2 s."""
    found = _imported("--help")
    assert not {name for name in found if name.startswith("tapfinger.commands")}
    assert not HEAVY & found
    assert len(found) < 150


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_docstring_says(name):
    command = typer.main.get_command(app).commands[name]
    assert command.load().get_short_help_str(1000) == COMMANDS[name][1]
    assert command.get_short_help_str(1000) == COMMANDS[name][1]


def test_help_of_every_command_needs_nothing_heavy():
    words = [[name, "--help"] for name in COMMANDS]
    code = f"""
import sys
from typer.testing import CliRunner
from tapfinger.cli import app
for words in {words}:
    before = set(sys.modules)
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, (words, found.output)
    heavy = {HEAVY - {"pydantic"}} & set(sys.modules) - before  # typer reads values of options with pydantic
    assert not heavy, (words, heavy)
"""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
