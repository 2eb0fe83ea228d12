"""The training figure: logs of the small shipped models, and of a short run that is made only on request."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from tapfinger.config import parse_scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.stats import Estimate
from tapfinger.reproduce.declare import PAPER_METHOD, Figure
from tapfinger.reproduce.figure_data import FigureCurve, FigureData
from tapfinger.schedulers.greedy import Greedy
from tapfinger.sim.run import run_scheduler
from tapfinger.training.seeds import DEVIATION_SEEDS, ROLLOUT_SEEDS
from tapfinger.workloads.world import build_world

SCENARIO = "multi-3"
#: Options of a run short enough to wait for; docs/training.md has those of the shipped models.
OPTIONS = ("--teacher-runs", "40", "--refinements", "15", "--iterations", "0")
#: Label of the run that --train makes.
OWN = "this run"

#: Most points of a line: updates are combined until there are no more.
_POINTS = 16


class TrainingFailed(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """The training run for the curve failed."""


class Log(NamedTuple):
    """The part of a training run's log that is kept."""

    #: (env-steps so far, mean completion time of the rollouts relative to Greedy's on the same workloads), per update.
    sampled: list[tuple[float, float]]
    #: (env-steps so far, score) of each evaluation of the policy.
    scores: list[tuple[float, float]]


def measure_training(figure: Figure, folder: Path, train: bool, jobs: int) -> FigureData:
    """Curves of the shipped logs, and of the run in ``folder``, if any; ``train`` starts or continues that run."""
    path = folder / "logs" / "metrics.jsonl"
    if train:
        words = ["train", SCENARIO, "--out", str(folder), "--jobs", str(jobs), *OPTIONS]
        done = subprocess.run([sys.executable, "-m", "tapfinger", *words], check=False)
        if done.returncode:
            raise TrainingFailed(
                f"training for the figure {figure.name!r} ended with code {done.returncode}; what it said is above"
            )
    logs = shipped_logs()
    if path.is_file():
        logs[OWN] = read_log(folder)
    drawn = {name: log for name, log in logs.items() if log.sampled}
    if not drawn:
        return FigureData(figure, missing="No log of a training run is there; --train makes a short one.")
    curves = {name: thinned(log.sampled) for name, log in drawn.items()}
    rows = tuple(_row(name, log) for name, log in drawn.items())
    best = min(curves, key=lambda name: curves[name].y[-1])
    worst = max(curves, key=lambda name: curves[name].y[-1])
    seen = (
        f"{best} ends with the shortest mean completion time of its rollouts, {curves[best].y[-1]:.3f} of Greedy's on "
        f"the same workloads, {worst} with the longest, {curves[worst].y[-1]:.3f}"
    )
    head = ("run", "updates", "env-steps", "rollouts at first", "rollouts at last", "best score", "score at last")
    values = {f"fall.{name}": Estimate(100.0 * curve.y[-1] / curve.y[0], None) for name, curve in curves.items()}
    if PAPER_METHOD in curves:
        end = curves[PAPER_METHOD].y[-1]
        values |= {f"behind.{name}": Estimate(100.0 * (line.y[-1] - end), None) for name, line in curves.items()}
    return FigureData(figure, values=values, curves={"training": curves}, table=(head, rows), seen=seen)


def shipped_logs() -> dict[str, Log]:
    """Label -> log of the runs that gave the small models; written by scripts/training_curves.py."""
    text = (resources.files("tapfinger.reproduce") / "curves.json").read_text(encoding="utf-8")
    return {
        name: Log(*([(float(x), float(y)) for x, y in points] for points in (kept["sampled"], kept["scores"])))
        for name, kept in json.loads(text).items()
    }


def read_log(folder: Path) -> Log:
    """The log of the training run in a directory."""
    settings = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    world = build_world(parse_scenario(settings["scenario"]))
    found = Log([], [])
    for text in (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line.get("sampled") is not None and math.isfinite(line["sampled"]):
            runs = [run_scheduler(world, Greedy(), seed) for seed in _seeds(settings["config"], line["step"] - 1)]
            greedy = sum(run.total_completion_time / run.tasks for run in runs) / len(runs)
            found.sampled.append((float(line["steps"]), line["sampled"] / greedy))
        if line.get("score") is not None:
            found.scores.append((float(line["steps"]), float(line["score"])))
    return found


def _seeds(config: Mapping[str, Any], update: int) -> range:
    """Seeds of the workloads that an update was played on."""
    refining = update < config["refinements"]
    count = config["deviation"]["workloads"] if refining else config["workloads"]
    first = (DEVIATION_SEEDS if refining else ROLLOUT_SEEDS) + update * count
    return range(first, first + count)


def thinned(points: list[tuple[float, float]]) -> FigureCurve:
    """A line of few points, each the mean of several updates, so that lines of many small updates stay readable."""
    together = math.ceil(len(points) / _POINTS)
    parts = [points[begin : begin + together] for begin in range(0, len(points), together)]
    means = [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts]
    return FigureCurve([x for x, _ in means], [y for _, y in means])


def _row(name: str, log: Log) -> tuple[str, ...]:
    line, scores = thinned(log.sampled), [score for _, score in log.scores]
    return (
        name,
        f"{len(log.sampled)}",
        f"{log.sampled[-1][0]:,.0f}",
        f"{line.y[0]:.3f}",
        f"{line.y[-1]:.3f}",
        f"{min(scores):.3f}" if scores else "",
        f"{scores[-1]:.3f}" if scores else "",
    )
