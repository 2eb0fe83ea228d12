"""Profiles become scenarios: shapes of progress from curves, boxes without failures, loads, time scales."""

import json
import math
import tomllib

import numpy as np
import pytest
from profiles.grids import measured
from typer.testing import CliRunner

from tapfinger.cli import app
from tapfinger.config import load_scenario, parse_scenario
from tapfinger.errors import ConfigError, DataError, TapfingerError
from tapfinger.profiles.shape import fit_shape, from_losses
from tapfinger.profiles.table import ProfileRow, write_profile
from tapfinger.profiling.options import ScenarioChoices
from tapfinger.profiling.scenario import MeasuredType, build, read_measured
from tapfinger.workloads.describe import summarise
from tapfinger.workloads.files import to_file
from tapfinger.workloads.world import build_world, draw_workload


def shaped(offset, points=30, total=50.0):
    """Progress over time at a speed of sqrt(offset - progress)."""
    first, last = math.sqrt(offset), math.sqrt(offset - 1.0)
    return [(total * t, offset - (first - t * (first - last)) ** 2) for t in np.linspace(0.0, 1.0, points)]


@pytest.mark.parametrize("offset", [1.05, 1.2, 1.6])
def test_the_offset_of_a_curve_is_found(offset):
    assert fit_shape([shaped(offset), shaped(offset, 12, 9.0)]).offset == pytest.approx(offset, rel=0.03)


def test_a_loss_that_rises_for_a_moment_is_no_matter():
    losses = [(t, 100.0 - 60.0 * p) for t, p in shaped(1.2)]
    losses[10] = (losses[10][0], losses[9][1] + 1.0)
    assert fit_shape([from_losses(losses)]).offset == pytest.approx(1.2, rel=0.1)


@pytest.mark.parametrize(
    "curve",
    [
        [(t, t / 10) for t in range(11)],  # constant
        [(t, 0.0 if t < 8 else (t - 7) / 3) for t in range(11)],  # late: no offset describes that
        [(t, min(1.0, t / 2)) for t in range(11)],  # early, and then nothing for long
    ],
)
def test_where_no_offset_fits_the_speed_is_constant(curve):
    shape = fit_shape([curve])
    assert shape.offset is None
    assert "constant" in shape.describe()


@pytest.mark.parametrize(
    "curve",
    [(), [(0.0, 0.0), (1.0, 1.0)], [(t, t / 20) for t in range(11)], [(t, math.nan) for t in range(11)]],
)
def test_curves_that_say_nothing_are_not_used(curve):
    assert fit_shape([curve]).curves == 0
    assert from_losses([(0.0, 1.0), (1.0, 2.0)]) == ()


@pytest.mark.parametrize("offset", [1.1, 1.5])
def test_a_table_with_a_shape_takes_as_long_as_it_says(tmp_path, offset):
    write_profile(tmp_path / "p.csv", [ProfileRow("a", {"cpu": c}, s) for c, s in ((1.0, 400.0), (2.0, 100.0))])
    speed = {"kind": "table", "file": "p.csv", "shape_offset": offset}
    scenario = {
        "name": "s",
        "mode": "multi",
        "tasks": 1,
        "resources": {"cpu": 1},
        "clusters": [{"name": "c", "capacity": {"cpu": 2}}],
        "task_types": [{"name": "a", "minimum": {"cpu": 1}, "maximum": {"cpu": 2}, "speed": speed}],
    }
    profile = build_world(parse_scenario(scenario, directory=str(tmp_path))).task_types[0].profile
    assert profile.shape_offset == offset
    assert profile.slots((1,)) == pytest.approx(40, abs=1)
    assert profile.slots((2,)) == pytest.approx(10, abs=1)
    assert "shape_offset" in parse_scenario(scenario).resolved()["task_types"][0]["speed"]
    del speed["shape_offset"]
    assert "shape_offset" not in parse_scenario(scenario).resolved()["task_types"][0]["speed"]


def grid_of(task_type, every=1):
    cells = measured(task_type)
    return MeasuredType(("cpu", "gpu"), {cell: runs for i, (cell, runs) in enumerate(cells.items()) if i % every == 0})


def test_holes_are_filled_by_the_model_and_failures_left_out(tmp_path):
    kind = grid_of("language-modeling", every=3)
    kind.failed = {(float(c), 1.0): "too little memory" for c in range(1, 17)}
    kind.cells = {cell: runs for cell, runs in kind.cells.items() if cell not in kind.failed}
    built = build({"lm": kind}, ScenarioChoices("s"), "s.profiles.csv")
    assert built.scenario["task_types"][0]["minimum"]["gpu"] == 2.0
    assert all(row.amounts["gpu"] > 1 for row in built.rows)
    truth = measured("language-modeling", noise=0.0)
    off = [abs(row.seconds / truth[row.amounts["cpu"], row.amounts["gpu"]][0] - 1) for row in built.rows]
    assert np.median(off) < 0.02
    assert "taken from the speed model" in built.notes[0]


