"""A site that grows old: many short tasks through twenty agents, with faults, and nothing that grows.

A minute by default, ten in ``make test-all``, an hour in ``make soak``; for longer: ``TAPFINGER_SOAK_SECONDS=7200``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from live.sites import RealSite
from waiting import wait_for

from tapfinger.errors import CoordinatorError, TooMany
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.protocol.records import TaskSpec

SECONDS = float(os.environ.get("TAPFINGER_SOAK_SECONDS", "60"))
AGENTS = 20
#: Tasks per second: a hundred thousand in an hour.
RATE = 28.0
#: Tasks per submission.
BATCH = 14
#: Calls of each kind in a sample, in so many turns.
CALLS, TURNS = 15, 3
#: Ended tasks that the site keeps: it prunes during the run, however short the run is.
KEPT = 400

SITE = f"""
slot_seconds = 0.5
[[clusters]]
name = "edge"
count = {AGENTS}
capacity = {{cpu = 4, gpu = 0}}
[[task_types]]
name = "demo"
minimum = {{cpu = 1, gpu = 0}}
maximum = {{cpu = 4}}
speed = {{kind = "amdahl", seconds = 1, parallel = {{cpu = 0.5}}}}
[live]
scheduler = "greedy"
backend = "fake"
lease_seconds = 15.0
grace_seconds = 2.0
beat_seconds = 2.0
stop_seconds = 1.0
keep_tasks = {KEPT}
"""
NAMES = [f"edge-{n}" for n in range(AGENTS)]


@dataclass(frozen=True)
class Sample:
    """The size of a coordinator, and how soon it answers."""

    memory: float  # MB
    handles: int
    threads: int
    database: float  # MB
    submit: float  # ms, median
    list: float
    show: float

    def __str__(self) -> str:
        sizes = f"{self.memory:.0f} MB, {self.handles} handles, {self.threads} threads, store {self.database:.1f} MB"
        return f"{sizes}; submit {self.submit:.0f} ms, list {self.list:.0f} ms, show {self.show:.0f} ms"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    made = RealSite(tmp_path)
    made.config.write_text(SITE)
    yield made
    made.close()


def spec(rng: np.random.Generator) -> TaskSpec:
    """A short task; one in a hundred cannot be started, one in fifty fails."""
    code = str(rng.choice([127, 3, 3, *[0] * 97]))
    env = {"FAKE_SECONDS": f"{rng.uniform(0.2, 2.0):.2f}", "FAKE_CODE": code}
    return make_spec(argv=["work"], type="demo", env=env, maximum={"cpu": 1}, retries=int(code == "3"))


class Submitter(threading.Thread):
    """Submits without rest."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(daemon=True)
        self._url, self._token = url, token
        self.over = threading.Event()
        self.count = 0

    def run(self) -> None:
        rng = np.random.default_rng(1)
        with Client(self._url, self._token, timeout=20.0) as client:
            begin = time.monotonic()
            while not self.over.wait(max(0.0, begin + self.count / RATE - time.monotonic())):
                try:
                    client.submit(*(spec(rng) for _ in range(BATCH)))
                    self.count += BATCH
                except (CoordinatorError, TooMany):
                    self.over.wait(0.5)  # killed, or too far behind

    def end(self) -> None:
        self.over.set()
        self.join(60)


def milliseconds(work: Callable[[], object]) -> float:
    """Median of several calls, the smallest of several medians: the rest is other work of a busy machine."""

    def taken() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return 1e3 * min(float(np.median([taken() for _ in range(CALLS)])) for _ in range(TURNS))


def sample(site: RealSite) -> Sample:
    client, rng = site.client, np.random.default_rng(2)
    assert client is not None
    pid = site.processes["coordinator"].pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    latest = client.list(limit=1)[0].id
    return Sample(
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(status["Threads"]),
        sum(path.stat().st_size for path in site.state.glob("store.db*")) / 1e6,
        milliseconds(lambda: client.submit(spec(rng))),
        milliseconds(lambda: client.list(limit=50)),
        milliseconds(lambda: client.show(latest)),
    )


def trouble(site: RealSite, rng: np.random.Generator, acts: Counter[str], coordinator: bool) -> None:
    """One fault, and its end. Half of the agents are never touched: their processes must not grow either."""
    act = str(rng.choice(["kill agent", "stop agent", *(["kill coordinator", "stop coordinator"] * coordinator)]))
    acts[act] += 1
    name = "coordinator" if "coordinator" in act else str(rng.choice(NAMES[AGENTS // 2 :]))
    if act.startswith("stop"):
        site.processes[name].send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.5, 20.0))
        site.processes[name].send_signal(signal.SIGCONT)
        return
    site.kill(name)
    site.serve() if name == "coordinator" else site.agent(name)


def rest(site: RealSite) -> None:
    """Wait until every agent is heard and the queue is short."""
    assert site.client is not None
    client = site.client
    wait_for(lambda: all(c["connected"] for c in client.clusters()), 600)
    wait_for(lambda: client.counts().get("queued", 0) < 500, 1200)


def agents_memory(site: RealSite) -> float:
    """Megabytes of the agents that are never touched, on average."""
    found = []
    for name in NAMES[: AGENTS // 2]:
        status = Path(f"/proc/{site.processes[name].pid}/status").read_text()
        found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 1200)
def test_a_site_does_not_age(site: RealSite) -> None:
    client = site.serve()
    for name in NAMES:
        site.agent(name)
    load = Submitter(site.url, (site.state / "token").read_text().strip())
    load.start()
    rng, acts = np.random.default_rng(0), Counter[str]()
    begin = time.monotonic()
    while time.monotonic() < begin + SECONDS / 2:
        time.sleep(rng.uniform(0.5, 5.0))
        trouble(site, rng, acts, coordinator=True)
    rest(site)
    time.sleep(min(60.0, SECONDS / 10))  # this coordinator's caches fill
    first, agents = sample(site), agents_memory(site)
    while time.monotonic() < begin + SECONDS:
        time.sleep(rng.uniform(0.5, 5.0))
        trouble(site, rng, acts, coordinator=False)
    rest(site)
    last, agents_last = sample(site), agents_memory(site)
    load.end()
    client = site.client or client
    wait_for(lambda: not set(client.counts()) & {"queued", "placed", "running"}, 1200)
    counts = client.counts()
    sys.stderr.write(
        f"{SECONDS:g} s, {load.count} tasks, {dict(acts)}\n  in the middle: {first}\n  at the end:    {last}\n"
        f"  agents: {agents:.0f} MB, then {agents_last:.0f} MB; tasks that the site has: {counts}\n"
    )
    assert load.count > 0.5 * RATE * SECONDS
    # More than that only where a submission without a key was saved and its answer was lost.
    assert counts["finished"] + counts["failed"] >= load.count + 2 * CALLS * TURNS, "what was acknowledged has ended"
    assert last.memory < 1.15 * first.memory + 10
    assert last.handles < first.handles + 20
    assert last.threads < first.threads + 5
    assert last.database < 1.5 * first.database + 5
    assert agents_last < 1.15 * agents + 10
    for kind in ("submit", "list", "show"):
        assert getattr(last, kind) < 2 * getattr(first, kind) + 20, kind
    assert sum(1 for _ in client.history()) < 2 * KEPT + 500, "ended tasks are pruned"
