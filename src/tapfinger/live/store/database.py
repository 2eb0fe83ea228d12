"""What a store needs from a database. Statements are written for SQLite; others translate the few words that differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Transaction(Protocol):
    """Changes that are made together or not at all."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement. Returns the number of changed rows."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run the same statement with many rows of values."""
        ...

    def define(self, statements: str) -> None:
        """Change the schema; statements end with semicolons."""
        ...

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read, including the changes of this transaction."""
        ...


class Database(Protocol):
    """Reads and transactions may come from several threads; transactions run one after the other."""

    #: Name for messages, without a password.
    label: str
    #: Whether several processes may use the database at once.
    shared: bool

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Read committed data."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction: committed and on disk when the context ends without an error, rolled back otherwise."""
        ...

    def shrink(self, pages: int) -> bool:
        """Give up to this many unused pages back to the disk. Returns whether there are more."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


def split(statements: str) -> list[str]:
    """The single statements of a schema; none of them may contain a semicolon."""
    return [one.strip() for one in statements.split(";") if one.strip()]
