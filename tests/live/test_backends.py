"""Backends with real processes, and the kit that checks them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.sites import opened
from waiting import wait_for

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError, LaunchFailed, UnsupportedOperation
from tapfinger.live.agent.devices import Devices, NoRoom, can_pin, cores_of, make_devices, parse_cores, split_cores
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.agent.main import AgentSettings, make_host
from tapfinger.live.backends import process, supervise
from tapfinger.live.backends.base import Backend, BackendContext, Run
from tapfinger.live.backends.fake import REMEMBERED, Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.sandbox import Sandbox
from tapfinger.live.backends.supervision import supervisor_of
from tapfinger.live.protocol.messages import Launch, Outcome
from tapfinger.testing import CheckFailed, check_backend


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    write_lease(tmp_path / "lease", boot_clock() + 600.0)
    return tmp_path / "lease"


@pytest.fixture
def sandbox() -> Sandbox | None:
    """What tasks run in; tests/engines runs these tests in one."""
    return None


@pytest.fixture
def start(tmp_path: Path, lease: Path, sandbox: Sandbox | None) -> Iterator[Callable[..., Run]]:
    """Start Python code with a process backend; whatever is left is killed afterwards."""
    backend, runs = opened(Process(), stop_seconds=2.0, sandbox=sandbox), []

    def call(code: str, *argv: str, devices: dict[str, tuple[int, ...]] | None = None, **more: Any) -> Run:
        directory = tmp_path / f"{len(runs)}"
        directory.mkdir()
        allocation = {"cpu": 2.0, "gpu": 1.0}
        launch = Launch((len(runs) + 1, 1), (sys.executable, "-c", code, *argv), allocation, {})
        run = Run(replace(launch, **more), directory, devices or {}, lease)
        runs.append(run)
        backend.start(run)
        return run

    yield call
    for run in runs:
        backend.stop(run, at_once=True)
        wait_for(lambda run=run: Process().poll(run))


def end_of(run: Run) -> Outcome:
    return wait_for(lambda: Process().poll(run))


def said(run: Run) -> str:
    return run.output.read_text() if run.output.exists() else ""


def test_a_pretended_run_ends_the_same_until_its_directory_is_gone(tmp_path: Path) -> None:
    backend, end = Fake(clock=lambda: 10.0, script=lambda _: (0.0, 3)), Outcome("failed", 3)
    kept = Run(Launch((1, 1), ("x",), {}, {}), tmp_path / "1.1")
    gone = [Run(Launch((n, 1), ("x",), {}, {}), tmp_path / f"{n}.1") for n in range(2, 2 * REMEMBERED)]
    kept.make_directories()
    for run in (kept, *gone):
        backend.start(run)
        assert backend.poll(run) == end
    assert backend.poll(kept) == end
    assert len(backend._runs) == 2 * REMEMBERED - 1, "one after the other"
    shutil.rmtree(kept.directory)
    backend.start(kept)
    assert [backend.poll(kept), backend.poll(gone[-1])] == [end, end]
    assert len(backend._runs) == REMEMBERED


# ------------------------------------------------------------------------ the kit


def test_the_process_backend_fulfils_the_contract(tmp_path: Path) -> None:
    check_backend(Process, tmp_path)


def test_the_fake_backend_fulfils_the_contract(tmp_path: Path) -> None:
    check_backend(Fake, tmp_path, outlives=False)


class Forgets(Fake):
    """Does not know how tasks ended once it was asked."""

    def poll(self, run: Run) -> Outcome | None:
        end = super().poll(run)
        if end is not None:
            self._runs.pop(run.id, None)
        return end


class Deaf(Fake):
    def stop(self, run: Run, at_once: bool) -> None:
        pass


class Optimist(Fake):
    def poll(self, run: Run) -> Outcome | None:
        return Outcome("finished", 0)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Forgets, "poll must say the same on every call"),
        (Deaf, r"after stop\(run, at_once=True\) a task must end"),
        (Optimist, "a task that exits with 3 must end as 'failed'"),
    ],
)
def test_the_kit_notices(backend: type[Fake], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_backend(backend, tmp_path, outlives=False, patience=0.3)


def test_they_are_backends() -> None:
    assert isinstance(Process(), Backend)
    assert isinstance(Fake(), Backend)


# ---------------------------------------------------------------------- processes


def test_a_task_sees_what_it_was_granted_and_no_secrets(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPFINGER_TOKEN", "secret")
    code = "import json, os; print(json.dumps([dict(os.environ), sorted(os.sched_getaffinity(0)), os.getcwd()]))"
    core = min(os.sched_getaffinity(0))
    run = start(code, devices={"cpu": (core,), "gpu": (3,)}, env={"OMP_NUM_THREADS": "7", "MINE": "x"})
    assert end_of(run).code == 0, said(run)
    env, cores, cwd = json.loads(said(run))
    assert (env["TAPFINGER_CPUS"], env["TAPFINGER_GPUS"], env["CUDA_VISIBLE_DEVICES"]) == ("2", "1", "3")
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["MINE"]) == ("7", "2", "x")
    assert "TAPFINGER_TOKEN" not in env
    assert cores == [core]
    assert cwd == str(run.work)


def test_arguments_reach_the_program_as_they_are(start: Callable[..., Run]) -> None:
    nasty = ["; touch /tmp/x", "$(id)", "a b", "", "*", "ü\n'\""]
    run = start("import json, sys; print(json.dumps(sys.argv[1:]))", *nasty)
    end_of(run)
    assert json.loads(said(run)) == nasty


TREE = """
import os, subprocess, sys, time
def sleeper(): return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sleeper(); time.sleep(600)
    os._exit(0)
