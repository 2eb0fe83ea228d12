"""Base class of backends that run tasks on this machine, each under a supervisor that outlives the agent. Linux only.

The supervisor (``supervise.py``) starts the task, keeps its output, and ends the task with all its processes: on
order, at its time limit, or with the agent's lease. A backend only decides how the supervisor itself is launched.

Where tasks are not isolated, a run's directory is a place where its task may change and remove anything. So what it
takes to end a run is kept in memory as well.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import LaunchFailed, LaunchLost, UnsupportedOperation
from tapfinger.live.agent.allotment import VARIABLE as ALLOTMENT
from tapfinger.live.agent.leases import boot_id, replace_file
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import BackendContext, Run, TooLittle
from tapfinger.live.backends.environment import ALLOWED, task_environment, visible_devices
from tapfinger.live.backends.process_reader import environments, may_be_read
from tapfinger.live.backends.spool import Spool, read_json
from tapfinger.live.backends.starting import MARK, SHORTAGES, is_shortage, may_be_the_machines
from tapfinger.live.protocol.messages import AttemptId, Outcome
from tapfinger.live.state_dir import exited
from tapfinger.reporting import VARIABLE as REPORT

logger = logging.getLogger(__name__)

#: Errors of a run's directory that its task has removed or changed: no later try can do better.
_SPOILT = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENOTEMPTY,
}
#: Seconds for which a run counts as running because processes hang that may be its own.
DOUBT = 10.0


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

    @property
    def _known(self) -> dict[AttemptId, _Known]:
        """What to know of runs that have not ended, for when their directory is spoilt."""
        known: dict[AttemptId, _Known] = self.__dict__.setdefault("_remembered", {})
        return known

    @property
    def _doubted(self) -> dict[AttemptId, float]:
        """Since when it is not known of runs without a supervisor whether something of them is left."""
        doubted: dict[AttemptId, float] = self.__dict__.setdefault("_in_doubt", {})
        return doubted

    @property
    def _explained(self) -> set[AttemptId]:
        """Attempts of which the log says why they count as running."""
        explained: set[AttemptId] = self.__dict__.setdefault("_said_why", set())
        return explained

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
        self._known[run.id] = _Known(plan)
        try:
            (run.directory / supervise.SPARE).write_bytes(b" " * supervise.SPARE_SIZE)
            # Not synced: it serves processes, which end with the machine.
            replace_file(run.directory / "run.json", plan)
            # In a file of its own, which the supervisor deletes: it may hold secrets.
            replace_file(run.directory / supervise.ENVIRONMENT, self._environment(run, mark))
            pid = self.launch(run, [sys.executable, "-I", "-S", supervise.__file__, str(run.directory.resolve())])
        except BaseException as error:
            self._known.pop(run.id, None)
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
            why = error.strerror if isinstance(error, OSError) else str(error)
            kind = LaunchLost if may_be_the_machines(error) else LaunchFailed
            raise kind(f"working directory {wanted} cannot be used on this cluster: {why}") from None
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
            pid = self._remembered_supervisor(run)
            if pid is None and unwritten.errno not in _SPOILT:
                raise unwritten
        if pid is not None:
            self._send(run, pid, signal.SIGUSR1 if at_once else signal.SIGTERM)
            self._told_to_stop[run.id] = pid

    def _remembered_supervisor(self, run: Run) -> int | None:
        """Process id of the supervisor, without a look at the run's directory; None if it has ended."""
        child = self._children.get(run.id)
        if child is not None:
            return child  # nobody else has its pid until it is reaped
        return self._known[run.id].alive() if run.id in self._known else None

    def inherited(self) -> list[int]:
        """Process ids of supervisors that an earlier agent has launched. May be called in any thread."""
        return [pid for known in list(self._known.values()) if (pid := known.alive()) is not None]

    def _send(self, run: Run, pid: int, number: int) -> None:
        """Send a signal to the supervisor of a run, and to no other process that may have its pid by now."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)  # refers to this process even if its pid is reused
            try:
                if pid in (supervisor_of(run), self._remembered_supervisor(run)):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def poll(self, run: Run) -> Outcome | None:
        """The end that the supervisor has recorded. If the supervisor was killed, the attempt is lost.

        A supervisor that the task has frozen cannot end it: it is killed, and so is what it leaves behind.
        """
        told = self._told_to_stop.get(run.id)
        if told is not None and supervise.is_frozen(told):
            self._send(run, told, signal.SIGKILL)
        outcome = self._polled(run)
        if outcome is not None:
            self._told_to_stop.pop(run.id, None)
            self._explained.discard(run.id)
            self._known.pop(run.id, None)
        return outcome

    def _polled(self, run: Run) -> Outcome | None:
        child = self._children.get(run.id)
        if child is not None:
            if not exited(child):
                self._say_why(run)
                return None
            del self._children[run.id]
        elif run.id not in self._known and (plan := read_plan(run)) is not None:
            self._known[run.id] = _Known(plan, _read(run, "pid.json") or _read(run, "spawned.json"))
        return _read_end(run) or self._bury(run)

    def _say_why(self, run: Run) -> None:
        """Log why a task whose end has come counts as running, once."""
        if run.id not in self._explained and (why := _read(run, supervise.WAITS)) is not None:
            self._explained.add(run.id)
            logger.warning("task %d attempt %d counts as running: %s", *run.id, why.get("reason"))

    def _bury(self, run: Run) -> Outcome | None:
        """For a supervisor that is not a child of this process: None if alive, else record the attempt as lost."""
        try:
            lock = os.open(run.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno not in _SPOILT:
                raise
            return self._lost(run, "its directory was removed or changed, by itself or another task")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (end := _read_end(run)) is not None:
                return end
            if supervisor_of(run, "spawned.json") is not None:
                return None  # about to begin
            # While holding the lock: a supervisor that starts late finds the end recorded, and does not begin.
            return self._lost(run, "its supervisor was killed, or the machine restarted")
        except BlockingIOError:
            self._say_why(run)
            return None  # alive
        finally:
            os.close(lock)

    def _lost(self, run: Run, reason: str) -> Outcome | None:
        """Record a run without a supervisor as lost, once nothing of it is left; None until then."""
        if self._remembered_supervisor(run) is not None:
            return None  # the lock is another one than that which it holds
        if self.sweep(run):
            return None
        try:
            _forget_environment(run)
            outcome = Outcome("lost", reason=reason, output=Spool(run.output).end)
            end = {"result": "lost", "code": None, "reason": reason, "output": outcome.output}
            supervise.write_end(str(run.directory), end)
        except OSError as error:
            if error.errno not in _SPOILT:
                raise
            return Outcome("lost", reason=reason)
        return outcome

    def plan_of(self, run: Run) -> dict[str, Any] | None:
        """The ``mark`` and ``cgroup`` of a run's plan, from memory if possible; None if there is no plan yet."""
        return self._known[run.id].plan if run.id in self._known else read_plan(run)

    def sweep(self, run: Run, known: Sequence[int] = ()) -> bool:
        """Kill the processes that a dead supervisor has left, and ``known`` ones. Returns whether there may be any."""
        plan = self.plan_of(run)
        if plan is None:
            return False  # nothing was started
        wanted = f"{MARK}={plan.get('mark')}".encode()
        found, hanging = environments.of(pid for pid, _ in supervise.parents() if may_be_read(pid))
        left = {*known, *(pid for pid, environment in found.items() if wanted in environment.split(b"\0"))}
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                logger.warning("task %d: killed process %d, which its supervisor had left behind", run.id[0], pid)
        return bool(left) or self._in_doubt_of(run, hanging - left)

    def _in_doubt_of(self, run: Run, hanging: Collection[int]) -> bool:
        """Whether to wait for processes of which nobody knows whether they are the run's; not for long."""
        if hanging and time.monotonic() < self._doubted.setdefault(run.id, time.monotonic()) + DOUBT:
            return True
        self._doubted.pop(run.id, None)
        if hanging:
            pids = ", ".join(map(str, sorted(hanging)))
            logger.error("task %d attempt %d: it cannot be told whether it has left process %s", *run.id, pids)
        return False


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
    return _alive(_read(run, note))


