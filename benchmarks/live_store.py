"""The live coordinator's store: submissions per second, a hundred thousand waiting tasks, memory, failover.

Real ``tapfinger serve`` processes on loopback, with SQLite files and a PostgreSQL server started for this benchmark.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from engines.postgres import PostgresServer
from engines.replicas import ReplicatedSite
from live.sites import python
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.protocol.events import Submitted
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.state_dir import noted
from tapfinger.live.store.store import Store

#: Number of waiting tasks in the long test.
MANY = 100_000
#: Number of times that submissions are measured.
ROUNDS = 5
#: Number of times that the leader is killed.
TRIALS = 50
#: A typical task as people submit it.
TASK = {"argv": ["python", "train.py", "--seed", "1"], "type": "demo", "maximum": {"cpu": 1}}


@dataclass(frozen=True)
class Times:
    """Latencies of concurrent requests from several connections."""

    seconds: np.ndarray  # (requests,)
    #: Seconds from the first request to the last answer.
    total: float

    def cell(self, tasks: int = 1) -> str:
        """Tasks per second, median and 99th percentile."""
        p50, p99 = (1e3 * np.percentile(self.seconds, p) for p in (50, 99))
        return f"{tasks * len(self.seconds) / self.total:,.0f} | {p50:.1f} | {p99:.1f}"


def best_of(rounds: list[Times]) -> Times:
    """The fastest round: other load on the machine only ever slows it down."""
    return min(rounds, key=lambda times: times.total)


async def _submit(host: str, port: int, token: str, body: bytes, count: int) -> list[float]:
    """Send requests one after another on one connection; plain sockets leave the processor to the coordinator."""
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /api/v1/tasks HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split("\r\n")[0])
        said = await reader.readexactly(length)
        if " 201 " not in answer.split("\r\n")[0]:
            raise RuntimeError(f"{answer}{said.decode()}")
        found.append(time.perf_counter() - begin)
    writer.close()
    return found


def submit(client_of: Coordinator, requests: int, connections: int, batch: int = 1) -> Times:
    """Submit from several connections, each as fast as it gets answers."""
    host, _, port = client_of.url.removeprefix("http://").partition(":")
    body = json.dumps({"tasks": [TASK] * batch}).encode()

    async def all_of_them() -> list[list[float]]:
        each = requests // connections
        ones = (_submit(host, int(port), client_of.token, body, each) for _ in range(connections))
        return await asyncio.gather(*ones)

    begin = time.perf_counter()
    found = asyncio.run(all_of_them())
    return Times(np.concatenate(found), time.perf_counter() - begin)


class Coordinator:
    """A separate ``tapfinger serve`` process."""

    def __init__(self, state: Path, store: str | None = None, more: str = "") -> None:
        """Start it; ``more``: keys of ``[live]``."""
        state.mkdir(parents=True, exist_ok=True)
        self._state = state
        config = state / "site.toml"
        config.write_text(SITE + more)
        command = [sys.executable, "-m", "tapfinger", "serve", "--state", str(state), "--port", "0"]
        given = ["--config", str(config), *(["--store", store] if store else [])]
        begin = time.perf_counter()
        with (state / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *given], stdout=log, stderr=log)
        self.url = wait_for(lambda: noted(state / "coordinator.json"), 120.0)["url"]
        self.token = wait_for(lambda: (state / "token").exists() and (state / "token").read_text().strip(), 120.0)
        self.client = Client(self.url, self.token)
        wait_for(self._leads, 120.0)
        #: Seconds until it accepts submissions.
        self.seconds = time.perf_counter() - begin

    def _leads(self) -> bool:
        with suppress(Exception):
            return bool(self.client._call("GET", "health").json()["role"] == "leader")
        return False

    def memory(self) -> float:
        """Resident memory in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu(self) -> float:
        """Seconds of processor time used so far: other load on the machine hardly changes it."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Stop it."""
        self.client.close()
        self.process.terminate()
        self.process.wait()


