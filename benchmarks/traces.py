"""A scheduler on recorded traces, against the strongest baselines that need no training.

python benchmarks/traces.py philly.csv pollux.csv openb.csv   # any files that `tapfinger workload import` reads
python benchmarks/traces.py --seeds 1000:1003 philly.csv
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from learned import run
from sites import RIVALS, Found, difference, summary

#: How a trace becomes a site: equal clusters sized for the load, each one pool; each task may run on some of them.
SITE = ("--flat", "--clusters", "4", "--eligible", "draw", "--load", "0.9")

#: Tasks as recorded, with a single size, or as if more GPUs (or CPUs) divided nine tenths of their time.
KINDS: dict[str, tuple[str, ...]] = {"rigid": (), "elastic": ("--elastic", "0.9")}

#: Consecutive tasks of a trace per seed; each seed has its own window.
WINDOW = 300


def compare(trace: Path, kind: str, schedulers: Sequence[str], seeds: str, jobs: int) -> Found:
    """Compare all schedulers and the rivals on one trace; finished cells are cached."""
    print(f"comparing {trace.stem}, {kind}", file=sys.stderr, flush=True)
    names = list(dict.fromkeys((*schedulers, *RIVALS)))
    with tempfile.TemporaryDirectory() as folder:
        words = ["workload", "import", str(trace), "--out", f"{folder}/site", *SITE, *KINDS[kind]]
        subprocess.run([sys.executable, "-m", "tapfinger", *words], check=True, stdout=subprocess.DEVNULL)
        words = ["compare", f"{folder}/site/scenario.toml", "--set", f"arrivals.window={WINDOW}"]
        words += ["--schedulers", ",".join(names), "--seeds", seeds, "--jobs", str(jobs)]
        found: Found = run(words, "greedy")["schedulers"]
    return found


def report(traces: Sequence[Path], schedulers: Sequence[str], seeds: str, jobs: int) -> list[str]:
    """The section of BENCHMARKS.md; the first scheduler is the one judged."""
    results = {
        f"{trace.stem}, {kind}": compare(trace, kind, schedulers, seeds, jobs) for trace in traces for kind in KINDS
    }
    names = list(dict.fromkeys((*schedulers, *RIVALS)))
    heads = ["trace", *names, f"{names[0]} minus greedy", *(f"p99 {n}" for n in names)]
    rows = [
        [
            name,
            *(f"**{found[n]['mean']:.2f}**" if n == names[0] else f"{found[n]['mean']:.2f}" for n in names),
            difference(found[names[0]]["difference"]),
            *(f"{found[n]['p99']:.1f}" for n in names),
        ]
        for name, found in results.items()
    ]
    return [
        "## Recorded traces",
        "",
        f"Mean completion time in slots, {WINDOW} consecutive tasks per seed, seeds {seeds}; four equal clusters at a",
        f"load of 0.9 (`tapfinger workload import TRACE {' '.join(SITE)}`). Rigid: every task runs as recorded.",
        "Elastic: more GPUs divide nine tenths of its time (`--elastic 0.9`).",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        *summary(names[0], results),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, help="recorded traces")
    parser.add_argument("--schedulers", default="tapfinger", help="separated by commas; the first is judged")
    parser.add_argument("--seeds", default="1000:1010", help="FIRST:END")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    print("\n".join(report(given.traces, given.schedulers.split(","), given.seeds, given.jobs)))
