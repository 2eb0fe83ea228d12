"""The processes of a site on one machine: how one is found, started, watched and ended."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tapfinger.errors import CoordinatorError
from tapfinger.live.ownership import author, doubt, left_alone, send_noted
from tapfinger.live.state_dir import alive, held, noted

#: Most seconds that processes may take to start or to end.
PATIENCE = 60.0
#: Signals that end a command: Ctrl-C, kill, and a terminal that was closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Bytes of a log after which its older part is put aside; one such part is kept.
MAX_LOG = 32 << 20


class Part:
    """One process of a site: its coordinator, or the agent of a cluster. It may have been started by another ``up``."""

    def __init__(self, name: str, note: Path, log: Path, lock: str = "lock", state: Path | None = None) -> None:
        """``name``: as people are told. ``note``: file in which the process announces itself, beside its ``lock``.

        ``state``: the directory of its site, if the note is not in it but below it.
        """
        self.name = name
        self.folder = note.parent
        self._state = state or note.parent
        self._note = note
        self.log = log
        self._lock = lock
        self._logged = 0  # bytes in the log when it was started
        self._child: int | None = None
        self._ended: int | None = None  # pid of the last child that has ended
        self._found: dict[str, Any] | None = None
        self._writer: int | None = None  # user who has written the note of what was found
        self._end = "ended"  # how the last one did
        #: Whether this process has started it, the last time that it was started.
        self.started = False

    def note(self) -> dict[str, Any] | None:
        """What the process has announced; None if none is running, or has announced itself yet."""
        return noted(self._note)

    def find(self, patience: float = PATIENCE) -> bool:
        """Take over the process that runs already, if there is one. One that is just starting is waited for."""
        deadline = time.monotonic() + patience
        while (note := self.note()) is None and held(self.folder, self._lock) and time.monotonic() < deadline:
            time.sleep(0.05)
        if note is not None:
            self._found, self.started, self._child, self._end = note, False, None, "ended"
            self._writer = author(self._note, self._state, note)
        return note is not None

    @property
    def doubt(self) -> str:
        """Why the process that was found must not be signalled, in a sentence; empty if it may be."""
        if self.started or self._found is None or not alive(self._found):
            return ""
        why = doubt(self._found, self._writer)
        return left_alone(self.name, self._found["pid"], why) if why else ""

    @property
    def pid(self) -> int | None:
        """Pid of the process that runs, or was the last one to."""
        if self.started:
            return self._child if self._child is not None else self._ended
        return None if self._found is None else self._found["pid"]

    def running(self) -> bool:
        """Whether it is alive; a child that has ended is reaped."""
        if not self.started:
            return self._found is not None and alive(self._found)
        if self._child is None:
            return False
        try:
            pid, status = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:  # ended, and whoever called us has chosen that children leave no status
            pid, status = self._child, 0
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._end = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
            self._ended = pid
            self._child = None
        return not pid

    def how_it_ended(self) -> str:
        """In words, with what it said last if it ended by itself."""
        said = self.last_words() if self.started and "exit code" in self._end else ""
        return f"{self._end}: {said}" if said else self._end

    def last_words(self) -> str:
        """The error in its log since it was started, or the last line."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._logged)
                text = log.read().decode("utf-8", errors="replace").strip()
        except OSError:
            return ""
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)  # it may be a task's, for a terminal
        _, error, complaint = f"\n{text}".rpartition("\nerror: ")
        return complaint if error else text.rpartition("\n")[2]

    def start(self, words: Sequence[str], token: str = "", quiet: bool = False) -> None:
        """Start it with these words of the command line. ``token``: given to it by standard input.

        ``quiet``: only what it writes to standard error goes to its log.
        """
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        read, write = os.pipe()
        try:
            os.write(write, token.encode("ascii"))
        finally:
            os.close(write)
        # An interrupt between the start and the note of its pid would leave a process that nobody ends.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self._child = _spawn(words, self.log, before, read, quiet)
            self.started, self._end = True, "ended"
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read)

    def tell(self, number: int) -> None:
        """Send it a signal, if it runs. Raises CoordinatorError if it is not certain that it is what was noted."""
        if not self.running() or self.pid is None:
            return
        if self.started or self._found is None:
            send(self.pid, number, self.name)
        else:
            send_noted(self._found, self._writer, number, self.name)

    def put_log_aside(self) -> None:
        """Keep its log short. The process has it open for appending, so the file is emptied, not replaced."""
        if put_aside(self.log):
            self._logged = 0


def put_aside(log: Path) -> bool:
    """Keep a log short: the older part of a long one becomes ``LOG.1``, in place of the one before.

    Where there is no room for it, such as on a full disk, it is dropped: the log must not grow on. Returns whether the
    log is empty now.
    """
    older = log.with_name(f"{log.name}.1")
    try:
        if log.stat().st_size <= MAX_LOG:
            return False
        try:
            older.unlink(missing_ok=True)
            with log.open("rb") as source, open(older, "xb", opener=_private) as target:
                shutil.copyfileobj(source, target)
        except OSError:
            older.unlink(missing_ok=True)
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def _private(name: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(name, flags, 0o600)


def _spawn(words: Sequence[str], log: Path, mask: Iterable[int], standard_input: int, quiet: bool) -> int:
    """Start a command of tapfinger in a session of its own, where no terminal's signal reaches it. Returns its pid."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, standard_input, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), append, 0o600),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0) if quiet else (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    command = [sys.executable, "-m", "tapfinger", *words]
    # A token of whoever calls is nothing for them, and everyone of this user could read it there. The store is the
    # coordinator's alone.
    others = {"TAPFINGER_TOKEN", "PGPASSWORD"} if words[0] == "agent" else {"TAPFINGER_TOKEN"}
    env = {name: value for name, value in os.environ.items() if name not in others}
    try:
        return os.posix_spawn(
            command[0], command, env, file_actions=files, setsid=True, setsigmask=list(mask), setsigdef=list(ENDING)
        )
    except OSError as error:  # which always names the program
        if log.parent.is_dir():
            raise
        raise CoordinatorError(f"the directory of its log, {log.parent}, is not there: {error.strerror}") from None


def send(pid: int, number: int, name: str) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CoordinatorError(f"{name} (pid {pid}) belongs to another user, who must end it") from None


def end_parts(parts: Sequence[Part], number: int, patience: float = PATIENCE) -> None:
    """Ask processes to end, and wait until they have; kill them if they take longer than ``patience``, in seconds."""
    for part in parts:
        part.tell(number)
    deadline = time.monotonic() + patience
    while left := [part for part in parts if part.running()]:
        if time.monotonic() > deadline:
            for part in left:
                part.tell(signal.SIGKILL)
        time.sleep(0.02)
