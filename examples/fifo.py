"""A scheduler from outside the package: ``tapfinger simulate multi-3 --scheduler examples.fifo:Fifo``."""

from tapfinger import Decision, Placement, SchedulerContext, Snapshot, can_start


class Fifo:
    """Every cluster starts its oldest waiting task that fits, at the minimum."""

    one_shot = False  # called turn after turn, until it places nothing

    def reset(self, context: SchedulerContext) -> None:
        """Nothing to remember."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """One start per cluster and turn."""
        seen, placed = snapshot, list[Placement]()
        for n in range(len(snapshot.clusters)):
            new = [Placement(t.id, n, t.type.minimum) for t in seen.queue_of(n) if can_start(t, seen.clusters[n])][:1]
            seen, placed = seen.booked(new), placed + new  # no task is placed twice, and nothing is given twice
        return Decision(tuple(placed))
