"""What must survive: tasks, their history, tokens, and who is who. SQLite, behind one thin layer.

Every change is one transaction that is on disk when ``save`` returns: write-ahead log, full sync.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError
from tapfinger.live.tasks import ENDED, Happening, TaskRecord, TaskSpec

#: Each brings the schema one version further; none is ever changed once it was released.
MIGRATIONS = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY, spec TEXT NOT NULL, owner TEXT NOT NULL, key TEXT, submitted REAL NOT NULL,
        phase TEXT NOT NULL, attempt INTEGER NOT NULL, cluster TEXT, agent TEXT, allocation TEXT,
        started REAL, ended REAL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
        cancelled INTEGER NOT NULL, code INTEGER, reason TEXT NOT NULL, output INTEGER NOT NULL);
    CREATE UNIQUE INDEX tasks_by_key ON tasks (owner, key) WHERE key IS NOT NULL;
    CREATE INDEX tasks_alive ON tasks (phase) WHERE ended IS NULL;
    CREATE TABLE history (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL,
        task INTEGER, attempt INTEGER, cluster TEXT, detail TEXT NOT NULL);
    CREATE INDEX history_of_task ON history (task) WHERE task IS NOT NULL;
    CREATE TABLE tokens (
        hash TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL, cluster TEXT, created REAL NOT NULL);
    """,
    "ALTER TABLE tokens ADD COLUMN expires DOUBLE PRECISION",
)

