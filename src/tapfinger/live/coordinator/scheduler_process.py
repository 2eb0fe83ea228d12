"""A scheduler that is not part of this package, in a process of its own: it cannot stop, block or exhaust the
coordinator.

Questions go to the process as pickles: both ends are ours, the pipe is private to them, and what is pickled was made
here. Answers come back as JSON and are checked like any other decision: nothing that the scheduler has made is ever
unpickled here.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tapfinger.core.contract import Decision, Placement, Resize, SchedulerContext, Snapshot
from tapfinger.core.model import Resources, TaskType
from tapfinger.errors import ConfigError, SchedulerFailed, SchedulerGone

#: Seconds for starting the process: it imports the scheduler and whatever that needs.
START_SECONDS = 60.0
#: Most bytes of an answer.
MAX_ANSWER = 16 * 1024 * 1024
#: Most characters of a scheduler's name.
MAX_NAME = 100
#: Exit code of a process that ran out of memory.
NO_MEMORY = 86
#: Length of the message that follows, in bytes.
HEADER = struct.Struct("!Q")
#: Set for the process unless they are set already: each thread of a library needs address space.
FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
#: The coordinator's variables that the process gets, all others may be secrets such as PGPASSWORD: where programs,
#: modules and caches are, how texts and times are written, which devices there are.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8"),
    *("VIRTUAL_ENV", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "CUDA_VISIBLE_DEVICES"),
    *FEW_THREADS,
)


class Writer(pickle.Pickler):
    """Pickles a question. Task types that the process knows are named, not sent: their tables are large."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, TaskType]) -> None:
        """``known``: task types of the last context that was sent, by name."""
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, obj: Any) -> str | None:
        """The name of a task type that is known."""
        return obj.name if isinstance(obj, TaskType) and self._known.get(obj.name) is obj else None


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The variables that the process of a scheduler gets, of a coordinator with ``ours``."""
    return FEW_THREADS | {name: ours[name] for name in PASSED_ON if name in ours}


@dataclass(frozen=True)
class Likely:
    """One task that a cluster's agent might choose, as ``Decider.odds`` reads it."""

    task: int
    probability: float


@dataclass(frozen=True)
class LikelyAgent:
    """What one cluster's agent might choose."""

    cluster: int
    options: tuple[Likely, ...]


@dataclass(frozen=True)
class Explained:
    """The explanation that a scheduler gave of its last decision."""

    agents: tuple[LikelyAgent, ...]


