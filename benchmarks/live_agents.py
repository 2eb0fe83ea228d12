"""A live site on loopback: how long a scheduling slot takes with 200 agents, and how soon a process starts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.link import CoordinatorLink
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import BackendContext
from tapfinger.live.backends.fake import Fake
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.inputs import Decided
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.state_dir import noted
from tapfinger.live.supervisor import Supervisor

AGENTS = 200
#: Seconds during which tasks are submitted, and tasks per second.
SECONDS, RATE = 20, 50
#: Number of tasks submitted one after another to an idle site.
STARTS = 100

SITE = f"""
[[clusters]]
name = "edge"
count = {AGENTS}
capacity = {{cpu = 8, gpu = 2}}
[[task_types]]
name = "demo"
minimum = {{cpu = 1, gpu = 0}}
maximum = {{cpu = 4, gpu = 1}}
speed = {{kind = "amdahl", seconds = 10, parallel = {{cpu = 0.8}}}}
[live]
scheduler = "SCHEDULER"
"""


def serve(state: Path, config: Path, timings: Path) -> None:
    """A coordinator that records the duration of each slot with something to decide."""
    from tapfinger.evaluation.specs import parse_spec
    from tapfinger.live.config import build_site, load_site
    from tapfinger.live.http.options import ServeOptions
    from tapfinger.live.http.server import serve_site
    from tapfinger.live.logging_setup import set_up_logging
    from tapfinger.live.service.service import Service

    plain_ask, plain_handle, plain_play = Coordinator.ask, Coordinator.handle, Decider.play
    begun: list[float] = []
    busy: list[float] = []

    def ask(self: Coordinator) -> RoundQuestion | None:
        begin = time.perf_counter()
        question = plain_ask(self)
        if question is not None:
            begun[:], busy[:] = [begin], []
        return question

    def play(self: Decider, question: RoundQuestion) -> Answer:
        begin = time.thread_time()
        found = plain_play(self, question)
        busy.append(time.thread_time() - begin)
        return found

    def handle(self: Coordinator, stimulus: Any, now: float) -> Any:
        instructions = plain_handle(self, stimulus, now)
        if isinstance(stimulus, Decided) and busy:  # nobody is asked if nothing could be started
            file.write(f"{time.perf_counter() - begun[0]} {sum(busy)}\n")
        return instructions

    Coordinator.ask, Coordinator.handle, Decider.play = ask, handle, play  # type: ignore[method-assign]
    scenario, live = load_site(config)
    scheduler, fallback = parse_spec(live.scheduler).create(), parse_spec(live.fallback).create()
    with timings.open("w", buffering=1) as file:
        set_up_logging(False, "text")
        serve_site(state, Service(state, build_site(scenario), live, scheduler, fallback), ServeOptions(port=0))


def agents(state: Path, url: str, tokens: Path) -> None:
    """All agents in one process, each with its own link and a fake backend."""

    async def run() -> None:
        await asyncio.gather(*(line.run(asyncio.Event()) for line in lines))

    lines = []
    for name, token in json.loads(tokens.read_text(encoding="utf-8")).items():
        host = Host(BackendContext(state / name, name), Fake(), Devices({}), LiveConfig().beat_seconds)
        lines.append(CoordinatorLink(host, [url], token))
    asyncio.run(run())


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run this file in another role."""
    command = [sys.executable, __file__, *words]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as started:
        try:
            yield started
        finally:
            started.terminate()


def until(condition: Any, seconds: float = 120.0) -> Any:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError("a site did not come up")
        time.sleep(0.05)
    return found


def slots(scheduler: str) -> tuple[np.ndarray, np.ndarray]:
    """Clock and processor seconds of each deciding slot; seconds from submission to start of each task."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        state, config, tokens, timings = (Path(folder) / n for n in ("state", "site.toml", "tokens", "timings"))
        config.write_text(SITE.replace("SCHEDULER", scheduler), encoding="utf-8")
        with process("serve", str(state), str(config), str(timings)):
            note = until(lambda: noted(state / "coordinator.json"))
            with Client(note["url"], (state / "token").read_text(encoding="ascii").strip()) as client:
                names = [c["name"] for c in client.clusters()]
                issued = {name: client.new_token(name, "agent", name) for name in names}
                tokens.write_text(json.dumps(issued), encoding="utf-8")
                with process("agents", folder, note["url"], str(tokens)):
                    until(lambda: all(c["connected"] for c in client.clusters()))
                    ids = _load(client, rng)
                    found = [client.show(task) for task in ids[:: max(1, len(ids) // 500)]]
        lasted = np.loadtxt(timings)  # (slots, 2)
    started = [info.started - info.submitted for info in found if info.started is not None]
    return lasted, np.array(started)


def _load(client: Client, rng: np.random.Generator) -> list[int]:
    ids: list[int] = []
    begin = time.monotonic()
    for beat in range(SECONDS * 2):
        batch = [
            make_spec(argv=["x"], type="demo", env={"FAKE_SECONDS": f"{rng.uniform(1.0, 5.0):.2f}"})
            for _ in range(RATE // 2)
        ]
        ids += client.submit(*batch)
        time.sleep(max(0.0, begin + (beat + 1) / 2 - time.monotonic()))
    until(lambda: not client.counts().get("queued", 0))
    return ids


def starts() -> np.ndarray:
    """Seconds from just before the submission to the first action of the task's process."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        site = Supervisor(Path(folder) / "state")
        url = site.up(0)
        try:
            with Client(url, (site.state / "token").read_text(encoding="ascii").strip()) as client:
                for _ in range(STARTS + 5):
                    begin = time.time()
                    (task,) = client.submit(make_spec(argv=["date", "+%s.%N"], type="demo"))
                    client.wait(task, 60)
                    found.append(float(b"".join(client.logs(task, follow=True))) - begin)
        finally:
            site.end()
    return np.array(found[5:])  # the first few are a warm-up


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    lines = [
        "## Live: slots and starts",
        "",
        f"A real coordinator and {AGENTS} agents with fake backends on loopback, on the same cores (all agents in one",
        f"process); {RATE} tasks a second for {SECONDS} s, {AGENTS} clusters of 8 cpu. A slot is from the question to",
        "the schedulers until all that they decided is granted. Starts wait for the agents' one process, which writes",
        "each launch to disk before it begins.",
        "",
        "| scheduler | slots | p50 | p99 | longest | longest, processor | submission to start p50 | p99 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for scheduler in ("greedy", LiveConfig().scheduler):
        lasted, waited = slots(scheduler)
        numbers = [*np.percentile(lasted[:, 0], [50, 99]), *lasted.max(axis=0), *np.percentile(waited, [50, 99])]
        lines.append(f"| `{scheduler}` | {len(lasted)} | {' | '.join(f'{1000 * x:.0f} ms' for x in numbers)} |")
    soon = starts()
    p50, p99 = np.percentile(soon, [50, 99])
    took = f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms, longest {1000 * soon.max():.0f} ms"
    lines += [
        "",
        f"Submission to the process's first act on a free site (`tapfinger up`, process backend, {STARTS} tasks one",
        f"after the other): {took}.",
    ]
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*map(Path, sys.argv[2:]))
    elif sys.argv[1:2] == ["agents"]:
        agents(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        print("\n".join(report()))
