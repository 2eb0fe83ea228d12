"""A coordinator that is old: submits, listing, restart, memory and the database with 0 and with a million ended tasks.

python benchmarks/live_age.py                 # a million; takes some minutes and about 3 GB of disk
python benchmarks/live_age.py --ended 100000

Ended tasks are written straight into the store, each with the five events of an ordinary life. Everything else goes
through a real ``tapfinger serve`` on loopback. Both ages are measured in the same run, turn by turn, so that other load
on the machine hardly changes their ratio.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from live_store import TASK, Coordinator, best_of, submit

from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.events import Granted, Grounds, encode_fields
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.live.store.store import Store

#: Rounds of submits, and requests of each kind of reading.
ROUNDS, READS = 5, 300
#: Days over which the ended tasks are spread.
DAYS = 200
#: Site with so few tasks kept that most of the ended ones are pruned.
PRUNED = "keep_days = 100\n"


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
        "? + i * ?, CASE WHEN i % 20 THEN 'finished' ELSE 'failed' END, 1, 'lab', 'agent-lab', '[1, 0]', ? + i * ? + 1, "
        "? + i * ? + 30, 0, 0, 0, 0, '', 1000, 0, 0 FROM n",
        (spec, begin, step, begin, step, begin, step),
    )
    database.execute(
        f"{numbers}, k(kind, after, data) AS (VALUES ('submitted', 0, '{{\"type\": \"demo\"}}'), ('granted', 1, ?), "
        "('started', 2, '{}'), ('ended', 30, '{\"result\": \"finished\", \"code\": 0}'), ('finished', 30, '{}')) "
        "INSERT INTO history (at, kind, task, attempt, cluster, data) "
        "SELECT ? + i * ? + after, kind, i, 1, 'lab', data FROM n, k",
        (granted, begin, step),
    )
    if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'totals'").fetchone()[0]:
        database.execute("INSERT INTO totals SELECT phase, count(*) FROM tasks GROUP BY phase")
        database.execute("INSERT INTO totals SELECT 'ended tasks kept', count(*) FROM tasks")
    database.execute("COMMIT")
    database.close()


if __name__ == "__main__":
    import sys

    fill(Path(sys.argv[1]), int(sys.argv[2]))
