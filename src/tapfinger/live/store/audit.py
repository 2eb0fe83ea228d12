"""The audit log: append-only files of who did what, when, from where, and whether it was allowed.

What was refused is in a file of its own. Both are summed up where one requester makes much of it, except for what
operators did: nobody can push out what was done.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)

#: Most bytes of one file, and number of older files kept beside it.
MAX_FILE, OLDER = 32 * 1024 * 1024, 4
#: Refusals of one requester, and changes of one token, in a minute that are noted one by one.
SINGLY, DONE_SINGLY = 10, 100
#: Requesters in a minute that are told apart.
REQUESTERS = 1000
#: Most characters of a text that a requester has chosen.
LONGEST = 300
#: What each line has.
_PARTS = frozenset({"at", "who", "from", "what", "status", "detail"})
#: Seconds since the epoch that are later than any line; dates have years of four digits.
_NEVER = 1e11
#: The requester of what is beyond ``REQUESTERS``.
_OTHERS = (None, "others")


class Audit:
    """The audit log of one coordinator. May be used from several threads."""

    def __init__(self, path: Path, most: int = MAX_FILE) -> None:
        """Open the log. Only its owner may read it: it tells who works when, and from where."""
        self._done = _Summed(_Files(path, most), DONE_SINGLY, "done", 200, "changes")
        refused = _Files(path.with_name(f"{path.name}.refused"), most)
        self._refused = _Summed(refused, SINGLY, "refused", 429, "refusals")
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._done.close()
            self._refused.close()

    def note(
        self,
        at: float,
        who: str | None,
        source: str,
        what: str,
        status: int,
        detail: str = "",
        whole: bool = False,
    ) -> None:
        """Add a line. ``who``: name of the token; None without a valid token. ``status``: as in HTTP.

        ``whole``: it has a line of its own however many there are, since operators have done it. On a disk that cannot
        be written the line goes to the coordinator's log: the answer was given already.
        """
        with self._lock:
            # Changes count for a token wherever it is used from: whoever holds it may have many addresses.
            log, requester = (self._refused, (who, source)) if status >= 400 else (self._done, (who, ""))
            self._turn(at)
            if not (whole or log.counts(requester)):
                return
            cut = what[:LONGEST], detail[:LONGEST]
            line = {"at": round(at, 3), "who": who, "from": source, "what": cut[0], "status": status, "detail": cut[1]}
            log.files.write(line)

    def _turn(self, at: float) -> None:
        for log in (self._done, self._refused):
            log.turn(at)

    def latest(self, limit: int, now: float | None = None) -> list[dict[str, Any]]:
        """The last lines, oldest first; at most half of them are refusals if there are enough others.

        ``now``: what was counted in minutes before is summed up first.
        """
        with ExitStack() as stack:
            with self._lock:
                if now is not None:
                    self._turn(now)
                ends = [log.files.ends(stack) for log in (self._done, self._refused)]
            # Without the lock: agents' connections wait for it.
            done, refused = (_told(_latest(files, limit)) for files in ends)
        room = max(limit - len(done), limit // 2)
        refused = refused[max(0, len(refused) - room) :]
        done = done[max(0, len(done) - (limit - len(refused))) :]
        return sorted([*done, *refused], key=lambda line: float(line["at"]))


class _Summed:
    """Files of lines of which each requester may write some in a minute; the others are counted."""

    def __init__(self, files: _Files, singly: int, what: str, status: int, name: str) -> None:
        """``what``, ``status`` and ``name`` are for the line with the number of the others."""
        self.files = files
        self._singly = singly
        self._said = what, status, name
        #: The minute of the latest line, and the number of lines of each requester in it.
        self._minute = 0
        self._many: Counter[tuple[str | None, str]] = Counter()

    def turn(self, at: float) -> None:
        """Sum up a minute that is over at that time."""
        if int(at // 60) > self._minute:
            self._sum_up()
            self._minute = int(at // 60)

    def counts(self, requester: tuple[str | None, str]) -> bool:
        """Count a line of this minute; whether it is one of those that are written."""
        if requester not in self._many and len(self._many) >= REQUESTERS:
            requester = _OTHERS
        self._many[requester] += 1
        return self._many[requester] <= self._singly

    def close(self) -> None:
        """Write what is left to sum up, and close the files."""
        self._sum_up()
        self.files.close()

    def _sum_up(self) -> None:
        """Write how many lines of the past minute were not written, by requester."""
        what, status, name = self._said
        end = 60.0 * self._minute + 59.999
        for (who, source), count in self._many.items():
            if count > self._singly:
                more = f"{count - self._singly} more {name} in that minute"
                self.files.write(
                    {"at": end, "who": who, "from": source, "what": what, "status": status, "detail": more}
                )
        self._many.clear()


class _Files:
    """A file of JSON lines that is followed by a new one when it is long, and the older ones beside it."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._file: io.FileIO | None = None
        #: Bytes of the file that is open.
        self._length = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, line: dict[str, Any]) -> None:
        try:
            self._append(line)
        except OSError as error:
            self.close()  # the next one looks how the file ends
            logger.error("the audit log cannot be written (%s): %s", error.strerror, json.dumps(line))

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is not None and self._length > self._most:
            self._turn()
        if self._file is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(handle, "a+b", buffering=0)
            whole = _ends_whole(self._file)
            self._length = self._file.seek(0, os.SEEK_END)
            if not whole:
                self._add(self._file, b"\n")
        self._add(self._file, json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")

    def _add(self, file: io.FileIO, data: bytes) -> None:
        """Add all of it to the end, or nothing: on a disk that fills up, only the first bytes may fit."""
        if (written := file.write(data)) != len(data):
            file.truncate(file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += len(data)

    def _turn(self) -> None:
        """Start a new file, and drop the oldest."""
        self.close()
        for number in range(OLDER, 0, -1):
            older = self._older(number - 1)
            if older.exists():
                older.replace(self._older(number))

    def _older(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def ends(self, stack: ExitStack) -> list[tuple[BinaryIO, int]]:
        """The files, newest first, and how long each is; ``stack`` closes them."""
        paths = (self._older(number) for number in range(OLDER + 1))
        files = [stack.enter_context(path.open("rb")) for path in paths if path.exists()]
        return [(file, file.seek(0, os.SEEK_END)) for file in files]


def _latest(files: Iterable[tuple[BinaryIO, int]], limit: int) -> list[bytes]:
    """The last lines of files, of which the newest comes first."""
    lines: list[bytes] = []
    for file, size in files:
        if len(lines) < limit:
            lines = _tail(file, size, limit - len(lines)) + lines
    return lines


def _tail(file: BinaryIO, size: int, limit: int) -> list[bytes]:
    """The last lines of the first ``size`` bytes of a file. Of many, only the end is read."""
    reach = limit * 200
    while True:
        first = max(0, size - reach)
        file.seek(first)
        lines = file.read(size - first).splitlines()
        if reach >= size or len(lines) > limit:  # one more than needed: the first may be half a line
            return lines[-limit:]
        reach *= 4


def _ends_whole(file: io.FileIO) -> bool:
    """Whether a file ends with a whole line: the machine may have stopped while one was written."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _told(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The lines, decoded; one that is not the log's own is told as text, with the time of the line before it."""
    told: list[dict[str, Any]] = []
    at = 0.0
    for line in lines:
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or not found.keys() >= _PARTS or not 0 <= found["at"] < _NEVER:
                raise ValueError("no line of this log")
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # as it will be shown
            at = float(found["at"])
            told.append(found)
        except (ValueError, TypeError, RecursionError):
            text = line.decode(errors="replace")[:LONGEST]
            told.append({"at": at, "who": None, "from": "", "what": "unreadable", "status": 0, "detail": text})
    return told