#: What may change in the life of a task, in the order of the columns.
_CHANGING = tuple(f.name for f in fields(TaskRecord) if f.name not in ("id", "spec", "owner", "submitted"))
_COLUMNS = ("id", "spec", "owner", "submitted", *_CHANGING)
_UPSERT = (
    f"INSERT INTO tasks ({', '.join(_COLUMNS)}, key) VALUES ({', '.join('?' * (len(_COLUMNS) + 1))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM tasks"
_specs = TypeAdapter(TaskSpec)


@dataclass(frozen=True, slots=True)
class Token:
    """Who may do what; the token itself is known only to its holder."""

    hash: str
    name: str
    role: str
    #: The only cluster that an agent may speak for.
    cluster: str | None
    created: float
    #: When it stops working; None for never.
    expires: float | None = None

    def expired(self, now: float) -> bool:
        """Whether it works no more."""
        return self.expires is not None and now >= self.expires


class Store:
    """The embedded store; one process uses it at a time, from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create it, and bring its schema up to date."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path} cannot be used as a store: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _migrate(self) -> None:
        self._db.execute("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY)")
        (version,) = self._db.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"{self._path} has schema {version}, this version of TapFinger knows {len(MIGRATIONS)}; use a newer one"
            )
        for number in range(version + 1, len(MIGRATIONS) + 1):
            with self._transaction():
                for statement in MIGRATIONS[number - 1].split(";"):
                    self._db.execute(statement)
                self._db.execute("INSERT INTO migrations VALUES (?)", (number,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # --------------------------------------------------------------------- tasks

    def save(self, records: Iterable[TaskRecord], history: Iterable[Happening]) -> None:
        """All of it or nothing; on disk when this returns."""
        rows = [_row(record) for record in records]
        lines = [(h.at, h.kind, h.task, h.attempt, h.cluster, h.detail) for h in history]
        if not rows and not lines:
            return
        with self._transaction():
            self._db.executemany(_UPSERT, rows)
            self._db.executemany(
                "INSERT INTO history (at, kind, task, attempt, cluster, detail) VALUES (?, ?, ?, ?, ?, ?)", lines
            )

    def unended(self) -> list[TaskRecord]:
        """Every task that waits or is on a cluster: what a coordinator must know."""
        return [_record(row) for row in self._db.execute(f"{_SELECT} WHERE ended IS NULL ORDER BY id")]

    def task(self, ident: int) -> TaskRecord | None:
        """One task, ended or not."""
        row = self._db.execute(f"{_SELECT} WHERE id = ?", (ident,)).fetchone()
        return None if row is None else _record(row)

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None) -> list[TaskRecord]:
        """The latest tasks in these phases (none: in any), from the newest on; ``before`` to page on."""
        where, values = ["1"], []
        if phases:
            where.append(f"phase IN ({', '.join('?' * len(phases))})")
            values += [phase.value for phase in phases]
        if before is not None:
            where.append("id < ?")
            values.append(str(before))
        rows = self._db.execute(f"{_SELECT} WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", [*values, limit])
        return [_record(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """How many tasks are in each phase."""
        return dict(self._db.execute("SELECT phase, count(*) FROM tasks GROUP BY phase"))

    def by_key(self, owner: str, key: str) -> TaskRecord | None:
        """The task that this owner has submitted under this key."""
        row = self._db.execute(f"{_SELECT} WHERE owner = ? AND key = ?", (owner, key)).fetchone()
        return None if row is None else _record(row)

    def next_id(self) -> int:
        """One more than any task has."""
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM tasks").fetchone()
        return int(last) + 1

    def history(self, after: int, limit: int, task: int | None = None) -> list[tuple[int, Happening]]:
        """What happened, in order, with the number of each line."""
        query = "SELECT seq, at, kind, task, attempt, cluster, detail FROM history WHERE seq > ?"
        values: list[int] = [after]
        if task is not None:
            query += " AND task = ?"
            values.append(task)
        rows = self._db.execute(f"{query} ORDER BY seq LIMIT ?", [*values, limit])
        return [(row[0], Happening(*row[1:])) for row in rows]

    # ---------------------------------------------------------------------- meta

    def meta(self, name: str, default: Any = None) -> Any:
        """A small value kept under a name."""
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def set_meta(self, name: str, value: Any) -> None:
        """Keep a small value."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def new_epoch(self) -> int:
        """A number above all that were given out before."""
        epoch = int(self.meta("epoch", 0)) + 1
        self.set_meta("epoch", epoch)
        return epoch

    # -------------------------------------------------------------------- tokens

    def add_token(self, token: Token) -> None:
        """Let someone in; another token of that name is replaced."""
        with self._transaction():
            self._db.execute("DELETE FROM tokens WHERE name = ?", (token.name,))
            self._db.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?)",
                (token.hash, token.name, token.role, token.cluster, token.created, token.expires),
            )

    def token(self, hashed: str) -> Token | None:
        """Whose hash this is."""
        row = self._db.execute("SELECT * FROM tokens WHERE hash = ?", (hashed,)).fetchone()
        return None if row is None else Token(*row)

    def tokens(self) -> list[Token]:
        """All there are."""
        return [Token(*row) for row in self._db.execute("SELECT * FROM tokens ORDER BY name")]

    def remove_token(self, name: str) -> bool:
        """Let someone in no more; whether there was one of that name."""
        with self._transaction():
            return self._db.execute("DELETE FROM tokens WHERE name = ?", (name,)).rowcount > 0


def _row(record: TaskRecord) -> tuple[Any, ...]:
    if (record.ended is not None) != (record.phase in ENDED):
        raise AssertionError(f"task {record.id} is {record.phase.value} and has ended at {record.ended}")
    changing = [getattr(record, name) for name in _CHANGING]
    changing[_CHANGING.index("phase")] = record.phase.value
    changing[_CHANGING.index("allocation")] = None if record.allocation is None else json.dumps(record.allocation)
    spec = _specs.dump_json(record.spec).decode()
    return (record.id, spec, record.owner, record.submitted, *changing, record.spec.key)


def _record(row: tuple[Any, ...]) -> TaskRecord:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["spec"] = _specs.validate_json(values["spec"])
    values["phase"] = Phase(values["phase"])
    values["cancelled"] = bool(values["cancelled"])
    if values["allocation"] is not None:
        values["allocation"] = tuple(json.loads(values["allocation"]))
    return TaskRecord(**values)