sleeper()
os.wait()
print("ready", flush=True)
if sys.argv[1] == "stay": time.sleep(600)
"""


def tree_of(run: Run) -> list[int]:
    """The task's own processes, without those that make its sandbox."""
    pid = supervisor_of(run)
    return [found for found in supervise.descendants(pid) if not _wraps(found)] if pid else []


def _wraps(pid: int) -> bool:
    try:
        return b"starting.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def alive(pids: list[int]) -> list[int]:
    return [pid for pid, _ in supervise.parents() if pid in pids]


@pytest.mark.parametrize("at_once", [True, False])
def test_stopping_ends_the_whole_tree_and_only_that(start: Callable[..., Run], at_once: bool) -> None:
    run, other = start(TREE, "stay"), start(TREE, "stay")
    wait_for(lambda: "ready" in said(run) and "ready" in said(other))
    mine, others = (
        wait_for(lambda: len(t := tree_of(run)) == 4 and t),
        wait_for(lambda: len(t := tree_of(other)) == 4 and t),
    )
    Process().stop(run, at_once)
    assert end_of(run).result == "stopped"
    assert alive(mine) == []
    assert sorted(alive(others)) == sorted(others)


def test_what_a_task_leaves_behind_ends_with_it(start: Callable[..., Run]) -> None:
    run = start(TREE, "go")
    assert (end_of(run).result, end_of(run).code) == ("finished", 0)
    marked = Path(run.directory / "run.json").read_text()
    left = [pid for pid, _ in supervise.parents() if _environment(pid, json.loads(marked)["mark"])]
    assert left == []


def _environment(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_a_task_that_does_not_listen_is_killed(start: Callable[..., Run]) -> None:
    run = start("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)")
    wait_for(lambda: "deaf" in said(run))
    Process().stop(run, at_once=False)
    assert (end_of(run).result, end_of(run).code) == ("stopped", -9)


def test_a_task_has_time_to_clean_up(start: Callable[..., Run]) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(600)"
    )
    run = start(code)
    wait_for(lambda: "up" in said(run))
    Process().stop(run, at_once=False)
    assert (end_of(run).result, end_of(run).code) == ("stopped", 5)


def test_a_killed_supervisor_takes_its_task_along_and_the_attempt_is_lost(start: Callable[..., Run]) -> None:
    run = start(TREE, "stay")
    wait_for(lambda: "ready" in said(run))
    tree = wait_for(lambda: len(t := tree_of(run)) == 4 and t)
    os.kill(supervisor_of(run) or 0, signal.SIGKILL)
    assert end_of(run).result == "lost"
    assert alive(tree) == []


