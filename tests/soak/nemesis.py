"""What nemesis tests have in common: a load whose tasks keep a diary, and a checker that reads it afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from live.sites import python
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.errors import CoordinatorError
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.http.client import Client, TaskInfo
from tapfinger.live.protocol.records import ENDED

SECONDS = float(os.environ.get("TAPFINGER_NEMESIS_SECONDS", "20"))
SEED = int(os.environ.get("TAPFINGER_NEMESIS_SEED", "7"))
CLUSTERS = ("left", "right")
#: Of the site's configuration: how long agents may act on their own, with the grace.
LEASE = 4.0

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


class Load(threading.Thread):
    """Someone who submits and cancels all the while, and asks again with the same key where no answer comes."""

    def __init__(self, url: str, token: str, work: Path) -> None:
        super().__init__(daemon=True)
        self._url, self._token, self._work = url, token, work
        self._rng = np.random.default_rng(SEED + 1)
        self.over = threading.Event()
        #: Acknowledged; cancelled for certain; asked to be cancelled, perhaps in vain.
        self.tasks: list[int] = []
        self.cancelled: set[int] = set()
        self.doubtful: set[int] = set()

    def run(self) -> None:
        with Client(self._url, self._token, timeout=3.0) as client:
            while not self.over.wait(self._rng.uniform(0.1, 0.6)):
                self._submit(client)
                if self._rng.random() < 0.2:
                    self._cancel(client)

    def end(self) -> None:
        self.over.set()
        self.join(30)

    def _submit(self, client: Client) -> None:
        seconds, code = f"{self._rng.uniform(0.2, 3.0):.2f}", str(self._rng.choice([0, 0, 3]))
        argv = [sys.executable, "-c", DIARY, seconds, code, str(self._work)]
        spec = python(DIARY, argv=argv, cwd=str(self._work), retries=1, key=f"key {len(self.tasks)}")
        while not self.over.is_set():
            try:
                self.tasks += client.submit(spec)
                return
            except CoordinatorError:
                time.sleep(0.2)

    def _cancel(self, client: Client) -> None:
        chosen = int(self._rng.choice(self.tasks))
        try:
            if client.cancel(chosen).cancelled:
                self.cancelled.add(chosen)
        except CoordinatorError:
            self.doubtful.add(chosen)


def check_everything(client: Client, load: Load, work: Path, acts: Mapping[str, int]) -> None:
    """After the last blow: all tasks come to their end, and the truth is what the records say."""
    wait_for(lambda: all(c["connected"] for c in client.clusters()))
    ends = {task: client.wait(task, 120 + client.show(task).rests) for task in load.tasks}
    to_wall = time.time() - boot_clock()
    assert len(ends) == len(load.tasks), "a key that is used again gives the same task"
    for task, info in ends.items():
        check_task(info, work, to_wall, task in load.cancelled, task in load.doubtful)
    check_grants(client)
    assert all(c["free"] == c["capacity"] for c in client.clusters())
    left = subprocess.run(["pgrep", "-f", str(work)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "nothing is alive any more"
    attempts = sum(info.attempt for info in ends.values())
    sys.stderr.write(
        f"{SECONDS:g} s: {dict(acts)}; {len(ends)} tasks, {attempts} attempts, "
        f"{sum(info.losses for info in ends.values())} lost, {len(load.cancelled)} cancelled\n"
    )


def lines_of(diary: Path) -> tuple[list[float], str]:
    """When it was alive, and its last word if it had one."""
    lines = diary.read_text().split("\n")[:-1]
    last = lines[-1] if lines and lines[-1].startswith("exit") else ""
    return [float(line) for line in lines if not line.startswith("exit")], last


def check_task(info: TaskInfo, work: Path, to_wall: float, cancelled: bool, doubtful: bool) -> None:
    """One outcome, which is what really happened; never two attempts at once; nothing alive after the end."""
    task = info.id
    assert info.phase in ENDED
    assert info.ended is not None
    diaries = {int(path.suffix[1:]): lines_of(path) for path in work.glob(f"{task}.*")}
    alive = sorted((times[0], times[-1], attempt) for attempt, (times, _) in diaries.items() if times)
    for (_, end, first), (begin, _, second) in pairwise(alive):
        assert end < begin, f"task {task}: attempts {first} and {second} were alive at once"
    for _, end, attempt in alive:
        # The clocks are the same but for how exactly their difference was read.
        assert end + to_wall < info.ended + 0.05, f"task {task}: attempt {attempt} was alive after its end"
    last = diaries.get(info.attempt, ([], ""))[1]
    if cancelled or (doubtful and info.cancelled):
        assert info.phase is Phase.CANCELLED
    elif info.code == 127:
        assert "a start that raises" in info.reason, f"task {task}: {info}"
        assert (info.phase, last) == (Phase.FAILED, "")
    else:
        really = (Phase.FINISHED, "exit 0") if info.code == 0 else (Phase.FAILED, "exit 3")
        assert (info.phase, last) == really, f"task {task}: {info}"
    told = [line["kind"] for line in info.history]
    assert sum(kind in {phase.value for phase in ENDED} for kind in told) == 1


def check_grants(client: Client) -> None:
    """What was granted on a cluster was never more than it has."""
    held: dict[str, Counter[int]] = {cluster: Counter() for cluster in CLUSTERS}
    after, most = 0, Counter[str]()
    while lines := client.events(after, 10_000):
        after = lines[-1]["seq"]
        for line in lines:
            if line["kind"] == "granted":
                held[line["cluster"]][line["task"]] += int(line["data"]["allocation"]["cpu"])
                most[line["cluster"]] = max(most[line["cluster"]], held[line["cluster"]].total())
            elif line["kind"] == "ended":
                del held[line["cluster"]][line["task"]]
    assert all(0 < most[cluster] <= 4 for cluster in CLUSTERS), most
    assert all(not tasks for tasks in held.values())
