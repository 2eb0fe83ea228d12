"""The demo takes as long as the tasks that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from live.sites import RealSite
from typer.testing import CliRunner

from tapfinger.cli import app


def test_the_demo_brings_its_own_site_and_leaves_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "TAPFINGER_STATE": str(tmp_path / "none"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tapfinger", "demo", "--no-testbed", "--tasks", "5"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "task 5 (flaky) runs on" in done.stdout
    assert "5 tasks: 5 finished. Mean completion time" in done.stdout.splitlines()[-1]
    assert list(tmp_path.glob("tapfinger*")) == []
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""


def test_the_demo_runs_on_any_site(tmp_path: Path) -> None:
    own = RealSite(tmp_path)
    try:
        own.up()
        result = CliRunner().invoke(
            app, ["demo", "--tasks", "3", "--state", str(own.state)], env={"COLUMNS": "200"}, catch_exceptions=False
        )
        text = result.output
        assert "of the test-bed" in text, "PyTorch is installed, and the site is on this machine"
        assert "3 tasks: 3 finished" in text
    finally:
        own.close()
