"""Tasks as processes of this machine, each under a supervisor that outlives the agent. Linux only."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import LaunchFailed, UnsupportedOperation
from tapfinger.live import allotment
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.cgroups import Cgroups, change_share, members, remove
from tapfinger.live.backends.environment import ALLOWED, MARK, task_environment
from tapfinger.live.backends.spool import Spool
from tapfinger.live.leases import replace_file
from tapfinger.live.messages import AttemptId, Outcome
from tapfinger.reporting import VARIABLE

logger = logging.getLogger(__name__)


class Process:
    """Runs each task as a process tree of its own."""

    def __init__(
        self,
        pin: bool = True,
        stop_seconds: float = 5.0,
        roots: tuple[str, ...] = (),
        max_log: int = 16 << 20,
        cgroups: Cgroups | None = None,
    ) -> None:
        """``pin`` tasks to their leased cores; ``stop_seconds`` from asking one to end to killing it.

        ``roots``: directories that tasks may run in; none means anywhere. ``max_log``: bytes of output kept on disk.
        """
        self._max_log = max_log
        self._cgroups = cgroups
        self._pin = pin
        self._stop_seconds = stop_seconds
        self._roots = tuple(Path(root).resolve() for root in roots)
        self._children: dict[AttemptId, int] = {}  # pids of supervisors that we have started

    def start(self, run: Run) -> None:
        """Leave everything in the run's directory and start the supervisor."""
        launch = run.launch
        replace_file(run.allotment, dict(launch.allocation))
        mark = secrets.token_hex(16)
        plan: dict[str, Any] = {
            "argv": launch.argv,
            "env": self._environment(run, mark),
            "cwd": str(self._directory(run)),
            "roots": [*map(str, self._roots)] if launch.cwd is not None else [],
            "cpus": list(run.devices.get("cpu", ())) if self._pin else [],
            "time_limit": launch.time_limit,
            "keep": launch.on_disconnect == "keep",
            "lease": str(run.lease.resolve()),
            "stop_seconds": self._stop_seconds,
            "mark": mark,
            "max_log": self._max_log,
            "cgroup": self._cgroups.make(run.id, launch.allocation) if self._cgroups is not None else "",
        }
        replace_file(run.directory / "run.json", plan, sync=True)
        command = [sys.executable, "-I", "-S", supervise.__file__, str(run.directory.resolve())]
        nothing, output = os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, nothing, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(run.directory / "supervisor.log"), output, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            # Not subprocess.Popen: it insists on being waited for, and a supervisor is to outlive us.
            pid = os.posix_spawn(command[0], command, {}, file_actions=files, setsid=True)
        except OSError as error:
            if plan["cgroup"]:
                remove(Path(plan["cgroup"]))
            raise LaunchFailed(f"the supervisor of task {run.id[0]} could not be started: {error}") from None
        self._children[run.id] = pid
        # It writes pid.json itself once it listens to signals. Until then, a successor of ours must know it will.
        with suppress(OSError):
            replace_file(run.directory / "spawned.json", {"pid": pid, "start": supervise.start_time(pid)})

    def _directory(self, run: Run) -> Path:
        if run.launch.cwd is None:
            work = run.directory / "work"
            work.mkdir(exist_ok=True)
            return work.resolve()
        path = Path(run.launch.cwd).resolve()
        if self._roots and not any(path.is_relative_to(root) for root in self._roots):
            raise LaunchFailed(f"working directory {path} is not within {', '.join(map(str, self._roots))}")
        if not path.is_dir():
            raise LaunchFailed(f"working directory {path} does not exist on this cluster")
        return path

    def _environment(self, run: Run, mark: str) -> dict[str, str]:
        env = {name: os.environ[name] for name in ALLOWED if name in os.environ}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, run.devices.get("gpu", ())))
        files = {VARIABLE: run.reports, allotment.VARIABLE: run.allotment}
        return env | task_environment(run, mark) | {name: str(path.resolve()) for name, path in files.items()}

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        """Move all its threads to other cores, and tell it; nothing else of a running process can be changed."""
        if not any(allocation.values()):
            raise UnsupportedOperation("the process backend does not pause tasks")
        for name, amount in allocation.items():
            if name != "cpu" and amount != run.launch.allocation.get(name, 0):
                raise UnsupportedOperation(f"the process backend cannot change the {name} of a running task")
        if (group := _group(run)) is not None and allocation.get("cpu"):
            change_share(group, allocation["cpu"])
        supervisor = self._supervisor(run)
        if supervisor is not None and self._pin and devices.get("cpu"):
            _move(supervisor, devices["cpu"])
        replace_file(run.allotment, dict(allocation))

    def stop(self, run: Run, at_once: bool) -> None:
        """Leave word for a supervisor that has not begun yet, and signal one that has."""
        (run.directory / "stop").touch()
        pid = self._supervisor(run)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)  # from here on it is this process and no other of that number
            try:
                if self._supervisor(run) == pid:
                    signal.pidfd_send_signal(handle, signal.SIGUSR1 if at_once else signal.SIGTERM)
            finally:
                os.close(handle)

    def _supervisor(self, run: Run, note: str = "pid.json") -> int | None:
        """Its pid, if the process of that number is still the one that was noted."""
        try:
            noted = json.loads((run.directory / note).read_text(encoding="utf-8"))
            return int(noted["pid"]) if supervise.start_time(noted["pid"]) == noted["start"] else None
        except (OSError, ValueError, KeyError):
            return None

    def poll(self, run: Run) -> Outcome | None:
        """What the supervisor wrote down as its last act; if it could not, that the attempt is lost."""
        child = self._children.get(run.id)
        if child is not None:
            if not _exited(child):
                return None
            del self._children[run.id]
        return _read_end(run) or self._bury(run)

    def _bury(self, run: Run) -> Outcome | None:
        """No child of ours: a predecessor's, which may be alive, or one that was killed."""
        with (run.directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None  # alive
            if (end := _read_end(run)) is not None:
                return end
            if self._supervisor(run, "spawned.json") is not None:
                return None  # about to begin
            # With the lock in hand: a supervisor that comes late finds the end written, and does not begin.
            if _sweep(run):
                return None
            outcome = Outcome(
                "lost", reason="its supervisor was killed, or the machine restarted", output=Spool(run.output).end
            )
            end_data = {"result": "lost", "code": None, "reason": outcome.reason, "output": outcome.output}
            replace_file(run.directory / "end.json", end_data, sync=True)
            return outcome


def _move(supervisor: int, cores: Iterable[int]) -> None:
    """All threads of a task to these cores."""
    cores = set(cores)
    # Twice: what was forked during the first pass has the old cores.
    for pid in (*supervise.descendants(supervisor), *supervise.descendants(supervisor)):
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


def _exited(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _read_end(run: Run) -> Outcome | None:
    try:
        return Outcome(**json.loads((run.directory / "end.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _plan(run: Run) -> dict[str, Any] | None:
    """What the supervisor was told; None where none was started."""
    try:
        plan: dict[str, Any] = json.loads((run.directory / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return plan


def _group(run: Run) -> Path | None:
    """Its control group, if it has one."""
    path = (_plan(run) or {}).get("cgroup")
    return Path(path) if path else None


def _sweep(run: Run) -> bool:
    """Kill what a dead supervisor has left behind; whether there was anything."""
    plan = _plan(run)
    if plan is None:
        return False  # nothing was started
    wanted, group = f"{MARK}={plan['mark']}".encode(), _group(run)
    left = set(() if group is None else members(group))
    for pid, _ in supervise.parents():
        with suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                left.add(pid)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            logger.warning("task %d: killed process %d, which its supervisor had left behind", run.id[0], pid)
    if group is not None and not left:
        remove(group)
    return bool(left)
