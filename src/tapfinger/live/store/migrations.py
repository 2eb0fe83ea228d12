"""The schema of the store, version by version, and the conversion of rows that older versions wrote.

Each step raises the schema by one version; a step never changes once it is released.
"""

from __future__ import annotations

import calendar
import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tapfinger.errors import ConfigError
from tapfinger.live.protocol import events, words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.store.database import Database, Transaction

logger = logging.getLogger(__name__)

#: Rows of the history that are rewritten at once.
CHUNK = 5_000

# ------------------------------------------------------- version 7: history as data


def _make_typed(work: Transaction) -> None:
    """Turn text in ``detail`` into JSON fields in ``data``. This is the only code that parses such text."""
    work.define("ALTER TABLE history RENAME COLUMN detail TO data")
    seq = 0
    while rows := work.query(
        "SELECT h.seq, h.at, h.kind, h.task, h.attempt, h.cluster, h.data, t.spec FROM history AS h "
        "LEFT JOIN tasks AS t ON t.id = h.task AND h.kind = 'submitted' WHERE h.seq > ? ORDER BY h.seq LIMIT ?",
        (seq, CHUNK),
    ):
        seq = rows[-1][0]
        lines = [(events.encode_fields(typed_line(*row[1:])), row[0]) for row in rows]
        work.execute_many("UPDATE history SET data = ? WHERE seq = ?", lines)


def typed_line(
    at: float, kind: str, task: int | None, attempt: int | None, cluster: str | None, detail: str, spec: str | None
) -> LiveEvent:
    """The event of an old row. The old text is kept wherever the text of the event would differ from it."""
    own: dict[str, Any] = {}
    with suppress(ValueError, AttributeError):
        if (reader := _READERS.get(kind)) is not None:
            own = reader(detail)
        if spec is not None:
            given = json.loads(spec)
            own = {name: given[name] for name in ("type", "minimum", "maximum", "clusters") if given.get(name)}
    made = events.make_event(at, kind, task, attempt, cluster, own)
    if words.detail(made) == detail:
        return made
    return events.OtherEvent(at, task, attempt, cluster, kind, detail)


def _amounts(described: str) -> dict[str, float]:
    """``2 cpu, 1 gpu`` -> amounts by name."""
    pairs = (part.split(" ", 1) for part in described.split(", "))
    return {name: float(amount) for amount, name in pairs}


def _granted(detail: str) -> dict[str, Any]:
    size, _, note = detail.partition(": ")
    try:
        return {"allocation": _amounts(size), "note": note}
    except ValueError:
        return {"note": detail}


_ENDED = re.compile(r"(?P<result>\w+)(?: with code (?P<code>-?\d+))?(?:: (?P<reason>.*))?", re.DOTALL)
_DRIFT = re.compile(r"(.*): tasks take (\S+) times as long as before, since (.*) UTC", re.DOTALL)


def _ended(detail: str) -> dict[str, Any]:
    found = _ENDED.fullmatch(detail)
    own = {name: value for name, value in found.groupdict().items() if value} if found else {}
    return own | ({"code": int(own["code"])} if "code" in own else {})


def _drift(detail: str) -> dict[str, Any]:
    found = _DRIFT.fullmatch(detail)
    if found is None:
        return {}
    since = calendar.timegm(time.strptime(found[3], "%Y-%m-%d %H:%M:%S"))
    return {"type": found[1], "factor": float(found[2]), "since": float(since)}


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "granted": _granted,
    "resizing": lambda detail: {"allocation": _amounts(detail)},
    "resized": lambda detail: {"allocation": _amounts(detail)},
    "ended": _ended,
    "refused": lambda detail: {"result": detail.removeprefix("old attempt: ")},
    "warning": lambda detail: {"text": detail},
    "joined": lambda detail: {"agent": detail},
    "fault": lambda detail: {"text": detail},
    "profile drift": _drift,
    "profile restarted": lambda detail: {"type": detail.split(": its configured profile is", 1)[0]},
}

# -------------------------------------------------------------------------- versions