def test_a_task_that_was_given_up_before_its_supervisor_began_does_not_begin(tmp_path: Path, lease: Path) -> None:
    run = Run(Launch((1, 1), ("touch", str(tmp_path / "ran")), {"cpu": 1.0}, {}), tmp_path / "run", {}, lease)
    run.directory.mkdir()
    assert Process().poll(run) == Outcome("lost", reason="its supervisor was killed, or the machine restarted")
    backend = Process()
    backend.start(run)
    wait_for(lambda: backend.poll(run))
    wait_for(lambda: not backend._children)
    assert not (tmp_path / "ran").exists()


def test_a_pid_that_is_used_again_is_not_signalled(start: Callable[..., Run]) -> None:
    victim, run = start("import time; time.sleep(600)"), start("pass")
    end_of(run)
    pid = wait_for(lambda: supervisor_of(victim))
    (run.directory / "pid.json").write_text(json.dumps({"pid": pid, "start": "1"}))
    Process().stop(run, at_once=True)
    assert Process().poll(victim) is None


def test_directories_are_checked(start: Callable[..., Run], tmp_path: Path, lease: Path) -> None:
    with pytest.raises(LaunchFailed, match="/no/such/place does not exist"):
        start("pass", cwd="/no/such/place")
    (tmp_path / "d").mkdir()
    run = Run(Launch((9, 1), ("true",), {}, {}, cwd="/etc/../etc"), tmp_path / "d", {}, lease)
    with pytest.raises(LaunchFailed, match=f"/etc is not within {tmp_path}"):
        opened(Process(), roots=(str(tmp_path),)).start(run)


def test_cores_of_a_running_task_can_be_changed_and_nothing_else(start: Callable[..., Run]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    run = start("import time; print('begun', flush=True); time.sleep(600)", devices={"cpu": (cores[0],), "gpu": (0,)})
    # Between fork and exec the task gives itself its first cores; an agent knows of it only afterwards.
    wait_for(lambda: "begun" in said(run))
    (task,) = tree_of(run)
    assert os.sched_getaffinity(task) == {cores[0]}
    Process().resize(run, {"cpu": 1.0, "gpu": 1.0}, {"cpu": (cores[-1],)})
    assert os.sched_getaffinity(task) == {cores[-1]}
    with pytest.raises(UnsupportedOperation, match="cannot change the gpu"):
        Process().resize(run, {"cpu": 2.0, "gpu": 0.0}, {})
    with pytest.raises(UnsupportedOperation, match="does not pause"):
        Process().resize(run, {"cpu": 0.0, "gpu": 0.0}, {})


def test_a_task_that_cannot_be_told_its_size_has_it_all_the_same(start: Callable[..., Run]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    run = start("import time; print('begun', flush=True); time.sleep(600)", devices={"cpu": (cores[0],), "gpu": (0,)})
    wait_for(lambda: "begun" in said(run))
    run.allotment.unlink()
    run.allotment.mkdir()
    Process().resize(run, {"cpu": 1.0, "gpu": 1.0}, {"cpu": (cores[-1],)})
    (task,) = tree_of(run)
    assert os.sched_getaffinity(task) == {cores[-1]}


def test_a_move_that_fails_is_undone(tmp_path: Path, lease: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, set[int]]] = []
    passes = iter([[7, 8], OSError(errno.EMFILE, "Too many open files"), [7, 8], [7, 8]])

    def descendants(_supervisor: int) -> list[int]:
        found = next(passes)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(process, "supervisor_of", lambda _: 6)
    monkeypatch.setattr(process, "_threads", lambda pid: [pid])
    monkeypatch.setattr(supervise, "descendants", descendants)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: moved.append((pid, cores)))
    shares: list[float] = []
    monkeypatch.setattr(process, "_group", lambda _: tmp_path)
    monkeypatch.setattr(process, "change_share", lambda _, cpus: shares.append(cpus))
    run = Run(Launch((1, 1), ("x",), {"cpu": 2.0}, {}), tmp_path, {"cpu": (0, 1)}, lease)
    with pytest.raises(OSError, match="Too many open files"):
        Process().resize(run, {"cpu": 1.0}, {"cpu": (0,)})
    assert moved == [(7, {0}), (8, {0}), *[(7, {0, 1}), (8, {0, 1})] * 2]
    assert shares == [1.0, 2.0]


# ------------------------------------------------------------------ devices, leases


