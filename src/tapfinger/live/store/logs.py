"""Output of tasks at the coordinator: the first and the last bytes of each attempt.

It is kept in files, or in a store that several coordinators share.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.store.store import Store

#: Files that are measured at a time.
AT_ONCE = 100

#: Name of an output, or of the directory with its last bytes: task and attempt.
_NAME = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})(\.tail)?")


class Output(Protocol):
    """Read access to output, wherever it is kept."""

    def size(self, ident: AttemptId) -> int:
        """Bytes of output that have arrived, kept or left out."""
        ...

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """A piece of the output and its position: ``offset``, or later if some was left out there."""
        ...


class StoredLogs:
    """Output in the store: the next leader has it, and standbys can show it."""

    def __init__(self, store: Store) -> None:
        """``store``: a shared store."""
        self._store = store

    def size(self, ident: AttemptId) -> int:
        """Bytes of output that have arrived, kept or left out."""
        return self._store.output_size(ident)

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """A piece of the output and its position: ``offset``, or later if some was left out there."""
        return self._store.output(ident, offset, most)


class Logs:
    """Output in files. Pieces may come in any order and more than once."""

    def __init__(self, directory: Path, most: int) -> None:
        """``most``: bytes kept of an attempt; of a longer output, the middle is left out."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._most = most
        #: Bytes written since this coordinator began.
        self.written = 0

    def _spool(self, ident: AttemptId) -> Spool:
        return Spool(self._directory / f"{ident[0]}.{ident[1]}", self._most)

    def size(self, ident: AttemptId) -> int:
        """Bytes of output that have arrived, kept or left out."""
        return self._spool(ident).end

    def add(self, ident: AttemptId, offset: int, data: bytes, skipped: int = 0) -> int:
        """Append the new part of a piece. Returns the new size. A piece beyond the end is dropped and will come again.

        ``skipped``: bytes just before this piece that were left out for good.
        """
        spool = self._spool(ident)
        end = spool.end
        if offset - skipped <= end < offset + len(data):
            self.written += len(data)
            return spool.append(data, offset)
        return end

    def discard(self, ident: AttemptId) -> None:
        """Remove an attempt's output, or what lies under the number of a new one, since the store is an older copy."""
        path = self._directory / f"{ident[0]}.{ident[1]}"
        with suppress(OSError):
            path.unlink(missing_ok=True)
        shutil.rmtree(f"{path}.tail", ignore_errors=True)

    def remove(self, task: int, attempts: int) -> int:
        """Remove the output of a task. Returns its bytes."""
        size = 0
        for attempt in range(1, attempts + 1):
            path = self._directory / f"{task}.{attempt}"
            # Each of its own: an output whose beginning was left out has only last bytes.
            tail = path.with_name(f"{path.name}.tail")
            size += sum(_files(tail))
            shutil.rmtree(tail, ignore_errors=True)
            with suppress(FileNotFoundError):
                size += path.stat().st_size
                path.unlink()
        return size

    def measure(
        self,
        rest: Callable[[float], object],
        unknown: Callable[[Collection[int]], Collection[int]] = lambda _: (),
        goes: Callable[[AttemptId], bool] = lambda _: False,
    ) -> int:
        """Bytes of all output. ``rest`` is called now and then, with seconds, for others to get their turn.

        ``unknown``: which of these tasks nothing is known of. ``goes``: whether the output of an attempt of one of them
        is to be removed; it may be asked twice.
        """
        size = 0
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            while some := list(islice(entries, AT_ONCE)):
                named = [(entry, _attempt(entry.name)) for entry in some]
                strays = unknown({ident[0] for _, ident in named if ident is not None})
                for entry, ident in named:
                    if ident is not None and ident[0] in strays and goes(ident):
                        self.discard(ident)
                    else:
                        size += sum(_sizes(entry))
                rest(0.002)
        return size

    def kept(self, ident: AttemptId) -> int:
        """Bytes of an attempt's output on disk."""
        return self._spool(ident).kept

    def written_at(self, ident: AttemptId) -> float:
        """When an attempt's output was last written to, in seconds since the epoch; 0 if there is none."""
        path = self._directory / f"{ident[0]}.{ident[1]}"
        tail = path.with_name(f"{path.name}.tail")
        latest = 0.0
        for one in (path, tail, *tail.glob("*")):
            with suppress(FileNotFoundError):
                latest = max(latest, one.lstat().st_mtime)
        return latest

    def read(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """A piece of the output and its position: ``offset``, or later if some was left out there."""
        return self._spool(ident).read(offset, most)


def _attempt(name: str) -> AttemptId | None:
    """The attempt whose output has this name, such as 7.1 or 7.1.tail; None if it is none."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def _files(directory: Path) -> Iterator[int]:
    """Bytes of each file below a directory; files may come and go meanwhile."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            yield from _sizes(entry)


def _sizes(entry: os.DirEntry[str]) -> Iterator[int]:
    """Bytes of a file, or of each file below a directory."""
    if entry.is_dir(follow_symlinks=False):
        yield from _files(Path(entry.path))
    else:
        with suppress(FileNotFoundError):
            yield entry.stat(follow_symlinks=False).st_size
