"""Speed of the simulators, start-up and warm-up, and growth with the size of the site."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, SchedulerContext, Snapshot
from tapfinger.registry import create
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world, draw_workload

#: Env-steps per second of the published implementation on the same kind of machine.
PUBLISHED = 1_500

#: Points of the growth curve: clusters, nodes of each, tasks.
SCALE = ((3, 1, 3_000), (10, 1, 10_000), (30, 1, 30_000), (100, 1, 100_000), (100, 10, 25_000), (100, 10, 100_000))


class _Counted:
    """A scheduler that counts its turns: one turn is one env-step."""

    one_shot = False

    def __init__(self) -> None:
        self._inner = create("scheduler", "min", {})
        self.turns = 0

    def reset(self, context: SchedulerContext) -> None:
        self._inner.reset(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        self.turns += 1
        decision: Decision = self._inner.decide(snapshot)
        return decision


def _best(run: Callable[[], float], times: int = 3) -> float:
    """The best of several runs: the machine is shared, and interference only ever slows it down."""
    return max(run() for _ in range(times))


def readable(name: str, seeds: int = 20) -> float:
    """Env-steps per second of session, simulator and Min, on one thread."""
    world = build_world(load_scenario(name))
    workloads = [draw_workload(world, seed) for seed in range(seeds)]

    def run() -> float:
        counted = _Counted()
        begin = time.perf_counter()
        for seed, workload in enumerate(workloads):
            run_scheduler(world, counted, seed, workload=workload)
        return counted.turns / (time.perf_counter() - begin)

    return _best(run)


def batched(name: str, worlds: int = 128, steps: int = 500) -> float:
    """Env-steps per second of the batched simulator, including masks and features, on one thread."""
    world = build_world(load_scenario(name))
    sim = BatchSim(world, [draw_workload(world, seed) for seed in range(worlds)])
    score = np.ones((worlds, len(world.clusters)))
    rows = np.arange(worlds)[:, None]

    def run() -> float:
        spent, count = 0.0, 0
        for _ in range(steps):
            obs = sim.observations
            place = obs.startable.argmax(axis=2)
            choice = np.where(obs.startable.any(axis=2), place, -1)
            wanted = np.maximum(np.take_along_axis(obs.task, place[..., None], axis=2)[..., 0], 0)
            allocation = sim.tables.minimum[sim.worlds.kind[rows, wanted]]
            count += int((~sim.done).sum())
            begin = time.perf_counter()
            sim.step(choice, allocation, score)
            spent += time.perf_counter() - begin
            if sim.done.any():
                sim.restart(sim.done)
        return count / spent

    run()
    return _best(run)


def decisions(scheduler: str, name: str) -> tuple[float, float]:
    """Mean and 95th percentile of milliseconds per decision, over slots that begin with a task waiting."""
    world = build_world(load_scenario(name, ["tasks=300"]))
    spent = [
        s for seed in (0, 1) for s in run_scheduler(world, create("scheduler", scheduler, {}), seed).decision_seconds
    ]
    return 1e3 * float(np.mean(spent)), 1e3 * float(np.percentile(spent, 95))


def _seconds(code: str, **environment: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - begin


def start_up() -> dict[str, float]:
    """Seconds for the first things that a newcomer does."""
    warm_batch = (
        "from tapfinger.config import load_scenario as l; from tapfinger.workloads.world import *;"
        "from tapfinger.sim.batch import BatchSim; import numpy as np;"
        "w=build_world(l('multi-3')); b=BatchSim(w,[draw_workload(w,0)]);"
        "b.step(np.full((1,3),-1),np.zeros((1,3,2),dtype=np.int64),np.ones((1,3)))"
    )
    warm_lookahead = (
        "from tapfinger.config import load_scenario as l; from tapfinger.workloads.world import build_world;"
        "from tapfinger.schedulers.lookahead import Lookahead; Lookahead().reset(build_world(l('multi-3')).context(0))"
    )
    found = {
        "`import tapfinger`": min(_seconds("import tapfinger") for _ in range(3)),
        "`tapfinger --help`": min(
            _seconds("import sys; sys.argv=['tapfinger','--help']; import tapfinger.cli as c; c.main()")
            for _ in range(3)
        ),
    }
    for label, code in (("batched simulator", warm_batch), ("lookahead", warm_lookahead)):
        with tempfile.TemporaryDirectory() as cache:
            found[f"first step of the {label}, cold cache"] = _seconds(code, NUMBA_CACHE_DIR=cache)
            found[f"first step of the {label}, warm cache"] = _seconds(code, NUMBA_CACHE_DIR=cache)
    return found


#: Runs in its own process, so that the peak memory is that of this run alone.
_GROWTH = """
import sys, time
from tapfinger.config import load_scenario
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world, draw_workload
n, nodes, tasks = map(int, sys.argv[1:])
given = [f"clusters.edge.count={n}", f"tasks={tasks}", f"arrivals.rate={n * nodes}"]
if nodes > 1:
    amounts = {name: nodes * 16 for name in ("cpu", "gpu")}
    given += [f"clusters.edge.capacity.{name}={amount}" for name, amount in amounts.items()]
    given.append(f"clusters.edge.nodes=[{{cpu = 16, gpu = 16, count = {nodes}}}]")
