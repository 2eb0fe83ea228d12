"""Numbers about the store that must not cost what has ever run: kept in a table, changed with what they count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tapfinger.core.contract import Phase
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.live.store.database import Database, Transaction

#: Names in the table beside the phases: ended tasks that are kept, characters of their specifications as they are
#: stored, and bytes of output in the store.
KEPT, LENGTH, OUTPUT = "ended tasks kept", "length of ended tasks kept", "bytes of output"
#: The highest task id and event number that were ever removed: neither is given out again.
LAST_TASK, LAST_LINE = "last task removed", "last event removed"

#: Most values in one statement.
AT_ONCE = 500
#: Phases of tasks that have not ended. They are counted when someone asks: a row that every submission changes would
#: be written with each of them.
UNENDED = tuple(phase.value for phase in Phase if phase not in ENDED)

_ENDED = frozenset(phase.value for phase in ENDED)
_ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = totals.number + excluded.number"
_RAISE = (
    "INSERT INTO totals VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = excluded.number "
    "WHERE totals.number < excluded.number"
)


def marks(values: Sequence[object]) -> str:
    """Placeholders for these values."""
    return ", ".join("?" * len(values))


def portions(values: Sequence[int]) -> Iterable[Sequence[int]]:
    """The values in portions that fit into one statement."""
    return (values[first : first + AT_ONCE] for first in range(0, len(values), AT_ONCE))


def count_ended(work: Transaction, records: Sequence[TaskRecord], lengths: Sequence[int]) -> None:
    """Count records that are about to be saved and have ended, unless they were saved as ended before.

    ``lengths``: of the specifications of all these records, as they are stored if they are new. A row keeps the text
    that it has, which another version may have written.
    """
    ended = {record.id: record.phase.value for record in records if record.phase in ENDED}
    length = {record.id: size for record, size in zip(records, lengths, strict=True)} if ended else {}
    changes: Counter[str] = Counter()
    for some in portions(list(ended)):
        rows = work.query(f"SELECT id, phase, length(spec) FROM tasks WHERE id IN ({marks(some)})", some)
        before = {ident: (phase, size) for ident, phase, size in rows}
        for ident in some:
            changes[ended[ident]] += 1
            was, size = before.get(ident, (None, length[ident]))
            if was is not None and was not in UNENDED:
                changes[was] -= 1
            else:
                changes[KEPT] += 1
                changes[LENGTH] += size
    add(work, changes)


def add(work: Transaction, changes: Mapping[str, int]) -> None:
    """Add to the totals of these names."""
    if rows := [(name, change) for name, change in changes.items() if change]:
        work.execute_many(_ADD, rows)


def at_least(work: Transaction, name: str, number: int) -> None:
    """Raise a total to this number, if it is lower."""
    work.execute(_RAISE, (name, number))


def total(where: Database | Transaction, name: str) -> int:
    """One total; 0 if nothing was counted yet."""
    rows = where.query("SELECT number FROM totals WHERE name = ?", (name,))
    return int(rows[0][0]) if rows else 0


def phases(where: Database) -> dict[str, int]:
    """Number of tasks in each phase; of ended ones, all that the site has ever had."""
    ended = where.query("SELECT name, number FROM totals")
    found = {name: int(number) for name, number in ended if name in _ENDED}
    for phase in UNENDED:
        ((number,),) = where.query("SELECT count(*) FROM tasks WHERE phase = ?", (phase,))
        found[phase] = int(number)
    return {name: number for name, number in found.items() if number}
