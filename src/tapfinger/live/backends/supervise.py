"""The supervisor: a small program above each task. It runs standalone: ``python -I -S supervise.py DIRECTORY``.

It outlives the agent. It starts the task in a session of its own, and ends it on order, at its time limit, or when the
agent's lease ends. It then kills every process that the task has left, and finally records how the task ended. While
it lives, it holds a lock on the directory. The task writes into a pipe; the first and the last bytes of its output go
to disk (``spool.py``).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from tapfinger.live.backends import starting
    from tapfinger.live.backends.spool import Spool, make_anew, read_json
else:  # files next to this one, wherever they were copied
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    spool, starting = import_module("spool"), import_module("starting")
    Spool, make_anew, read_json = spool.Spool, spool.make_anew, spool.read_json

_AT_ONCE = signal.SIGUSR1
SIGNALS = starting.SIGNALS
#: File with the task's environment, which may hold secrets: the supervisor deletes it as soon as it is read.
ENVIRONMENT = "environment.json"
#: File that says why a task that has ended, or should have, counts as running.
WAITS = "waits.json"
#: Most bytes that are read of the file with the agent's lease.
_LONGEST_LEASE = 1 << 12
#: Seconds between looks at processes that were killed and live on: the first time, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5
#: File with how the task ended, and the one that is made for it before the task starts: so an end needs no room.
END, SPARE = "end.json", ".end.spare"
#: Bytes of the latter: nearly every end fits into them.
SPARE_SIZE = 4096
#: Key of what the machine lacked to start the task: a number of ``starting.SHORTAGES``, or 0 if that is not certain.
LACKS = "lacks"


def clock() -> float:
    """Seconds since boot, the clock of the agent's lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Identifier of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def lease_end(path: str) -> float:
    """Same as ``leases.read_lease``, without imports."""
    try:
        lease = read_json(path, _LONGEST_LEASE)
        return float(lease["until"]) if lease["boot"] == boot_id() else 0.0
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0.0


def process_facts(pid: int | str) -> list[str]:
    """What ``/proc/PID/stat`` says of a process, without its pid and name: state, parent and so on."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _has_ended(facts: list[str]) -> bool:
    """Whether a process has ended and is not reaped. If its first thread alone has, it looks the same but runs on."""
    return facts[0] in "ZX" and int(facts[17]) <= 1


def start_time(pid: int) -> str:
    """Clock ticks from boot to the start of a process: together with the pid, a unique name within this boot.

    Empty for a zombie.
    """
    facts = process_facts(pid)
    return "" if _has_ended(facts) else facts[19]


def is_frozen(pid: int) -> bool:
    """Whether a process was stopped by a signal, and does nothing until it gets another."""
    try:
        return process_facts(pid)[0] == "T"
    except (OSError, IndexError):
        return False


def identity(pid: int) -> dict[str, Any]:
    """A process, told apart from every other one with its pid, also from one of another boot."""
    return {"pid": pid, "start": start_time(pid), "boot": boot_id()}


def write(name: str, data: Any) -> None:
    """Write a JSON file atomically, and to disk."""
    part = os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.part")
    with os.fdopen(make_anew(part), "w", encoding="utf-8") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, name)


def write_end(directory: str, end: dict[str, Any]) -> None:
    """Write down how a task ended, into the file that was made for it before the task could fill the disk."""
    spare, name = os.path.join(directory, SPARE), os.path.join(directory, END)
    try:
        with os.fdopen(os.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "wb") as file:
            file.write(json.dumps(end).encode())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        os.replace(spare, name)
    except OSError:  # none was made, or the task has changed it
        write(name, end)


def parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent, without zombies."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                facts = process_facts(entry)
            except OSError:
                continue  # it has ended meanwhile
            if not _has_ended(facts):
                yield int(entry), int(facts[1])


def descendants(root: int) -> list[int]:
    """All direct and indirect children of a process. Orphans are included, since the supervisor is their subreaper."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    new = [root]
    while new:
        new = [child for pid in new for child in children.get(pid, ())]
        found += new
    return found


