"""Stage ``lending``: spare resources are lent to running tasks that can be resized (the elastic regime)."""

from __future__ import annotations

from dataclasses import replace

from tapfinger.core.contract import Snapshot
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.lending import Lending
from tapfinger.schedulers.stages.base import Plan, Stage, Start


class Lends(Stage):
    """The other stages plan as if nothing were lent; in the last turn of a slot, what is left over is lent."""

    name = "lending"
    meaning = "Starts of tasks for which running tasks shrank."

    def __init__(self, every_turn_is_last: bool) -> None:
        """``every_turn_is_last``: single-task mode, in which a slot has one turn."""
        self._always_last = every_turn_is_last

    def reset(self, site: SiteTables, counters: dict[str, int]) -> None:
        """Nothing is lent."""
        self._lending = Lending(site)
        self.counters = counters

    def learn(self, site: SiteTables) -> None:
        """Use these speed profiles from now on."""
        self._lending.learn(site)

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as if nothing were lent; nobody waits in it once this slot's spare resources are lent."""
        self._now = snapshot
        if self._lending.finished(snapshot):
            return snapshot.with_queue(())
        return self._lending.returned(snapshot)

    def apply(self, plan: Plan) -> Plan:
        """Take back what the starts need, and lend what is spare."""
        if self._lending.finished(self._now):
            return plan
        starts = plan.placements
        last = self._always_last or not starts
        found = self._lending.lend(self._now, plan.decision, last, plan.reserved)
        more = [Start(placement, (self.name,)) for placement in found.placements[len(starts) :]]
        self.counters["resized"] += len(found.resizes)
        return replace(plan, starts=(*plan.starts, *more), resizes=found.resizes)
