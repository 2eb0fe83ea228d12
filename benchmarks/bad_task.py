"""What bad tasks do to others: waits of short tasks with and without one that never starts and one that is always lost.

python benchmarks/bad_task.py                        # some minutes
python benchmarks/bad_task.py --tasks 20 --rounds 1

A real coordinator and two real agents on loopback, with tasks as processes. Runs with and without the bad tasks take
turns on one site, and both of a round have the same tasks at the same times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from live.sites import RealSite
from waiting import wait_for

from tapfinger.errors import NotFound
from tapfinger.live.http.client import Client, make_spec

#: Good tasks in a run, and runs of each kind.
TASKS, ROUNDS = 150, 5
#: Good tasks per second, and the seconds that each takes, from and to: half of the site is busy. With three quarters,
#: medians of equal runs differed by a factor of twenty as other load on the machine came and went.
RATE, SHORTEST, LONGEST = 3.0, 0.2, 0.9
#: Never starts; kills its supervisor, which it can where tasks are not isolated.
BAD = (["/there/is/no/such/program"], ["sh", "-c", "kill -9 $PPID; sleep 5"])

SITE = """
slot_seconds = 0.2
[[clusters]]
name = "left"
capacity = {cpu = 2, gpu = 0}
[[clusters]]
name = "right"
capacity = {cpu = 2, gpu = 0}
[[task_types]]
name = "demo"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 1}
speed = {kind = "constant", slots = 3}
[live]
scheduler = "greedy"
isolation = "none"
"""


def run(client: Client, seed: int, tasks: int, bad: bool) -> tuple[np.ndarray, list[int]]:
    """Seconds from submission to start of each good task; attempts of each bad one until the last good one ended."""
    rng = np.random.default_rng(seed)
    hopeless = client.submit(*(make_spec(argv=argv, type="demo", retries=1000) for argv in BAD)) if bad else []
    gaps, seconds = rng.exponential(1 / RATE, tasks), rng.uniform(SHORTEST, LONGEST, tasks)
    begin, good = time.monotonic(), []
    for due, lasts in zip(np.cumsum(gaps), seconds, strict=True):
        time.sleep(max(0.0, begin + due - time.monotonic()))
        good += client.submit(make_spec(argv=["sleep", f"{lasts:.2f}"], type="demo"))
    ended = [client.wait(task, 600.0) for task in good]
    attempts = [client.show(task).attempt for task in hopeless]
    for task in hopeless:
        with suppress(NotFound):  # it has ended: it was lost too often
            client.cancel(task)
        client.wait(task, 60.0)
    return np.array([info.started - info.submitted for info in ended if info.started is not None]), attempts


def measure(folder: Path, tasks: int, rounds: int) -> tuple[dict[bool, list[np.ndarray]], list[list[int]]]:
    """Waits in each run without and with the bad tasks; attempts of the bad ones in each run."""
    site = RealSite(folder)
    site.config.write_text(SITE, encoding="utf-8")
    waits: dict[bool, list[np.ndarray]] = {False: [], True: []}
    attempts = []
    try:
        client = site.up()
        run(client, 0, min(10, tasks), bad=False)  # a warm-up
        for n in range(rounds):
            for bad in (False, True) if n % 2 else (True, False):
                found, tried = run(client, n + 1, tasks, bad)
                waits[bad].append(found)
                attempts += [tried] if bad else []
                print(f"round {n + 1}, bad: {bad}, median {np.median(found):.3f} s", file=sys.stderr, flush=True)
        wait_for(lambda: not set(client.counts()) & {"queued", "placed", "running"})
    finally:
        site.close()
    return waits, attempts


def report(tasks: int = TASKS, rounds: int = ROUNDS) -> list[str]:
    """The section of BENCHMARKS.md."""
    with tempfile.TemporaryDirectory(prefix="tapfinger-bad-") as folder:
        runs, attempts = measure(Path(folder), tasks, rounds)
    waits = {bad: np.concatenate(found) for bad, found in runs.items()}
    lines = [
        "## Bad tasks beside good ones",
        "",
        f"`python benchmarks/run.py bad_task`. Two clusters of 2 cpu, process backend; {tasks} tasks of {SHORTEST:g}",
        f"to {LONGEST:g} s a run, {RATE:g} a second; {rounds} runs with and {rounds} without a task whose program does",
        "not exist and one that kills its supervisor, in turn. To reach: a median wait within 5 %.",
        "",
        "| | wait, median | mean | p99 |",
        "|---|--:|--:|--:|",
    ]
    for bad, name in ((False, "good tasks alone"), (True, "with the bad ones")):
        numbers = [np.median(waits[bad]), np.mean(waits[bad]), np.percentile(waits[bad], 99)]
        lines.append(f"| {name} | {' | '.join(f'{1e3 * x:.0f} ms' for x in numbers)} |")
    ratio = np.median(waits[True]) / np.median(waits[False])
    pairs = zip(runs[True], runs[False], strict=True)
    each = ", ".join(f"{np.median(bad) / np.median(good):.2f}" for bad, good in pairs)
    most = [max(tried) for tried in zip(*attempts, strict=True)]
    return [
        *lines,
        "",
        f"Median with the bad ones / without: {ratio:.3f}; round by round: {each}. "
        f"Attempts in a run of about {tasks / RATE:.0f} s, at most: {most[0]} of the one that never "
        f"starts, {most[1]} of the one that kills its supervisor.",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=TASKS, help="good ones in a run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each kind")
    given = parser.parse_args()
    print("\n".join(report(given.tasks, given.rounds)))
