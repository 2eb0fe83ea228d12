"""Output of tasks as the coordinator keeps it: of each attempt the first and the last bytes.

In files, or in a store that several coordinators share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.store.store import Store


class Output(Protocol):
    """What can be asked of either."""

    def size(self, ident: AttemptId) -> int:
        """Bytes there were, kept or not."""
        ...

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """Some of it, and where that begins: at ``offset``, or later if some was left out there."""
        ...


class StoredLogs:
    """Output in the store: whoever leads next has it, and replicas that stand by can show it."""

    def __init__(self, store: Store) -> None:
        """``store``: a shared one."""
        self._store = store

    def size(self, ident: AttemptId) -> int:
        """Bytes there were, kept or not."""
        return self._store.output_size(ident)

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """Some of it, and where that begins: at ``offset``, or later if some was left out there."""
        return self._store.output(ident, offset, most)


class Logs:
    """Output in files. Takes it in pieces, in whatever order and however often they come."""

    def __init__(self, directory: Path, most: int) -> None:
        """``most``: bytes kept of an attempt; of what is more than that, the middle is left out."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._most = most

    def _spool(self, ident: AttemptId) -> Spool:
        return Spool(self._directory / f"{ident[0]}.{ident[1]}", self._most)

    def size(self, ident: AttemptId) -> int:
        """Bytes there were, kept or not."""
        return self._spool(ident).end

    def add(self, ident: AttemptId, offset: int, data: bytes, skipped: int = 0) -> int:
        """Keep what is new; returns how much there is. A piece beyond the end is dropped, it will come again.

        ``skipped``: bytes just before it that nobody has any more.
        """
        spool = self._spool(ident)
        end = spool.end
        if offset - skipped <= end < offset + len(data):
            return spool.append(data, offset)
        return end

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """Some of it, and where that begins: at ``offset``, or later if some was left out there."""
        return self._spool(ident).read(offset, most)
