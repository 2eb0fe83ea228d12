"""Is this tree as fast and as small as an earlier revision? Both are measured in turn, in one run.

python benchmarks/against.py 2641afb              # a table of ratios; below 1 is faster, or smaller
python benchmarks/against.py 2641afb --rounds 9 --only decisions

Each measurement runs in its own process and counts CPU time, so other work on the machine hardly disturbs it.
Submissions to a coordinator are measured in both ways: the time until the answers, the best of ten rounds, which other
work does disturb; and the coordinator's CPU time, the least of three rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Beginning of every measurement: ``run(scenario, scheduler, *overrides)`` plays three seeds unless others are given.
_COMMON = """
import sys, time, resource
from pathlib import Path
def run(scenario, scheduler, *overrides, seeds=(0, 1, 2)):
    from tapfinger.config import load_scenario
    from tapfinger.evaluation.specs import parse_spec
    from tapfinger.sim.run import run_scheduler
    from tapfinger.workloads.world import build_world
    world = build_world(load_scenario(scenario, list(overrides)))
    made = parse_spec(scheduler).create()
    run_scheduler(world, made, 99)
    begin = time.process_time()
    for seed in seeds:
        run_scheduler(world, made, seed)
    return time.process_time() - begin
"""

_BATCHED = """
import numpy as np
from tapfinger.config import load_scenario
from tapfinger.sim.batch import BatchSim
from tapfinger.workloads.world import build_world, draw_workload
world = build_world(load_scenario("multi-3"))
sim = BatchSim(world, [draw_workload(world, seed) for seed in range(64)])
minimum, score = sim.tables.minimum[sim.draws.type], np.ones((64, 3))
rows = np.arange(64)[:, None]
def steps(count):
    for _ in range(count):
        obs = sim.observations
        place = obs.startable.argmax(axis=2)
        wanted = np.maximum(np.take_along_axis(obs.task, place[..., None], axis=2)[..., 0], 0)
        sim.step(np.where(obs.startable.any(axis=2), place, -1), minimum[rows, wanted], score)
        if sim.done.any():
            sim.restart(sim.done)
steps(50)
begin = time.process_time()
steps(1500)
print(time.process_time() - begin)
"""

_RESET = """
from tapfinger.registry import create
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world
world = build_world(draw_site(7005))
made = create("scheduler", "tapfinger", {"model": "universal"})
made.reset(world.context(0))
begin = time.process_time()
for seed in range(5):
    made.reset(world.context(seed))
print(time.process_time() - begin)
"""

_LIVE = """
sys.path.insert(0, str(Path.cwd() / "tests"))
from live.protocol import play
for seed in range(8):
    play(seed)
begin = time.process_time()
for seed in range(24):
    play(seed)
print(time.process_time() - begin)
"""

#: Seconds to save a thousand tasks through a real coordinator with SQLite.
_SUBMITS = """
import tempfile
sys.path.insert(0, str(Path.cwd() / "benchmarks"))
from live_store import Coordinator, submit
with tempfile.TemporaryDirectory() as folder:
    coordinator = Coordinator(Path(folder), more="max_waiting = 1000000\\n")
    submit(coordinator, 400, 8)
    print(min(submit(coordinator, {requests}, {connections}, {batch}).total for _ in range(10)))
    coordinator.close()
"""

#: CPU seconds of the coordinator for them.
_WORK = """
import tempfile
sys.path.insert(0, str(Path.cwd() / "benchmarks"))
from live_store import Coordinator, submit
with tempfile.TemporaryDirectory() as folder:
    coordinator = Coordinator(Path(folder), more="max_waiting = 1000000\\n")
    submit(coordinator, 400, 8)
    found = []
    for _ in range(3):
        begin = coordinator.cpu()
        submit(coordinator, {requests}, {connections}, {batch})
        found.append(coordinator.cpu() - begin)
    print(min(found))
    coordinator.close()
