"""What is imported when: a fast start, a light base install, nothing undeclared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tapfinger.registry import BUILT_IN

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "tapfinger").rglob("*.py"))
#: Packages that are slow to import or not in the base install.
HEAVY = {"torch", "numba", "matplotlib", "gymnasium", "pettingzoo", "scipy", "duckdb", "onnxruntime", "ray"}
#: Schedulers that are allowed to load compiled code: the simulator, a network.
COMPILED = {name for name in BUILT_IN["scheduler"] if "tapfinger" in name or name == "lookahead"}


def loaded_by(code: str) -> set[str]:
    """Top-level modules in memory after running some code in a new interpreter, warnings being errors."""
    script = (
        f"{code}\nimport sys\nsys.stdout.write('\\n' + ' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import tapfinger") & (HEAVY | {"numpy", "pydantic", "typer", "rich"})


def test_help_loads_nothing_heavy() -> None:
    code = "from tapfinger.cli import main\nimport sys\nsys.argv = ['tapfinger', '--help']\n"
    assert not loaded_by(code + "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code") & HEAVY


def test_plain_baselines_run_without_compiled_code() -> None:
    plain = sorted(set(BUILT_IN["scheduler"]) - COMPILED)
    code = f"""
from tapfinger.config import load_scenario
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world
world = build_world(load_scenario("multi-3", ["tasks=5"]))
for name in {plain!r}:
    run_scheduler(world, create("scheduler", name, {{}}), 0)
"""
    assert "min" in plain
    assert not loaded_by(code) & HEAVY


def test_every_module_can_be_imported() -> None:
    names = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
        if path.name != "__main__.py"
    ]
    loaded_by("\n".join(f"import {name}" for name in names))


def test_every_foreign_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(r for name in extras if name != "dev" for r in extras[name])]
    known = {re.split(r"[\[=<>!~]", requirement)[0].replace("-", "_") for requirement in declared}
    foreign: dict[str, Path] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            else:
                continue
            foreign |= {name.partition(".")[0]: path for name in names}
    undeclared = set(foreign) - set(sys.stdlib_module_names) - known - {"tapfinger"}
    assert not undeclared, f"not in pyproject.toml: {[(name, foreign[name]) for name in undeclared]}"


def test_every_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in homes.items() if len(found) > 1}
