"""``tapfinger profiles`` on files; on live sites it is tested with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapfinger.cli import app
from tapfinger.errors import TapfingerError
from tapfinger.profiles.table import load_profile

MEASURED = """task_type,cpu,gpu,seconds
convnet,2,1,72
convnet,2,1,80
convnet,4,1,50
other,1,,9
"""
SITE = """
name = "mine"
mode = "multi"
slot_seconds = 10
[[clusters]]
name = "lab"
capacity = {cpu = 8, gpu = 2}
[[task_types]]
name = "training"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4, gpu = 2}
speed = {kind = "amdahl", seconds = 60, parallel = {cpu = 0.5}}
[[task_types]]
name = "new"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 2, gpu = 0}
[live]
scheduler = "fifo"
"""


@pytest.fixture
def measured(tmp_path: Path) -> str:
    path = tmp_path / "measured.csv"
    path.write_text(MEASURED)
    return str(path)


@pytest.fixture
def site(tmp_path: Path) -> str:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return str(path)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["profiles", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_measured_profiles_are_listed_and_shown(measured: str) -> None:
    rows = {row["name"]: row for row in json.loads(run("list", "--file", measured, "--json"))}
    assert (rows["convnet"]["runs"], rows["convnet"]["sizes"], rows["convnet"]["seconds"]) == (3, 2, 76.0)
    assert "convnet" in run("list", "--file", measured)
    shown = run("show", "convnet", "--file", measured)
    assert "3 runs seen" in shown
    assert "2 cpu, 1 gpu" in shown


def test_two_runs_that_happen_to_agree_are_no_certainty(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    pairs = [(70, 70), (50, 56), (45, 40), (60, 54), (80, 87)]
    rows = [f"convnet,{cpu},{seconds}" for cpu, pair in enumerate(pairs, start=1) for seconds in pair]
    path.write_text("task_type,cpu,seconds\n" + "\n".join(rows) + "\n")
    cells = json.loads(run("show", "convnet", "--file", str(path), "--json"))["cells"]
    assert 0.02 < cells[0]["doubt"] < 0.1, "what the other sizes scatter counts for it as well"


def test_a_site_is_shown_as_configured_and_types_without_speed_in_doubt(site: str) -> None:
    rows = {row["name"]: row for row in json.loads(run("list", "--file", site, "--json"))}
    assert (rows["training"]["seconds"], rows["training"]["doubt"]) == (60.0, 0.0)
    assert (rows["new"]["seconds"], rows["new"]["doubt"] > 1.0) == (pytest.approx(60.0), True)
    assert len(json.loads(run("show", "training", "--file", site, "--json"))["cells"]) == 12


def test_what_is_exported_can_be_read(site: str, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    said = run("export", "training", "--file", site, "--out", str(out), "--all")
    assert "12 sizes of 1 task types" in said, "also those with no gpu"
    for gpus in (0, 1):
        assert load_profile(out, "training").seconds({"cpu": 4, "gpu": gpus}) == pytest.approx(60 * (0.5 + 0.5 / 4))
    with pytest.raises(TapfingerError, match="exists; choose another name"):
        run("export", "training", "--file", site, "--out", str(out))
    run("export", "--file", site, "--out", str(out), "--all", "--force")
    assert load_profile(out, "new").seconds({"cpu": 1}) == pytest.approx(60.0)


@pytest.mark.parametrize("name", ["training", "new"])
def test_a_picture_is_drawn_of_maps_and_curves(site: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    run("plot", name, "--file", site, "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TapfingerError, match="cannot be written"):
        run("plot", name, "--file", site, "--out", str(tmp_path / "nowhere" / "a.png"))
    with pytest.raises(TapfingerError, match="cannot be written"):
        run("plot", name, "--file", site, "--out", str(tmp_path / "a.xyz"))


def test_what_is_not_there_is_said(measured: str, tmp_path: Path) -> None:
    with pytest.raises(TapfingerError, match=r"'convnets'\. Did you mean 'convnet'"):
        run("show", "convnets", "--file", measured)
    for name in ("none.csv", "none.toml"):
        with pytest.raises(TapfingerError, match=r"none\."):
            run("list", "--file", str(tmp_path / name))
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(TapfingerError, match="TOML"):
        run("list", "--file", str(tmp_path / "bad.toml"))
