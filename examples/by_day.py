"""A scheduler around another: ``tapfinger simulate multi-3 --scheduler examples.by_day:ByDay@of=optimus``."""

from tapfinger import VOID, Decision, SchedulerWrapper, Snapshot
from tapfinger.evaluation.specs import parse_spec


class ByDay(SchedulerWrapper):
    """Decides as another scheduler does, but starts nothing in the last ``night`` slots of every ``day``."""

    def __init__(self, of: str = "greedy", day: int = 300, night: int = 100) -> None:
        """``of``: the other scheduler, with its options if it has any."""
        super().__init__(parse_spec(of).create())
        self.day, self.night = day, night

    def decide(self, snapshot: Snapshot) -> Decision:
        """At night the other scheduler is not asked; running tasks go on."""
        asleep = snapshot.slot % self.day >= self.day - self.night
        return VOID if asleep else super().decide(snapshot)
