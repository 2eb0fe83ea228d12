"""Starts the program of a task, directly or in a sandbox of bubblewrap.

In a sandbox, this file is also the first process (``python -I -S starting.py PLAN TELL OUTPUT``): it starts the program
as its child, adopts what the program leaves behind, and tells the supervisor exactly how the program ended. Nobody in
the sandbox can signal it. When it ends, the kernel kills everything else in the sandbox. It imports little, since every
start waits for it.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import signal
import sys

TYPE_CHECKING = False  # as in typing, which takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

#: Environment variable that marks every process of a run, even those that have left its session.
MARK = "TAPFINGER_RUN"
_SUBREAPER, _PARENT_DEATH_SIGNAL, _DUMPABLE = 36, 1, 4  # of prctl(2)
#: Signals that a supervisor waits for, and that it has blocked.
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
#: Most bytes of a message about a failed start, and most characters of the program's name in it.
_LONGEST, _NAME = 4000, 500
#: Errors of a machine that lacks processes, memory, open files or room on its disk: no task is at fault.
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
#: Those of them that may be the machine's where the task's own program and directory are at work. The others are
#: theirs: executing a truncated program is an EIO.
_BENEFIT_OF_DOUBT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
#: Beginning of the reason of an attempt that is lost for that.
TOO_LITTLE = "its machine had too little to start it"


def shortage(error: BaseException) -> int:
    """What an error says that the machine lacks, as a number of ``SHORTAGES``; 0 if it says no such thing."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return error.errno if isinstance(error, OSError) and error.errno in SHORTAGES else 0


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that the machine lacks something."""
    return bool(shortage(error))


def may_be_the_machines(error: BaseException) -> bool:
    """Whether an error of what the task has named may be the machine's. A task can bring it about, so one attempt is
    given back for it, and nothing follows for others."""
    return shortage(error) in _BENEFIT_OF_DOUBT


class Fault:
    """Why a program was not started, and who is to blame; false if it was started."""

    def __init__(self, text: str = "", lost: bool = False, lacks: int = 0) -> None:
        """``text``: empty if there is none."""
        self.text = text
        #: Whether the task may not be to blame.
        self.lost = lost
        #: What the machine certainly lacks, as a number of ``SHORTAGES``; 0 if that is not certain.
        self.lacks = lacks

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that an error in one of our own steps is, or one in the task's."""
        if isinstance(error, _OfTask):
            return cls(_said(error.error), lost=may_be_the_machines(error.error))
        return cls(_said(error), is_shortage(error), shortage(error))

    @classmethod
    def of_bubblewrap(cls, said: str) -> Fault:
        """The fault of which bubblewrap says this. Its last words are the kernel's."""
        lacks = next((number for number in SHORTAGES if said.endswith(os.strerror(number))), 0)
        return cls(f"its sandbox could not be made: {said}", bool(lacks), lacks)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.text)

    def encoded(self) -> bytes:
        """For another process; without zeros."""
        text = self.text.replace("\0", "").encode(errors="replace")[:_LONGEST]
        return b"%d %d %b" % (self.lost, self.lacks, text) if text else b""

    @classmethod
    def decoded(cls, data: bytes) -> Fault:
        """What another process has told."""
        if not data:
            return cls()
        lost, lacks, text = data.decode(errors="replace").split(" ", 2)
        return cls(text, lost == "1", int(lacks))


class _OfTask(Exception):  # noqa: N818
    """An error in a step that depends on what the task has named."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def prctl(option: int, value: int) -> None:
    """Change a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def hide_from_others() -> None:
    """Keep other processes of the same user from this one: its memory, files and environment in /proc, and ptrace.

    It leaves no core dump either. Programs that it executes are not affected.
    """
    prctl(_DUMPABLE, 0)


def check_place(run: Mapping[str, Any]) -> None:
    """Check that the current directory is within the roots: links may have changed since the first check."""
    here = os.path.realpath(os.getcwd())
    roots = [os.path.realpath(root) for root in run["roots"]]
    if roots and not any(os.path.commonpath([here, root]) == root for root in roots):
        raise PermissionError(f"working directory {here} is not within {', '.join(roots)}")


class Started:
    """A program that was started, or the reason why it was not."""

    def __init__(self, pid: int, fault: Fault | None = None, told: int | None = None) -> None:
        """``told``: pipe from the first process of a sandbox; None without a sandbox."""
        #: The process to wait for: the program, or bubblewrap above it; 0 if there is none.
        self.pid = pid
        self.fault = fault or Fault()
        self._told = told

    @property
    def wrapper(self) -> int:
        """Process id of bubblewrap; 0 without a sandbox."""
        return 0 if self._told is None else self.pid

    def exit_code(self, status: int) -> int:
        """The program's exit code, or minus the signal that ended it. ``status``: how ``pid`` ended."""
        code = os.waitstatus_to_exitcode(status)
        if self._told is None:
            return code
        with os.fdopen(self._told, "rb") as file:
            told = file.read()
        if told:
            return int(told)
        return 128 - code if code > 128 else code  # the whole sandbox was killed; bubblewrap gives codes as shells do


