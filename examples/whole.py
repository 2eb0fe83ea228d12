"""One task at a time on each cluster, with all its resources: what people do without a scheduler.

tapfinger simulate testbed-3 --scheduler examples.whole:Whole
"""

from tapfinger import Decision, Placement, Resources, SchedulerContext, Snapshot, can_start


class Whole:
    """An idle cluster starts its oldest waiting task at the largest size that fits."""

    one_shot = False  # called turn after turn, until it places nothing

    def reset(self, context: SchedulerContext) -> None:
        """Nothing to remember."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """One start per idle cluster and turn."""
        placed: list[Placement] = []
        for n in range(len(snapshot.clusters)):
            cluster = snapshot.clusters[n]
            fitting = [t for t in snapshot.queue_of(n) if can_start(t, cluster)]
            if fitting and not cluster.running:
                size = Resources(map(min, fitting[0].type.maximum, cluster.free))
                placed.append(Placement(fitting[0].id, n, size))
                snapshot = snapshot.booked(placed[-1:])  # no task is placed twice, and nothing is given twice
        return Decision(tuple(placed))
