"""Env-steps per second of training, rollouts and updates together: the ``cpu`` preset and the paper's size."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tapfinger.config import load_scenario
from tapfinger.parallel.choose import open_pool
from tapfinger.training.config import preset_config
from tapfinger.training.trainer import Trainer
from tapfinger.workloads.world import build_world

#: The authors' implementation on the same kind of machine, one thread.
AUTHORS = {"multi-3": 12.8, "hetero-6": 6.7}

#: Preset, updates to time (after one that warms up), and workloads per update.
CASES = (("cpu", 3, 8), ("paper", 1, 4))


def measure(scenario: str, preset: str, updates: int, workloads: int, jobs: int) -> float:
    """Steps of worlds per second of wall-clock time, without teacher and evaluation."""
    world = build_world(load_scenario(scenario))
    config = preset_config(
        preset,
        scenario,
        world.mode,
        teacher="none",
        iterations=updates + 1,
        max_steps=0,
        workloads=workloads,
        shards=2,
        evaluate_every=1_000_000,
        selection_runs=1,
    )
    marks: list[tuple[float, float]] = []

    def mark(stage: str, _: float, known: dict[str, float]) -> None:
        if stage == "learning from rollouts":
            marks.append((time.perf_counter(), known["steps"]))

    with tempfile.TemporaryDirectory() as folder, open_pool(jobs) as pool:
        Trainer(world, config, Path(folder), mark, pool).run()
    (begin, before), (end, after) = marks[0], marks[-2]  # the last one ends with an evaluation
    return (after - before) / (end - begin)


def report(jobs: int = 2) -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Training speed",
        "",
        f"Env-steps per second, rollouts and updates together, {jobs} processes for rollouts. An env-step is one",
        "turn of one world. From scratch, where episodes are longest: `python benchmarks/training_speed.py`.",
        "",
        "| scenario | preset | env-steps/s | authors | times as fast |",
        "|---|---|---|---|---|",
    ]
    for scenario, theirs in AUTHORS.items():
        for preset, updates, workloads in CASES:
            found = measure(scenario, preset, updates + 1, workloads, jobs)
            lines.append(f"| {scenario} | {preset} | {found:,.0f} | {theirs} | {found / theirs:,.0f} |")
    return lines


if __name__ == "__main__":
    print("\n".join(report()))