world = build_world(load_scenario("multi-3", given))
workload = draw_workload(world, 0)
peak = [0]
def watch(session): peak[0] = max(peak[0], session.state.tasks_in_system)
begin = time.perf_counter()
totals = run_scheduler(world, create("scheduler", "greedy", {}), 0, workload=workload, observe=watch)
seconds = time.perf_counter() - begin
memory = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(seconds, totals.total_completion_time / totals.tasks, peak[0], int(memory) / 1024)
"""


def growth() -> list[str]:
    """Rows of Greedy runs at equal load: how large, how long, how well, and with how much memory."""
    rows = []
    for clusters, nodes, tasks in SCALE:
        print(f"greedy on {clusters} clusters of {nodes} nodes, {tasks} tasks", flush=True)
        words = [sys.executable, "-c", _GROWTH, str(clusters), str(nodes), str(tasks)]
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        seconds, mean, most, memory = map(float, out)
        size = f"{clusters}" if nodes == 1 else f"{clusters} of {nodes} nodes"
        rows.append(f"| {size} | {tasks:,} | {seconds:.1f} | {mean:.2f} | {most:.0f} | {memory:.0f} |")
    return rows


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Speed",
        "",
        "One thread. A step is one turn of one world.",
        "",
        "| what | steps/s | against |",
        "|---|---|---|",
    ]
    for name in ("synthetic-3", "multi-3"):
        print(f"readable simulator on {name}", flush=True)
        rate = readable(name)
        lines.append(
            f"| readable simulator with Min, {name} | {rate:,.0f} | "
            f"{rate / PUBLISHED:.1f} x the published {PUBLISHED:,} |"
        )
    for name in ("multi-3", "hetero-6", "synthetic-3", "nodes-3", "hardware-3", "shared-3", "data-3", "labs-4"):
        print(f"batched simulator on {name}", flush=True)
        rate = batched(name)
        lines.append(f"| batched simulator, 128 worlds, masks and features, {name} | {rate:,.0f} | |")
    lines += [
        "",
        "### Decisions",
        "",
        "Milliseconds per decision (mean, 95th percentile), snapshot to decision, 300 tasks.",
        "",
    ]
    lines += ["| scenario | greedy | optimus-central | lookahead (nominal budget 20) |", "|---|---|---|---|"]
    for name in ("synthetic-3", "multi-3", "short-long-3", "testbed-3", "synthetic-6", "hetero-6", "testbed-6"):
        print(f"decisions on {name}", flush=True)
        cells = [decisions(scheduler, name) for scheduler in ("greedy", "optimus-central", "lookahead")]
        lines.append(f"| {name} | " + " | ".join(f"{mean:.2f}, {high:.2f}" for mean, high in cells) + " |")
    lines += ["", "### Start-up", "", "| what | seconds |", "|---|---|"]
    print("start-up", flush=True)
    lines += [f"| {what} | {seconds:.2f} |" for what, seconds in start_up().items()]
    lines += [
        "",
        "### Growth",
        "",
        "One Greedy run at equal load (multi-3 with more clusters or nodes, one task for each and slot).",
        "Memory is the process's peak, the drawn workload (one byte per task and cluster) included.",
        "",
        "| clusters | tasks | seconds | mean completion | most tasks in system | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    return lines + growth()
