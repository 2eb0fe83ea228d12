"""Reads the diaries of tasks and the history of their site after the last blow, and compares them."""

from __future__ import annotations

import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from soak.clocks import real_time
from soak.nemesis import BAD, CLUSTERS, SECONDS, Load, bad_task
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.errors import NotFound
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.http.client import Client, TaskInfo, make_spec
from tapfinger.live.protocol.records import ENDED

#: Most attempts of a task in an hour, whenever it begins.
MOST = 10
#: Seconds that half of the tasks wait at most for their first attempt in the calm, when only bad tasks are in the way.
#: During faults, half of the site may be gone for most of the time, and the queue is long whatever bad tasks do.
CALM_WAIT = 1.0
#: Largest share of the site's cpus that the bad tasks hold, over the whole run: so much less is left for the others.
BAD_SHARE = 0.05
#: Tasks in the calm, one after another: some come with each early attempt of the bad ones.
PROBES = 12
#: The kinds of event that end a task.
ENDS = {phase.value for phase in ENDED}

Events = Sequence[Mapping[str, Any]]


def check_everything(client: Client, load: Load, work: Path, acts: Mapping[str, int]) -> None:
    """After the last blow: all tasks come to their end, and the truth is what the records say."""
    wait_for(lambda: all(c["connected"] for c in client.clusters()))
    ends = {task: client.wait(task, 120 + client.show(task).rests) for task in load.tasks}
    probes = probe(client, load)
    to_wall = time.time() - boot_clock()
    assert len(ends) == len(load.tasks), "a key that is used again gives the same task"
    for task, info in ends.items():
        check_task(info, work, to_wall, task in load.cancelled, task in load.doubtful)
    history = read_history(client)
    check_grants(history)
    check_attempts(history)
    share = check_share(history, load.bad)
    median, calm = median_wait(history, load.tasks), median_wait(history, probes)
    assert calm <= CALM_WAIT, f"in the calm, half of the tasks waited for {calm:.1f} s or longer"
    repeated = check_repeated(history, work)
    for cluster in client.clusters():
        assert cluster["free"] == cluster["capacity"]
        assert cluster["capacity"]["cpu"] == 4
    left = subprocess.run(["pgrep", "-f", str(work)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "nothing is alive any more"
    tried = Counter(line["task"] for line in history if line["kind"] == "granted")
    bad = [tried[task] for task in load.bad]
    sys.stderr.write(
        f"{SECONDS:g} s: {dict(acts)}; {len(ends)} tasks, {sum(info.attempt for info in ends.values())} attempts, "
        f"{sum(info.losses for info in ends.values())} lost, {len(load.cancelled)} cancelled; they waited for "
        f"{median:.2f} s (median), {calm:.2f} s in the calm; attempts of the bad ones: {bad}, with "
        f"{share:.1%} of the site; ran to completion once more: {dict(repeated)}\n"
    )


def probe(client: Client, load: Load) -> Sequence[int]:
    """In the calm: good tasks one after another, with new bad ones beside them, which are cancelled in the end."""
    load.bad += client.submit(*(bad_task(argv, f"calm {argv[0]}") for argv in BAD))
    found = []
    for _ in range(PROBES):
        found += client.submit(make_spec(argv=["sleep", "0.2"], type="demo", maximum={"cpu": 1}))
        assert client.wait(found[-1], 120).phase is Phase.FINISHED
    for task in load.bad:
        with suppress(NotFound):  # it has ended: it was lost too often
            client.cancel(task)
        client.wait(task, 120)
    return found


def read_history(client: Client) -> Events:
    """All events, in order."""
    found: list[Mapping[str, Any]] = []
    while lines := client.events(found[-1]["seq"] if found else 0, 10_000):
        found += lines
    return found


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
        assert end + to_wall < real_time(info.ended) + 0.05, f"task {task}: attempt {attempt} was alive after its end"
    last = diaries.get(info.attempt, ([], ""))[1]
    if cancelled or (doubtful and info.cancelled):
        assert info.phase is Phase.CANCELLED
    elif info.code == 127:
        assert "a start that raises" in info.reason, f"task {task}: {info}"
        assert (info.phase, last) == (Phase.FAILED, "")
    else:
        really = (Phase.FINISHED, "exit 0") if info.code == 0 else (Phase.FAILED, "exit 3")
        assert (info.phase, last) == really, f"task {task}: {info}"
    assert sum(line["kind"] in ENDS for line in info.history) == 1


def check_grants(history: Events) -> None:
    """What was granted on a cluster was never more than it has."""
    held: dict[str, Counter[int]] = {cluster: Counter() for cluster in CLUSTERS}
    most = Counter[str]()
    for line in history:
        if line["kind"] == "granted":
            held[line["cluster"]][line["task"]] += int(line["data"]["allocation"]["cpu"])
            most[line["cluster"]] = max(most[line["cluster"]], held[line["cluster"]].total())
        elif line["kind"] == "ended":
            del held[line["cluster"]][line["task"]]
    assert all(0 < most[cluster] <= 4 for cluster in CLUSTERS), most
    assert all(not tasks for tasks in held.values())


def most_in_an_hour(times: Iterable[float]) -> int:
    """The largest number of these times that lie within an hour, whenever it begins."""
    ordered = sorted(times)
    return max((bisect_right(ordered, at + 3600.0) - n for n, at in enumerate(ordered)), default=0)


def check_attempts(history: Events) -> None:
    """No task, good or bad, makes more than ``MOST`` attempts an hour."""
    granted = defaultdict(list)
    for line in history:
        if line["kind"] == "granted":
            granted[line["task"]].append(real_time(line["at"]))
    for task, times in granted.items():
        assert most_in_an_hour(times) <= MOST, f"task {task}: {len(times)} attempts, at {times}"


def median_wait(history: Events, tasks: Sequence[int]) -> float:
    """Median of the seconds from submission to the first attempt."""
    came: dict[int, float] = {}
    waits: dict[int, float] = {}
    for line in history:
        if line["kind"] == "submitted":
            came[line["task"]] = real_time(line["at"])
        elif line["kind"] == "granted":
            waits.setdefault(line["task"], real_time(line["at"]) - came[line["task"]])
    return float(np.median([waits[task] for task in tasks if task in waits]))


def check_share(history: Events, bad: Sequence[int]) -> float:
    """Bad tasks take next to nothing from the others. Returns the share of the site's cpus that they held."""
    since: dict[int, float] = {}
    held = 0.0
    times = [real_time(line["at"]) for line in history]
    for line, at in zip(history, times, strict=True):
        if line["task"] in bad and line["kind"] == "granted":
            since[line["task"]] = at
        elif line["kind"] == "ended":
            held += at - since.pop(line["task"], at)
    share = held / (8 * (max(times) - min(times)))
    assert share <= BAD_SHARE, f"the bad tasks held {share:.1%} of the site"
    return share


def check_repeated(history: Events, work: Path) -> Counter[str]:
    """Attempts that ran to completion in vain, counted by what the history says of them: it must tell each."""
    told = defaultdict(set)
    for line in history:
        if line["kind"] == "ended":
            told[line["task"], line["attempt"]].add(line["data"]["result"])
        elif line["kind"] in ("refused", "recovered"):
            told[line["task"], line["attempt"]].add(line["kind"])
    found = Counter[str]()
    for path in work.iterdir():
        task, attempt = map(int, path.name.split("."))
        known = told[task, attempt]
        if not lines_of(path)[1] or known & {"finished", "failed"}:
            continue  # it did not come to its end, or its end counted
        # Stopped: it was killed between its last word and its exit.
        why = next((kind for kind in ("refused", "stopped") if kind in known), "")
        assert why, f"task {task}: attempt {attempt} ran to completion, and the history says only {known}"
        found[why] += 1
    return found
