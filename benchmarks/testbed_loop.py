"""The whole loop on this machine: profile real tasks, simulate, run the same arrivals live, and compare.

    python benchmarks/testbed_loop.py --out loop

1. ``tapfinger profile`` measures the three tasks of the test-bed with every allocation of a small grid.
2. ``tapfinger workload from-profiles`` turns the profiles into a scenario.
3. Schedulers are compared in simulation, on the arrivals of one seed and of several others.
4. The arrivals of that seed are submitted on time to sites started by ``tapfinger up``, one per scheduler.
5. The completion times of both are compared task by task: a table, ``loop.json`` and ``loop.png``.

Profiles already in the directory are continued, as the profiler does. Run it on an otherwise idle machine; with more
cores, it makes more clusters of two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w

from tapfinger.config import Scenario, load_scenario
from tapfinger.core.estimates import duration
from tapfinger.core.events import Event, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.model import Task
from tapfinger.evaluation.specs import parse_spec
from tapfinger.live.http.client import Client, TaskInfo, make_spec
from tapfinger.live.state_dir import find_coordinator, noted
from tapfinger.profiling.load import Load, others_share, read_load
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import World, build_world

TASKS = ("image_classification", "language_modeling", "speech_recognition")
#: Schedulers that run live, and schedulers that are only simulated for comparison.
LIVE, MORE = ("greedy", "examples.whole:Whole"), ("min", "random", "optimus", "tapfinger")
#: Seeds of further workloads, only for simulation.
OTHERS = range(20000, 20020)
#: Cores of a cluster, and gpus, which are worker processes if there are no real ones.
CPUS, GPUS = 2, 2
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Options:
    """Options from the command line."""

    out: Path
    scale: float
    tasks: int
    load: float
    seed: int
    slot: float
    repeats: int
    clusters: int
    live: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    """One task, simulated or real; times in seconds since its arrival."""

    type: str
    allocation: tuple[float, ...]
    waited: float
    completion: float


def tapfinger(folder: Path, *words: str, quiet: bool = False) -> None:
    """Run a command as a user would type it."""
    print(f"$ tapfinger {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "tapfinger", *words]
    # Make the schedulers of the examples importable from anywhere.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL if quiet else None)


def task_argv(name: str, scale: float) -> list[str]:
    """The command of a task, the same for profiler and site."""
    return [sys.executable, "-m", f"tapfinger.testbed.{name}", "--scale", f"{scale:g}"]


def task_env() -> dict[str, str]:
    """Environment with the path of this package, for tasks that run elsewhere in the file system."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


def profile(given: Options) -> None:
    """Step 1: profile the tasks."""
    env = [word for name, value in task_env().items() for word in ("--env", f"{name}={value}")]
    grid = ["--grid", f"cpu=1:{CPUS}", "--grid", f"gpu=1:{GPUS}", "--gpus", str(GPUS)]
    for name in TASKS:
        more = ["--repeats", str(given.repeats), "--type", name, *env]
        tapfinger(given.out, "profile", *grid, *more, "--", *task_argv(name, given.scale))


def build(given: Options) -> World:
    """Step 2: build the scenario next to the profiles."""
    size = ["--clusters", str(given.clusters), "--capacity", f"cpu={CPUS},gpu={GPUS}"]
    time_ = ["--slot-seconds", f"{given.slot:g}", "--load", f"{given.load:g}", "--tasks", str(given.tasks)]
    files = [f"{name}.csv" for name in TASKS]
    tapfinger(given.out, "workload", "from-profiles", *files, "--out", "loop.toml", "--force", *size, *time_)
    return build_world(load_scenario(given.out / "loop.toml"))


