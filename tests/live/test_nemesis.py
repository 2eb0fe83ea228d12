"""A real site while its parts are killed, stopped and cut off at random; then the truth is held against the records."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from live.sites import RealSite, python, wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.client import Client
from tapfinger.live.leases import boot_clock
from tapfinger.live.tasks import ENDED

#: Writes one line when it begins, one every 50 ms while it is alive, and one when it ends by itself: the truth.
DIARY = """
import os, sys, time
who = f"{os.environ['TAPFINGER_TASK']}.{os.environ['TAPFINGER_ATTEMPT']}"
with open(who, "a", buffering=1) as diary:
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        diary.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.05)
    diary.write(f"exit {sys.argv[2]}\\n")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    made = RealSite(tmp_path)
    yield made
    made.close()


def lines_of(diary: Path) -> tuple[list[float], str]:
    """When it was alive, and its last word if it had one."""
    lines = diary.read_text().split("\n")[:-1]
    last = lines[-1] if lines and lines[-1].startswith("exit") else ""
    return [float(line) for line in lines if not line.startswith("exit")], last


@pytest.mark.slow
def test_a_site_survives_its_nemesis(site: RealSite, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    work = tmp_path / "work"
    work.mkdir()
    client = site.up()
    tasks: list[int] = []
    cancelled: set[int] = set()
    for act in ("agent", "coordinator", "stop", "agent", "coordinator"):
        for _ in range(3):
            argv = [sys.executable, "-c", DIARY, f"{rng.uniform(0.2, 4.0):.2f}", str(rng.choice([0, 0, 3]))]
            tasks += client.submit(python(DIARY, argv=argv, cwd=str(work), retries=1))
        victim = str(rng.choice(["left", "right"]))
        wait_for(partial(busy_or_done, client))
        if act == "agent":
            site.kill(victim)
            site.agent(victim)
        elif act == "coordinator":
            site.kill("coordinator")
            client = site.serve()
        else:
            # Stopped, not dead, for longer than its lease: it must not hurt anyone when it wakes.
            site.processes[victim].send_signal(signal.SIGSTOP)
            wait_for(partial(silent, client, victim))
            site.processes[victim].send_signal(signal.SIGCONT)
        chosen = int(rng.choice(tasks))
        if client.cancel(chosen).cancelled:
            cancelled.add(chosen)
    ends = {task: client.wait(task, 60) for task in tasks}
    to_wall = time.time() - boot_clock()
    assert {info.phase for info in ends.values()} <= ENDED
    for task, info in ends.items():
        diaries = {int(path.suffix[1:]): lines_of(path) for path in work.glob(f"{task}.*")}
        alive = sorted((times[0], times[-1], attempt) for attempt, (times, _) in diaries.items() if times)
        for (_, end, first), (begin, _, second) in pairwise(alive):
            assert end < begin, f"task {task}: attempts {first} and {second} were alive at once"
        assert info.ended is not None
        for _, end, attempt in alive:
            # The clocks are the same but for how exactly their difference was read.
            assert end + to_wall < info.ended + 0.05, f"task {task}: attempt {attempt} was alive after its end"
        last = diaries.get(info.attempt, ([], ""))[1]
        if task in cancelled:
            assert info.phase is Phase.CANCELLED
        else:
            assert (info.phase, last) == ((Phase.FINISHED, "exit 0") if info.code == 0 else (Phase.FAILED, "exit 3")), (
                f"task {task}: {info}"
            )
        told = [line["kind"] for line in info.history]
        assert sum(kind in {phase.value for phase in ENDED} for kind in told) == 1
    assert all(c["free"] == c["capacity"] for c in client.clusters())


def busy_or_done(client: Client) -> bool:
    """Whether something runs, or nothing is left that could."""
    return bool(client.list([Phase.RUNNING])) or not client.list([Phase.QUEUED, Phase.PLACED])


def silent(client: Client, cluster: str) -> bool:
    return not {c["name"]: c for c in client.clusters()}[cluster]["connected"]
