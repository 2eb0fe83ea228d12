"""The loop from profiles to a live site (benchmarks/testbed_loop.py), with tasks that sleep as long as profiled."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

#: Seconds with one cpu; with two it takes half of that.
SECONDS = {"image_classification": 1.2, "language_modeling": 1.6, "speech_recognition": 0.8}
SLEEP = "import os, sys, time; time.sleep(float(sys.argv[1]) / float(os.environ['TAPFINGER_CPUS']))"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root)
    monkeypatch.syspath_prepend(root / "benchmarks")
    module = import_module("testbed_loop")
    monkeypatch.setattr(module, "MORE", ("min",))
    monkeypatch.setattr(module, "OTHERS", range(20000, 20001))
    monkeypatch.setattr(
        module, "task_argv", lambda name, _: [sys.executable, "-I", "-S", "-c", SLEEP, str(SECONDS[name])]
    )
    return module


def test_what_is_simulated_happens(loop: ModuleType, tmp_path: Path) -> None:
    for name, seconds in SECONDS.items():
        cells = [f"{name},{cpu},{gpu},{seconds / cpu}" for cpu in (1, 2) for gpu in (1, 2)]
        (tmp_path / f"{name}.csv").write_text("task_type,cpu,gpu,seconds\n" + "\n".join(cells) + "\n")
    given = loop.parse(["--out", str(tmp_path), "--tasks", "5", "--load", "0.4", "--slot", "0.1", "--clusters", "1"])
    world = loop.build(given)
    assert [task.type.name for task in loop.simulate(world, "greedy", given.seed)[0]]
    found = loop.compare(replace(given, live=("greedy", "examples.whole:Whole")), world)
    for name in ("greedy", "examples.whole:Whole"):
        pairs = found[name]["tasks"]
        assert len(pairs) == 5
        assert all(simulated["type"] == real["type"] for simulated, real in pairs), "the same tasks, in the same order"
        live = found[name]["live"]
        assert live["expected"] <= live["running"] <= live["expected"] + 1.0, "they sleep as long as their size says"
        assert 0.0 <= live["others"] <= 1.0
        assert live["completion"] == pytest.approx(live["waited"] + live["running"])
    assert all(
        real["allocation"] == [2.0, 2.0] for _, real in json.loads(json.dumps(found))["examples.whole:Whole"]["tasks"]
    )
    text = "\n".join(loop.lines(given, found))
    assert "| greedy | " in text
    assert "| min | " in text
    loop.draw(given, found, tmp_path / "loop.png")
    assert (tmp_path / "loop.png").stat().st_size > 5000


def test_more_clusters_than_cores_are_refused(loop: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loop.parse(["--clusters", "1000"])
    assert "slower than profiled" in capsys.readouterr().err
