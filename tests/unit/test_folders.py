"""Which tests may need what: engines and browsers in tests/engines and tests/soak alone, PyTorch in few folders."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Run by make test-all alone.
APART = ("engines", "soak")
#: Packages that drive an engine or a browser, and helpers of the folders apart, which import those.
ENGINES = {"ray", "psycopg", "playwright", "schemathesis", *APART}
#: Folders of tests that import PyTorch, which takes seconds, at their top.
WITH_TORCH = ("learning", "policy", "testbed", "training", *APART)


def imports(path: Path, nested: bool) -> Iterator[str]:
    """Top-level packages that a file imports; ``nested``: also within functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def files(*without: str) -> list[Path]:
    found = [path for path in sorted(TESTS.rglob("*.py")) if path.relative_to(TESTS).parts[0] not in without]
    # The fixture of a database is for both folders apart, and imports what it needs when it is asked for.
    return [path for path in found if path != TESTS / "conftest.py"]


def test_no_other_test_needs_an_engine() -> None:
    used = {str(path.relative_to(TESTS)): ENGINES & set(imports(path, nested=True)) for path in files(*APART)}
    assert {path: names for path, names in used.items() if names} == {}, "move the test to tests/engines"


def test_torch_is_imported_only_where_it_is_used() -> None:
    used = [str(path.relative_to(TESTS)) for path in files(*WITH_TORCH) if "torch" in imports(path, nested=False)]
    assert used == []


def test_folders_apart_are_named_alike_everywhere(request: pytest.FixtureRequest) -> None:
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert set(APART) <= set(options["norecursedirs"])
    (root,) = [p for p in request.config.pluginmanager.get_plugins() if getattr(p, "FOLDERS", None) is not None]
    assert root.FOLDERS == APART
    makefile = (TESTS.parent / "Makefile").read_text()
    assert [name for name in APART if f"pytest tests/{name}" not in makefile] == []
