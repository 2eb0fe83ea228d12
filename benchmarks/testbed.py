"""How long the test-bed's tasks take under small allotments, and how well their progress agrees with the time.

    python benchmarks/testbed.py [--scale 0.3] [--repeats 2] [--cells 1x1,2x1,2x2,1x2] [--seeds 20001:20003]

A cell is cpus x gpus. Each run is a process of its own on as many cores as it has cpus, as the process backend does it.
Without CUDA its gpus are worker processes. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tapfinger.progress import ProgressReader
from tapfinger.reporting import VARIABLE

TASKS = ("image_classification", "language_modeling", "speech_recognition")


def run(task: str, cpus: int, gpus: int, scale: float, seed: int) -> tuple[float, float, list[float]]:
    """Seconds, seconds of the task's own cpus, and how far progress was from the share of time at each report."""
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


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cells", default="1x1,2x1,1x2,2x2")
    parser.add_argument("--seeds", default="20001:20002")
    parser.add_argument("--tasks", default=",".join(TASKS))
    given = parser.parse_args()
    low, high = map(int, given.seeds.split(":"))
    cells = [tuple(map(int, cell.split("x"))) for cell in given.cells.split(",")]
    print(f"scale {given.scale:g}, seeds {given.seeds}, {given.repeats} runs each, {os.cpu_count()} cores")
    print(f"{'task':<22}{'cpus':>5}{'gpus':>5}{'seconds':>9}{'least':>7}{'most':>7}{'cpu s':>7}{'progress off by':>17}")
    for task in given.tasks.split(","):
        for cpus, gpus in cells:
            runs = [run(task, cpus, gpus, given.scale, seed) for seed in range(low, high) for _ in range(given.repeats)]
            took = [seconds for seconds, _, _ in runs]
            off = [abs(miss) for _, _, misses in runs for miss in misses]
            print(
                f"{task:<22}{cpus:>5}{gpus:>5}{median(took):>9.2f}{min(took):>7.2f}{max(took):>7.2f}"
                f"{median(used for _, used, _ in runs):>7.2f}{sum(off) / len(off):>9.3f} {max(off):>7.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
