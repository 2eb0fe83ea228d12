"""Removing what is old from a store, in transactions of a few milliseconds.

Tasks go with their events and output. Only ended ones can be removed, whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tapfinger.live.store import totals
from tapfinger.live.store.database import Database, Transaction
from tapfinger.live.store.totals import marks


@dataclass(frozen=True, slots=True)
class EndedTask:
    """An ended task, as pruning needs it."""

    id: int
    #: Number of its attempts, each of which may have left output.
    attempts: int
    #: Seconds since the epoch.
    ended: float


def oldest(database: Database, limit: int, after: tuple[float, int] = (0.0, 0)) -> list[EndedTask]:
    """Ended tasks, those that ended first come first. ``after``: end and id of the last one already seen."""
    rows = database.query(
        "SELECT id, attempt, ended FROM tasks WHERE ended IS NOT NULL AND ended >= ? AND (ended > ? OR id > ?) "
        "ORDER BY ended, id LIMIT ?",
        (after[0], *after, limit),
    )
    return [EndedTask(*row) for row in rows]


def lengths(where: Database | Transaction, ids: Sequence[int]) -> dict[int, int]:
    """Characters of the specification of each of these tasks, as it is stored."""
    return dict(where.query(f"SELECT id, length(spec) FROM tasks WHERE id IN ({marks(ids)})", ids)) if ids else {}


def count_before(database: Database, at: float) -> int:
    """Number of tasks that ended before this time."""
    ((found,),) = database.query("SELECT count(*) FROM tasks WHERE ended IS NOT NULL AND ended < ?", (at,))
    return int(found)


def remove_tasks(work: Transaction, ids: Sequence[int]) -> None:
    """Remove these tasks with their events and output. The ids are never given out again."""
    chosen = f"({marks(ids)})"
    ended = [row[0] for row in work.query(f"SELECT id FROM tasks WHERE id IN {chosen} AND ended IS NOT NULL", ids)]
    if not ended:
        return
    chosen = f"({marks(ended)})"
    ((line,),) = work.query(f"SELECT coalesce(max(+seq), 0) FROM history WHERE task IN {chosen}", ended)
    totals.at_least(work, totals.LAST_TASK, max(ended))
    totals.at_least(work, totals.LAST_LINE, int(line))
    remove_output(work, ended)
    length = sum(lengths(work, ended).values())
    work.execute(f"DELETE FROM history WHERE task IN {chosen}", ended)
    work.execute(f"DELETE FROM tasks WHERE id IN {chosen}", ended)
    _remove_latecomers(work)
    totals.add(work, {totals.KEPT: -len(ended), totals.LENGTH: -length})


def _remove_latecomers(work: Transaction) -> None:
    """Remove events of tasks that were removed before: the result of a lost attempt may come after its task is gone."""
    ((first,),) = work.query("SELECT min(id) FROM tasks", ())
    if first is not None:
        # The plus keeps SQLite from walking all events, the latest first, until it meets such a task: there is none.
        ((line,),) = work.query("SELECT coalesce(max(+seq), 0) FROM history WHERE task < ?", (first,))
        if line:
            totals.at_least(work, totals.LAST_LINE, int(line))
            work.execute("DELETE FROM history WHERE task < ?", (first,))


def remove_output(work: Transaction, ids: Sequence[int]) -> int:
    """Remove the output of these tasks that is in the store. Returns its bytes."""
    if not ids:
        return 0
    chosen = f"({marks(ids)})"
    ((size,),) = work.query(f"SELECT coalesce(sum(length(data)), 0) FROM output WHERE task IN {chosen}", ids)
    if size:
        work.execute(f"DELETE FROM output WHERE task IN {chosen}", ids)
        totals.add(work, {totals.OUTPUT: -int(size)})
    return int(size)


def old_site_events(database: Database, before: float, keep: int, limit: int) -> list[int]:
    """Numbers of events that are of no task and too old: from before that time, or beyond the latest ``keep``."""
    rows = database.query("SELECT at FROM history WHERE task IS NULL ORDER BY at DESC LIMIT 1 OFFSET ?", (keep - 1,))
    if rows:
        before = max(before, float(rows[0][0]))
    found = database.query("SELECT seq FROM history WHERE task IS NULL AND at < ? ORDER BY at LIMIT ?", (before, limit))
    return [int(row[0]) for row in found]


def remove_events(work: Transaction, numbers: Sequence[int]) -> None:
    """Remove events that are of no task."""
    totals.at_least(work, totals.LAST_LINE, max(numbers))
    work.execute(f"DELETE FROM history WHERE seq IN ({marks(numbers)}) AND task IS NULL", numbers)
