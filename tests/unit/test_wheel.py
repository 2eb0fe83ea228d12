"""The built wheel, installed into a new environment and run from an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program as a user would: no path of ours in its environment."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, env: Path) -> Path:
    """The console script of a new environment that has the wheel, and borrows only its dependencies from ours."""
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=wheel.parent)
    python = env / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=env)
    # Only now, or pip would find the package already there.
    site = next(env.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert run(python, "-c", "import tapfinger; print(tapfinger.__file__)", cwd=env).startswith(str(site))
    return env / "bin" / "tapfinger"


def check_contents(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "src" / "tapfinger" / "scenarios").glob("*.toml"):
        assert f"tapfinger/scenarios/{path.name}" in inside
    for path in (ROOT / "src" / "tapfinger" / "live" / "dashboard").iterdir():
        assert f"tapfinger/live/dashboard/{path.name}" in inside
    for room in ("evaluation", "reproduce"):
        for path in (ROOT / "src" / "tapfinger" / room / "templates").iterdir():
            assert f"tapfinger/{room}/templates/{path.name}" in inside
    assert {"tapfinger/py.typed", "tapfinger/reproduce/curves.json", "tapfinger/reproduce/overhead.json"} <= inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert not [name for name in inside if name.endswith((".pyc", ".nbc", ".nbi")) or name.startswith("tests")]


@pytest.mark.slow
def test_the_wheel_holds_everything_and_runs_from_an_empty_directory(tmp_path: Path) -> None:
    # One test, so that two workers do not build the same wheel.
    wheel = build_wheel(tmp_path)
    check_contents(wheel)
    program = install(wheel, tmp_path / "env")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "synthetic-3" in run(program, "scenarios", cwd=empty)
    run(program, "compare", "synthetic-3", "--schedulers", "min", "--seeds", "0:2", "--json", "out.json", cwd=empty)
    results = json.loads((empty / "out.json").read_text())
    assert results["seeds"] == [0, 1]
    assert len(results["schedulers"]["min"]["per_seed"]) == 2
