"""How long the test-bed's tasks take with small allocations, and how well their progress agrees with the time.

    python benchmarks/testbed.py [--scale 0.3] [--repeats 2] [--cells 1x1,2x1,2x2,1x2] [--seeds 20001:20003]

A cell is cpus x gpus. Each run is a separate process on as many cores as it has cpus, as with the process backend.
Without CUDA, its gpus are worker processes. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tapfinger.progress import ProgressReader
from tapfinger.reporting import VARIABLE

TASKS = ("image_classification", "language_modeling", "speech_recognition")
#: (cpus, gpus)
CELLS = ((1, 1), (2, 1), (1, 2), (2, 2))
SEEDS = range(20001, 20002)


def run(task: str, cpus: int, gpus: int, scale: float, seed: int) -> tuple[float, float, list[float]]:
    """Seconds, processor seconds of the task, and the gap between progress and the share of time at each report."""
    cores = sorted(os.sched_getaffinity(0))[:cpus]
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder) / "reports"
        env = {**os.environ, "TAPFINGER_CPUS": str(cpus), "TAPFINGER_GPUS": str(gpus), VARIABLE: str(reports)}
        env["OMP_NUM_THREADS"] = str(cpus)
        command = [sys.executable, "-m", f"tapfinger.testbed.{task}", "--scale", str(scale), "--seed", str(seed)]
        began, before = time.time(), os.times()
        done = subprocess.run(
            command, env=env, capture_output=True, check=False, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        )
        took, after = time.time() - began, os.times()
        if done.returncode:
            sys.exit(f"{task} with seed {seed} ended with code {done.returncode}: {done.stderr.decode()[-500:]}")
        said = ProgressReader(reports).read()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    span = said[-1].t - said[0].t
    return took, used, [report.progress - (report.t - said[0].t) / span for report in said]


def rows(
    tasks: Sequence[str], cells: Sequence[tuple[int, int]], scale: float, seeds: range, repeats: int
) -> Iterator[str]:
    """Lines of the table."""
    yield "| task | cpus | gpus | seconds | least, most | cpu seconds | progress off by, mean and most |"
    yield "|---|---|---|---|---|---|---|"
    for task in tasks:
        for cpus, gpus in cells:
            runs = [run(task, cpus, gpus, scale, seed) for seed in seeds for _ in range(repeats)]
            took = [seconds for seconds, _, _ in runs]
            off = [abs(miss) for _, _, misses in runs for miss in misses]
            used = median(used for _, used, _ in runs)
            yield (
                f"| {task} | {cpus} | {gpus} | {median(took):.1f} | {min(took):.1f}, {max(took):.1f} | {used:.1f} | "
                f"{sum(off) / len(off):.3f}, {max(off):.3f} |"
            )


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    return [
        "## The test-bed's tasks",
        "",
        "`python benchmarks/run.py testbed`: whole tasks, two runs of each, on as many cores as they have cpus (of",
        f"{os.cpu_count()}); without CUDA a gpu is a worker process. cpu seconds: of all its processes. Progress off",
        "by: how far what it reported was from the share of its time from the first report to the last.",
        "",
        *rows(TASKS, CELLS, 1.0, SEEDS, 2),
        "",
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cells", default=",".join(f"{cpus}x{gpus}" for cpus, gpus in CELLS))
    parser.add_argument("--seeds", default=f"{SEEDS.start}:{SEEDS.stop}")
    parser.add_argument("--tasks", default=",".join(TASKS))
    given = parser.parse_args()
    low, high = map(int, given.seeds.split(":"))
    pairs = [cell.split("x") for cell in given.cells.split(",")]
    cells = [(int(cpus), int(gpus)) for cpus, gpus in pairs]
    print(f"scale {given.scale:g}, seeds {given.seeds}, {given.repeats} runs each, {os.cpu_count()} cores\n")
    for line in rows(given.tasks.split(","), cells, given.scale, range(low, high), given.repeats):
        print(line, flush=True)


if __name__ == "__main__":
    main()