def test_devices_are_leased_and_given_back() -> None:
    devices = Devices({"cpu": [4, 5, 6], "gpu": [0]})
    first = devices.lease({"cpu": 1.5, "gpu": 0, "memory": 100.0})
    assert first == {"cpu": (4, 5), "gpu": ()}
    with pytest.raises(NoRoom, match="2 cpu were asked for, 1 are free"):
        devices.lease({"gpu": 1, "cpu": 2})
    assert devices.free == {"cpu": 1, "gpu": 1}, "a lease that fails takes nothing"
    devices.release(first)
    devices.hold({"cpu": (5,)})
    assert devices.lease({"cpu": 2}) == {"cpu": (4, 6)}


def test_devices_of_a_machine() -> None:
    cores = sorted(os.sched_getaffinity(0))

    def leased(capacity: dict[str, float], **more: Any) -> dict[str, tuple[int, ...]]:
        return make_devices(BackendContext(Path(), "c", capacity, **more)).lease(capacity)

    assert leased({"cpu": 1, "gpu": 2, "memory": 64}) == {"cpu": (cores[0],), "gpu": (0, 1)}
    assert leased({"cpu": 1000}, pin=False)["cpu"] == tuple(range(1000))
    assert leased({"cpu": 1}, cores=(7, 5))["cpu"] == (5,)
    assert can_pin(len(cores))
    assert not can_pin(len(cores) + 1)
    assert not can_pin(2, (7,))


def test_clusters_of_one_machine_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 8})
    capacities = {"a": {"cpu": 1.0, "gpu": 2.0}, "b": {"cpu": 2.5}}
    sizes = {name: cores_of(ResourceTypes(), capacity) for name, capacity in capacities.items()}
    assert split_cores(sizes) == {"a": "2", "b": "3,4,8"}
    assert [parse_cores(text) for text in split_cores(sizes).values()] == [(2,), (3, 4, 8)]
    assert parse_cores("2-4,8") == (2, 3, 4, 8)
    assert split_cores({**sizes, "c": 1}) == {}, "there are too few, so nobody may pin"
    for bad in ("", "x", "1", "2-8", "4-2"):
        with pytest.raises(ConfigError, match="must name cores of this machine"):
            parse_cores(bad)


def test_too_few_cores_for_a_cluster_are_refused(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        '[[clusters]]\nname = "a"\ncapacity = {cpu = 2}\n[[task_types]]\nname = "t"\nminimum = {cpu = 1}\n'
        'speed = {kind = "constant", seconds = 1}\n'
    )
    for given in ({"pin": True, "cores": (0,)}, {"pin": False, "cores": (0, 1)}):
        with pytest.raises(ConfigError, match="cluster a has 2 cpu"):
            make_host(AgentSettings("a", tmp_path, site, **given))


def test_a_lease_of_another_boot_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    assert read_lease(path) == 0.0
    write_lease(path, 12.5)
    assert read_lease(path) == supervise.lease_end(str(path)) == 12.5
    path.write_text(json.dumps({"boot": "another", "until": 12.5}))
    assert read_lease(path) == supervise.lease_end(str(path)) == 0.0


def test_a_process_of_another_boot_is_not_taken_for_the_supervisor(tmp_path: Path) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path)
    me = supervise.identity(os.getpid())
    for note in ("pid.json", "spawned.json"):
        (tmp_path / note).write_text(json.dumps(me))
        assert supervisor_of(run, note) == os.getpid()
        (tmp_path / note).write_text(json.dumps({**me, "boot": "another"}))
        assert supervisor_of(run, note) is None


def test_a_supervisor_writes_down_its_boot(start: Callable[..., Run]) -> None:
    run = start("import time; time.sleep(3600)")
    wait_for((run.directory / "pid.json").exists)
    assert json.loads((run.directory / "pid.json").read_text())["boot"] == supervise.boot_id()


class Single(Fake):
    """Can start only one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._another = threading.Event()

    def start(self, run: Run) -> None:
        if not self._lock.acquire(blocking=False):
            self._another.set()
            raise RuntimeError("one at a time")
        try:
            self._another.wait(0.2)  # gives another one the time to come
            super().start(run)
        finally:
            self._lock.release()


def test_the_kit_notices_a_backend_that_starts_one_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="start must work in several threads at once"):
        check_backend(Single, tmp_path, outlives=False, patience=0.3)