#: Statements, or a function that changes the schema within a transaction.
MIGRATIONS: tuple[str | Callable[[Transaction], None], ...] = (
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
    """
    CREATE TABLE leader (
        one INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, url TEXT NOT NULL, until REAL NOT NULL, backend INTEGER);
    CREATE TABLE output (
        task INTEGER NOT NULL, attempt INTEGER NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (task, attempt, start));
    CREATE INDEX tasks_by_phase ON tasks (phase, id);
    """,
    """
    ALTER TABLE tasks ADD COLUMN wanted TEXT;
    ALTER TABLE tasks ADD COLUMN resized INTEGER NOT NULL DEFAULT 0;
    """,
    "ALTER TABLE tokens ADD COLUMN expires REAL;",
    """
    ALTER TABLE tasks ADD COLUMN progress REAL;
    ALTER TABLE tasks ADD COLUMN metrics TEXT;
    ALTER TABLE tasks ADD COLUMN incomplete INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN warnings TEXT;
    """,
    "CREATE TABLE learned (type TEXT PRIMARY KEY, digest TEXT NOT NULL, at REAL NOT NULL, state TEXT NOT NULL);",
    _make_typed,
    """
    ALTER TABLE tasks ADD COLUMN setbacks INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN lost_in_a_row INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN not_before REAL NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN lost TEXT;
    ALTER TABLE tasks ADD COLUMN warned INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE tasks ADD COLUMN results TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN results_until REAL;
    """,
    # Totals, so that nobody counts rows; and indexes of what a new leader reads and of what is pruned.
    """
    CREATE TABLE totals (name TEXT PRIMARY KEY, number INTEGER NOT NULL);
    INSERT INTO totals SELECT phase, count(*) FROM tasks GROUP BY phase;
    INSERT INTO totals SELECT 'ended tasks kept', count(*) FROM tasks WHERE ended IS NOT NULL;
    INSERT INTO totals SELECT 'bytes of output', coalesce(sum(length(data)), 0) FROM output;
    DROP INDEX tasks_alive;
    CREATE INDEX tasks_alive ON tasks (id) WHERE ended IS NULL;
    CREATE INDEX tasks_by_end ON tasks (ended, id) WHERE ended IS NOT NULL;
    CREATE INDEX history_of_site ON history (at) WHERE task IS NULL;
    """,
    # ``task``: the only task that may use it, or 0 for every task of its owner from number ``since`` on.
    """
    CREATE TABLE secrets (
        owner TEXT NOT NULL, name TEXT NOT NULL, task INTEGER NOT NULL, since INTEGER NOT NULL, at REAL NOT NULL,
        value TEXT NOT NULL, PRIMARY KEY (owner, name, task));
    CREATE INDEX secrets_of_task ON secrets (task);
    """,
    # What every submission had to write, and is found by ``tasks_by_phase`` as well.
    """
    DROP INDEX tasks_alive;
    DELETE FROM totals WHERE name IN ('queued', 'placed', 'running');
    """,
    "INSERT INTO totals SELECT 'length of ended tasks kept', coalesce(sum(length(spec)), 0) FROM tasks "
    "WHERE ended IS NOT NULL;",
    "ALTER TABLE tasks ADD COLUMN least TEXT;",
)


def migrate(database: Database) -> None:
    """Update a store's schema in one transaction; refuses a store that a newer version has written."""
    with database.transaction() as work:
        work.define("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY)")
        ((version,),) = work.query("SELECT coalesce(max(version), 0) FROM migrations")
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"{database.label} has schema {version}, this version of TapFinger knows {len(MIGRATIONS)}; use a "
                "newer one"
            )
        if 0 < version < len(MIGRATIONS):
            logger.warning(
                "%s is brought from schema %d to %d; with millions of events this takes up to a minute",
                database.label,
                version,
                len(MIGRATIONS),
            )
        for number, step in enumerate(MIGRATIONS[version:], version + 1):
            if callable(step):
                step(work)
            else:
                work.define(step)
            work.execute("INSERT INTO migrations VALUES (?)", (number,))
