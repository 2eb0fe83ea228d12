"""The embedded database: one file, one process."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import StoreFailed
from tapfinger.live.store.database import Row, split
from tapfinger.live.store.sqlite_faults import FAULTS, MISTAKES, explained, explaining

logger = logging.getLogger(__name__)

#: Seconds to wait for another program that has locked the file.
PATIENCE = 5.0
#: Most bytes in use of an older file that is rewritten at the start, so that it can shrink from then on: a few seconds.
REWRITE = 200 * 1024 * 1024


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, values).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)

    def define(self, statements: str) -> None:
        for statement in split(statements):
            self._connection.execute(statement)

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()


class Sqlite:
    """Write-ahead log, full sync. One connection writes; each thread that reads has one of its own."""

    shared = False

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        self._path = path
        self.label = str(path)
        #: The file and its log, as text: paths are slow, and each commit looks at both.
        self._paths = (self.label, f"{path}-wal")
        self._writing = threading.Lock()
        self._own = threading.local()
        self._open: list[sqlite3.Connection] = []
        try:
            with explaining(path):
                self._writer = self._prepare()
                self._reader()
                #: Bytes that the file cannot be shorter than, unless someone has cut it. A file that was to shrink when
                #: its coordinator was killed is longer than what is in it, until SQLite cuts it itself.
                self._least = min(path.stat().st_size, _length(self._writer))
        except BaseException:
            self.close()
            raise
        #: Identity of the file and of its log; of the log, from the first transaction on.
        self._files: dict[str, tuple[int, int]] = {}

    def _prepare(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The store holds environments of tasks, so only its owner may read it. SQLite's other files inherit this.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        writer = self._connect()
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file, or of one that is rewritten
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = FULL")
        self._make_shrinkable(writer)
        return writer

    def _connect(self) -> sqlite3.Connection:
        """A new connection; a file that is gone is not made again."""
        where = f"{self._path.absolute().as_uri()}?mode=rw"
        made = sqlite3.connect(where, isolation_level=None, check_same_thread=False, timeout=PATIENCE, uri=True)
        self._open.append(made)
        return made

    def _reader(self) -> sqlite3.Connection:
        """The reading connection of the current thread."""
        reader: sqlite3.Connection | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = self._connect()
            reader.execute("PRAGMA query_only = TRUE")
        return reader

    def _make_shrinkable(self, writer: sqlite3.Connection) -> None:
        """Rewrite a file of an older version that could never shrink, if that takes no longer than a few seconds."""
        ((mode,),) = writer.execute("PRAGMA auto_vacuum").fetchall()
        ((pages,), (free,), (size,)) = (
            writer.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        if mode != 0 or pages <= 1:
            return
        if (used := (pages - free) * size) > REWRITE:
            logger.warning(
                "%s has %d MB in use, too much to be rewritten at the start: what is pruned makes room in it, but it "
                "does not become smaller until 'tapfinger backup' and 'tapfinger restore' have rewritten it",
                self.label,
                used // 1024**2,
            )
            return
        began = time.monotonic()
        writer.execute("VACUUM")
        logger.warning("%s was rewritten in %.1f s; it can shrink from now on", self.label, time.monotonic() - began)

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read committed data."""
        with explaining(self._path):
            return self._reader().execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[_SqliteTransaction]:
        """A transaction, on disk when the context ends."""
        with self._writing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                yield _SqliteTransaction(self._writer)
                self._check_files()
                self._writer.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):  # a full disk has ended the transaction already
                    self._writer.execute("ROLLBACK")
                if isinstance(error, FAULTS) and not isinstance(error, MISTAKES):
                    raise explained(self._path, error) from None
                raise

    def _check_files(self) -> None:
        """Refuse to commit to files that are no longer those of the store: nobody would find the changes again."""
        for path in self._paths:
            try:
                found = os.stat(path)
            except OSError as error:
                raise self._changed(path, f"is gone ({error.strerror})") from None
            if self._files.setdefault(path, (found.st_dev, found.st_ino)) != (found.st_dev, found.st_ino):
                raise self._changed(path, "was replaced by another file")
            if path == self.label and found.st_size < self._least:
                raise self._changed(path, f"was cut from {self._least} to {found.st_size} bytes")

    def _changed(self, path: str, what: str) -> StoreFailed:
        return StoreFailed(
            f"{path} {what} while the coordinator used it; nothing more is acknowledged. Put the file or a copy back "
            f"(tapfinger restore COPY --state {self._path.parent}), and start again"
        )

    def shrink(self, pages: int) -> bool:
        """Give up to this many unused pages back to the disk. Returns whether there are more."""
        ((mode,),) = self.query("PRAGMA auto_vacuum")
        if mode == 0:
            return False
        with self.transaction() as work:
            work.query(f"PRAGMA incremental_vacuum({pages:d})")
            ((left,),) = work.query("PRAGMA freelist_count")
            self._least = min(self._least, _length(self._writer))
        return bool(left)

    def close(self) -> None:
        """Close all connections."""
        for connection in reversed(self._open):
            with suppress(sqlite3.Error):
                connection.close()


def _length(connection: sqlite3.Connection) -> int:
    """Bytes of all pages that are in use or free; some may be in the log alone."""
    (count,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(count) * int(size)