SITE = """
[[clusters]]
name = "lab"
capacity = {cpu = 16, gpu = 0}
[[task_types]]
name = "demo"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 60, parallel = {cpu = 0.8}}
[live]
"""


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server with its data on the disk that holds temporary files."""
    with tempfile.TemporaryDirectory(prefix="tapfinger-pg-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        try:
            yield server
        finally:
            server.close()


def commits(where: Path | str, count: int = 200) -> float:
    """Milliseconds to save one task alone: the time of disk and database."""
    store = Store(where)
    store.lead("")
    spec = make_spec(**TASK)
    begin = time.perf_counter()
    for n in range(1, count + 1):
        store.save([TaskRecord(n, spec, "me", 1.0)], [Submitted(1.0, n)])
    taken = time.perf_counter() - begin
    store.close()
    return 1e3 * taken / count


def submissions(folder: Path, server: PostgresServer) -> list[str]:
    """Submissions per second with both stores."""
    lines = [
        "| store | one commit, ms | single: tasks/s | p50 ms | p99 ms | CPU ms each "
        "| batches of 100: tasks/s | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, where in (("SQLite", None), ("PostgreSQL", server.database())):
        print(f"submissions, {name}", flush=True)
        alone = commits(folder / "alone.db" if where is None else server.database())
        coordinator = Coordinator(folder / name, where)
        submit(coordinator, 80, 8)
        before = coordinator.cpu()
        single = best_of([submit(coordinator, 1_000, 8) for _ in range(ROUNDS)])
        each = 1e3 * (coordinator.cpu() - before) / (ROUNDS * 1_000)
        batches = best_of([submit(coordinator, 100, 1, 100) for _ in range(ROUNDS)])
        coordinator.close()
        lines.append(f"| {name} | {alone:.1f} | {single.cell()} | {each:.1f} | {batches.cell(100)} |")
    return lines


def long_queue(folder: Path, server: PostgresServer) -> list[str]:
    """A hundred thousand waiting tasks: latency at the beginning and at the end, memory, and restart."""
    lines = [
        "| store | first 1,000: p50, p99 ms | last 1,000 | MB empty | MB full | beyond the limit | restart, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, where in (("SQLite", None), ("PostgreSQL", server.database())):
        print(f"{MANY} waiting tasks, {name}", flush=True)
        state, limit = folder / f"long {name}", f"max_waiting = {MANY}\n"
        coordinator = Coordinator(state, where, limit)
        empty = coordinator.memory()
        first = submit(coordinator, 1_000, 8)
        submit(coordinator, MANY // 1_000 - 2, 1, 1_000)
        last = submit(coordinator, 1_000, 8)
        full = coordinator.memory()
        answer = refused(coordinator)
        coordinator.process.kill()
        coordinator.process.wait()
        coordinator.client.close()
        again = Coordinator(state, where, limit)
        cells = [", ".join(f"{1e3 * np.percentile(t.seconds, p):.1f}" for p in (50, 99)) for t in (first, last)]
        lines.append(
            f"| {name} | {cells[0]} | {cells[1]} | {empty:.0f} | {full:.0f} | {answer} | {again.seconds:.1f} |"
        )
        again.close()
    return lines


def refused(coordinator: Coordinator) -> str:
    """HTTP status of the answer to one more task."""
    try:
        submit(coordinator, 1, 1)
    except RuntimeError as error:
        return str(error).split()[1]
    return "201"


def idle_memory(folder: Path) -> float:
    """Memory in megabytes of the coordinator of a site after the default scheduler has decided."""
    state = folder / "idle"
    run = [sys.executable, "-m", "tapfinger"]
    subprocess.run([*run, "up", "--detach", "--state", str(state)], check=True, capture_output=True)
    try:
        subprocess.run([*run, "run", "--state", str(state), "--", "true"], check=True, capture_output=True)
        status = Path(f"/proc/{json.loads((state / 'coordinator.json').read_text())['pid']}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024
    finally:
        subprocess.run([*run, "down", "--state", str(state)], check=True, capture_output=True)


def failover(folder: Path, server: PostgresServer, times: int = TRIALS) -> list[str]:
    """Seconds from killing the leader to the next acknowledged submission, and what was lost."""
    site = ReplicatedSite(folder, server.database())
    seconds: list[float] = []
    kept: dict[str, int] = {}
    try:
        client = site.up()
        (running,) = client.submit(python("import time; time.sleep(600)", clusters=["left"]))
        wait_for(lambda: client.show(running).phase is Phase.RUNNING)
        client.drain("right")
        for turn in range(times):
            leader, other = ("a", "b") if turn % 2 == 0 else ("b", "a")
            print(f"failover {turn + 1} of {times}", flush=True)
            wait_for(lambda leader=leader: site.role(leader) == "leader")
            wait_for(lambda other=other: site.role(other) == "standby")
            seconds.append(_kill_while_submitting(site, leader, kept))
            site.serve(leader)
        lost = sum(client.show(task).spec.key != key for key, task in kept.items())
        info = client.show(running)
        untouched = (info.phase, info.attempt, info.losses) == (Phase.RUNNING, 1, 0)
    finally:
        site.close()
    return [
        f"{times} times the leader was killed (SIGKILL) while tasks were submitted. Until the other one had "
        f"acknowledged the next, it took {np.median(seconds):.1f} s (median), {max(seconds):.1f} s at most. "
        f"Of {len(kept):,} acknowledged tasks {lost} were lost; the task that ran meanwhile was "
        f"{'untouched' if untouched else 'touched'}.",
    ]


def _kill_while_submitting(site: ReplicatedSite, leader: str, kept: dict[str, int]) -> float:
    over, acknowledged = threading.Event(), []
    client = site.client("a", "b")

    def go_on() -> None:
        while not over.is_set():
            key = f"task {len(kept)}"
            (kept[key],) = client.submit(python("pass", clusters=["right"], key=key))
            acknowledged.append(time.monotonic())

    submitting = threading.Thread(target=go_on)
    submitting.start()
    wait_for(lambda: len(acknowledged) > 20)
    killed = time.monotonic()
    site.kill(leader)
    wait_for(lambda: acknowledged[-1] > killed + 0.05)
    over.set()
    submitting.join()
    return next(at for at in acknowledged if at > killed + 0.05) - killed


def report() -> list[str]:
    """The section of BENCHMARKS.md."""
    with tempfile.TemporaryDirectory() as name, postgres_server() as server:
        folder = Path(name)
        single = submissions(folder, server)
        queue = long_queue(folder, server)
        (folder / "replicas").mkdir()
        switched = failover(folder / "replicas", server)
        memory = idle_memory(folder)
    return [
        "## The live coordinator's store",
        "",
        "`python benchmarks/run.py live_store`. Coordinator, database and load on one machine, loopback. Every task",
        "was on disk before its submission was answered. Single: eight connections, a task a request. Batches: one",
        "connection. Best of five rounds. One commit: a task saved alone, one after another, without HTTP: what disk",
        "and database take. CPU: the coordinator's processor time for a single submission.",
        "",
        *single,
        "",
        f"{MANY:,} tasks that wait, with no cluster open; eight connections. Restart: from starting the process after",
        "a SIGKILL to its first answer as leader.",
        "",
        *queue,
        "",
        *switched,
        "",
        f"The coordinator of `tapfinger up`, idle after its policy has decided: {memory:.0f} MB.",
    ]


if __name__ == "__main__":
    print("\n".join(report()))
