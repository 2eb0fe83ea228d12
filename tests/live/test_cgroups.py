"""Control groups: limits on a pretended tree, and real groups of this machine as far as it has them."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.sites import opened
from live.test_backends import end_of
from waiting import wait_for

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError, UnsupportedOperation
from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.backends import supervision
from tapfinger.live.backends.base import RAN_OUT, Run
from tapfinger.live.backends.cgroups import Cgroups, members
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.supervision import supervisor_of
from tapfinger.live.protocol.messages import Launch

TYPES = ResourceTypes(("cpu", "gpu", "memory"), (1.0, 1.0, 1.0))


def run_of(directory: Path, code: str, argv: tuple[str, ...] = (), cpus: float = 1.0) -> Run:
    write_lease(directory / "lease", boot_clock() + 60.0)
    launch = Launch((1, 1), argv or (sys.executable, "-c", code), {"cpu": cpus}, {}, cwd=str(directory))
    run = Run(launch, directory / "run", {}, directory / "lease")
    run.directory.mkdir()
    return run


def limited_by(groups: Cgroups, **more: Any) -> Process:
    backend = opened(Process(), **more)
    backend.cgroups = groups
    return backend


# --------------------------------------------------------------------- pretended


def pretended_cgroup(directory: Path, controllers: str) -> Path:
    (directory / "cgroup.controllers").write_text(controllers)
    (directory / "cgroup.subtree_control").write_text("")
    return directory


def test_limits_of_a_control_group(tmp_path: Path) -> None:
    groups = Cgroups(pretended_cgroup(tmp_path, "cpuset cpu io memory pids"), TYPES, memory_per_cpu=2.0)
    assert groups.limits({"cpu": 1.5, "gpu": 1.0}) == {
        "cpu.max": "150000 100000",
        "memory.max": str(3 * 1024**3),
        "memory.oom.group": "1",
        "pids.max": "2432",
    }
    assert groups.limits({"cpu": 1.0, "memory": 8.0})["memory.max"] == str(8 * 1024**3)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids", "the last one that was switched on"
    made = Path(groups.make((3, 1), {"cpu": 1.0}))
    assert ((made / "cpu.max").read_text(), made.name.endswith("3.1")) == ("100000 100000", True)
    run = run_of(tmp_path, "print('limited')")
    limited_by(groups).start(run)
    assert end_of(run).result == "finished"
    (group,) = [path for path in tmp_path.glob("tapfinger-*-1.1")]
    assert (group / "cgroup.procs").read_text() == "0", "it went in by itself, before its program began"


def test_the_share_of_a_resized_task_follows_and_its_memory_stays(tmp_path: Path) -> None:
    groups = Cgroups(pretended_cgroup(tmp_path, "cpu memory pids"), TYPES, memory_per_cpu=1.0)
    backend, run = limited_by(groups, pin=False), run_of(tmp_path, "import time; time.sleep(600)")
    backend.start(run)
    (group,) = [path for path in tmp_path.glob("tapfinger-*-1.1")]
    try:
        # An agent that was started without --cgroup still knows what its predecessor has limited.
        opened(Process(), pin=False).resize(run, {"cpu": 3.0}, {})
        assert (group / "cpu.max").read_text() == "300000 100000"
        assert (group / "pids.max").read_text() == "2816"
        assert (group / "memory.max").read_text() == str(1024**3)
        for path in group.iterdir():
            path.unlink()
        group.rmdir()
        with pytest.raises(UnsupportedOperation, match=r"the limit in .* cannot be changed"):
            backend.resize(run, {"cpu": 2.0}, {})
        assert run.allotment.read_text() == '{"cpu": 3.0}', "it has what it had"
    finally:
        backend.stop(run, at_once=True)
        end_of(run)


def test_what_a_start_has_made_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Cgroups(pretended_cgroup(tmp_path, "cpu memory"), TYPES)
    monkeypatch.setattr(groups, "limits", lambda _: {})
    backend, run = limited_by(groups), run_of(tmp_path, "pass")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervision, "replace_file", full)
    monkeypatch.setattr(supervision, "tell_allotment", lambda *_: None)
    with pytest.raises(OSError, match="No space left"):
        backend.start(run)
    assert not list(tmp_path.glob("tapfinger-*"))


def test_a_place_without_limits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no controller for memory; a parent must offer it"):
        Cgroups(pretended_cgroup(tmp_path, "cpu io"), TYPES)
    with pytest.raises(ConfigError, match="cannot be used for limits"):
        Cgroups(tmp_path / "nowhere", TYPES)


# -------------------------------------------------------------------------- real


def _mount() -> Path | None:
    """Where this machine has its control groups of version 2."""
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(words[1]) for words in lines if words[2] == "cgroup2"), None)


@pytest.fixture
def real() -> Iterator[Path]:
    """A real group to put others in: the one that TAPFINGER_TEST_CGROUP names, or a new one at the top."""
    given, mount = os.environ.get("TAPFINGER_TEST_CGROUP"), _mount()
    if given:
        yield Path(given)
        return
    if mount is None:
        pytest.skip("this machine has no cgroup2 file system")
    path = mount / f"tapfinger-test-{secrets.token_hex(4)}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made in {mount}: {error.strerror}; name one with TAPFINGER_TEST_CGROUP")
    yield path
    left = [child for child in path.iterdir() if child.is_dir()]
    for child in left:
        for pid in members(child):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda child=child: not members(child))
        child.rmdir()
    path.rmdir()
    assert left == [], "groups are left behind"


@pytest.fixture
def limited(real: Path) -> Path:
    """One that can limit."""
    missing = {"cpu", "memory"} - set((real / "cgroup.controllers").read_text().split())
    if missing:
        pytest.skip(
            f"{real} has no controller for {' and '.join(sorted(missing))}: version 1 has it, or a parent keeps it"
        )
    return real


class Unlimited(Cgroups):
    """Real groups without limits: whatever has to do with who is in which needs no controller."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def limits(self, allocation: Mapping[str, float]) -> dict[str, str]:
        return {}


