"""The built wheel, installed into a new environment and run from an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program as a user would: no path of ours in its environment."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of an environment that has the wheel, and borrows only its dependencies from ours."""
    env = tmp_path_factory.mktemp("env")
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=env)
    python = env / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=env)
    # Only now, or pip would find the package already there.
    site = next(env.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert run(python, "-c", "import tapfinger; print(tapfinger.__file__)", cwd=env).startswith(str(site))
    return env / "bin" / "tapfinger"


def test_scenarios_types_and_licence_are_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "src" / "tapfinger" / "scenarios").glob("*.toml"):
        assert f"tapfinger/scenarios/{path.name}" in inside
    assert "tapfinger/py.typed" in inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert not [name for name in inside if name.endswith((".pyc", ".nbc", ".nbi")) or name.startswith("tests")]


def test_scenarios_are_listed(program: Path, tmp_path: Path) -> None:
    assert "synthetic-3" in run(program, "scenarios", cwd=tmp_path)


def test_compare_runs_from_an_empty_directory(program: Path, tmp_path: Path) -> None:
    run(program, "compare", "synthetic-3", "--schedulers", "min", "--seeds", "0:2", "--json", "out.json", cwd=tmp_path)
    assert '"per_seed"' in (tmp_path / "out.json").read_text()
