"""Many starts at once on one cluster, for real: what the small test and the long one have in common."""

from __future__ import annotations

import time
from pathlib import Path

from live.sites import RealSite
from waiting import wait_for

from tapfinger.live.http.client import make_spec

CONFIG = """
slot_seconds = 0.2
[[clusters]]
name = "left"
capacity = {{cpu = {tasks}, gpu = 0}}
[[task_types]]
name = "demo"
minimum = {{cpu = 1, gpu = 0}}
maximum = {{cpu = 1}}
speed = {{kind = "constant", slots = 10}}
[live]
scheduler = "fifo"
lease_seconds = {lease}
grace_seconds = 3.0
beat_seconds = {beat}
stop_seconds = 0.5
"""


def start_many(directory: Path, tasks: int, lease: float) -> float:
    """Submit tasks that wait for a file, all at once. Returns how many seconds pass until all of them run.

    None may be lost: the lease is renewed while they start.
    """
    site = RealSite(directory)
    site.config.write_text(CONFIG.format(tasks=tasks, lease=lease, beat=min(5.0, lease / 4)))
    (directory / "here").mkdir()
    (directory / "go").mkdir()
    try:
        client = site.serve()
        site.agent("left")
        wait_for(lambda: all(c["connected"] for c in client.clusters()))
        # A shell is small: six hundred interpreters that load their libraries would measure something else.
        script = f"touch {directory}/here/$TAPFINGER_TASK; until [ -e {directory}/go/on ]; do sleep 1; done"
        spec = make_spec(argv=["sh", "-c", script], type="demo")
        began = time.monotonic()
        ids = client.submit(*[spec] * tasks)
        wait_for(lambda: len(list((directory / "here").iterdir())) == tasks)
        took = time.monotonic() - began
        (directory / "go" / "on").touch()
        ended = [client.wait(task, 240.0) for task in ids]
        assert {(info.phase.value, info.attempt, info.losses) for info in ended} == {("finished", 1, 0)}
        assert all(line["kind"] != "silent" for line in client.events(limit=10_000))
    finally:
        site.close()
    return took
