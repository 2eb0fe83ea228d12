"""The training figure: the log of a short training run, made only when asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import accumulate
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
    points = [(float(line["step"]), line["score"]) for line in lines if line.get("score") is not None]
    if not points:
        return Measured(figure, missing=f"{log} holds no evaluations yet; --train goes on with the run.")
    steps, scores = [step for step, _ in points], [score for _, score in points]
    best = list(accumulate(scores, min))
    curves = {"score": Curve(steps, scores), "best so far": Curve(steps, best)}
    rows = tuple(
        (f"{step:g}", f"{score:.4f}", f"{low:.4f}") for step, score, low in zip(steps, scores, best, strict=True)
    )
    table = (("update", *curves), rows)
    return Measured(figure, values={"best": estimate(best[-1:])}, curves={"training": curves}, table=table)