def start(run: dict[str, Any], env: dict[str, str], output: int) -> Started:
    """Start the task of a supervisor's plan, with ``output`` as its output."""
    prctl(_SUBREAPER, 1)
    above = os.getpid()

    def confine() -> None:
        for handle in os.listdir("/proc/self/fd"):
            try:
                os.set_inheritable(int(handle), int(handle) < 3)  # whatever the agent itself has inherited
            except OSError:
                continue  # the listing's own
        os.setsid()
        prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != above:
            os._exit(127)
        if run["cpus"]:
            os.sched_setaffinity(0, run["cpus"])
        if run["cgroup"]:
            with open(os.path.join(run["cgroup"], "cgroup.procs"), "w", encoding="ascii") as file:
                file.write("0")

    def directly() -> NoReturn:
        confine()
        _become(run, env, output)

    wrapped = run.get("sandbox")
    started = _start_in_sandbox(run, env, output, confine) if wrapped else Started(*_fork(directly))
    if started.fault:
        started.fault.text = f"{run['argv'][0][:_NAME]!r} could not be started: {started.fault.text}"
    return started


def _fork(act: Callable[[], object]) -> tuple[int, Fault]:
    """Do this in a child process, which ends in executing a program. Returns its pid, or 0 and what went wrong."""
    faults, tell = os.pipe()  # closed by a successful exec
    try:
        pid = os.fork()
    except OSError as error:
        os.close(faults)
        os.close(tell)
        return 0, Fault.of(error)
    if pid == 0:
        try:
            act()
        except BaseException as error:
            os.write(tell, Fault.of(error).encoded())
        finally:
            os._exit(127)
    os.close(tell)
    with os.fdopen(faults, "rb") as file:
        fault = Fault.decoded(file.read())
    if fault:
        os.waitpid(pid, 0)
    return 0 if fault else pid, fault


def _become(run: Mapping[str, Any], env: Mapping[str, str], output: int) -> NoReturn:
    """Turn this process into the task's program."""
    try:
        os.chdir(run["cwd"])
        check_place(run)
    except Exception as error:
        raise _OfTask(error) from None
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec would keep that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(run["argv"][0], run["argv"], env)
    except Exception as error:
        raise _OfTask(error) from None


# ------------------------------------------------------------------------- sandbox


def _start_in_sandbox(run: dict[str, Any], env: dict[str, str], output: int, confine: Callable[[], None]) -> Started:
    """Start bubblewrap, hand the plan to the sandbox's first process, and wait until that has begun the program."""
    plan, ask = os.pipe()
    told, tell = os.pipe()
    complaints, complain = os.pipe()

    def wrap() -> NoReturn:
        confine()
        os.dup2(complain, 1)
        os.dup2(complain, 2)
        for handle in (plan, tell, output):
            os.set_inheritable(handle, True)
        inner = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(plan), str(tell), str(output)]
        # Never the task's environment: LD_PRELOAD would act on bubblewrap, outside of the sandbox.
        os.execve(run["sandbox"][0], [*run["sandbox"], "--", *inner], {MARK: run["mark"]})

    pid, fault = _fork(wrap)
    for handle in (plan, tell, complain):
        os.close(handle)
    if pid:
        _write(ask, marshal.dumps({**{name: run[name] for name in ("argv", "cwd", "roots")}, "env": env}))
    os.close(ask)
    if pid:
        fault = _await_begin(told, complaints)
    os.close(complaints)
    if not fault:
        return Started(pid, told=told)
    os.close(told)
    if pid:
        os.waitpid(pid, 0)
        if run["cgroup"] and fault.lacks in (errno.EAGAIN, errno.ENOMEM):
            fault.lacks = 0  # the task's group may lack it, and not the machine
    return Started(0, fault)


def _write(handle: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(handle, data) :]
    except BrokenPipeError:
        pass  # it has ended; the reason is read elsewhere


def _await_begin(told: int, complaints: int) -> Fault:
    """Wait for the first word from the sandbox, which ends with a zero: what went wrong, empty if nothing did."""
    said = b""
    while not said.endswith(b"\0") and (piece := os.read(told, 1)):
        said += piece
    if said:
        return Fault.decoded(said[:-1])
    while len(said) < _LONGEST and (piece := os.read(complaints, _LONGEST)):
        said += piece
    return Fault.of_bubblewrap(said.decode(errors="replace").strip())


def main(plan: int, tell: int, output: int) -> None:
    """Be the first process of a sandbox."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the kernel keeps from a first process
    hide_from_others()
    with os.fdopen(plan, "rb") as file:
        run = marshal.load(file)
    for handle in (tell, output):
        os.set_inheritable(handle, False)

    def act() -> NoReturn:
        os.setsid()  # a signal to its group must not reach what is outside
        _become(run, run["env"], output)

    pid, fault = _fork(act)
    os.close(output)
    os.write(tell, fault.encoded() + b"\0")
    if not pid:
        return
    run.clear()
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
