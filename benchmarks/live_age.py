"""A coordinator that is old: submits, listing, restart, memory and the database with 0 and with a million ended tasks.

python benchmarks/live_age.py                 # a million; takes some minutes and about 3 GB of disk
python benchmarks/live_age.py --ended 100000

Ended tasks are written straight into the store, each with the five events of an ordinary life. Everything else goes
through a real ``tapfinger serve`` on loopback. Both ages are measured in the same run, turn by turn, so that other load
on the machine hardly changes their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from live_store import TASK, Coordinator, submit

from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.events import Granted, Grounds, encode_fields
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.live.store.store import Store

#: Rounds of submits, and requests of each kind of reading.
ROUNDS, READS = 5, 300
#: Days over which the ended tasks are spread.
DAYS = 200
#: Share of the ended tasks that is pruned in the end.
SHARE = 0.1
#: Keys of ``[live]``: while measuring, nothing is pruned.
KEEP = "max_waiting = 1000000\nmax_waiting_mb = 4000\nkeep_days = 1000\nkeep_tasks = 100000000\n"
PRUNE = f"max_waiting = 1000000\nmax_waiting_mb = 4000\nkeep_days = {DAYS * (1 - SHARE)}\n"


def fill(path: Path, count: int) -> None:
    """Write ended tasks with their events, straight into a new store."""
    from pydantic import TypeAdapter

    Store(path).close()
    spec = TypeAdapter(TaskSpec).dump_json(make_spec(**TASK)).decode()
    size = {"cpu": 1.0, "gpu": 0.0}
    grounds = Grounds(60.0, 60.0, 24.0, size, {"cpu": 1.0, "gpu": 0.0}, 12, {"cpu": 16.0, "gpu": 0.0}, 1, "tapfinger")
    granted = encode_fields(Granted(0.0, 1, 1, "lab", size, grounds))
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA synchronous = OFF; BEGIN")
    begin = time.time() - DAYS * 86_400.0
    step = DAYS * 86_400.0 / count
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    database.execute(
        f"INSERT INTO tasks (id, spec, owner, submitted, phase, attempt, cluster, agent, allocation, started, ended, "
        f"failures, losses, cancelled, code, reason, output, resized, incomplete) {numbers} SELECT i, ?, 'ann', "
        "? + i * ?, CASE WHEN i % 20 THEN 'finished' ELSE 'failed' END, 1, 'lab', 'agent-lab', '[1, 0]', "
        "? + i * ? + 1, ? + i * ? + 30, 0, 0, 0, 0, '', 1000, 0, 0 FROM n",
        (spec, begin, step, begin, step, begin, step),
    )
    database.execute(
        f"{numbers}, k(kind, after, data) AS (VALUES ('submitted', 0, '{{\"type\": \"demo\"}}'), ('granted', 1, ?), "
        "('started', 2, '{}'), ('ended', 30, '{\"result\": \"finished\", \"code\": 0}'), ('finished', 30, '{}')) "
        "INSERT INTO history (at, kind, task, attempt, cluster, data) "
        "SELECT ? + i * ? + after, kind, i, 1, 'lab', data FROM n CROSS JOIN k",
        (granted, begin, step),
    )
    database.execute("DELETE FROM totals")
    database.execute("INSERT INTO totals SELECT phase, count(*) FROM tasks GROUP BY phase")
    database.execute("INSERT INTO totals SELECT 'ended tasks kept', count(*) FROM tasks")
    database.execute("COMMIT")
    database.close()


async def _reads(coordinator: Coordinator, path: str, count: int) -> list[float]:
    """Seconds of the same question, one after another on one connection."""
    host, _, port = coordinator.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET /api/v1/{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {coordinator.token}\r\n\r\n"
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(answer.partition("content-length:")[2].split("\r\n")[0]))
        if " 200 " not in answer.split("\r\n")[0]:
            raise RuntimeError(answer)
        found.append(time.perf_counter() - begin)
    writer.close()
    return found


def reads(coordinator: Coordinator, path: str) -> str:
    """Median and 99th percentile in milliseconds."""
    found = asyncio.run(_reads(coordinator, path, READS))
    return f"{1e3 * np.percentile(found, 50):.1f} / {1e3 * np.percentile(found, 99):.1f}"


def megabytes(state: Path) -> float:
    """Size of the database, with its log."""
    return sum(path.stat().st_size for path in state.glob("store.db*")) / 1e6


def compare(folder: Path, ended: int) -> list[str]:
    """Two coordinators, one with an empty store and one with ended tasks, measured turn by turn."""
    states = {0: folder / "young", ended: folder / "old"}
    for count, state in states.items():
        state.mkdir()
        if count:
            fill(state / "store.db", count)
    rows: dict[str, dict[int, float | str]] = {}

    def note(what: str, measure: Callable[[int], float | str]) -> None:
        rows[what] = {count: measure(count) for count in states}
        print(what, rows[what], file=sys.stderr, flush=True)

    sizes = {count: megabytes(state) for count, state in states.items()}
    opened = {count: Coordinator(state, more=KEEP) for count, state in states.items()}
    rates: dict[str, dict[int, list[float]]] = {"single": {n: [] for n in states}, "batch": {n: [] for n in states}}
    for count in (*states, *states):
        submit(opened[count], 100, 1)
    for _ in range(ROUNDS):
        for count in states:
            rates["single"][count].append(500 / submit(opened[count], 500, 1).total)
            rates["batch"][count].append(2_000 / submit(opened[count], 20, 1, 100).total)
    note("submits a second, one connection (best of rounds)", lambda n: max(rates["single"][n]))
    note("tasks a second, batches of 100 (best of rounds)", lambda n: max(rates["batch"][n]))
    shown = max(1, ended // 2)
    for name, path in (
        ("list: p50 / p99 ms", "tasks?limit=100"),
        ("list of failed ones: p50 / p99 ms", "tasks?limit=100&phase=failed&phase=lost"),
        ("counts: p50 / p99 ms", "tasks?limit=1"),
        ("latest events: p50 / p99 ms", "events?last=100"),
    ):
        note(name, lambda n, path=path: reads(opened[n], path))
    note("show: p50 / p99 ms", lambda n: reads(opened[n], f"tasks/{shown if n else 1}"))
    note("memory of the coordinator, MB", lambda n: opened[n].memory())
    for coordinator in opened.values():
        coordinator.process.kill()
        coordinator.process.wait()
        coordinator.client.close()
    restarts: dict[int, list[float]] = {count: [] for count in states}
    for _ in range(ROUNDS):
        for count, state in states.items():
            again = Coordinator(state, more=KEEP)
            restarts[count].append(again.seconds)
            again.close()
    note("restart, s (median)", lambda n: float(np.median(restarts[n])))
    note("database, MB", lambda n: sizes[n])
    lines = ["| | empty | old | old / empty |", "|---|---|---|---|"]
    for what, found in rows.items():
        young, old = found[0], found[ended]
        ratio = "" if isinstance(young, str) or isinstance(old, str) or not young else f"{old / young:.2f}"
        cells = [one if isinstance(one, str) else f"{one:,.1f}" for one in (young, old)]
        lines.append(f"| {what} | {cells[0]} | {cells[1]} | {ratio} |")
    return [*lines, "", *pruning(states[ended], ended)]


def pruning(state: Path, ended: int) -> list[str]:
    """Some of the ended tasks go while tasks are submitted."""
    before = megabytes(state)
    coordinator = Coordinator(state, more=PRUNE)
    begin = time.monotonic()
    slow = submit(coordinator, 2_000, 1)

    def left() -> int:
        with closing(sqlite3.connect(f"file:{state / 'store.db'}?mode=ro", uri=True)) as database:
            ((kept,),) = database.execute("SELECT number FROM totals WHERE name = 'ended tasks kept'").fetchall()
            ((free,),) = database.execute("PRAGMA freelist_count").fetchall()
        return int(kept if kept > ended * (1 - 0.9 * SHARE) else free)

    while left() > 50:
        time.sleep(1.0)
    took = time.monotonic() - begin
    memory = coordinator.memory()
    coordinator.close()
    p50, p99 = (1e3 * np.percentile(slow.seconds, p) for p in (50, 99))
    return [
        f"{SHARE:.0%} of them pruned, and the file shrunk, in {took:.0f} s: from {before:,.0f} to "
        f"{megabytes(state):,.0f} MB; meanwhile {len(slow.seconds) / slow.total:,.0f} submits a second on one "
        f"connection, p50 {p50:.1f} ms, p99 {p99:.1f} ms; memory {memory:.0f} MB.",
    ]


def report(ended: int = 1_000_000) -> list[str]:
    """The section of BENCHMARKS.md."""
    with tempfile.TemporaryDirectory() as name:
        found = compare(Path(name), ended)
    return [
        "## A coordinator that is old",
        "",
        f"`python benchmarks/live_age.py`. SQLite; an empty store and one with {ended:,} ended tasks and",
        f"{5 * ended:,} events, measured in turn in one run. To reach: at least 0.9 of the submits, p99 of reading",
        "below 50 ms, restart below 3 s, memory below 200 MB.",
        "",
        *found,
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, default=1_000_000)
    print("\n".join(report(parser.parse_args().ended)))
