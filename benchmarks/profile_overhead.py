"""Time that a profiler does not spend in the task: real processes that sleep for two seconds.

python benchmarks/profile_overhead.py [SECONDS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Allocations; the sleeper does not care.
GRID = ("cpu=1", "gpu=0:4")


def measure(seconds: float) -> tuple[int, float, float, float]:
    """Runs; share of the session not in the task, and of the whole command; median of what runs say beyond it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tapfinger", "profile", "--grid", *GRID, "--gpus", "4", "--busy", "1"]
        words += ["--type", "sleeper", "--", "sleep", str(seconds)]
        begun = time.monotonic()
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        whole = time.monotonic() - begun
        lines = [json.loads(line) for line in (Path(folder) / "sleeper.runs.jsonl").read_text().splitlines()[1:]]
    runs = [line["seconds"] for line in lines]
    # From the start of the first run to the end of the last one, as runs follow each other.
    session = lines[-1]["started"] + lines[-1]["seconds"] - lines[0]["started"]
    extra = sorted(run - seconds for run in runs)[len(runs) // 2]
    asleep = len(runs) * seconds
    return len(runs), 1.0 - asleep / session, 1.0 - asleep / whole, extra


def report(seconds: float = 2.0) -> list[str]:
    """The section of BENCHMARKS.md."""
    runs, between, whole, extra = measure(seconds)
    return [
        "## Profiling overhead",
        "",
        f"`python benchmarks/profile_overhead.py`: `tapfinger profile -- sleep {seconds:g}` over five allocations.",
        f"Share of the time that is not part of any run's {seconds:g} s: from the first run to the last, and of the",
        "whole command with its start and pictures. Measured: what the profile says, in the median.",
        "",
        "| runs | first run to last | whole command | measured |",
        "|---|---|---|---|",
        f"| {runs} | {between:.1%} | {whole:.1%} | {seconds + extra:.3f} s |",
        "",
    ]


if __name__ == "__main__":
    print("\n".join(report(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)))
