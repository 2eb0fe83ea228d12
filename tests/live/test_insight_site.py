"""The commands that say why and what if, on a site of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.sites import CONFIG, RealSite, python
from typer.testing import CliRunner
from waiting import PATIENCE, wait_for

from tapfinger.cli import app

# One worker runs them all, so that their site is started once.
pytestmark = pytest.mark.xdist_group("insight site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    made = RealSite(tmp_path_factory.mktemp("site"))
    made.config.write_text(CONFIG + 'shadow = ["greedy"]\n')
    client = made.up()
    big = {"minimum": {"cpu": 4}, "maximum": {"cpu": 4}}
    first = client.submit(*[python("pass")] * 3)
    for task in first:
        assert client.wait(task, PATIENCE).code == 0
    client.submit(*[python("import time; time.sleep(600)", **big)] * 2, python("pass", **big))
    wait_for(lambda: client.counts().get("running") == 2)
    yield made
    made.close()


def run(site: RealSite, *words: str | Path, width: int = 80) -> str:
    result = CliRunner().invoke(app, [*map(str, words), "--state", str(site.state)], env={"COLUMNS": str(width)})
    if result.exception is not None:
        raise result.exception
    return result.output


def test_explain(site: RealSite) -> None:
    text = run(site, "explain", "6")
    assert "Task 6 waits: there is no room on left and right." in text
    assert "does not fit now" in text
    assert "Start: in about" in text
    text = run(site, "explain", "1")
    assert "Task 1: finished after" in text
    assert "Why: 1 cpu, 0 gpu:" in text
    assert json.loads(run(site, "explain", "4", "--json"))["placement"]["allocation"] == {"cpu": 4.0, "gpu": 0.0}


def test_shadow(site: RealSite) -> None:
    text = run(site, "shadow", width=200)
    assert "greedy, as a shadow of fifo: agrees in" in text
    assert json.loads(run(site, "shadow", "--json"))["shadows"][0]["rounds"] > 0


def test_what_if(site: RealSite) -> None:
    text = run(site, "what-if", "--scheduler", "greedy", "--add-cluster", "big:cpu=8", "--seeds", "1", width=120)
    assert "now: fifo" in text
    assert "greedy, + big:cpu=8" in text
    assert "Played: 1 waiting and 2 running tasks" in text
    assert "Assumed: tasks take exactly as long" in text


def test_history_export_can_be_simulated(site: RealSite, tmp_path: Path) -> None:
    text = run(site, "history", "export", tmp_path / "mine.csv")
    assert "3 tasks written" in text
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "mine.toml"), "--scheduler", "greedy"])
    assert result.exception is None, result.output
    results = ["compare", str(tmp_path / "mine.toml"), "--schedulers", "fifo,greedy", "--seeds", "0"]
    result = CliRunner().invoke(app, [*results, "--json", str(tmp_path / "r.json"), "--no-cache"])
    assert result.exception is None, result.output
    assert (tmp_path / "r.json").exists()
