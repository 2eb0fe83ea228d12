"""Output of tasks as the coordinator keeps it: in files, or in a store that several coordinators share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tapfinger.live.messages import AttemptId
from tapfinger.live.store import Store


class Output(Protocol):
    """What can be asked of either."""

    def size(self, ident: AttemptId) -> int:
        """Bytes there are."""
        ...

    def full(self, ident: AttemptId) -> bool:
        """Whether no more is kept."""
        ...

    def read(self, ident: AttemptId, offset: int, most: int) -> bytes:
        """Some of it, from ``offset`` on."""
        ...


class StoredLogs:
    """Output in the store: whoever leads next has it, and replicas that stand by can show it."""

    def __init__(self, store: Store, most: int) -> None:
        """``most``: bytes kept of an attempt."""
        self._store = store
        self._most = most

    def size(self, ident: AttemptId) -> int:
        """Bytes there are."""
        return self._store.output_size(ident)

    def full(self, ident: AttemptId) -> bool:
        """Whether no more is kept."""
        return self.size(ident) >= self._most

    def read(self, ident: AttemptId, offset: int, most: int) -> bytes:
        """Some of it, from ``offset`` on."""
        return self._store.output(ident, offset, most)


class Logs:
    """Output in one file per attempt. Takes it in pieces, in whatever order and however often they come."""

    def __init__(self, directory: Path, most: int) -> None:
        """``most``: bytes kept of an attempt; the rest is dropped."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._most = most

    def _path(self, ident: AttemptId) -> Path:
        return self._directory / f"{ident[0]}.{ident[1]}"

    def size(self, ident: AttemptId) -> int:
        """Bytes there are."""
        try:
            return self._path(ident).stat().st_size
        except FileNotFoundError:
            return 0

    def full(self, ident: AttemptId) -> bool:
        """Whether no more is kept."""
        return self.size(ident) >= self._most

    def add(self, ident: AttemptId, offset: int, data: bytes) -> int:
        """Keep what is new; returns how much there is. A piece beyond the end is dropped, it will come again."""
        size = self.size(ident)
        if offset <= size < offset + len(data):
            with self._path(ident).open("ab") as file:
                file.write(data[size - offset :][: self._most - size])
        return self.size(ident)

    def read(self, ident: AttemptId, offset: int, most: int) -> bytes:
        """Some of it, from ``offset`` on."""
        try:
            with self._path(ident).open("rb") as file:
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return b""
