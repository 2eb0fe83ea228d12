"""Stage ``again``: in single-task mode, clusters that lost a task choose again among the rest, in the same slot."""

from __future__ import annotations

from dataclasses import replace

from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.stages.base import Plan, Stage


class Again(Stage):
    """Asks other stages again until no cluster loses or none starts anything.

    In multi-task mode there is always another turn.
    """

    name = "again"
    meaning = "Starts on clusters that had lost a task to another and chose again in the same slot."

    def __init__(self, asked: tuple[Stage, ...]) -> None:
        """``asked``: stages that propose and settle; they belong to the pipeline and are reset by it."""
        self._asked = asked

    def learn(self, site: SiteTables) -> None:
        """The stages that are asked learn by themselves."""

    def apply(self, plan: Plan) -> Plan:
        """Go on for as long as somebody loses."""
        lost = len(plan.lost)
        started = 0 if not lost else len(plan.starts)
        while lost and started:
            further = plan
            for stage in self._asked:
                further = stage.apply(further)
            new = [replace(start, because=(*start.because, self.name)) for start in further.starts[len(plan.starts) :]]
            lost, started = len(further.lost) - len(plan.lost), len(new)
            plan = replace(further, starts=(*plan.starts, *new))
        return plan
