"""Output of a task on disk: its first and its last bytes, up to a limit. Imports no other module of TapFinger.

Positions count bytes in the whole stream, so a reader can continue from where it stopped. What lies between the first
and the last bytes may have been left out. The first bytes are in the file itself; the last ones are in files in a
directory next to it, each named by the position of its first byte.

A task that is not isolated may put anything in their place, such as a pipe that blocks whoever opens it, or a link.
What is no regular file does not count.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from typing import Any

#: Name of a file in the directory with the last bytes.
_SEGMENT = re.compile(r"[0-9]{20}", re.ASCII)
#: Most bytes that are read of a note beside the output.
LARGEST_NOTE = 64 << 20
#: Flags of everything that is opened: no link is followed, and no pipe waited for.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Most files of last bytes. Each gap begins one, however few bytes follow it.
SEGMENTS = 16


class Spool:
    """One stream, written by one process and read by any."""

    def __init__(self, path: str | os.PathLike[str], most: int = 1 << 62) -> None:
        """``most``: most bytes kept; half of them are the first ones. No file is created before the first write."""
        self._path = os.fspath(path)
        self._tail = f"{self._path}.tail"
        self._head = (most + 1) // 2
        self._segment = max(1, most // 4)

    @property
    def end(self) -> int:
        """Position after the last byte: number of bytes written, kept or left out."""
        segments = self._segments()
        if segments:
            return segments[-1] + _size(self._name(segments[-1]))
        return _size(self._path)

    @property
    def kept(self) -> int:
        """Number of bytes on disk."""
        return _size(self._path) + sum(_size(self._name(start)) for start in self._segments())

    def append(self, data: bytes, position: int | None = None) -> int:
        """Write the new part of ``data``. Returns the new end.

        ``position``: position of its first byte; beyond the end if bytes before it were left out.
        """
        end = self.end
        position = end if position is None else position
        data = data[max(0, end - position) :]
        position = max(position, end)
        segments = self._segments()
        if not segments and position == end:
            room = self._head - end
            if room > 0:
                _append(self._path, data[:room])
                data, position = data[room:], position + room
        while data:
            last = segments[-1] if segments else None
            room = 0
            if last is not None and position == last + _size(self._name(last)):
                room = self._segment - (position - last)
            if room <= 0:
                os.makedirs(self._tail, exist_ok=True)
                last, room = position, self._segment
                segments.append(position)
            _append(self._name(last or 0), data[:room])
            data, position = data[room:], position + room
            segments = self._prune(segments)
        return self.end

    def read(self, position: int, most: int) -> tuple[int, bytes]:
        """Some bytes, and the position of the first: ``position``, or later if bytes there were left out."""
        head = _size(self._path)
        if position < head:
            return position, read_part(self._path, position, min(most, head - position))
        for start in self._segments():
            name = self._name(start)
            if position < start + _size(name):
                at = max(position, start)
                with suppress(FileNotFoundError):  # removed at this moment: try the next one
                    return at, read_part(name, at - start, most)
        return position, b""

    def _prune(self, segments: list[int]) -> list[int]:
        sizes = [_size(self._name(start)) for start in segments]
        while len(segments) > 1 and (sum(sizes[1:]) >= self._segment or len(segments) > SEGMENTS):
            with suppress(FileNotFoundError):
                os.unlink(self._name(segments[0]))
            segments, sizes = segments[1:], sizes[1:]
        return segments

    def _segments(self) -> list[int]:
        try:
            with os.scandir(self._tail) as entries:
                return sorted(
                    int(entry.name)
                    for entry in entries
                    if _SEGMENT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _name(self, start: int) -> str:
        return os.path.join(self._tail, f"{start:020d}")


def _size(path: str) -> int:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _append(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY, 0o666)
    with os.fdopen(handle, "ab") as file:
        file.write(data)


def make_anew(path: str | os.PathLike[str]) -> int:
    """A handle to write to a new file, in place of whatever has its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o666)


def read_part(path: str | os.PathLike[str], position: int, most: int) -> bytes:
    """Bytes of a regular file. Anything else raises OSError, and is not waited for."""
    handle = os.open(path, os.O_RDONLY | _SAFELY)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{os.fspath(path)} is no regular file")
        file.seek(position)
        return file.read(most)


def read_json(path: str | os.PathLike[str], most: int = LARGEST_NOTE) -> Any:
    """The JSON in a regular file. Raises OSError as ``read_part`` does, and ValueError for whatever is no such text."""
    data = read_part(path, 0, most)
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(f"{os.fspath(path)} is nested too deeply") from None
