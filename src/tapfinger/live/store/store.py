"""The store: tasks, history, output, tokens and leadership, in SQLite or PostgreSQL.

Every change is one transaction, which is on disk when ``save`` returns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hashlib import blake2b
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, StoreFailed, TapfingerError
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.protocol.events import LiveEvent, decode_event, encode_fields
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.records import ENDED, LostAttempt, TaskRecord, TaskSpec, without_limits
from tapfinger.live.store import pruning, totals
from tapfinger.live.store.database import Database, Row, Transaction
from tapfinger.live.store.leadership import Leader, Leadership
from tapfinger.live.store.migrations import migrate
from tapfinger.live.store.pruning import EndedTask
from tapfinger.live.store.secrets import Secrets, TaskSecret, add_given, drop_given, drop_owner
from tapfinger.live.store.sqlite import Sqlite
from tapfinger.live.store.sqlite_faults import damaged

#: Fields of a task that may change, in the order of the columns.
_CHANGING = tuple(f.name for f in fields(TaskRecord) if f.name not in ("id", "spec", "owner", "submitted"))
_COLUMNS = ("id", "spec", "owner", "submitted", *_CHANGING)
_changing = attrgetter(*_CHANGING)
_PHASE = _CHANGING.index("phase")
_PLAIN = tuple(_CHANGING.index(name) for name in ("phase", "cancelled", "incomplete"))
_AS_JSON = tuple(_CHANGING.index(name) for name in ("metrics", "warnings", "allocation", "wanted", "lost", "least"))
_SPEC = _COLUMNS.index("spec")
_METRICS, _WARNINGS, _LOST, _LEAST = (_COLUMNS.index(name) for name in ("metrics", "warnings", "lost", "least"))
_PHASES = {phase.value: phase for phase in Phase}
_UPSERT = (
    f"INSERT INTO tasks ({', '.join(_COLUMNS)}, key) VALUES ({', '.join('?' * (len(_COLUMNS) + 1))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM tasks"
_KEEP = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_LEARN = (
    "INSERT INTO learned VALUES (?, ?, ?, ?) ON CONFLICT (type) DO UPDATE SET digest = excluded.digest, "
    "at = excluded.at, state = excluded.state"
)
#: Tasks that are read at a time: some have a megabyte of arguments.
READ = 10
#: Rows that a new leader reads at a time.
RESTORED = 50
_specs = TypeAdapter(TaskSpec)
#: Decodes specifications of the store: a limit that is younger than them does not make them damaged.
_stored = SchemaValidator(without_limits(_specs.core_schema))

#: Ids that are left out when an older copy of a store was put back: more than there are between two copies.
SKIPPED = 1_000_000
#: Name of a small value: what shows that the store is an older copy, until all that it does not know of has ended;
#: empty once the history has it.
OLDER = "older"
#: In ``meta`` of ``save``: the highest id of a task that must never be given out (again).
LAST_ID = "last id"
#: Name of a small value: what tasks have shown to need of resources, by owner and type.
NEEDS = "needs"
#: Name of a small value: true in a copy that no coordinator has used yet.
COPY = "copy"


@dataclass(frozen=True, slots=True)
class Token:
    """A token's hash, name and role; the token itself is known only to its holder."""

    hash: str
    name: str
    role: str
    #: The cluster that an agent may speak for; None for other roles.
    cluster: str | None
    created: float
    #: When it expires, in seconds since the epoch; None for never.
    expires: float | None = None

    def expired(self, now: float) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and now >= self.expires


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an attempt's output."""

    id: AttemptId
    #: Position of its first byte; a piece is refused if the output before it has not arrived yet.
    offset: int
    data: bytes
    #: Approximate number of bytes kept of the attempt: the first and the last ones.
    most: int
    #: Bytes just before this piece that were left out for good.
    skipped: int = 0


