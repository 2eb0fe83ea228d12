"""A limit on the time that the network takes."""

from __future__ import annotations

import logging
from collections.abc import Callable

#: After a pass over budget the network rests for 1, 2, 4, ... slots, at most this many.
LONGEST_REST = 64

_log = logging.getLogger(__name__)


class TimeBudget:
    """Limits the time that the network takes in one slot, over all turns.

    A running pass cannot be stopped, so time is measured afterwards: once a slot's passes have used up the budget,
    Greedy decides the rest of the slot. If a single pass exceeds the budget, the network rests for one slot, after the
    next such pass for two, then four, ... up to ``LONGEST_REST``; a pass within the budget ends this. So a slot exceeds
    the budget by at most one pass, and a network that stays slow does so rarely.
    """

    def __init__(self, budget_ms: float, clock: Callable[[], float]) -> None:
        """``budget_ms``: milliseconds; 0: no limit, and the ``clock`` (in seconds) is never read."""
        self._budget = budget_ms / 1e3
        self._clock = clock
        self._slot = -1
        self._spent = 0.0
        self._rest = 1
        self._resume = 0
        #: Those of the scheduler.
        self.counters = {"over_budget": 0}

    def allows(self, slot: int) -> bool:
        """Whether the network may be asked in this slot now."""
        if slot != self._slot:
            self._slot, self._spent = slot, 0.0
        return not self._budget or (slot >= self._resume and self._spent <= self._budget)

    def begin(self) -> float:
        """Time at which an allowed pass begins, in seconds."""
        return self._clock() if self._budget else 0.0

    def end(self, begin: float) -> None:
        """Count the pass that began at ``begin``."""
        if not self._budget:
            return
        took = self._clock() - begin
        self._spent += took
        if took > self._budget:
            self._resume = self._slot + 1 + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        else:
            self._rest = 1
        if self._spent > self._budget:
            if not self.counters["over_budget"]:
                spent, budget = 1e3 * self._spent, 1e3 * self._budget
                _log.warning("slot %d: the network took %.1f of %.1f ms; greedy decides", self._slot, spent, budget)
            self.counters["over_budget"] += 1