def _alive(noted: dict[str, Any] | None) -> int | None:
    """Process id of a process that was noted, if it has not ended."""
    try:
        pid, start, boot = (noted or {})["pid"], (noted or {})["start"], (noted or {}).get("boot", boot_id())
        return pid if isinstance(pid, int) and boot == boot_id() and supervise.start_time(pid) == start else None
    except (OSError, KeyError):
        return None


def read_plan(run: Run) -> dict[str, Any] | None:
    """The supervisor's plan; None if there is none yet."""
    return _read(run, "run.json")


def _read_end(run: Run) -> Outcome | None:
    end = _read(run, supervise.END) or {}
    lacks = end.pop(supervise.LACKS, 0)
    try:
        return TooLittle(**end, lacks=lacks) if lacks in SHORTAGES else Outcome(**end)
    except TypeError:  # also of what the task has put there
        return None


def _read(run: Run, name: str) -> dict[str, Any] | None:
    """A note in the run's directory; None if there is none, or none that makes sense."""
    try:
        note = read_json(run.directory / name)
    except ValueError:  # the machine went down before it was on disk, or the task has written it
        return None
    except OSError as error:
        if error.errno is None or error.errno in _SPOILT:
            return None
        raise
    return note if isinstance(note, dict) else None


class _Known:
    """What it takes to end a run."""

    def __init__(self, plan: dict[str, Any], supervisor: dict[str, Any] | None = None) -> None:
        """``supervisor``: its note; None if it is a child of this process."""
        self.plan = {name: plan.get(name) for name in ("mark", "cgroup")}
        self._supervisor = supervisor

    def alive(self) -> int | None:
        """Process id of the supervisor; None if it has ended."""
        return _alive(self._supervisor)