class ProcessScheduler:
    """A scheduler whose decisions are made in a process of its own."""

    def __init__(self, text: str, name: str, options: Mapping[str, Any], memory_mb: int) -> None:
        """Start the process; raises ConfigError if the scheduler cannot be made. ``text``: as people wrote it."""
        self._text = text
        self._made_of = json.dumps({"name": name, "options": dict(options), "text": text})
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._known: dict[str, TaskType] = {}
        #: How often each rule of the scheduler was applied, as it last said.
        self.counters: dict[str, int] = {}
        self._explains = False
        #: Held to signal the process, and to give its number back: until then no other process can have it.
        self._lock = threading.Lock()
        try:
            made = self._begin()
        except SchedulerFailed as error:
            self.close()
            raise ConfigError(f"scheduler {text!r}: {error}") from None
        self.one_shot = bool(made.get("one_shot"))
        self.name = str(made.get("name"))[:MAX_NAME]

    # ------------------------------------------------------------------------ process

    @property
    def ready(self) -> bool:
        """Whether the process is there."""
        with self._lock:
            return self._process is not None and not _has_ended(self._process)

    def start(self) -> None:
        """Start the process again; raises SchedulerFailed if it cannot be used."""
        self._begin()

    def _begin(self) -> dict[str, Any]:
        self.close()
        self._known = {}
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "tapfinger.live.coordinator.scheduler_child"]
        arguments = [str(theirs.fileno()), str(os.getpid()), str(self._memory_mb), self._made_of]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it prints belongs into the coordinator's log
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment(os.environ),
            )
        self._line = ours
        # A module that hangs while it is imported must not hang the coordinator.
        guard = threading.Timer(START_SECONDS, self.kill)
        guard.daemon = True
        guard.start()
        try:
            made = self._receive()
        except SchedulerGone as error:
            raise SchedulerGone(f"it could not be started within {START_SECONDS:g} s: {error}") from None
        finally:
            guard.cancel()
        self._explains = bool(made.get("explains"))
        return made

    def kill(self) -> None:
        """End the process, all it has started, and the wait for an answer; may be called from any thread.

        What it has started may be alive when it is not, and may hold the other end of the connection.
        """
        with self._lock:
            if self._process is not None and self._process.returncode is None:  # its number is nobody else's
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            if self._line is not None:
                with suppress(OSError):
                    self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process, all it has started, and the connection to it."""
        self.kill()
        if (process := self._process) is not None:
            with suppress(ChildProcessError):  # another thread does the same
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            if process is not None:
                process.wait()
            line, self._line = self._line, None
            if line is not None:
                line.close()

    # ---------------------------------------------------------------------- scheduler

    def reset(self, context: SchedulerContext) -> None:
        """Begin a new run."""
        self._tell("reset", context)

    def learn(self, context: SchedulerContext) -> None:
        """Tell the scheduler that beliefs have changed."""
        self._tell("learn", context)

    def _tell(self, what: str, context: SchedulerContext) -> None:
        self._known = {}
        self._ask(what, context)
        self._known = {t.name: t for t in context.task_types}

    def decide(self, snapshot: Snapshot) -> Decision:
        """The scheduler's decision, as plain numbers; whether it is legal is checked by whoever carries it out."""
        answer = self._ask("decide", snapshot)
        try:
            placements = tuple(Placement(_whole(t), _whole(c), _amounts(a)) for t, c, a in answer["placements"])
            resizes = tuple(Resize(_whole(t), _amounts(a)) for t, a in answer["resizes"])
            self.counters = {str(name)[:MAX_NAME]: _whole(n) for name, n in answer["counters"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._gone(f"its answer cannot be used: {error}") from None
        return Decision(placements, resizes)

    @property
    def explain(self) -> Callable[..., Explained] | None:
        """The scheduler's explanation of its last decision; None if it gives none."""
        return self._explain if self._explains else None

    def _explain(self, top: int) -> Explained:
        answer = self._ask("explain", top)
        try:
            return Explained(
                tuple(
                    LikelyAgent(_whole(cluster), tuple(Likely(_whole(t), float(p)) for t, p in options))
                    for cluster, options in answer["agents"]
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._gone(f"its explanation cannot be used: {error}") from None

    # ----------------------------------------------------------------------- messages

    def _ask(self, what: str, about: object) -> dict[str, Any]:
        file = io.BytesIO()
        Writer(file, self._known).dump((what, about))
        message = file.getbuffer()
        line = self._line
        if line is None or not self.ready:
            raise self._gone("")
        try:
            line.sendall(HEADER.pack(len(message)))
            line.sendall(message)
        except OSError:
            raise self._gone("") from None
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """The next answer. Waits without a bound: whoever has waited long enough kills the process."""
        (length,) = HEADER.unpack(self._read(HEADER.size))
        if length > MAX_ANSWER:
            raise self._gone(f"its answer has {length} bytes, and {MAX_ANSWER} are possible")
        try:
            answer = json.loads(self._read(length))
        except (ValueError, RecursionError) as error:
            raise self._gone(f"its answer cannot be read: {error}") from None
        if not isinstance(answer, dict):
            raise self._gone("its answer cannot be read: it is no object")
        if "error" in answer:
            raise SchedulerFailed(str(answer["error"]))
        return answer

    def _read(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = b"" if self._line is None else self._line.recv(min(65536, length - len(parts)))
            except OSError:
                part = b""
            if not part:
                raise self._gone("")
            parts += part
        return bytes(parts)

    def _gone(self, why: str) -> SchedulerGone:
        """The error to raise once the process is of no use any more; without a reason, that is how it has ended."""
        process = self._process
        if process is None:
            return SchedulerGone("its process was not started")
        until = time.monotonic() + 1.0
        while not why and self.ready and time.monotonic() < until:
            time.sleep(0.01)
        self.close()
        code = process.wait()
        if why:
            return SchedulerGone(why)
        if code == NO_MEMORY:
            return SchedulerGone(f"it needs more memory than {self._memory_mb} MB (live.scheduler_memory_mb)")
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return SchedulerGone(f"its process has ended {how}")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; leaves it to be waited for, so that its number, and its group's, stays its own."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else has waited for it
        return True


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{str(value)[:50]!r} is not a whole number")
    return value


def _amounts(values: Any) -> Resources:
    if not isinstance(values, list):
        raise ValueError(f"{str(values)[:50]!r} is no list of amounts")
    return Resources(map(_whole, values))