def open_database(where: Path | str) -> Database:
    """Open a file, or the PostgreSQL database at this address."""
    if isinstance(where, Path):
        return Sqlite(where)
    if not where.startswith(("postgresql://", "postgres://")):
        raise ConfigError("the address of a store begins with postgresql://, such as postgresql://user@host/database")
    from tapfinger.live.store.postgres import Postgres

    return Postgres(where)


def unusable(database: Database, error: Exception) -> StoreFailed:
    """A store whose content cannot be understood: it was damaged, or changed by someone else."""
    if isinstance(database, Sqlite):
        return damaged(Path(database.label), f"{type(error).__name__}: {error}")
    from tapfinger.live.store import postgres

    return postgres.unusable(database.label, error)


class Store:
    """Reads see committed data. Only the leader can change a shared store."""

    def __init__(self, where: Path | str) -> None:
        """Open or create the store, and update its schema."""
        self._db = open_database(where)
        try:
            migrate(self._db)
        except BaseException as error:
            self._db.close()
            if isinstance(error, Exception) and not isinstance(error, TapfingerError):
                raise unusable(self._db, error) from error
            raise
        self._leadership = Leadership(self._db) if self._db.shared else None
        self.secrets = Secrets(self._db, self._transaction)
        #: Cache of tokens by hash, with the time of expiry: every request needs one.
        self._holders: dict[str, tuple[Token, float]] = {}

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Tell that the store is damaged where its content cannot be understood."""
        try:
            yield
        except TapfingerError:
            raise
        except Exception as error:
            raise unusable(self._db, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        asked = boot_clock()
        with self._db.transaction() as work:
            if self._leadership is not None:
                self._leadership.fence(work)
            yield work
        if self._leadership is not None:
            self._leadership.fenced(asked)

    # ---------------------------------------------------------------- leadership

    @property
    def shared(self) -> bool:
        """Whether several coordinators may use the store at once."""
        return self._leadership is not None

    @property
    def leads_until(self) -> float:
        """End of this coordinator's term, on the boot clock; every transaction extends it."""
        return math.inf if self._leadership is None else self._leadership.until

    def leader(self) -> Leader | None:
        """The leader; None if the store is not shared, or nobody has ever led."""
        return None if self._leadership is None else self._leadership.leader()

    @property
    def epoch(self) -> int:
        """The latest epoch that the store knows of; 0 before the first."""
        if self._leadership is not None:
            return 0 if (leader := self._leadership.leader()) is None else leader.epoch
        with self.understood():
            return int(self.meta("epoch", 0))

    def lead(self, url: str, least: int = 0, older: str = "") -> int | None:
        """Lead, unless another coordinator does. Returns an epoch above all earlier ones, or None.

        ``least``: highest epoch that this coordinator knows of; that of an older copy of the store may be lower.
        ``older``: what shows that this is one. Together with the epoch it is kept for the leader, and ids are left out.
        """

        def note(work: Transaction) -> None:
            if older:
                totals.at_least(work, totals.LAST_TASK, _last_id(work) + SKIPPED)
                work.execute(_KEEP, (OLDER, json.dumps(older)))
                work.execute(_KEEP, (COPY, json.dumps(None)))

        if self._leadership is not None:
            self._leadership.url = url
            return self._leadership.take(least, note)
        epoch = max(self.epoch, least) + 1
        with self._transaction() as work:
            work.execute(_KEEP, ("epoch", json.dumps(epoch)))
            note(work)
        return epoch

    def renew(self) -> None:
        """Extend the term; raises NotLeading if another coordinator leads."""
        with self._transaction():
            pass

    def stand_down(self) -> None:
        """Stop leading: this coordinator can change nothing from now on."""
        if self._leadership is not None:
            self._leadership.drop()

    # --------------------------------------------------------------------- tasks

    def save(
        self,
        records: Iterable[TaskRecord],
        history: Iterable[LiveEvent],
        meta: Mapping[str, Any] | None = None,
        output: Iterable[Piece] = (),
        learned: Iterable[Learned] = (),
        secrets: Iterable[TaskSecret] = (),
    ) -> None:
        """Save all of it or nothing; it is on disk when this returns."""
        records = list(records)
        rows = [_row(record) for record in records]
        lines = [(h.at, h.kind, h.task, h.attempt, h.cluster, encode_fields(h)) for h in history]
        with self._transaction() as work:
            if self._leadership is not None and "epoch" in (meta or {}):
                self._leadership.raise_epoch(work, (meta or {})["epoch"])
            if rows:
                totals.count_ended(work, records, [len(row[_SPEC]) for row in rows])
                work.execute_many(_UPSERT, rows)
            if lines:
                work.execute_many(
                    "INSERT INTO history (at, kind, task, attempt, cluster, data) VALUES (?, ?, ?, ?, ?, ?)", lines
                )
            for name, value in (meta or {}).items():
                if name == LAST_ID:
                    totals.at_least(work, totals.LAST_TASK, value)
                else:
                    work.execute(_KEEP, (name, json.dumps(value)))
            totals.add(work, {totals.OUTPUT: sum(_append(work, piece) for piece in output)})
            for row in learned:
                work.execute(_LEARN, (row.type, row.digest, row.at, json.dumps(row.state)))
            add_given(work, secrets)
            drop_given(work, records)

    def learned(self) -> list[Learned]:
        """What was learned about the speed of task types."""
        rows = self._db.query("SELECT type, digest, at, state FROM learned ORDER BY type")
        with self.understood():
            return [Learned(kind, digest, at, json.loads(state)) for kind, digest, at, state in rows]

    def unended(self) -> list[TaskRecord]:
        """Every task that has not ended: what a new leader must restore."""
        # Most tasks were submitted in batches of equal ones: each specification is decoded and kept once.
        specs: dict[bytes, TaskSpec] = {}
        found: list[TaskRecord] = []
        for phase in self._phases():
            if phase not in {phase.value for phase in ENDED}:
                for rows in self._in_phase(phase):
                    with self.understood():
                        found += [_record(row, specs) for row in rows]
        found.sort(key=attrgetter("id"))
        return found

    def _in_phase(self, phase: str) -> Iterator[list[Row]]:
        """The rows of all tasks in a phase, a few at a time: as they are stored, some are far longer than decoded."""
        query, last = f"{_SELECT} WHERE phase = ? AND id > ? ORDER BY id LIMIT ?", -(2**62)
        while rows := self._db.query(query, (phase, last, RESTORED)):
            yield rows
            last = rows[-1][0]

    def _phases(self) -> Iterator[str]:
        """Every phase that any task has, also one that makes no sense; each takes one look at an index."""
        phase = ""
        while rows := self._db.query("SELECT phase FROM tasks WHERE phase > ? ORDER BY phase LIMIT 1", (phase,)):
            ((phase,),) = rows
            yield phase

    def task(self, ident: int) -> TaskRecord | None:
        """One task, ended or not."""
        rows = self._db.query(f"{_SELECT} WHERE id = ?", (ident,))
        with self.understood():
            return _record(rows[0]) if rows else None

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None = None) -> Iterator[TaskRecord]:
        """The latest tasks in these phases (empty: in any), newest first. ``before``: only smaller ids, for paging.

        They are read a few at a time, since some are long.
        """
        chosen = {phase.value for phase in phases}
        while limit > 0:
            step = min(READ, limit)
            ids = self._latest(chosen, step, 2**62 if before is None else before)
            rows = self._db.query(f"{_SELECT} WHERE id IN ({totals.marks(ids)})", ids) if ids else []
            rows.sort(key=itemgetter(0), reverse=True)
            for row in rows:
                with self.understood():
                    record = _record(row)
                if not phases or record.phase in phases:  # it may have changed meanwhile
                    limit -= 1
                    yield record
            if len(ids) < step:
                return
            before = ids[-1]

    def _latest(self, phases: Iterable[str], limit: int, before: int) -> list[int]:
        """Ids of the latest tasks in these phases, newest first."""
        found: list[Row] = []
        # One query for each phase: an index then has the ids in order.
        for condition, values in [("phase = ? AND ", [phase]) for phase in phases] or [("", [])]:
            query = f"SELECT id FROM tasks WHERE {condition}id < ? ORDER BY id DESC LIMIT ?"
            found += self._db.query(query, (*values, before, limit))
        return sorted((int(ident) for (ident,) in found), reverse=True)[:limit]

    def counts(self) -> dict[str, int]:
        """Number of tasks in each phase; of ended ones, all that there ever were, kept or not."""
        return totals.phases(self._db)

    def by_keys(self, owner: str, keys: Sequence[str]) -> dict[str, TaskRecord]:
        """The tasks that this owner has submitted with these keys."""
        found: dict[str, TaskRecord] = {}
        for first in range(0, len(keys), totals.AT_ONCE):
            some = keys[first : first + totals.AT_ONCE]
            rows = self._db.query(f"{_SELECT} WHERE owner = ? AND key IN ({totals.marks(some)})", (owner, *some))
            with self.understood():
                found |= {record.spec.key or "": record for record in map(_record, rows)}
        return found

    def has_keys(self, owner: str, keys: Sequence[str]) -> bool:
        """Whether this owner has submitted a task with one of these keys; a few keys."""
        query = f"SELECT 1 FROM tasks WHERE owner = ? AND key IN ({totals.marks(keys)}) LIMIT 1"
        return bool(self._db.query(query, (owner, *keys)))

    def owners(self, tasks: Iterable[int]) -> dict[int, str]:
        """The owner of each of these tasks."""
        asked, found = list(tasks), dict[int, str]()
        for first in range(0, len(asked), totals.AT_ONCE):
            some = asked[first : first + totals.AT_ONCE]
            found |= dict(self._db.query(f"SELECT id, owner FROM tasks WHERE id IN ({totals.marks(some)})", some))
        return found

    def next_id(self) -> int:
        """The id of the next task: one above the highest that was ever given out."""
        return _last_id(self._db) + 1

    def history(self, after: int, limit: int, task: int | None = None) -> list[tuple[int, LiveEvent]]:
        """Events after number ``after``, in order, each with its number; ``task``: only of this task."""
        query = "SELECT seq, at, kind, task, attempt, cluster, data FROM history WHERE seq > ?"
        values: list[int] = [after]
        if task is not None:
            query += " AND task = ?"
            values.append(task)
        rows = self._db.query(f"{query} ORDER BY seq LIMIT ?", [*values, limit])
        with self.understood():
            return [(row[0], decode_event(*row[1:])) for row in rows]

    def last_line(self) -> int:
        """Number of the latest event of the history, kept or not."""
        ((last,),) = self._db.query("SELECT coalesce(max(seq), 0) FROM history")
        return max(int(last), totals.total(self._db, totals.LAST_LINE))

    def line_before(self, count: int) -> int:
        """Number of the event before the latest ``count`` that are kept; 0 if there are no more than these."""
        rows = self._db.query("SELECT seq FROM history ORDER BY seq DESC LIMIT 1 OFFSET ?", (count,))
        return int(rows[0][0]) if rows else 0

    # ----------------------------------------------------------------- retention

    @property
    def label(self) -> str:
        """The store's name for messages."""
        return self._db.label

    @property
    def kept(self) -> int:
        """Number of ended tasks in the store."""
        return totals.total(self._db, totals.KEPT)

    @property
    def kept_length(self) -> int:
        """Characters of the specifications of ended tasks in the store."""
        return totals.total(self._db, totals.LENGTH)

    @property
    def output_bytes(self) -> int:
        """Bytes of output in the store."""
        return totals.total(self._db, totals.OUTPUT)

    def oldest(self, limit: int, after: tuple[float, int] = (0.0, 0)) -> list[EndedTask]:
        """Ended tasks, those that ended first come first. ``after``: end and id of the last one already seen."""
        return pruning.oldest(self._db, limit, after)

    def lengths(self, ids: Sequence[int]) -> dict[int, int]:
        """Characters of the specification of each of these tasks."""
        return pruning.lengths(self._db, ids)

    def count_before(self, at: float) -> int:
        """Number of kept tasks that ended before this time."""
        return pruning.count_before(self._db, at)

    def remove_tasks(self, ids: Sequence[int]) -> None:
        """Remove ended tasks with their events and output; their ids are never given out again."""
        with self._transaction() as work:
            pruning.remove_tasks(work, ids)

    def remove_output(self, ids: Sequence[int], size: float) -> int:
        """Remove the output of these tasks, one after another until ``size`` bytes are gone. Returns how many."""
        with self._transaction() as work:
            for done, ident in enumerate(ids):
                if size <= 0:
                    return done
                size -= pruning.remove_output(work, [ident])
        return len(ids)

    def remove_site_events(self, before: float, keep: int, limit: int) -> int:
        """Remove old events that are of no task, at most ``limit`` at once. Returns their number."""
        if numbers := pruning.old_site_events(self._db, before, keep, limit):
            with self._transaction() as work:
                pruning.remove_events(work, numbers)
        return len(numbers)

    def shrink(self, pages: int) -> bool:
        """Give up to this many unused pages of the file back to the disk. Returns whether there are more."""
        return self._db.shrink(pages)

    # -------------------------------------------------------------------- output

    def output_size(self, ident: AttemptId) -> int:
        """Bytes of an attempt's output that have arrived, kept or left out."""
        return _size(self._db, ident)

    def output(self, ident: AttemptId, offset: int, most: int) -> tuple[int, bytes]:
        """A piece of the output and its position: ``offset``, or later if some was left out there."""
        rows = self._db.query(
            "SELECT start, data FROM output WHERE task = ? AND attempt = ? AND start + length(data) > ? "
            "ORDER BY start LIMIT 20",
            (*ident, offset),
        )
        found, begin = b"", offset
        for start, data in rows:
            if not found:
                begin = max(offset, start)
            if start > begin + len(found):
                break  # some was left out here; the next call continues after it
            found += bytes(data)[begin + len(found) - start :]
        return begin, found[:most]

    # ---------------------------------------------------------------------- meta

    def meta(self, name: str, default: Any = None) -> Any:
        """A small value kept under a name."""
        rows = self._db.query("SELECT value FROM meta WHERE name = ?", (name,))
        with self.understood():
            return json.loads(rows[0][0]) if rows else default

    def set_meta(self, name: str, value: Any) -> None:
        """Keep a small value."""
        self.save([], [], {name: value})

    # -------------------------------------------------------------------- tokens

    def add_token(self, token: Token) -> None:
        """Add a token; one of the same name is replaced."""
        with self._transaction() as work:
            work.execute("DELETE FROM tokens WHERE name = ?", (token.name,))
            work.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?)",
                (token.hash, token.name, token.role, token.cluster, token.created, token.expires),
            )
        self._holders.clear()

    def token(self, hashed: str) -> Token | None:
        """The token with this hash. Changes by another process may be seen a second late."""
        found, until = self._holders.get(hashed, (None, 0.0))
        if boot_clock() < until:
            return found
        found = next((Token(*row) for row in self._db.query("SELECT * FROM tokens WHERE hash = ?", (hashed,))), None)
        if found is not None:  # unknown hashes are not cached: there is no end to them
            self._holders[hashed] = (found, boot_clock() + 1.0)
        return found

    def tokens(self) -> list[Token]:
        """All tokens, by name."""
        return [Token(*row) for row in self._db.query("SELECT * FROM tokens ORDER BY name")]

    def is_left(self, name: str) -> bool:
        """Whether tasks belong to this name although it has no token (any more). Looks through all tasks."""
        if self._db.query("SELECT 1 FROM tokens WHERE name = ?", (name,)):
            return False
        return bool(self._db.query("SELECT 1 FROM tasks WHERE owner = ? LIMIT 1", (name,)))

    def remove_token(self, name: str) -> bool:
        """Remove a token and its holder's secrets. Returns whether there was one of that name."""
        with self._transaction() as work:
            drop_owner(work, name)
            removed = work.execute("DELETE FROM tokens WHERE name = ?", (name,)) > 0
        self._holders.clear()
        return removed