def signal_all(number: int, besides: int = 0) -> tuple[set[int], set[int]]:
    """Send a signal to all descendants of this process but one.

    Returns which there were, and those of them that belong to another user and may not be signalled.
    """
    found = {pid for pid in descendants(os.getpid()) if pid != besides}
    refused = set()
    for pid in found:
        try:
            os.kill(pid, number)
        except PermissionError:
            refused.add(pid)
        except ProcessLookupError:
            continue  # it has ended meanwhile
    return found, refused


class Pauses:
    """Pauses between looks at processes that were killed: they grow while no new process is found."""

    def __init__(self) -> None:
        """Begin with the shortest."""
        self._seen: set[int] = set()
        self._length = _FIRST_PAUSE

    def after(self, found: set[int]) -> float:
        """Seconds until the next look. ``found``: processes that the last one has found."""
        self._length = _FIRST_PAUSE if found - self._seen else min(_LONGEST_PAUSE, 2 * self._length)
        self._seen = found
        return self._length


class Pump(threading.Thread):
    """Copies the task's output from a pipe to disk, until all writers have closed the pipe."""

    def __init__(self, source: int, spool: Spool) -> None:
        """``source``: the read end of the pipe."""
        super().__init__(daemon=True)
        self._source = source
        self._spool = spool
        self._left = False

    def run(self) -> None:
        """Copy until the end of the stream. Failed writes are dropped: a full disk must not stop the task."""
        while data := os.read(self._source, 1 << 16):
            if self._left:
                return
            with suppress(OSError):
                self._spool.append(data)

    def finish(self) -> int:
        """Wait a moment for the rest of the pipe, even if a process keeps it open. Returns the number of bytes."""
        self.join(1.0)
        self._left = True
        return self._spool.end


class Supervision:
    """Waits for the end of the task, or for reasons to end it."""

    def __init__(self, run: dict[str, Any], started: starting.Started) -> None:
        """``started``: the task."""
        self._run = run
        self._started = started
        limit = run["time_limit"]
        self._limit = None if limit is None else clock() + limit
        self._kill_at: float | None = None
        self._pauses = Pauses()
        self._heeds_lease = not run["keep"]
        #: Why the task was ended, and the resulting outcome; both empty if it ended by itself.
        self.reason, self.result = "", ""
        #: What its end had to wait for; empty if for nothing.
        self.waited = ""
        self.status: int | None = None

    def wait(self) -> None:
        """Wait until the task has ended."""
        while self.status is None:
            # Never wait for long: after a suspend of the machine, passed deadlines must be noticed soon.
            got = signal.sigtimedwait(SIGNALS, max(0.0, min(5.0, self._next() - clock())))
            number = got.si_signo if got is not None else None
            self.reap()
            if self.status is None:
                self._judge(number, clock())

    def _next(self) -> float:
        times = [t for t in (self._limit, self._kill_at) if t is not None]
        if self._heeds_lease:
            times.append(lease_end(self._run["lease"]))
        return min(times, default=float("inf"))

    def _judge(self, number: int | None, now: float) -> None:
        polite = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if number == _AT_ONCE:
            self._end("stopped", "stopped", now, 0.0)
        elif number in polite:
            self._end("stopped", "stopped", now, self._run["stop_seconds"])
        elif self._heeds_lease and now >= lease_end(self._run["lease"]):
            self._heeds_lease = False
            self._end("stopped", "the lease of its agent ended", now, 0.0)
        elif self._limit is not None and now >= self._limit:
            self._limit = None
            reason = f"it took longer than {self._run['time_limit']:g} s"
            self._end("failed", reason, now, self._run["stop_seconds"])
        if self._kill_at is not None and now >= self._kill_at:
            # Again after a pause, in case a fork was faster.
            self._kill_at = now + self._pauses.after(self._kill())

    def _end(self, result: str, reason: str, now: float, patience: float) -> None:
        self.result, self.reason = self.result or result, self.reason or reason
        if patience:
            # Bubblewrap would end at once, and the whole sandbox with it.
            signal_all(signal.SIGTERM, besides=self._started.wrapper)
        kill_at = now + patience
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def reap(self) -> bool:
        """Reap children that have ended. Returns whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._started.pid:
                self.status = self._started.exit_code(status)

    def clear(self) -> None:
        """Kill every process that the task has left: other tasks will get its resources."""
        while (found := self._kill()) or self.reap():
            signal.sigtimedwait({signal.SIGCHLD}, self._pauses.after(found))

    def _kill(self) -> set[int]:
        """Kill all descendants. Returns which there were."""
        found, refused = signal_all(signal.SIGKILL)
        if refused:
            pids = ", ".join(map(str, sorted(refused)))
            waited = f"its end had to wait for what its agent's user may not end (sudo, for example): process {pids}"
            if waited != self.waited:
                self.waited = waited
                with suppress(OSError):
                    write(WAITS, {"reason": waited})
        return found

    def outcome(self) -> dict[str, Any]:
        """How the task ended."""
        code = self.status
        reason = self.reason
        if not reason and code is not None and code < 0:
            reason = f"ended by signal {-code} ({signal.strsignal(-code)})"
        reason = "; ".join(filter(None, (reason, self.waited)))
        return {"result": self.result or ("failed" if code else "finished"), "code": code, "reason": reason}


def main(directory: str) -> None:
    """Run the task of this directory."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    starting.hide_from_others()
    os.chdir(directory)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    env = take_environment()
    if os.path.exists(END):
        return  # the agent has declared it ended before it began
    with open("run.json", encoding="utf-8") as file:
        run = json.load(file)
    write("pid.json", identity(os.getpid()))
    # Checked after the pid is written: to stop a task, the agent creates the file first, then looks for a pid.
    if os.path.exists("stop"):
        end: dict[str, Any] = {"result": "stopped", "code": None, "reason": "it had not started"}
    elif not run["keep"] and clock() >= lease_end(run["lease"]):
        end = {"result": "stopped", "code": None, "reason": "the lease of its agent ended"}
    else:
        end = follow(run, env)
    if run["cgroup"]:
        with suppress(OSError):
            os.rmdir(run["cgroup"])
    record({"output": 0, **end})


