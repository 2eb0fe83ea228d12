"""Secrets: values that tasks get as environment variables, and that nobody is ever shown.

A secret is its owner's, for all their later tasks, or was given with one task and is deleted when that task ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tapfinger.errors import ConfigError
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.live.store.database import Database, Transaction
from tapfinger.live.store.totals import marks

#: Most secrets that an owner may keep.
MAX_KEPT = 64
#: Most values that an owner may have given with tasks that have not ended, and most characters of all of them: they
#: are saved in one transaction, and each task has a copy.
MAX_GIVEN, MAX_GIVEN_TEXT = 1000, 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskSecret:
    """A value that was given with one task."""

    owner: str
    name: str
    task: int
    at: float
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """What may be known of a secret."""

    name: str
    #: When its value was set, in seconds since the epoch.
    at: float


class Secrets:
    """The secrets in a store."""

    def __init__(self, database: Database, transaction: Callable[[], AbstractContextManager[Transaction]]) -> None:
        """``transaction``: begins a transaction in which the store may be changed."""
        self._db = database
        self._transaction = transaction

    def keep(self, owner: str, name: str, value: str, since: int, now: float) -> None:
        """Keep a secret for its owner's tasks. A new one is for tasks from number ``since`` on.

        Earlier tasks cannot get it: they may be those of someone else who had this name.
        """
        with self._transaction() as work:
            known = [row[0] for row in work.query("SELECT name FROM secrets WHERE owner = ? AND task = 0", (owner,))]
            if name not in known and len(known) >= MAX_KEPT:
                raise ConfigError(f"{owner} has {MAX_KEPT} secrets, which is the most; remove one first")
            work.execute(
                "INSERT INTO secrets (owner, name, task, since, at, value) VALUES (?, ?, 0, ?, ?, ?) "
                "ON CONFLICT (owner, name, task) DO UPDATE SET at = excluded.at, value = excluded.value",
                (owner, name, since, now, value),
            )

    def kept(self, owner: str) -> list[SecretInfo]:
        """The secrets that an owner keeps, by name."""
        rows = self._db.query("SELECT name, at FROM secrets WHERE owner = ? AND task = 0 ORDER BY name", (owner,))
        return [SecretInfo(*row) for row in rows]

    def remove(self, owner: str, name: str) -> bool:
        """Remove a secret. Returns whether there was one of that name."""
        with self._transaction() as work:
            return work.execute("DELETE FROM secrets WHERE owner = ? AND name = ? AND task = 0", (owner, name)) > 0

    def given(self, owner: str) -> tuple[int, int]:
        """How many values an owner has given with tasks that have not ended, and their characters."""
        ((count, length),) = self._db.query(
            "SELECT count(*), coalesce(sum(length(value)), 0) FROM secrets WHERE owner = ? AND task > 0", (owner,)
        )
        return int(count), int(length)

    def values(self, owner: str, names: Sequence[str], task: int) -> dict[str, str | None]:
        """The values for a task; None where there is none for it (any more). No others are read: they may be long."""
        rows = self._db.query(
            f"SELECT name, value FROM secrets WHERE owner = ? AND name IN ({marks(names)}) "
            "AND (task = ? OR (task = 0 AND since <= ?)) ORDER BY task",
            (owner, *names, task, task),
        )
        found: Mapping[str, str] = dict(rows)  # what was given with the task comes last, and wins
        return {name: found.get(name) for name in names}


def add_given(work: Transaction, secrets: Iterable[TaskSecret]) -> None:
    """Save values together with the tasks that they were given with."""
    rows = [(s.owner, s.name, s.task, s.task, s.at, s.value) for s in secrets]
    if rows:
        work.execute_many("INSERT INTO secrets (owner, name, task, since, at, value) VALUES (?, ?, ?, ?, ?, ?)", rows)


def drop_given(work: Transaction, records: Iterable[TaskRecord]) -> None:
    """Delete what was given with tasks that have ended."""
    ended = [(record.id,) for record in records if record.spec.secrets and record.phase in ENDED]
    if ended:
        work.execute_many("DELETE FROM secrets WHERE task = ?", ended)


def drop_owner(work: Transaction, owner: str) -> None:
    """Delete the secrets that an owner keeps: whoever gets this name next must not get them."""
    work.execute("DELETE FROM secrets WHERE owner = ? AND task = 0", (owner,))