def _last_id(where: Database | Transaction) -> int:
    ((last,),) = where.query("SELECT coalesce(max(id), 0) FROM tasks")
    return max(int(last), totals.total(where, totals.LAST_TASK))


def _size(where: Database | Transaction, ident: AttemptId) -> int:
    rows = where.query(
        "SELECT start + length(data) FROM output WHERE task = ? AND attempt = ? ORDER BY start DESC LIMIT 1", ident
    )
    return int(rows[0][0]) if rows else 0


def _append(work: Transaction, piece: Piece) -> int:
    """Append the new part of a piece. One beyond the end is refused and will be sent again.

    Of a long output, the middle is deleted. Returns by how many bytes the store has grown.
    """
    end = _size(work, piece.id)
    start = max(end, piece.offset)
    data = piece.data[start - piece.offset :]
    if not data or piece.offset - piece.skipped > end:
        return 0
    work.execute("INSERT INTO output VALUES (?, ?, ?, ?)", (*piece.id, start, data))
    half = piece.most // 2
    if start + len(data) <= piece.most:
        return len(data)
    middle = "FROM output WHERE task = ? AND attempt = ? AND start >= ? AND start + length(data) <= ?"
    place = (*piece.id, half, start + len(data) - half)
    ((removed,),) = work.query(f"SELECT coalesce(sum(length(data)), 0) {middle}", place)
    if removed:
        work.execute(f"DELETE {middle}", place)
    return len(data) - int(removed)


