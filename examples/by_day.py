"""A scheduler around another: ``tapfinger simulate multi-3 --scheduler examples.by_day:ByDay@of=optimus``."""

from tapfinger import VOID, Decision, SchedulerWrapper, Snapshot
from tapfinger.registry import create


class ByDay(SchedulerWrapper):
    """Decides as another scheduler does, but starts nothing in the last ``night`` slots of every ``day``."""

    def __init__(self, of: str = "greedy", day: int = 300, night: int = 100) -> None:
        """``of``: the other scheduler, by its name."""
        super().__init__(create("scheduler", of, {}))
        self.day, self.night = day, night

    def decide(self, snapshot: Snapshot) -> Decision:
        """At night the other scheduler is not asked; running tasks go on."""
        asleep = snapshot.slot % self.day >= self.day - self.night
        return VOID if asleep else super().decide(snapshot)
