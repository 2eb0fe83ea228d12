"""The command from end to end on few seeds and tasks: files, report, interruption, and what goes wrong."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapfinger.cli import main
from tapfinger.config import load_scenario
from tapfinger.evaluation import cells, runner
from tapfinger.reproduce import catalog, styles
from tapfinger.reproduce.catalog import FIGURES
from tapfinger.reproduce.training_curve import shipped_logs, thinned
from tapfinger.schedulers.greedy import Greedy
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

SMALL = ("--seeds", "0:2", "--tasks", "15")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in an empty directory; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "cells"))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tapfinger", "reproduce", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_list_names_every_figure(run):
    code, out, _ = run("list")
    assert code == 0
    assert all(re.search(rf"\b{name}\b", out) for name in FIGURES)


def test_a_figure_of_ones_own_is_listed_made_and_judged(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    word = "examples.patience:FIGURE"
    code, out, err = run("list", word)
    assert code == 0, err
    assert re.search(r"\bpatience\b", out)
    code, out, err = run(word, *SMALL, "--out", "here", "--docs", tmp_path)
    assert code == 0, err
    assert "Sharing clusters is better" in out
    here = tmp_path / "here"
    assert [path.name for path in (here / "figures").glob("*.png")] == ["patience-sweep.png"]
    with (here / "tables" / "patience.csv").open(encoding="utf-8") as file:
        assert {row["scheduler"] for row in csv.DictReader(file)} == {"greedy", "whole cluster", "fifo"}
    for page in (here / "report.html", tmp_path / "reproduction.md"):
        assert f"tapfinger reproduce {word}" in page.read_text(encoding="utf-8")


def test_figures_of_installed_packages_are_among_all(monkeypatch):
    mine = replace(FIGURES["load"], name="mine")
    monkeypatch.setattr(catalog, "names", lambda kind: ["mine"])
    monkeypatch.setattr(catalog, "find", lambda kind, name: [mine])
    assert [figure.name for figure in catalog.choose(["mine"])] == ["mine"]
    assert len(catalog.choose(["all"])) == len(FIGURES) + 1


def test_two_figures_with_all_their_files(run, tmp_path):
    code, out, err = run("motivation", "outage", *SMALL, "--out", "here", "--docs", tmp_path)
    assert code == 0, err
    assert "here/report.html" in out
    here = tmp_path / "here"
    for name in ("motivation-profiles", "outage-settings", "outage-accumulation"):
        assert (here / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (here / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with (here / "tables" / "outage.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(FIGURES["outage"].settings) * len(FIGURES["outage"].schedulers)
    assert {row["tasks"] for row in rows} == {"15"}
    with (here / "tables" / "outage-claims.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(FIGURES["outage"].claims)
    page = (here / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in re.sub(r"base64,[^']*", "", page)
    summary = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    for link in re.findall(r"!\[.*?\]\((.*?)\)", summary):
        assert (tmp_path / link).is_file()
    before = page, summary
    code, _, err = run("motivation", "outage", *SMALL, "--out", "here", "--docs", tmp_path)
    assert code == 0
    assert "20 of 20 runs were finished before" in err
    changing = re.compile(r"time taken.*?minutes[^<|]*")
    after = (here / "report.html").read_text(encoding="utf-8"), (tmp_path / "reproduction.md").read_text("utf-8")
    assert [changing.sub("", text) for text in before] == [changing.sub("", text) for text in after]


def test_interrupted_and_resumed(run, monkeypatch):
    made: list[int] = []
    real = runner.run_cell

    def stopping(*arguments):
        if len(made) == 3:
            raise KeyboardInterrupt
        real(*arguments)
        made.append(1)

    monkeypatch.setattr(runner, "run_cell", stopping)
    code, _, err = run("vanilla", *SMALL, "--out", "here")
    assert code == 130
    assert "interrupted after 3 of 4 runs: finished runs are kept" in err
    monkeypatch.setattr(runner, "run_cell", real)
    code, _, err = run("vanilla", *SMALL, "--out", "here")
    assert code == 0, err
    assert "3 of 4 runs were finished before" in err


def test_a_change_of_the_source_makes_earlier_runs_stale_and_is_said(run, monkeypatch):
    assert run("vanilla", *SMALL, "--out", "here")[0] == 0
    monkeypatch.setattr(cells, "installed", lambda: {"numpy": "0.0.1"})
    code, _, err = run("vanilla", *SMALL, "--out", "here")
    assert code == 0
    assert "has changed since here was written: runs of 2 of 2 combinations" in " ".join(err.split())
    assert "finished before" not in err


def test_a_missing_model_is_said_before_anything_runs(run, monkeypatch):
    monkeypatch.setitem(styles.SCHEDULERS, "vanilla", "tapfinger@model=nowhere.onnx")
    code, _, err = run("vanilla", *SMALL, "--out", "here")
    assert code == 2
    assert "'vanilla' of the setting 'synthetic-3' has no model" in err
    assert "nowhere.onnx" in err


def test_a_directory_that_cannot_be_written(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    code, _, err = run("motivation", "--out", "file/below")
    assert code == 2
    assert "cannot write into file/below" in err

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, _, err = run("motivation", "--out", "here")
    assert code == 2
    assert "Read-only file system; give another directory with --out" in err


def test_a_directory_with_other_things_is_left_alone(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    code, _, err = run("motivation", "--out", "mine")
    assert code == 2
    assert "holds other files" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("multi3",), "multi-3"),
        (("vanilla", "--seeds", "5:5"), "empty"),
        (("list", "all"), "list takes no figures but your own"),
        (("nowhere:FIGURE",), "there is no module 'nowhere'"),
        (("tapfinger.reproduce.declare:OURS",), "is neither a Figure"),
        (("list", "tapfinger.reproduce.beyond:LOAD"), "there is a figure 'load' already"),
    ],
)
def test_slips_of_the_keyboard(run, words, said):
    code, _, err = run(*words)
    assert code == 2
    assert said in err


def test_curves_of_shipped_logs_and_of_a_run_of_ones_own(run, tmp_path):
    code, _, err = run("training", "--out", "here")
    assert code == 0, err
    assert (tmp_path / "here" / "figures" / "training-training.png").is_file()
    table = tmp_path / "here" / "tables" / "training.csv"
    shipped = table.read_text("utf-8").splitlines()
    assert [line.partition(",")[0] for line in shipped[1:]] == list(shipped_logs())
    logs = tmp_path / "here" / "training" / "logs"
    logs.mkdir(parents=True)
    lines = (
        '{"step": 1, "steps": 900, "sampled": 4.5}',
        '{"step": 2, "steps": 1800, "sampled": null}',
        '{"step": 3, "steps": 2700, "sampled": 3.9, "score": 0.98}',
    )
    (logs / "metrics.jsonl").write_text("\n".join(lines))
    scenario = load_scenario("multi-3", ["tasks=20"])
    config = {"refinements": 1, "workloads": 2, "deviation": {"workloads": 3}}
    (logs.parent / "run.json").write_text(json.dumps({"scenario": scenario.resolved(), "config": config}))
    assert run("training", "--out", "here")[0] == 0
    *before, own = table.read_text("utf-8").splitlines()
    assert before == shipped
    world = build_world(scenario)
    greedy = [
        np.mean([run_scheduler(world, Greedy(), seed).total_completion_time / 20 for seed in seeds])
        for seeds in (range(200_000, 200_003), range(400_004, 400_006))
    ]
    assert own == f'this run,2,"2,700",{4.5 / greedy[0]:.3f},{3.9 / greedy[1]:.3f},0.980,0.980'


def test_many_small_updates_make_few_points():
    curve = thinned([(float(step), step % 2) for step in range(100)])
    assert len(curve.x) == len(curve.y) <= 16
    assert curve.y[0] == pytest.approx(3 / 7)
    assert curve.x[-1] == pytest.approx(98.5)


def test_a_store_that_cannot_be_written_is_said(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "file" / "below"))
    code, _, err = run("vanilla", *SMALL, "--out", "here")
    assert code == 0, err
    assert "finished runs are not kept" in " ".join(err.split())