def test_time_is_scaled_and_the_load_is_as_wanted(tmp_path):
    kinds = {name: grid_of(name, every=2) for name in ("image-classification", "speech-recognition")}
    loads = {}
    for scale in (1.0, 60.0):
        built = build(
            kinds, ScenarioChoices("s", time_scale=scale, slot_seconds=1.0 / scale, tasks=2000, load=0.5), "p.csv"
        )
        write_profile(tmp_path / "p.csv", built.rows)
        world = build_world(parse_scenario(built.scenario, directory=str(tmp_path)))
        fastest = min(row.seconds for row in built.rows if row.task_type == "speech-recognition")
        assert fastest == pytest.approx(17.1 / scale, rel=0.05)
        workload = to_file(world, draw_workload(world, 20000), "s")
        loads[scale] = max(summarise(workload, world).load.values())
    # Speech recognition is most economical at its minimum; image classification nearly so.
    assert loads[1.0] == pytest.approx(0.5, rel=0.35)
    assert loads[60.0] == pytest.approx(loads[1.0], rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"types": ["nobody"]}, "no task type 'nobody'"),
        ({"weights": {"nobody": 2}}, "no task type 'nobody'"),
        ({"weights": {"a": 0.0}}, "every --weight is 0"),
        ({"clusters": 0}, "--clusters 0 must be at most 10000 and above 0"),
        ({"time_scale": math.inf}, "--time-scale inf must be above 0"),
        ({"capacity": {"tpu": 4}}, "no resource 'tpu'"),
        ({"capacity": {"cpu": 1}}, "was measured with 2 cpu or more, but clusters have 1"),
        ({"rate": 1.0, "load": 0.5}, "--load has no effect"),
    ],
)
def test_choices_that_cannot_be_are_refused(options, words):
    kind = MeasuredType(("cpu",), {(2.0,): [10.0], (4.0,): [6.0]})
    with pytest.raises(TapfingerError, match=words):
        build({"a": kind}, ScenarioChoices("s", **options), "p.csv")


def test_from_files_to_a_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [ProfileRow("train", {"cpu": c, "gpu": g}, 20.0 / (c + 2 * g)) for c in (1.0, 2.0) for g in (0.0, 1.0)]
    write_profile("train.csv", rows)
    header = {"tapfinger_profile": 1, "type": "train", "resources": ["cpu", "gpu"]}
    curve = [[t, p, {}] for t, p in shaped(1.3)]
    line = {"cell": {"cpu": 1, "gpu": 0}, "result": "finished", "seconds": 20.0, "curve": curve}
    (tmp_path / "train.runs.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    write_profile("label.csv", [ProfileRow("label", {"cpu": c}, 8.0 / c) for c in (1.0, 2.0, 4.0)])
    words = ["workload", "from-profiles", "train.csv", "label.csv", "--out", "site.toml", "--tasks", "20"]
    result = CliRunner().invoke(app, [*words, "--weight", "label=3", "--clusters", "2"])
    assert result.exit_code == 0, result.output
    speeds = {t["name"]: t["speed"] for t in tomllib.loads((tmp_path / "site.toml").read_text())["task_types"]}
    assert speeds["train"]["shape_offset"] == pytest.approx(1.3, rel=0.05)
    assert "shape_offset" not in speeds["label"]
    scenario = load_scenario("site.toml")
    assert scenario.task_types[1].maximum == {"cpu": 4.0, "gpu": 0.0}
    assert CliRunner().invoke(app, ["scenarios", "show", "site.toml"]).output.startswith("# Made by tapfinger")
    played = CliRunner().invoke(app, ["simulate", "site.toml", "--scheduler", "greedy"])
    assert played.exit_code == 0, played.output
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, ConfigError)
    assert "--force" in str(again.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column 'task_type'"),
        ("task_type,elapsed_seconds\na,1\n", "no column 'validation_loss'"),
        ("task_type,elapsed_seconds,validation_loss\na,1,x\n", "losses.csv:2: elapsed_seconds and validation_loss"),
        ("task_type,elapsed_seconds,validation_loss\na,1,nan\n", "must be numbers"),
    ],
)
def test_bad_loss_curves_are_said_with_their_line(tmp_path, text, words):
    write_profile(tmp_path / "a.csv", [ProfileRow("a", {"cpu": 1.0}, 5.0)])
    (tmp_path / "losses.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        read_measured([tmp_path / "a.csv"], tmp_path / "losses.csv")


def test_bad_files_beside_each_other_are_refused(tmp_path):
    for name in ("a.csv", "b.csv"):
        write_profile(tmp_path / name, [ProfileRow("a", {"cpu": 1.0}, 5.0)])
    with pytest.raises(DataError, match=r"is in .*a\.csv already"):
        read_measured([tmp_path / "a.csv", tmp_path / "b.csv"])
    (tmp_path / "a.runs.jsonl").write_text("no\n")
    with pytest.raises(ConfigError, match="no record of profiled runs"):
        read_measured([tmp_path / "a.csv"])
