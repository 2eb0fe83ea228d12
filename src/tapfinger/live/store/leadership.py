"""Leadership among several coordinators: a row names the leader and the end of its term, by the database's clock.

Every transaction of a leader begins by extending its term. If that changes no row, another coordinator leads, and the
transaction is rolled back. So a deposed leader can save nothing, whatever it still believes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tapfinger.errors import NotLeading
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.store.database import Database, Transaction

#: Seconds that a leader's term lasts without a transaction.
TERM = 3.0

_NOW = "extract(epoch FROM clock_timestamp())"
# A leader without a database connection is dead or must start over: nobody needs to wait for the end of its term.
_FREE = f"(leader.until < {_NOW} OR NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = leader.backend))"
_TAKE = (
    f"INSERT INTO leader (one, epoch, url, until, backend) VALUES (1, ?, ?, {_NOW} + ?, pg_backend_pid()) "
    "ON CONFLICT (one) DO UPDATE SET epoch = greatest(leader.epoch + 1, excluded.epoch), url = excluded.url, "
    f"until = excluded.until, backend = excluded.backend WHERE {_FREE} RETURNING epoch"
)
_RENEW = f"UPDATE leader SET url = ?, until = {_NOW} + ?, backend = pg_backend_pid() WHERE epoch = ?"


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, according to the database."""

    epoch: int
    url: str
    #: Whether another coordinator may take over.
    gone: bool


class Leadership:
    """One coordinator's view of leadership."""

    def __init__(self, database: Database) -> None:
        """Start without leading."""
        self._database = database
        self._epoch: int | None = None
        #: Address of this coordinator.
        self.url = ""
        #: End of this coordinator's term, on the boot clock; never later than in the database.
        self.until = 0.0

    def leader(self) -> Leader | None:
        """The leader; None if there has never been one."""
        return _leader(self._database)

    def take(self, least: int = 0, also: Callable[[Transaction], None] = lambda _: None) -> int | None:
        """Lead, unless another coordinator does. Returns the new epoch, or None.

        It is above ``least`` and all earlier ones. ``also``: what the leader changes in the same transaction.
        """
        asked = boot_clock()
        with self._database.transaction() as work:
            if rows := work.query(_TAKE, (least + 1, self.url, TERM)):
                also(work)
        if not rows:
            return None
        self._epoch, self.until = int(rows[0][0]), asked + TERM
        return self._epoch

    def fence(self, work: Transaction) -> None:
        """Extend the term within a transaction. Raises NotLeading, which rolls the transaction back, if that fails."""
        if self._epoch is None or not work.execute(_RENEW, (self.url, TERM, self._epoch)):
            self.drop()
            leader = _leader(work)  # not by a reading session: each thread that saves would leave one behind
            raise NotLeading("" if leader is None or leader.gone else leader.url)

    def raise_epoch(self, work: Transaction, epoch: int) -> None:
        """Continue to lead, in a later epoch: agents know a later one than the database, which is an older copy."""
        work.execute("UPDATE leader SET epoch = ? WHERE epoch = ?", (epoch, self._epoch))
        self._epoch = epoch  # if this is rolled back, the coordinator stops leading

    def fenced(self, asked: float) -> None:
        """Note that a transaction that began at ``asked`` was committed."""
        self.until = max(self.until, asked + TERM)

    def drop(self) -> None:
        """Stop leading."""
        self._epoch, self.until = None, 0.0


def _leader(where: Database | Transaction) -> Leader | None:
    rows = where.query(f"SELECT epoch, url, {_FREE} FROM leader")
    return Leader(*rows[0]) if rows else None
