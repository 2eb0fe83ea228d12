"""Stage ``conflicts``: Bayes' rule decides who gets a task that several clusters want (Eq. 8 of the paper)."""

from __future__ import annotations

from dataclasses import replace

from tapfinger.core.conflict import resolve
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.stages.base import Plan, Stage, Start


class Conflicts(Stage):
    """Makes starts of proposals: each wanted task goes to one cluster, the others are void this turn."""

    name = "conflicts"
    meaning = "Starts of tasks that several clusters wanted."

    def learn(self, site: SiteTables) -> None:
        """Bayes' rule knows no speeds."""

    def apply(self, plan: Plan) -> Plan:
        """Grant what the network proposed."""
        if not plan.proposals:
            return plan
        wanted = {proposal.task for proposal in plan.proposals}
        minimum = {task.id: task.type.minimum for task in plan.snapshot.queue if task.id in wanted}
        granted = resolve(plan.proposals, plan.snapshot.free, minimum, plan.snapshot.spans)
        contested = {proposal.task for proposal in granted.lost}
        starts = [
            Start(placement, ("network", self.name) if placement.task in contested else ("network",))
            for placement in granted.placements
        ]
        return replace(plan.with_starts(starts), proposals=(), lost=(*plan.lost, *granted.lost))
