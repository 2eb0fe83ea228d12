"""Time that the profiler spends outside the task, measured with real processes that sleep.

python benchmarks/profile_overhead.py [SECONDS...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

#: Allocations to profile; they make no difference to a sleeping task.
GRID = ("cpu=1", "gpu=0:4")
#: Durations of the task in seconds: a very short one, and one as long as the test-bed's.
LENGTHS = (2.0, 10.0)


def measure(seconds: float) -> tuple[int, float, float, float]:
    """Runs; share of the session outside the task, and of the whole command; median excess of the measured times."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tapfinger", "profile", "--grid", *GRID, "--gpus", "4", "--busy", "1"]
        words += ["--type", "sleeper", "--", "sleep", str(seconds)]
        begun = time.monotonic()
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        whole = time.monotonic() - begun
        lines = [json.loads(line) for line in (Path(folder) / "sleeper.runs.jsonl").read_text().splitlines()[1:]]
    runs = [line["seconds"] for line in lines]
    # From the start of the first run to the end of the last, as runs follow each other.
    session = lines[-1]["started"] + lines[-1]["seconds"] - lines[0]["started"]
    extra = sorted(run - seconds for run in runs)[len(runs) // 2]
    asleep = len(runs) * seconds
    return len(runs), 1.0 - asleep / session, 1.0 - asleep / whole, extra


def report(lengths: Sequence[float] = LENGTHS) -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Profiling overhead",
        "",
        "`python benchmarks/run.py profile_overhead`: `tapfinger profile -- sleep SECONDS` over five allocations, two",
        "runs of each. Share of the time that is not the task's (to reach: below 5 %): from the first run to the last,",
        "and of the whole command with its start, model and pictures. Measured: what the profile says, in the median.",
        "",
        "| task | runs | first run to last | whole command | measured |",
        "|---|---|---|---|---|",
    ]
    for seconds in lengths:
        runs, between, whole, extra = measure(seconds)
        lines.append(f"| {seconds:g} s | {runs} | {between:.1%} | {whole:.1%} | {seconds + extra:.3f} s |")
    return [*lines, ""]


if __name__ == "__main__":
    print("\n".join(report([float(word) for word in sys.argv[1:]] or LENGTHS)))
