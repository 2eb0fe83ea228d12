"""The audit log: an append-only file of who did what, when, from where, and whether it was allowed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: Most bytes of one file, and number of older files kept beside it.
MAX_FILE, OLDER = 32 * 1024 * 1024, 4


class Audit:
    """The audit log of one coordinator."""

    def __init__(self, path: Path, most: int = MAX_FILE) -> None:
        """Open the log. Only its owner may read it: it tells who works when, and from where."""
        self._path = path
        self._most = most
        self._open()

    def _open(self) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(handle, "ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def note(self, at: float, who: str | None, source: str, what: str, status: int, detail: str = "") -> None:
        """Add a line. ``who``: name of the token; None without a valid token. ``status``: as in HTTP."""
        line = {"at": round(at, 3), "who": who, "from": source, "what": what, "status": status, "detail": detail}
        if self._file.tell() > self._most:
            self._turn()
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _turn(self) -> None:
        """Start a new file, and drop the oldest."""
        self._file.close()
        for number in range(OLDER, 0, -1):
            older = self._older(number - 1)
            if older.exists():
                older.replace(self._older(number))
        self._open()

    def _older(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def latest(self, limit: int) -> list[dict[str, Any]]:
        """The last lines, oldest first."""
        lines: list[bytes] = []
        for number in range(OLDER + 1):
            path = self._older(number)
            if len(lines) >= limit or not path.exists():
                break
            lines = _tail(path, limit - len(lines)) + lines
        return [json.loads(line) for line in lines]


def _tail(path: Path, limit: int) -> list[bytes]:
    """The last lines of a file. Of a long file, only its end is read."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        reach = limit * 200
        while True:
            file.seek(max(0, size - reach))
            lines = file.read().splitlines()
            if reach >= size or len(lines) > limit:  # one more than needed: the first may be half a line
                return lines[-limit:]
            reach *= 4