"""

#: Seconds for three hundred by the Python client, as a program submits them.
_BY_CLIENT = """
import tempfile
sys.path.insert(0, str(Path.cwd() / "benchmarks"))
from live_store import TASK, Coordinator, make_spec
with tempfile.TemporaryDirectory() as folder:
    coordinator, spec, best = Coordinator(Path(folder), more="max_waiting = 1000000\\n"), make_spec(**TASK), []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(300):
            coordinator.client.submit(spec)
        best.append(time.perf_counter() - begin)
    print(min(best))
    coordinator.close()
"""

_MEMORY = """
{use}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

#: What is measured -> code that prints one number: CPU seconds, or megabytes for memory.
MEASUREMENTS = {
    "readable simulator, multi-3 with fifo": 'print(run("multi-3", "fifo", seeds=range(12)))',
    "batched simulator, 64 worlds of multi-3": _BATCHED,
    "decisions of greedy, hetero-6": 'print(run("hetero-6", "greedy"))',
    "decisions of optimus, multi-3": 'print(run("multi-3", "optimus"))',
    "decisions of tapfinger, multi-3": 'print(run("multi-3", "tapfinger"))',
    "decisions of tapfinger@model=universal, hetero-6": 'print(run("hetero-6", "tapfinger@model=universal"))',
    "decisions of lookahead, multi-3 with 60 tasks": 'print(run("multi-3", "lookahead", "tasks=60"))',
    "resets of tapfinger@model=universal, 21 clusters": _RESET,
    "live: 24 protocol histories": _LIVE,
    "1,000 durable submits, one connection": _SUBMITS.format(requests=1_000, connections=1, batch=1),
    "300 durable submits by the Python client": _BY_CLIENT,
    "1,000 durable submits, eight connections": _SUBMITS.format(requests=1_000, connections=8, batch=1),
    "10,000 durable submits, batches of 100": _SUBMITS.format(requests=100, connections=1, batch=100),
    "coordinator's work: 1,000 submits, one connection": _WORK.format(requests=1_000, connections=1, batch=1),
    "coordinator's work: 1,000 submits, eight connections": _WORK.format(requests=1_000, connections=8, batch=1),
    "coordinator's work: 10,000 submits, batches of 100": _WORK.format(requests=100, connections=1, batch=100),
    "`import tapfinger`": "begin = time.process_time(); import tapfinger; print(time.process_time() - begin)",
    "`tapfinger --help`": """
import contextlib, io
sys.argv = ["tapfinger", "--help"]
begin = time.process_time()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    from tapfinger.cli import main
    main()
print(time.process_time() - begin)
""",
    "peak memory, tapfinger on multi-3 (MB)": _MEMORY.format(use='run("multi-3", "tapfinger")'),
    "peak memory, greedy with 5,000 tasks (MB)": _MEMORY.format(
        use='run("multi-3", "greedy", "tasks=5000", seeds=(0,))'
    ),
}


def measure(tree: Path, code: str) -> float:
    """The number that the code prints when run in that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _COMMON + code], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{tree}:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure both trees in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what to compare this tree with: a commit, a tag, a branch")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each tree (default: 5)")
    parser.add_argument("--only", default="", help="only measurements whose name holds this text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(old), given.revision], cwd=ROOT, check=True)
        try:
            print("| what | before | now | ratio |\n|---|---|---|---|")
            for name, code in MEASUREMENTS.items():
                if given.only not in name:
                    continue
                pairs = [(measure(old, code), measure(ROOT, code)) for _ in range(given.rounds)]
                before, now = (min(pair[side] for pair in pairs) for side in (0, 1))
                ratio = statistics.median(new / then for then, new in pairs)
                unit = 1 if "(MB)" in name else 1e3
                shown = "MB" if unit == 1 else "ms"
                print(
                    f"| {name} | {unit * before:,.0f} {shown} | {unit * now:,.0f} {shown} | {ratio:.2f} |", flush=True
                )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
