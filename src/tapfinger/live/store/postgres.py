"""A PostgreSQL database, which several coordinators may share. Needs the extra ``postgres``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tapfinger.errors import ConfigError, MissingDependency, StoreFailed, StoreUnavailable
from tapfinger.live.store.database import Row, split

if TYPE_CHECKING:
    import psycopg

#: Seconds after which the server ends a session that is idle within a transaction, and releases its locks: a suspended
#: coordinator must not keep another one from leading.
IDLE = 3.0

#: Connection settings for unreachable servers; settings in the address take precedence.
_DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5000,
    "keepalives_idle": 5,
    "application_name": "tapfinger",
}

#: Words in SQLite schemas -> their counterparts in PostgreSQL.
_TYPES = {
    "INTEGER PRIMARY KEY AUTOINCREMENT": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
}
_WORDS = re.compile("|".join(rf"\b{word}\b" for word in _TYPES))


@lru_cache(maxsize=256)
def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _plain(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values without NUL, which agents may send in a reason but PostgreSQL's text cannot hold."""
    return tuple(
        v.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(v, str) and "\0" in v else v for v in values
    )


def unusable(label: str, error: Exception) -> StoreFailed:
    """A database whose tables, rights or rows are not as they must be."""
    return StoreFailed(
        f"the store {label} cannot be used: {' '.join(str(error).split())}. Look whether someone has changed its "
        "tables or rights; if so, put a dump of it back"
    )


class _PostgresTransaction:
    def __init__(self, cursor: psycopg.Cursor[Row]) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._cursor.execute(_translated(statement), _plain(values)).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._cursor.executemany(_translated(statement), map(_plain, rows))

    def define(self, statements: str) -> None:
        # One coordinator at a time: even CREATE TABLE IF NOT EXISTS can fail if two run it at once.
        self._cursor.execute("SELECT pg_advisory_xact_lock(hashtext('tapfinger schema'))")
        for statement in split(statements):
            self._cursor.execute(_WORDS.sub(lambda word: _TYPES[word[0]], statement).encode())

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._cursor.execute(_translated(statement), _plain(values)).fetchall()


class _Session:
    """One connection, which reconnects after a loss; the caller at that time gets StoreUnavailable."""

    def __init__(self, label: str, connect: Callable[[], psycopg.Connection[Row]]) -> None:
        self._label = label
        self._connect = connect
        self._connection: psycopg.Connection[Row] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def use(self) -> Iterator[psycopg.Connection[Row]]:
        import psycopg

        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                yield self._connection
            except psycopg.Error as error:
                lost = self._connection is None or self._connection.closed
                # A server that was a copy and is not yet the original refuses to write: others may know the right one.
                passing = psycopg.OperationalError | psycopg.InterfaceError | psycopg.errors.ReadOnlySqlTransaction
                if not lost and not isinstance(error, passing):
                    if isinstance(error, psycopg.ProgrammingError | psycopg.InternalError):  # tables or rights
                        raise unusable(self._label, error) from None
                    raise
                self._drop()
                raise StoreUnavailable(f"the database cannot be reached: {' '.join(str(error).split())}") from None

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    def read(self, statement: str, values: Sequence[Any]) -> list[Row]:
        with self.use() as connection:
            return connection.execute(_translated(statement), _plain(values)).fetchall()

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self._lock:
            self._drop()


class Postgres:
    """One connection for writing, and one for each thread that reads."""

    shared = True

    def __init__(self, url: str) -> None:
        """Connect. A password that is not in the address is taken from PGPASSWORD or ~/.pgpass, as with psql."""
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise MissingDependency(
                "a store in PostgreSQL needs the package psycopg: pip install 'tapfinger[postgres]'"
            ) from None
        try:
            self._given = {**_DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.ProgrammingError:  # its message would show the password
            raise ConfigError(
                "the address of the store cannot be read; it looks like postgresql://user@host:5432/database"
            ) from None
        user, host = self._given.get("user"), self._given.get("host", "")
        self.label = f"postgresql://{f'{user}@' if user else ''}{host}/{self._given.get('dbname', '')}"
        self._writer = _Session(self.label, self._connect)
        self._own = threading.local()
        self._readers: list[_Session] = []
        try:
            self._check()
        except StoreUnavailable as error:
            raise ConfigError(f"the store {self.label} cannot be used: {error}") from None

    def _connect(self) -> psycopg.Connection[Row]:
        import psycopg

        connection = psycopg.connect("", autocommit=True, **self._given)
        connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE:g}s'".encode())
        # Commits must be on disk before anyone is told, whatever the server's default; stricter settings stay.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        return connection

    def _check(self) -> None:
        ((encoding,),) = self.query("SELECT current_setting('server_encoding')")
        if encoding not in ("UTF8", b"UTF8"):
            self.close()
            raise ConfigError(
                f"the store {self.label} is not in UTF8; create the database with: createdb --encoding UTF8 "
                "--template template0 NAME"
            )

    def _reader(self) -> _Session:
        """The reading session of the current thread."""
        reader: _Session | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = _Session(self.label, self._connect)
            self._readers.append(reader)
        return reader

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read committed data."""
        reader = self._reader()
        old = reader.connected
        try:
            return reader.read(statement, values)
        except StoreUnavailable:
            if not old:
                raise
            return reader.read(statement, values)  # the connection was lost earlier, and reading can be repeated

    @contextmanager
    def transaction(self) -> Iterator[_PostgresTransaction]:
        """A transaction, on the server's disk when the context ends."""
        with self._writer.use() as connection, connection.transaction(), connection.cursor() as cursor:
            yield _PostgresTransaction(cursor)

    def shrink(self, _pages: int) -> bool:
        """Do nothing: the server's autovacuum makes room."""
        return False

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers:
            reader.close()
        self._writer.close()
