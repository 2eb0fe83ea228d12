"""The benchmarks of live sites run, at the smallest sizes: they reach into what changes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return import_module


def cells(lines: list[str], begin: str) -> list[str]:
    """The cells of the row that begins so."""
    (row,) = [line for line in lines if line.startswith(f"| {begin}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_agents(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("live_agents")
    monkeypatch.setattr(module, "SITE", module.SITE.replace(f"count = {module.AGENTS}", "count = 5"))
    for name, value in (("SECONDS", 2), ("RATE", 4), ("STARTS", 2)):
        monkeypatch.setattr(module, name, value)
    found = cells(module.report(), "`greedy`")
    assert int(found[1]) > 0
    assert all(cell.endswith(" ms") for cell in found[2:])


def test_age(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("live_age")
    for name, value in (("ROUNDS", 1), ("READS", 10)):
        monkeypatch.setattr(module, name, value)
    assert float(cells(module.report(1000), "database, MB")[2]) > 0.1


def test_bad_tasks(load: Callable[[str], ModuleType]) -> None:
    lines = load("bad_task").report(10, 1)
    assert cells(lines, "with the bad ones")[1].endswith(" ms")
    assert "of the one that never starts" in lines[-1]


def test_floods(load: Callable[[str], ModuleType]) -> None:
    lines = load("floods").report(1 / 60)
    rows = [line.split("|") for line in lines if line.startswith(("| nobody", "| viewer", "| submitter"))]
    assert [row[5:7] for row in rows] == [[" 0 ", " 0 "]] * 6, "no lease missed, no task touched"