def in_group(root: Path) -> list[int]:
    return [pid for group in root.glob("tapfinger-*-1.1") for pid in members(group)]


#: Starts a grandchild that has nothing of its environment, session or parents left, and says that it did.
HIDES = """
import os, subprocess, sys, time
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
if os.fork() == 0:
    subprocess.Popen(sleeps, env={}, start_new_session=True)
    os._exit(0)
os.wait()
open("hidden", "w").close()
time.sleep(600)
"""


def test_all_that_a_task_has_started_is_in_its_real_group(real: Path, tmp_path: Path) -> None:
    backend, run = limited_by(Unlimited(real)), run_of(tmp_path, HIDES)
    backend.start(run)
    wait_for((tmp_path / "hidden").exists)
    pids = in_group(real)
    assert len(pids) == 2, "the task and what hides; not their supervisor"
    backend.stop(run, at_once=True)
    assert end_of(run).result == "stopped"
    assert in_group(real) == []


def test_what_hides_from_a_killed_supervisor_is_found_by_its_real_group(real: Path, tmp_path: Path) -> None:
    backend, run = limited_by(Unlimited(real)), run_of(tmp_path, HIDES)
    backend.start(run)
    wait_for((tmp_path / "hidden").exists)
    supervisor = supervisor_of(run)
    assert supervisor is not None
    pids = in_group(real)
    os.kill(supervisor, signal.SIGKILL)
    assert end_of(run).result == "lost"
    assert [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and _lives(pid)] == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("why", ["no program", "stopped before it began", "no more lease"])
def test_a_task_that_never_began_leaves_no_real_group(real: Path, tmp_path: Path, why: str) -> None:
    run = run_of(tmp_path, "pass", ("/no/such/program",) if why == "no program" else ())
    if why == "stopped before it began":
        (run.directory / "stop").touch()
    elif why == "no more lease":
        write_lease(run.lease, 0.0)
    limited_by(Unlimited(real)).start(run)
    assert end_of(run).result == ("failed" if why == "no program" else "stopped")


def test_the_real_files_say_what_a_place_lacks(real: Path) -> None:
    missing = {"cpu", "memory"} - set((real / "cgroup.controllers").read_text().split())
    if not missing:
        pytest.skip("nothing is missing here")
    with pytest.raises(ConfigError, match=f"no controller for {' and '.join(sorted(missing))}"):
        Cgroups(real, TYPES)


def test_real_limits_are_set_changed_and_removed(limited: Path, tmp_path: Path) -> None:
    groups = Cgroups(limited, TYPES, memory_per_cpu=0.5)
    backend, run = limited_by(groups, pin=False), run_of(tmp_path, "import time; time.sleep(600)")
    backend.start(run)
    (group,) = limited.glob("tapfinger-*-1.1")
    try:
        assert (group / "cpu.max").read_text().split() == ["100000", "100000"]
        assert int((group / "memory.max").read_text()) == 512 << 20
        backend.resize(run, {"cpu": 2.0}, {})
        assert (group / "cpu.max").read_text().split() == ["200000", "100000"]
    finally:
        backend.stop(run, at_once=True)
        end_of(run)


@pytest.mark.parametrize("granted", [2.0, 0.0])
def test_memory_that_was_not_enough_is_a_fact_of_the_outcome(tmp_path: Path, granted: float) -> None:
    groups = Cgroups(pretended_cgroup(tmp_path, "cpu memory"), TYPES)
    pretends = (
        "import os, pathlib, signal; (group,) = pathlib.Path('.').glob('tapfinger-*-1.1'); "
        "(group / 'memory.events').write_text('oom_kill 1'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = run_of(tmp_path, pretends)
    run = replace(run, launch=replace(run.launch, allocation={"cpu": 1.0, "memory": granted}))
    limited_by(groups, resources=TYPES).start(run)
    end = end_of(run)
    assert (end.result, end.code, end.reason) == ("failed", -9, RAN_OUT.format(name="memory"))
    assert end.short == ("memory" if granted else ""), "without a limit of its own, more of it would not help"


def test_a_task_that_takes_too_much_memory_is_ended(limited: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path, "x = bytearray(300 << 20); print('no limit')")
    limited_by(Cgroups(limited, TYPES, memory_per_cpu=0.1)).start(run)
    end = end_of(run)
    assert (end.result, end.reason) == ("failed", "it used more memory than it was granted")
