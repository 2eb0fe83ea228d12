"""Reads command lines and environments of other processes, without ever waiting for one of these for long.

Both are in a process's memory. Whoever reads them waits while it changes its mappings: for ever, if it maps a file of a
server that does not answer (FUSE, NFS). ``/proc/PID/stat`` and ``status`` let nobody wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from tapfinger.live.agent.job_pool import JobPool, Then
from tapfinger.live.backends import supervise

logger = logging.getLogger(__name__)

#: Seconds without any answer after which what is being read hangs, and after which another thread helps.
PATIENCE, PULSE = 1.0, 0.05
#: The former for command lines, which are read once only, when an agent starts.
LONG_PATIENCE = 3.0
#: Most threads. If so many processes hang, no others are read.
MOST = 64
#: Reads something of one process; may raise OSError, and may never return.
Read = Callable[[int], bytes]


class ProcessReader:
    """Reads something of processes, in threads. One that hangs keeps its thread; it is not read again meanwhile."""

    def __init__(self, read: Read, pool: JobPool, patience: float = PATIENCE) -> None:
        """``read``: called in threads of the pool. ``patience``: seconds without any answer to wait."""
        self._read = read
        self._pool = pool
        self._patience = patience
        self._lock = threading.Lock()
        #: Process ids and start times of those that are being read.
        self._under_way: set[tuple[int, str]] = set()

    def of(self, pids: Iterable[int]) -> tuple[dict[int, bytes], set[int]]:
        """What was read by process, empty if it has ended or may not be read; and the processes that hang."""
        processes = [(pid, start) for pid in pids if (start := _start(pid))]
        look = _ProcessLook()
        with self._lock:
            look.left.extend(process for process in processes if process not in self._under_way)
            look.wanted = len(look.left)
        if look.wanted:
            self._follow(look)
        with self._lock:
            look.left.clear()
            answers = dict(look.answers)
            hanging = {process[0] for process in processes} - answers.keys()
            new = sorted(pid for pid, _ in self._under_way & look.taken)
        for pid in new:
            logger.warning("process %d cannot be looked at: its memory is locked; nobody waits for it", pid)
        return answers, hanging

    def _follow(self, look: _ProcessLook) -> None:
        """Wait until everything is read, or nothing more is."""
        jobs = [self._pool.do(partial(self._serve, look))]
        count, last = 0, time.monotonic()
        while not look.done.wait(PULSE):
            now = time.monotonic()
            if len(look.answers) > count:
                count, last = len(look.answers), now
            elif now >= last + self._patience:
                break
            elif look.left:
                jobs.append(self._pool.do(partial(self._serve, look)))
        for job in jobs:
            self._pool.withdraw(job)
        self._pool.settle(0.0)

    def _serve(self, look: _ProcessLook) -> Then:
        """Read what nobody else has begun to read. Runs in a thread."""
        while True:
            with self._lock:
                if not look.left:
                    return list
                process = look.left.popleft()
                look.taken.add(process)
                self._under_way.add(process)
            found = b""
            try:
                with suppress(OSError):
                    found = self._read(process[0])
            finally:
                with self._lock:
                    self._under_way.discard(process)
                    look.answers[process[0]] = found
                    if len(look.answers) == look.wanted:
                        look.done.set()


class _ProcessLook:
    """A look at many processes."""

    def __init__(self) -> None:
        self.wanted = 0
        self.left: deque[tuple[int, str]] = deque()
        self.taken: set[tuple[int, str]] = set()
        self.answers: dict[int, bytes] = {}
        self.done = threading.Event()


def _start(pid: int) -> str:
    """When a process has started; empty if it has ended."""
    with suppress(OSError, IndexError):
        return supervise.start_time(pid)
    return ""


def may_be_read(pid: int) -> bool:
    """Whether the environment of a process may be read: that of another user only by root."""
    with suppress(OSError):
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    return False


def is_beside_us(pid: int) -> bool:
    """Whether a process has the user of this one and sees all processes that it sees: no sandbox is around it."""
    facts: dict[str, list[str]] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, words = line.partition(":")
            facts[name] = words.split()
    # Process ids in all namespaces from this one inwards. Kernels before 4.1 do not tell.
    return facts.get("Uid", ["", ""])[1] == str(os.geteuid()) and len(facts.get("NSpid", [])) <= 1


def command_line_of(pid: int) -> bytes:
    """The command line of a process, each word followed by a zero."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def environment_of(pid: int) -> bytes:
    """The environment of a process. One whose first thread has ended has it in the others alone."""
    process = Path(f"/proc/{pid}")
    for path in chain([process / "environ"], process.glob("task/*/environ")):
        with suppress(ProcessLookupError):
            if found := path.read_bytes():
                return found
    return b""


#: For all of this process: the first thread is there from an agent's start on, however many processes there are later.
_pool = JobPool("process reader", MOST)
command_lines = ProcessReader(command_line_of, _pool, LONG_PATIENCE)
environments = ProcessReader(environment_of, _pool)
