"""The embedded database: one file, one process."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.store.database import Row, split


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
    """Write-ahead log, full sync. One connection writes; each thread that reads committed data has one of its own.

    So nobody who reads much can keep another thread waiting.
    """

    shared = False

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.label = str(path)
        self._path = path
        self._writing = threading.Lock()
        self._own = threading.local()
        self._readers: list[sqlite3.Connection] = []
        try:
            # The store holds environments of tasks, so only its owner may read it. SQLite's other files inherit this.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer = self._connect()
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = FULL")
            self._reader()
        except (OSError, sqlite3.DatabaseError) as error:
            raise ConfigError(f"{path} cannot be used as a store: {error}") from None

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)

    def _reader(self) -> sqlite3.Connection:
        """The reading connection of the current thread."""
        reader: sqlite3.Connection | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = self._connect()
            reader.execute("PRAGMA query_only = TRUE")
            self._readers.append(reader)
        return reader

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read committed data."""
        return self._reader().execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[_SqliteTransaction]:
        """A transaction, on disk when the context ends."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteTransaction(self._writer)
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers:
            reader.close()
        self._writer.close()
