"""What a store asks of a database. Statements are written for SQLite; others translate the few words that differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Transaction(Protocol):
    """Changes that are made together or not at all."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Make a change; returns how many rows it changed."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Make the same change with many values."""
        ...

    def define(self, statements: str) -> None:
        """Change the schema; statements end with semicolons."""
        ...

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read, with the changes of this transaction."""
        ...


class Database(Protocol):
    """Reads and transactions may come from several threads; transactions are made one after the other."""

    #: For messages; without any password.
    label: str
    #: Whether several processes may use it at once.
    shared: bool

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read what has been committed."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Committed, and on disk, when the context ends without an error; undone otherwise."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def split(statements: str) -> list[str]:
    """Statements of a schema one by one; none of them holds a semicolon."""
    return [one.strip() for one in statements.split(";") if one.strip()]
