"""Env-steps per second of training, rollouts and updates together: the ``cpu`` preset and the paper's size."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapfinger.config import load_scenario
from tapfinger.parallel.choose import open_pool
from tapfinger.training.config import preset_config
from tapfinger.training.trainer import Trainer
from tapfinger.workloads.world import build_world

#: Env-steps per second of the authors' implementation on the same kind of machine, on one thread.
AUTHORS = {"multi-3": 12.8, "hetero-6": 6.7}

#: A network that has imitated its teacher plays episodes of normal length; an untrained one plays far longer ones.
_TAUGHT = {"teacher": "greedy", "teacher_runs": 10, "imitation_epochs": 4}

#: What is timed: preset, settings, and the stage.
CASES: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("cpu", "policy gradient", {**_TAUGHT, "refinements": 0, "iterations": 4}, "learning from rollouts"),
    ("cpu", "deviations", {**_TAUGHT, "refinements": 4, "iterations": 0}, "learning from deviations"),
    # From scratch, as in the paper, at the scenario's own arrival rate.
    ("paper", "mappo", {"iterations": 3, "first_loads": ()}, "learning from rollouts"),
)


def measure(scenario: str, preset: str, settings: dict[str, Any], stage: str, jobs: int) -> float:
    """Env-steps per second of wall-clock time, without teacher and evaluation; the first update is a warm-up."""
    world = build_world(load_scenario(scenario))
    config = preset_config(
        preset, scenario, world.mode, max_steps=0, evaluate_every=1_000_000, selection_runs=1, **settings
    )
    marks: list[tuple[float, float]] = []

    def mark(now: str, _: float, known: dict[str, float]) -> None:
        if now == stage:
            marks.append((time.perf_counter(), known["steps"]))

    with tempfile.TemporaryDirectory() as folder, open_pool(jobs) as pool:
        Trainer(world, config, Path(folder), mark, pool).run()
    (begin, before), (end, after) = marks[0], marks[-2]  # the last update ends with an evaluation
    return (after - before) / (end - begin)


def apart(scenario: str, case: int, jobs: int) -> tuple[float, float]:
    """Steps per second and peak memory in MB (main process and ``jobs`` rollout processes), in a separate process."""
    words = [sys.executable, __file__, "--case", scenario, str(case), str(jobs)]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    speed, memory = map(float, said.split())
    return speed, memory


def alone(scenario: str, case: int, jobs: int) -> None:
    """Measure one case and print the result, for ``apart``."""
    preset, _, settings, stage = CASES[case]
    speed = measure(scenario, preset, settings, stage, jobs)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # the largest child
    print(speed, (own + jobs * worker) / 1024)


def report(scenarios: Sequence[str] = tuple(AUTHORS), jobs: int = 2) -> list[str]:
    """The section of BENCHMARKS.md; takes about twelve minutes, mostly for the paper's network."""
    lines = [
        "### Training",
        "",
        f"Env-steps per second, rollouts and updates together, with {jobs} processes for rollouts and as many threads",
        "for updates. An env-step is one turn of one world that goes on, also a turn in which nobody can start",
        f"anything, which needs no network. Memory: peaks of the process and of {jobs} for rollouts, added up.",
        "`python benchmarks/training_speed.py`",
        "",
        "| scenario | preset | stage | env-steps/s | authors | times as fast | peak MB (to reach: 4,000) |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario in scenarios:
        theirs = AUTHORS[scenario]
        for case, (preset, name, _, _) in enumerate(CASES):
            found, memory = apart(scenario, case, jobs)
            print(f"training {scenario}, {preset}, {name}: {found:.0f} steps/s", file=sys.stderr, flush=True)
            times = f"{theirs} | {found / theirs:,.0f}"
            lines.append(f"| {scenario} | {preset} | {name} | {found:,.0f} | {times} | {memory:,.0f} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        alone(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        print("\n".join(report(sys.argv[1:] or tuple(AUTHORS))))
