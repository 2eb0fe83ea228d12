"""How long the learned scheduler takes to decide, and its memory; the network is untrained, which takes as long."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Placement, Snapshot
from tapfinger.core.events import TaskArrived, TaskStarted
from tapfinger.core.model import Task
from tapfinger.core.state import EdgeState
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.policy.card import make_card
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.export import export
from tapfinger.registry import create
from tapfinger.schedulers.model_choice import UNIVERSAL
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.workloads.world import World, build_world

#: Clusters -> milliseconds to reach.
BARS = {3: 1.5, 6: 2.0, 50: 15.0, 100: 40.0}

#: Clusters -> milliseconds of the published implementation on the same kind of machine.
PUBLISHED = {3: 31, 6: 46}

#: Megabytes that a scheduling process may use.
MEMORY_BAR = 150


def world_of(clusters: int) -> World:
    """multi-3 with another number of clusters."""
    return build_world(load_scenario("multi-3", [f"clusters.edge.count={clusters}", f"arrivals.rate={clusters}"]))


def write_model(folder: str) -> str:
    """Write a network of the shipped size with random weights to a file."""
    world = world_of(3)
    inputs = TypeEncoder(world.context(0), padded=True).encode(EdgeState(world.clusters, world.mode).snapshot()).inputs
    config = config_for(inputs, world.resources.accelerator, preset="cpu")
    torch.manual_seed(0)
    return str(export(build("full", config), config, make_card(world.scenario), Path(folder) / "timed.onnx"))


def busy(world: World, shared: bool) -> Snapshot:
    """Three tasks run on each cluster and at least ten wait for it: its own, or tasks shared with many clusters."""
    rng = np.random.default_rng(0)
    state = EdgeState(world.clusters, world.mode)
    clusters = len(world.clusters)

    def arrive(eligible: tuple[int, ...]) -> Task:
        task = Task(state.tasks_in_system, world.task_types[state.tasks_in_system % 2], 0, eligible)
        state.apply(TaskArrived(0, task))
        return task

    for n in range(clusters):
        for _ in range(3):
            task = arrive((n,))
            state.commit(Decision((Placement(task.id, n, task.type.minimum),)))
            state.apply(TaskStarted(0, task.id, n, task.type.minimum))
    waiting = np.zeros(clusters, dtype=np.int64)
    while waiting.min() < 10:
        count = int(rng.integers(1, clusters + 1)) if shared else 1
        chosen = np.sort(rng.choice(clusters, count, replace=False)) if shared else [int(waiting.argmin())]
        arrive(tuple(int(n) for n in chosen))
        waiting[chosen] += 1
    return state.snapshot()


def times(model: str, clusters: int, shared: bool, rounds: int = 5) -> tuple[float, float]:
    """Milliseconds from snapshot to decision, median and 99th percentile: features, network, masks and all stages.

    Taken from the round with the smallest median: the machine is shared, and interference only ever slows it down.
    """
    world = world_of(clusters)
    snapshot = busy(world, shared)
    scheduler = TapFinger(model)
    scheduler.reset(world.context(0))

    def one_round() -> tuple[float, float]:
        found = []
        for _ in range(300 if clusters < 10 else 60):
            begin = time.perf_counter()
            scheduler.decide(snapshot)
            found.append(1e3 * (time.perf_counter() - begin))
        return float(np.median(found)), float(np.percentile(found, 99))

    one_round()
    return min(one_round() for _ in range(rounds))


#: Runs in its own process, so that the peak memory is that of this run alone.
_RUN = """
import sys
from tapfinger.config import load_scenario
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world
model, n = sys.argv[1:]
world = build_world(load_scenario("multi-3", [f"clusters.edge.count={n}", f"arrivals.rate={n}"]))
run_scheduler(world, create("scheduler", "tapfinger", {"model": model}), 0)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def peak_memory(model: str, clusters: int) -> float:
    """Peak memory in megabytes of a process that plays 192 tasks with the learned scheduler."""
    command = [sys.executable, "-c", _RUN, model, str(clusters)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "### Decisions of the learned scheduler",
        "",
        "Milliseconds for one decision (median, 99th percentile), snapshot to decision, one thread, preset `cpu`,",
        "best of five rounds. Ten tasks are pending for each cluster: `shared`, each may run on many clusters; `own`,",
        "each on one, which makes most nodes. Memory: peak of a process that plays multi-3 with that many clusters.",
        "",
        f"| clusters | shared | own | to reach | published | peak MB (to reach: {MEMORY_BAR}) |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(folder)
        for clusters, bar in BARS.items():
            print(f"decisions of tapfinger on {clusters} clusters", flush=True)
            shared, own = (times(model, clusters, shared) for shared in (True, False))
            memory = peak_memory(model, clusters)
            cells = [f"{median:.2f}, {high:.2f}" for median, high in (shared, own)]
            cells += [f"{bar:g}", str(PUBLISHED.get(clusters, "-")), f"{memory:.0f}"]
            lines.append(f"| {clusters} | {' | '.join(cells)} |")
    return lines


#: Clusters at which the universal model is timed -> milliseconds to reach.
CURVE = {1: None, 3: None, 6: None, 10: None, 20: 8.0, 50: None, 100: 50.0}

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "decision-time.png"


def report_universal() -> list[str]:
    """The same for the model for any site, as a table and a picture."""
    found = {}
    for clusters in CURVE:
        print(f"decisions of the universal model on {clusters} clusters", flush=True)
        found[clusters] = [times(UNIVERSAL, clusters, shared) for shared in (True, False)]
    draw_curve(found)
    return [
        "### Decisions of the universal model",
        "",
        "As above. It also asks three greedies in every turn and looks up menus of sizes.",
        "",
        "| clusters | shared | own | to reach |",
        "|---|---|---|---|",
        *(
            f"| {n} | " + " | ".join(f"{median:.2f}, {high:.2f}" for median, high in cells) + f" | {CURVE[n] or '-'} |"
            for n, cells in found.items()
        ),
        "",
        "![Decision time over clusters](docs/images/decision-time.png)",
    ]


def draw_curve(found: dict[int, list[tuple[float, float]]]) -> None:
    """Plot median times over the number of clusters, on logarithmic axes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    for place, label in enumerate(("tasks shared by many clusters", "each task on one cluster")):
        axes.plot(list(found), [cells[place][0] for cells in found.values()], marker="o", label=label)
    bars = {n: bar for n, bar in CURVE.items() if bar}
    axes.plot(list(bars), list(bars.values()), "_", color="black", markersize=18, label="to reach")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(found), [str(n) for n in found])
    axes.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set_xlabel("clusters, ten pending tasks each")
    axes.set_ylabel("milliseconds per decision")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)
    plt.close(figure)


#: Schedulers that are timed on a large site, and its number of clusters and of waiting tasks.
LARGE_SITE = ("greedy", "shortest-first", "fifo", "tiresias", "optimus", "optimus-central", "lookahead", "tapfinger")
LARGE = 1000, 2000

#: Seconds of processor time that a decision on the large site may take: the default of live.decide_seconds is 30.
LARGE_BAR = 10.0


def large_site(clusters: int, tasks: int, eligible: int) -> tuple[World, Snapshot]:
    """A site with three running tasks per cluster; each waiting task may run on ``eligible`` clusters."""
    world = world_of(clusters)
    state = EdgeState(world.clusters, world.mode)
    rng = np.random.default_rng(0)
    for n in range(3 * clusters):
        task = Task(n, world.task_types[n % 2], 0, (n // 3,))
        state.apply(TaskArrived(0, task))
        state.commit(Decision((Placement(n, n // 3, task.type.minimum),)))
        state.apply(TaskStarted(0, n, n // 3, task.type.minimum))
    for n in range(3 * clusters, 3 * clusters + tasks):
        where = np.sort(rng.choice(clusters, eligible, replace=False))
        state.apply(TaskArrived(0, Task(n, world.task_types[n % 2], 0, tuple(where.tolist()))))
    return world, state.snapshot()


def report_large() -> list[str]:
    """Every built-in scheduler on a site of a thousand clusters."""
    clusters, tasks = LARGE
    sites = [large_site(clusters, tasks, eligible) for eligible in (clusters, 3)]
    lines = [
        f"### Decisions on {clusters:,} clusters",
        "",
        f"Seconds of processor time for one decision, {tasks:,} tasks waiting, three running on each cluster; each",
        f"waiting task may run on `all` clusters or on `three` of them. To reach: {LARGE_BAR:g} s.",
        "",
        "| scheduler | all | three |",
        "|---|---|---|",
    ]
    for name in LARGE_SITE:
        cells = []
        for world, snapshot in sites:
            print(f"decisions of {name} on {clusters} clusters", flush=True)
            scheduler = create("scheduler", name, {})
            scheduler.reset(world.context(0))
            begin = time.process_time()
            scheduler.decide(snapshot)
            cells.append(f"{time.process_time() - begin:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join([*report(), "", *report_universal(), "", *report_large()]))
