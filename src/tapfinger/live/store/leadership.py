"""Which of several coordinators leads: a row that says who, and until when by the database's clock.

Every transaction of a leader begins by lengthening its term. Where that changes nothing, another one
leads, and the transaction is undone: whatever a deposed leader still believes, it can save nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapfinger.errors import NotLeading
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.store.database import Database, Transaction

#: Seconds that a leader stays one without being heard of.
TERM = 3.0

_NOW = "extract(epoch FROM clock_timestamp())"
# A leader whose connection is gone is dead, or must begin anew: nobody needs to wait for the end of its term.
_FREE = f"(leader.until < {_NOW} OR NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = leader.backend))"
_TAKE = (
    f"INSERT INTO leader (one, epoch, url, until, backend) VALUES (1, 1, ?, {_NOW} + ?, pg_backend_pid()) "
    "ON CONFLICT (one) DO UPDATE SET epoch = leader.epoch + 1, url = excluded.url, until = excluded.until, "
    f"backend = excluded.backend WHERE {_FREE} RETURNING epoch"
)
_RENEW = f"UPDATE leader SET url = ?, until = {_NOW} + ?, backend = pg_backend_pid() WHERE epoch = ?"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as far as the database knows."""

    epoch: int
    url: str
    #: Whether another may take over.
    gone: bool


class Leadership:
    """This coordinator's part in it."""

    def __init__(self, database: Database) -> None:
        """Not leading yet."""
        self._database = database
        self._epoch: int | None = None
        #: Where this coordinator can be found.
        self.url = ""
        #: Until when it leads, on the boot clock; never later than the database thinks.
        self.until = 0.0

    def leader(self) -> Leader | None:
        """Who leads; None before anyone ever has."""
        rows = self._database.query(f"SELECT epoch, url, {_FREE} FROM leader")
        return Leader(*rows[0]) if rows else None

    def take(self) -> int | None:
        """Lead if nobody else does: the new epoch, above all before."""
        asked = boot_clock()
        with self._database.transaction() as work:
            rows = work.query(_TAKE, (self.url, TERM))
        if not rows:
            return None
        self._epoch, self.until = int(rows[0][0]), asked + TERM
        return self._epoch

    def fence(self, work: Transaction) -> None:
        """Lengthen the term as part of a transaction, or undo that."""
        if self._epoch is None or not work.execute(_RENEW, (self.url, TERM, self._epoch)):
            self.drop()
            raise NotLeading(self._leader_url())

    def fenced(self, asked: float) -> None:
        """A transaction that began then has been committed."""
        self.until = max(self.until, asked + TERM)

    def drop(self) -> None:
        """Lead no longer."""
        self._epoch, self.until = None, 0.0

    def _leader_url(self) -> str:
        leader = self.leader()
        return "" if leader is None or leader.gone else leader.url