def record(end: dict[str, Any]) -> None:
    """Write down how the task ended. On a full disk this waits for room: until then the agent sees it as running."""
    while True:
        try:
            return write_end("", end)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
        time.sleep(0.5)


def take_environment() -> dict[str, str]:
    """Read the task's environment, and remove it from the disk."""
    env: dict[str, str] = {}
    with suppress(FileNotFoundError):  # an attempt that was declared ended
        with open(ENVIRONMENT, encoding="utf-8") as file:
            env = json.load(file)
        os.unlink(ENVIRONMENT)
    return env


def follow(run: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    """Start the task and supervise it to its end. Returns how it ended."""
    try:
        pump, started = _start(run, env)
    except (OSError, MemoryError) as error:
        return _not_started(starting.Fault.of(error))
    except RuntimeError as error:  # of threading: "can't start new thread"
        return _not_started(starting.Fault(str(error), lost=True, lacks=errno.EAGAIN))
    env.clear()
    if not started.pid:
        return _not_started(started.fault)
    supervision = Supervision(run, started)
    supervision.wait()
    supervision.clear()
    end = supervision.outcome() | {"output": pump.finish()}
    if end["code"] == -signal.SIGKILL and not supervision.reason and ran_out_of_memory(run["cgroup"]):
        end["reason"] = "it used more memory than it was granted"
        end["short"] = run.get("memory", "")
    return end


def _start(run: dict[str, Any], env: dict[str, str]) -> tuple[Pump, starting.Started]:
    source, output = os.pipe2(os.O_CLOEXEC)
    try:
        pump = Pump(source, Spool("output", run["max_log"]))
        pump.start()  # before the task, which nobody would follow if there were no thread
        return pump, starting.start(run, env, output)
    finally:
        os.close(output)


def _not_started(fault: starting.Fault) -> dict[str, Any]:
    """The end of a task that was not started."""
    if fault.lost:
        reason = f"{starting.TOO_LITTLE}: {fault.text}"
        return {"result": "lost", "code": None, "reason": reason, LACKS: fault.lacks}
    return {"result": "failed", "code": 127, "reason": fault.text}


def ran_out_of_memory(cgroup: str) -> bool:
    """Whether the kernel has killed a process of this group because it was out of memory. False without a group."""
    with suppress(OSError), open(os.path.join(cgroup, "memory.events"), encoding="ascii") as file:
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)
    return False


if __name__ == "__main__":
    main(sys.argv[1])
