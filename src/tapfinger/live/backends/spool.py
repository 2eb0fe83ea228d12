"""Output of a task on disk: its first and its last bytes, up to a limit. Imports no other module of TapFinger.

Positions count bytes in the whole stream, so a reader can continue from where it stopped. What lies between the first
and the last bytes may have been left out. The first bytes are in the file itself; the last ones are in files in a
directory next to it, each named by the position of its first byte.
"""

from __future__ import annotations

import os
from contextlib import suppress

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
                with open(self._path, "ab") as file:
                    file.write(data[:room])
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
            with open(self._name(last or 0), "ab") as file:
                file.write(data[:room])
            data, position = data[room:], position + room
            segments = self._prune(segments)
        return self.end

    def read(self, position: int, most: int) -> tuple[int, bytes]:
        """Some bytes, and the position of the first: ``position``, or later if bytes there were left out."""
        head = _size(self._path)
        if position < head:
            return position, _read(self._path, position, min(most, head - position))
        for start in self._segments():
            name = self._name(start)
            if position < start + _size(name):
                at = max(position, start)
                with suppress(FileNotFoundError):  # removed at this moment: try the next one
                    return at, _read(name, at - start, most)
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
            return sorted(int(name) for name in os.listdir(self._tail))
        except FileNotFoundError:
            return []

    def _name(self, start: int) -> str:
        return os.path.join(self._tail, f"{start:020d}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: str, position: int, most: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(position)
        return file.read(most)
