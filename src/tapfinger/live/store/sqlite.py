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
    """Write-ahead log, full sync. One connection writes; the other reads only committed data."""

    shared = False

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.label = str(path)
        self._writing, self._reading = threading.Lock(), threading.Lock()
        try:
            # The store holds environments of tasks, so only its owner may read it. SQLite's other files inherit this.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer, self._reader = (
                sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0) for _ in range(2)
            )
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = FULL")
            self._reader.execute("PRAGMA query_only = TRUE")
        except (OSError, sqlite3.DatabaseError) as error:
            raise ConfigError(f"{path} cannot be used as a store: {error}") from None

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read committed data."""
        with self._reading:
            return self._reader.execute(statement, values).fetchall()

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
        """Close both connections."""
        self._reader.close()
        self._writer.close()
