"""Base class of backends that run tasks on this machine, each under a supervisor that outlives the agent. Linux only.

The supervisor (``supervise.py``) starts the task, keeps its output, and ends the task with all its processes: on
order, at its time limit, or with the agent's lease. A backend only decides how the supervisor itself is launched.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import LaunchFailed, UnsupportedOperation
from tapfinger.live.agent.allotment import VARIABLE as ALLOTMENT
from tapfinger.live.agent.leases import boot_id, replace_file
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.environment import ALLOWED, task_environment, visible_devices
from tapfinger.live.backends.spool import Spool
from tapfinger.live.backends.starting import MARK, is_shortage
from tapfinger.live.protocol.messages import AttemptId, Outcome
from tapfinger.live.state_dir import exited
from tapfinger.reporting import VARIABLE as REPORT

logger = logging.getLogger(__name__)


class Supervised:
    """A backend without the method ``launch``, which subclasses define."""

    #: The agent's context; defaults until ``open`` is called.
    context = BackendContext(Path())

    @property
    def _children(self) -> dict[AttemptId, int]:
        """Process ids of supervisors that this backend has launched. Several threads may ask for it first."""
        children: dict[AttemptId, int] = self.__dict__.setdefault("_launched", {})
        return children

    @property
    def _told_to_stop(self) -> dict[AttemptId, int]:
        """Process ids of supervisors that were told to end their task."""
        told: dict[AttemptId, int] = self.__dict__.setdefault("_ending", {})
        return told

    def open(self, context: BackendContext) -> None:
        """Remember the context."""
        self.context = context

    @property
    def isolates(self) -> bool:
        """Whether tasks run in a sandbox."""
        return self.context.sandbox is not None

    def launch(self, run: Run, command: list[str]) -> int:
        """Start ``command`` so that it outlives the agent, with ``supervisor_log(run)`` as output. Return its pid.

        Raise OSError or LaunchFailed if it cannot be started. An OSError of a machine that lacks something
        (``starting.SHORTAGES``) gives the attempt back; with others, it has failed.
        """
        raise NotImplementedError(f"{type(self).__name__} must define launch(run, command), which returns a pid")

    def extras(self, run: Run) -> dict[str, Any]:  # noqa: ARG002 - for others to use
        """Further entries of the supervisor's plan: ``cpus`` (cores to run on), ``cgroup`` (group to run in)."""
        return {}

    def undo(self, plan: Mapping[str, Any]) -> None:
        """Take back what ``extras`` has made, where the supervisor could not be launched."""

    def start(self, run: Run) -> None:
        """Write the supervisor's plan into the run's directory, and launch it."""
        run.make_directories()
        tell_allotment(run, run.launch.allocation)
        mark = secrets.token_hex(16)
        plan = task_plan(run, self.context, mark)
        plan["roots"] = [str(Path(root).resolve()) for root in plan["roots"]]
        plan |= {"cwd": str(self._directory(run)), **self.extras(run)}
        plan["lease"] = str(run.lease.resolve())
        if self.context.sandbox is not None:
            plan["sandbox"] = self.context.sandbox.command(run.visible.resolve())
        try:
            (run.directory / supervise.SPARE).write_bytes(b" " * supervise.SPARE_SIZE)
            # Not synced: it serves processes, which end with the machine.
            replace_file(run.directory / "run.json", plan)
            # In a file of its own, which the supervisor deletes: it may hold secrets.
            replace_file(run.directory / supervise.ENVIRONMENT, self._environment(run, mark))
            pid = self.launch(run, [sys.executable, "-I", "-S", supervise.__file__, str(run.directory.resolve())])
        except BaseException as error:
            _forget_environment(run)
            self.undo(plan)
            if not isinstance(error, OSError) or is_shortage(error):
                raise
            raise LaunchFailed(f"the supervisor of task {run.id[0]} could not be started: {error}") from None
        self._children[run.id] = pid
        # The supervisor writes pid.json once it handles signals. Until then, this note tells a later agent of it.
        with suppress(OSError):
            replace_file(run.directory / "spawned.json", supervise.identity(pid))

    def _directory(self, run: Run) -> Path:
        if run.launch.cwd is None:
            run.work.mkdir(exist_ok=True)
            return run.work.resolve()
        wanted, roots = run.launch.cwd, [Path(root).resolve() for root in self.context.roots]
        try:
            path = Path(wanted).resolve()
            there = path.is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that lead in a circle
            if is_shortage(error):
                raise
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise LaunchFailed(f"working directory {wanted} cannot be used on this cluster: {why}") from None
        if roots and not any(path.is_relative_to(root) for root in roots):
            raise LaunchFailed(f"working directory {path} is not within {', '.join(map(str, roots))}")
        if self.context.sandbox is not None and (hidden := self.context.sandbox.covers(path)) is not None:
            raise LaunchFailed(
                f"working directory {path} is in {hidden}, which tasks cannot see; choose another (--cwd)"
            )
        if not there:
            raise LaunchFailed(f"working directory {path} does not exist on this cluster")
        if not os.access(path, os.X_OK):
            raise LaunchFailed(
                f"working directory {path} may not be entered by the agent, which runs as user {os.getuid()}; "
                "choose a directory that it may enter (--cwd), or change the permissions of this one"
            )
        return path

    def _environment(self, run: Run, mark: str) -> dict[str, str]:
        env = {name: os.environ[name] for name in ALLOWED if name in os.environ}
        env |= visible_devices(run, self.context.resources) | task_environment(run, self.context.resources, mark)
        files = {REPORT: run.reports, ALLOTMENT: run.allotment}
        return env | {name: str(path.resolve()) for name, path in files.items()}

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:  # noqa: ARG002
        """Unsupported, unless a subclass implements it."""
        raise UnsupportedOperation(f"{type(self).__name__} cannot change what task {run.id[0]} has while it runs")

    def stop(self, run: Run, at_once: bool) -> None:
        """Signal the supervisor; one that has not started yet finds a file instead."""
        unwritten: OSError | None = None
        try:
            (run.directory / "stop").touch()
        except OSError as error:  # a full disk must not protect who has filled it
            unwritten = error
        pid = supervisor_of(run)
        if pid is None and unwritten is not None:
            raise unwritten
        if pid is not None:
            _send(run, pid, signal.SIGUSR1 if at_once else signal.SIGTERM)
            self._told_to_stop[run.id] = pid

    def poll(self, run: Run) -> Outcome | None:
        """The end that the supervisor has recorded. If the supervisor was killed, the attempt is lost.

        A supervisor that the task has frozen cannot end it: it is killed, and so is what it leaves behind.
        """
        told = self._told_to_stop.get(run.id)
        if told is not None and supervise.is_frozen(told):
            _send(run, told, signal.SIGKILL)
        outcome = self._polled(run)
        if outcome is not None:
            self._told_to_stop.pop(run.id, None)
        return outcome

    def _polled(self, run: Run) -> Outcome | None:
        child = self._children.get(run.id)
        if child is not None:
            if not exited(child):
                return None
            del self._children[run.id]
        return _read_end(run) or self._bury(run)

    def _bury(self, run: Run) -> Outcome | None:
        """For a supervisor that is not a child of this process: None if alive, else record the attempt as lost."""
        with (run.directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None  # alive
            if (end := _read_end(run)) is not None:
                return end
            if supervisor_of(run, "spawned.json") is not None:
                return None  # about to begin
            # While holding the lock: a supervisor that starts late finds the end recorded, and does not begin.
            _forget_environment(run)
            if self.sweep(run):
                return None
            reason = "its supervisor was killed, or the machine restarted"
            outcome = Outcome("lost", reason=reason, output=Spool(run.output).end)
            end_data = {"result": "lost", "code": None, "reason": outcome.reason, "output": outcome.output}
            supervise.write_end(str(run.directory), end_data)
            return outcome

    def sweep(self, run: Run, known: Sequence[int] = ()) -> bool:
        """Kill the processes that a dead supervisor has left, and ``known`` ones. Returns whether there were any."""
        plan = read_plan(run)
        if plan is None:
            return False  # nothing was started
        wanted, left = f"{MARK}={plan['mark']}".encode(), set(known)
        for pid, _ in supervise.parents():
            with suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    left.add(pid)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                logger.warning("task %d: killed process %d, which its supervisor had left behind", run.id[0], pid)
        return bool(left)


def _send(run: Run, pid: int, number: int) -> None:
    """Send a signal to the supervisor of a run, and to no other process that may have its pid by now."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)  # refers to this process even if its pid is reused
        try:
            if supervisor_of(run) == pid:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def task_plan(run: Run, context: BackendContext, mark: str) -> dict[str, Any]:
    """The plan of every supervisor, here or on another machine. ``mark``: secret in the task's environment."""
    launch = run.launch
    return {
        "argv": launch.argv,
        "roots": list(context.roots) if launch.cwd is not None else [],
        "cpus": [],
        "cgroup": "",
        "time_limit": launch.time_limit,
        "keep": run.keep,
        "stop_seconds": context.stop_seconds,
        "mark": mark,
        "max_log": context.max_log,
    }


def tell_allotment(run: Run, allocation: Mapping[str, float]) -> None:
    """Write the task's current allocation for it to read. Prepared elsewhere: the task could have put a link there."""
    prepared = run.directory / "allotment.json"
    replace_file(prepared, dict(allocation))
    if prepared != run.allotment:
        prepared.replace(run.allotment)


def _forget_environment(run: Run) -> None:
    """Remove the task's environment, in place of a supervisor that has not begun."""
    (run.directory / supervise.ENVIRONMENT).unlink(missing_ok=True)


def supervisor_log(run: Run) -> Path:
    """File for the supervisor's own output, normally empty."""
    return run.directory / "supervisor.log"


def supervisor_of(run: Run, note: str = "pid.json") -> int | None:
    """Process id of the supervisor; None if it has ended, even if its pid was reused."""
    try:
        noted = json.loads((run.directory / note).read_text(encoding="utf-8"))
        same = noted.get("boot", boot_id()) == boot_id() and supervise.start_time(noted["pid"]) == noted["start"]
        return int(noted["pid"]) if same else None
    except (OSError, ValueError, KeyError):
        return None


def read_plan(run: Run) -> dict[str, Any] | None:
    """The supervisor's plan; None if there is none yet."""
    try:
        plan: dict[str, Any] = json.loads((run.directory / "run.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # ValueError: the machine went down before it was on disk
        return None
    return plan


def _read_end(run: Run) -> Outcome | None:
    try:
        return Outcome(**json.loads((run.directory / supervise.END).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
