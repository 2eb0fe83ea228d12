"""Programs that are hard to end, where tasks are not isolated: each ends all the same, or counts as running."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from live.sites import opened
from live.test_backends import (  # noqa: F401 - fixtures
    alive,
    end_of,
    lease,
    said,
    sandbox,
    start,
)
from waiting import wait_for

from tapfinger.live.agent.leases import boot_id, read_lease, write_lease
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.starting import Started
from tapfinger.live.backends.supervision import supervisor_of
from tapfinger.live.protocol.messages import Launch

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


# ----------------------------------------------------------------- processes of others


@pytest.fixture
def supervision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> supervise.Supervision:
    """The supervision of a task that has ended and left behind two processes, one of them of another user."""
    monkeypatch.chdir(tmp_path)
    left = {7: 2, 8: 1}  # looks until it ends, by pid

    def kill(pid: int, _number: int) -> None:
        left[pid] -= 1
        if not left[pid]:
            del left[pid]
        if pid == 7:
            raise PermissionError

    monkeypatch.setattr(supervise, "descendants", lambda _root: list(left))
    monkeypatch.setattr(supervise.os, "kill", kill)
    run = {"time_limit": None, "keep": True}
    found = supervise.Supervision(run, Started(1))
    found.status = 0
    monkeypatch.setattr(found, "reap", lambda: bool(left))
    return found


def test_a_process_of_another_user_is_waited_for_and_the_reason_says_so(
    supervision: supervise.Supervision, tmp_path: Path
) -> None:
    supervision.clear()
    reason = "its end had to wait for what its agent's user may not end (sudo, for example): process 7"
    assert supervision.outcome() == {"result": "finished", "code": 0, "reason": reason}
    assert json.loads((tmp_path / supervise.WAITS).read_text()) == {"reason": reason}


def test_the_agent_says_once_why_such_a_task_counts_as_running(
    tmp_path: Path,
    lease: Path,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path / "run", {}, lease)
    run.directory.mkdir()
    (run.directory / supervise.WAITS).write_text('{"reason": "because"}')
    backend = Process()
    with (run.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [backend.poll(run) for _ in range(3)] == [None] * 3
    assert caplog.text.count("task 1 attempt 1 counts as running: because") == 1


# ------------------------------------------------------------------- spoilt directories


@pytest.mark.parametrize("found", [False, True])
def test_a_task_that_removes_its_own_directory_is_stopped_and_lost(
    tmp_path: Path,
    lease: Path,  # noqa: F811
    found: bool,
) -> None:
    code = "import os, shutil, sys, time; shutil.rmtree(sys.argv[1]); os.fork(); time.sleep(600)"
    place = tmp_path / "run"
    run = Run(Launch((1, 1), (sys.executable, "-c", code, str(place)), {"cpu": 1.0}, {}), place, {}, lease)
    place.mkdir()
    backend = opened(Process())
    backend.start(run)
    if found:
        backend = opened(Process())  # of a later agent
        assert backend.poll(run) is None
    wait_for(lambda: not place.exists())
    assert backend.poll(run) is None
    backend.stop(run, at_once=True)
    end = wait_for(lambda: backend.poll(run))
    assert (end.result, end.reason) == ("lost", "its directory was removed or changed, by itself or another task")
    backend.stop(run, at_once=True)
    assert backend.poll(run) == end


def removed(directory: Path) -> bool:
    """Remove it, if nothing is written there meanwhile."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def test_what_a_killed_supervisor_leaves_is_found_without_its_directory(start: Callable[..., Run]) -> None:  # noqa: F811
    run = start(HEADLESS, "child")
    backend = Process()
    assert backend.poll(run) is None
    pid = headless(run)
    supervisor = supervisor_of(run) or 0
    wait_for(lambda: removed(run.directory))
    os.kill(supervisor, signal.SIGKILL)
    assert wait_for(lambda: backend.poll(run)).result == "lost"
    assert alive([pid]) == []
    run.directory.mkdir()


@pytest.mark.parametrize("name", ["end.json", ".end.json.part", "lock", "pid.json", "run.json", "environment.json"])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: Path(path).write_text("[]"),
        lambda path: Path(path).write_text("[" * 100_000),  # for which Python has no ValueError
    ],
)
def test_nothing_that_a_task_puts_in_its_directory_keeps_it_from_its_end(
    start: Callable[..., Run],  # noqa: F811
    name: str,
    make: Callable[[str], object],
) -> None:
    run = start("import sys; sys.stdin.read(); print('up', flush=True); import time; time.sleep(600)")
    wait_for(lambda: "up" in said(run))
    pid = supervisor_of(run)
    first = Process()
    assert first.poll(run) is None
    place = run.directory / name
    place.unlink(missing_ok=True)
    make(str(place))
    first.stop(run, at_once=True)
    os.kill(pid or 0, signal.SIGUSR1)
    assert wait_for(lambda: first.poll(run)).result in ("stopped", "lost")


def test_a_supervisor_outlives_whatever_is_in_place_of_the_lease(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lease")
    assert supervise.lease_end(str(tmp_path / "lease")) == 0.0
    assert read_lease(tmp_path / "lease") == 0.0
    (tmp_path / "lease").unlink()
    for odd in ("[" * 4000, f'{{"boot": "{boot_id()}", "until": 1{"0" * 400}}}'):
        (tmp_path / "lease").write_text(odd)
        assert supervise.lease_end(str(tmp_path / "lease")) == 0.0
        assert read_lease(tmp_path / "lease") == 0.0
    part = f".lease.{os.getpid()}.{threading.get_native_id()}"
    os.mkfifo(tmp_path / part)
    write_lease(tmp_path / "lease", 7.0)
    assert supervise.lease_end(str(tmp_path / "lease")) == read_lease(tmp_path / "lease") == 7.0
