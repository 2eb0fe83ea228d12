"""Programs that are hard to end, where tasks are not isolated: each ends all the same, or counts as running."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from live.test_backends import (  # noqa: F401 - fixtures
    alive,
    end_of,
    lease,
    said,
    sandbox,
    start,
)
from waiting import wait_for

from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.supervision import supervisor_of

# ------------------------------------------------------------------- ended first threads

#: Says its pid, and ends the first of its two threads. With an argument, a child does so: no signal of its parent's
#: death reaches it.
HEADLESS = """
import ctypes, os, sys, threading, time
if len(sys.argv) > 1 and os.fork():
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,)).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def headless(run: Run) -> int:
    """Pid of the program, once its first thread has ended."""
    pid = int(wait_for(lambda: said(run).strip()))
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    return pid


def test_a_program_whose_first_thread_has_ended_is_ended(start: Callable[..., Run]) -> None:  # noqa: F811
    run = start(HEADLESS)
    pid = headless(run)
    assert supervise.start_time(pid), "it runs on"
    assert alive([pid]) == [pid]
    Process().stop(run, at_once=True)
    assert end_of(run).result == "stopped"
    assert alive([pid]) == []


def test_such_a_program_does_not_outlive_its_supervisor(start: Callable[..., Run]) -> None:  # noqa: F811
    run = start(HEADLESS, "child")
    pid = headless(run)
    os.kill(supervisor_of(run) or 0, signal.SIGKILL)
    assert end_of(run).result == "lost"
    assert alive([pid]) == []


def test_all_threads_of_such_a_program_get_other_cores(start: Callable[..., Run]) -> None:  # noqa: F811
    cores = sorted(os.sched_getaffinity(0))
    run = start(HEADLESS, devices={"cpu": (cores[0],)})
    pid = headless(run)
    (thread,) = (int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
    Process().resize(run, {"cpu": 1.0, "gpu": 1.0}, {"cpu": (cores[-1],)})
    assert os.sched_getaffinity(thread) == {cores[-1]}


def test_looks_at_what_does_not_end_get_rare_and_a_new_process_is_looked_for_at_once() -> None:
    pauses = supervise.Pauses()
    assert pauses.after({1}) == 0.005
    assert [pauses.after({1}) for _ in range(9)][-1] == 0.5
    assert pauses.after({1, 2}) == 0.005
    assert pauses.after({2}) == 0.01
