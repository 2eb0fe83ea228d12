"""The training figure: the log of a short training run, made only when asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tapfinger.errors import TapfingerError
from tapfinger.evaluation.stats import estimate
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.measured import Curve, Measured

SCENARIO = "multi-3"
#: Short enough to be waited for; docs/training.md has what the shipped models had.
OPTIONS = ("--teacher-runs", "40", "--refinements", "15", "--iterations", "0")

NOT_ASKED = "Not drawn: models ship without the logs of their training; --train makes a short run and draws its curve."


class TrainingFailed(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """The run for the curve broke off."""


def measure_training(figure: Figure, folder: Path, train: bool, jobs: int) -> Measured:
    """The curve of the run in ``folder``; with ``train`` the run is made, or goes on where it stopped."""
    log = folder / "logs" / "metrics.jsonl"
    if train:
        words = ["train", SCENARIO, "--out", str(folder), "--jobs", str(jobs), *OPTIONS]
        done = subprocess.run([sys.executable, "-m", "tapfinger", *words], check=False)
        if done.returncode:
            raise TrainingFailed(
                f"training for the figure {figure.name!r} ended with code {done.returncode}; what it said is above"
            )
    if not log.is_file():
        return Measured(figure, missing=NOT_ASKED)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    curves = {}
    for name in ("score", "best"):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            curves[name] = Curve([float(step) for step, _ in points], [value for _, value in points])
    if not curves:
        return Measured(figure, missing=f"{log} holds no evaluations yet; --train goes on with the run.")
    best = estimate([min(curves["score" if "score" in curves else "best"].y)])
    head = ("update", *curves)
    steps = sorted({step for curve in curves.values() for step in curve.x})
    found = {name: dict(zip(curve.x, curve.y, strict=True)) for name, curve in curves.items()}
    rows = tuple(
        (f"{step:g}", *(f"{found[n][step]:.4f}" if step in found[n] else "" for n in curves)) for step in steps
    )
    return Measured(figure, values={"best": best}, curves={"training": curves}, table=(head, rows))