class Seen:
    """Records what happens to each task of a simulation."""

    def __init__(self) -> None:
        """Start with no events."""
        self.tasks: dict[int, Task] = {}
        self.started: dict[int, TaskStarted] = {}
        self.ended: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Process an event; a resized task keeps its first start."""
        if isinstance(event, TaskArrived):
            self.tasks[event.task.id] = event.task
        elif isinstance(event, TaskStarted):
            self.started.setdefault(event.task, event)
        elif isinstance(event, TaskFinished):
            self.ended[event.task] = event.slot


def simulate(world: World, scheduler: str, seed: int) -> tuple[list[Task], list[Ran]]:
    """The tasks in order of arrival, and the result of each."""
    seen, slot = Seen(), world.scenario.slot_seconds
    run_scheduler(world, parse_spec(scheduler).create(), seed, [seen])
    tasks = [seen.tasks[ident] for ident in sorted(seen.tasks)]
    found = [
        Ran(
            task.type.name,
            tuple(world.resources.natural(seen.started[task.id].allocation).values()),
            (seen.started[task.id].slot - task.arrival) * slot,
            (seen.ended[task.id] - task.arrival + 1) * slot,
        )
        for task in tasks
    ]
    return tasks, found


def site_file(scenario: Scenario, scheduler: str, path: Path) -> None:
    """Write the scenario as a site: the same clusters, types and slots, and the scheduler."""
    data = tomllib.loads(Path(scenario.source).read_text(encoding="utf-8"))
    kept = {key: data[key] for key in ("slot_seconds", "resources", "clusters", "task_types")}
    path.write_text(tomli_w.dumps({**kept, "live": {"scheduler": scheduler}}), encoding="utf-8")


def machine_load(state: Path) -> Load:
    """Work on all cores so far, except that of a site: its agents have seen all their tasks end, and counted them."""
    load = read_load(sorted(os.sched_getaffinity(0)))
    notes = [noted(path) for path in (state / "coordinator.json", *state.glob("agents/*/process.json"))]
    site = 0.0
    for note in filter(None, notes):
        times = Path(f"/proc/{note['pid']}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:15]
        site += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return replace(load, ours=load.ours + site)


def run_live(given: Options, world: World, scheduler: str, tasks: Sequence[Task]) -> tuple[list[Ran], float]:
    """Step 4 for one scheduler; also the share of the machine that others used meanwhile."""
    state, config = given.out / f"site-{re.sub('[^a-z]+', '-', scheduler.lower())}", given.out / "site.toml"
    shutil.rmtree(state, ignore_errors=True)
    site_file(world.scenario, scheduler, config)
    tapfinger(given.out, "up", "--detach", "--config", config.name, "--state", str(state), quiet=True)
    try:
        before = machine_load(state)
        with Client(*find_coordinator(state, None)) as client:
            ids = submit(client, world, tasks, given.scale)
            ended = [client.wait(ident) for ident in ids]
        time.sleep(1.0)  # let the agents notice the last end
        others = others_share(before, machine_load(state), len(os.sched_getaffinity(0))) or 0.0
    finally:
        tapfinger(given.out, "down", "--state", str(state), quiet=True)
    bad = next((info for info in ended if info.phase.value != "finished" or info.incomplete), None)
    if bad is not None:
        sys.exit(f"task {bad.id} ({bad.spec.type}) is {bad.phase.value}: {bad.reason or bad.warnings}")
    return [_ran(info, world) for info in ended], others


def _ran(info: TaskInfo, world: World) -> Ran:
    if info.started is None or info.ended is None or info.allocation is None:
        sys.exit(f"task {info.id} has finished without having started")
    size = tuple(info.allocation.get(name, 0.0) for name in world.resources.names)
    return Ran(info.spec.type, size, info.started - info.submitted, info.ended - info.submitted)


def submit(client: Client, world: World, tasks: Sequence[Task], scale: float) -> list[int]:
    """Submit each task at the beginning of its slot."""
    ids: list[int] = []
    begin = time.monotonic()
    names = [cluster.name for cluster in world.clusters]
    for task in tasks:
        time.sleep(max(0.0, begin + task.arrival * world.scenario.slot_seconds - time.monotonic()))
        where = [names[i] for i in task.eligible]
        spec = make_spec(argv=task_argv(task.type.name, scale), type=task.type.name, clusters=where, env=task_env())
        ids += client.submit(spec)
        print(f"\r  {len(ids)} of {len(tasks)} submitted", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return ids


def means(ran: Sequence[Ran]) -> dict[str, float]:
    """Mean seconds of a run: completion time, and its parts waiting and running."""
    completion, waited = fmean(one.completion for one in ran), fmean(one.waited for one in ran)
    return {"completion": completion, "waited": waited, "running": completion - waited}


def expected_running(world: World, ran: Sequence[Ran]) -> float:
    """Mean seconds that these tasks should run according to their profiles, at the sizes they had."""
    types = {kind.name: kind for kind in world.task_types}
    slots = [
        duration(
            types[one.type],
            world.resources.parse(dict(zip(world.resources.names, one.allocation, strict=True)), "a task"),
        )
        for one in ran
    ]
    return fmean(slots) * world.scenario.slot_seconds


def compare(given: Options, world: World) -> dict[str, Any]:
    """Steps 3 and 4: simulate, and run live."""
    others = {
        name: fmean(means(simulate(world, name, seed)[1])["completion"] for seed in OTHERS)
        for name in (*given.live, *MORE)
    }
    found: dict[str, Any] = {
        "others": others,
        "same": {name: means(simulate(world, name, given.seed)[1]) for name in MORE},
    }
    for name in given.live:
        tasks, simulated = simulate(world, name, given.seed)
        real, others_meanwhile = run_live(given, world, name, tasks)
        found[name] = {
            "simulated": means(simulated),
            "live": {**means(real), "expected": expected_running(world, real), "others": others_meanwhile},
            "tasks": [[asdict(one), asdict(other)] for one, other in zip(simulated, real, strict=True)],
        }
    return found


def lines(given: Options, found: dict[str, Any]) -> list[str]:
    """The result as text."""
    text = [
        "| scheduler | simulated, s | live, s | difference | waiting, simulated and live |"
        " running, simulated and live | running live against profiles | used by others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in given.live:
        sim, live = found[name]["simulated"], found[name]["live"]
        text.append(
            f"| {name} | {sim['completion']:.2f} | {live['completion']:.2f} | "
            f"{live['completion'] / sim['completion'] - 1:+.1%} | {sim['waited']:.2f}, {live['waited']:.2f} | "
            f"{sim['running']:.2f}, {live['running']:.2f} | {live['running'] / live['expected'] - 1:+.1%} | "
            f"{live['others']:.0%} |"
        )
    order = {kind: sorted(given.live, key=lambda n: found[n][kind]["completion"]) for kind in ("simulated", "live")}
    same = "the same" if order["simulated"] == order["live"] else "not the same"
    ranks = ", ".join(f"{kind} {' < '.join(names)}" for kind, names in order.items())
    text += ["", f"Ranking by mean completion time: {ranks}: {same}.", ""]
    text += ["| scheduler | simulated, the same arrivals, s | simulated, 20 other seeds, s |", "|---|---|---|"]
    for name, mean in sorted(found["others"].items(), key=lambda item: item[1]):
        one = found[name]["simulated"] if name in given.live else found["same"][name]
        text.append(f"| {name} | {one['completion']:.2f} | {mean:.2f} |")
    return [*text, ""]


def draw(given: Options, found: dict[str, Any], path: Path) -> None:
    """Draw a panel per scheduler: real over simulated completion times, task by task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(given.live), figsize=(4.6 * len(given.live), 4.4), layout="constrained", squeeze=False
    )
    most = 1.05 * max(one["completion"] for name in given.live for pair in found[name]["tasks"] for one in pair)
    for panel, name in zip(panels[0], given.live, strict=True):
        panel.plot([0, most], [0, most], color="grey", linewidth=0.8)
        for kind in TASKS:
            pairs = [(a["completion"], b["completion"]) for a, b in found[name]["tasks"] if a["type"] == kind]
            panel.scatter(*zip(*pairs, strict=True), s=14, label=kind) if pairs else None
        sim, live = (found[name][key]["completion"] for key in ("simulated", "live"))
        panel.set(title=f"{name}\nmean {sim:.1f} s simulated, {live:.1f} s live", xlim=(0, most), ylim=(0, most))
        panel.set(xlabel="simulated completion time, s", ylabel="live completion time, s")
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run(given: Options) -> list[str]:
    """Run all steps; return the lines to show."""
    sys.path.insert(0, str(ROOT))  # for the schedulers of the examples
    given.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    profile(given)
    world = build(given)
    found = compare(given, world)
    (given.out / "loop.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    draw(given, found, given.out / "loop.png")
    return [*lines(given, found), f"{(time.monotonic() - begun) / 60:.0f} minutes in all.", ""]


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    given = parse([])
    intro = [
        "## Simulated and live",
        "",
        "`python benchmarks/run.py testbed_loop`, the same as `python benchmarks/testbed_loop.py`: the three tasks",
        f"of the test-bed (scale {given.scale:g}) are profiled, {given.tasks} tasks are simulated, and then run live",
        f"at the same times, under two schedulers ({given.clusters} x {CPUS} cpu, {GPUS} gpu; load {given.load:g},",
        f"seed {given.seed}, slots of {given.slot:g} s). Mean seconds (to reach: live within 15 % of simulated, and",
        "the same ranking). What it does: [the loop](docs/testbed-loop.md).",
        "",
    ]
    return [*intro, *run(given)]


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("loop"), help="directory for everything")
    parser.add_argument("--scale", type=float, default=0.3, help="of the tasks: 1 for whole ones")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--load", type=float, default=0.25, help="as for workload from-profiles")
    parser.add_argument("--seed", type=int, default=20020, help="of the arrivals that run live")
    parser.add_argument("--slot", type=float, default=0.5, help="seconds of a slot")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--clusters", type=int, default=max(1, len(os.sched_getaffinity(0)) // CPUS))
    parser.add_argument("--live", default=",".join(LIVE), help="schedulers that run live, separated by commas")
    given = parser.parse_args(argv)
    if given.clusters * CPUS > len(os.sched_getaffinity(0)):
        parser.error(
            f"--clusters {given.clusters} need {given.clusters * CPUS} cores: on fewer, tasks share them and are "
            "slower than profiled"
        )
    return Options(
        given.out.resolve(),
        given.scale,
        given.tasks,
        given.load,
        given.seed,
        given.slot,
        given.repeats,
        given.clusters,
        tuple(given.live.split(",")),
    )


if __name__ == "__main__":
    print("\n".join(run(parse())))