def _row(record: TaskRecord) -> Row:
    if (record.ended is not None) != (record.phase in ENDED):
        raise AssertionError(f"task {record.id} is {record.phase.value} and has ended at {record.ended}")
    changing = list(_changing(record))
    for n in _PLAIN:
        changing[n] = changing[n].value if n == _PHASE else int(changing[n])
    for n in _AS_JSON:
        # Empty metrics, empty warnings and missing sizes are stored as NULL.
        changing[n] = json.dumps(changing[n]) if changing[n] else None
    spec = _specs.dump_json(record.spec).decode()
    return (record.id, spec, record.owner, record.submitted, *changing, record.spec.key)


def _record(row: Row, specs: dict[bytes, TaskSpec] | None = None) -> TaskRecord:
    """A record from a row in the order of the fields. Must be fast: a new leader may read a hundred thousand rows.

    ``specs``: specifications that were decoded before, by the hash of their text.
    """
    record = TaskRecord(*row)
    if specs is None:
        record.spec = _stored.validate_json(row[1])
    else:
        text = blake2b(row[1].encode(), digest_size=32).digest()
        if (known := specs.get(text)) is None:
            known = specs[text] = _stored.validate_json(row[1])
        record.spec = known
    record.phase = _PHASES[row[4]]
    if record.attempt + record.failures + record.losses + record.resized < 0:  # or no numbers at all
        raise ValueError(f"task {record.id} has negative numbers")
    if not math.isfinite(record.submitted + record.not_before + (record.started or 0.0)):  # or no times at all
        raise ValueError(f"task {record.id} has impossible times")
    record.cancelled, record.incomplete = bool(record.cancelled), bool(record.incomplete)
    record.metrics = json.loads(row[_METRICS]) if row[_METRICS] else {}
    record.least = json.loads(row[_LEAST]) if row[_LEAST] else {}
    record.warnings = tuple(json.loads(row[_WARNINGS])) if row[_WARNINGS] else ()
    for name in ("allocation", "wanted"):
        if (size := row[_COLUMNS.index(name)]) is not None:
            setattr(record, name, tuple(json.loads(size)))
    if row[_LOST] is not None:
        cluster, agent, allocation, started = json.loads(row[_LOST])
        record.lost = LostAttempt(cluster, agent, tuple(allocation), started)
    return record
