"""A scheduler from outside the package: ``tapfinger simulate multi-3 --scheduler examples.fifo:Fifo``."""

from tapfinger import Decision, Placement, SchedulerContext, Snapshot, can_start


class Fifo:
    """Every cluster starts its oldest waiting task that fits, at the minimum."""

    one_shot = False  # called turn after turn, until it places nothing

    def reset(self, context: SchedulerContext) -> None:
        """Nothing to remember."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """One start per cluster and turn."""
        placed: dict[int, Placement] = {}  # by task, so that no task is placed twice
        for cluster in snapshot.clusters:
            fitting = [t for t in snapshot.queue_of(cluster.index) if can_start(t, cluster) and t.id not in placed]
            placed |= {t.id: Placement(t.id, cluster.index, t.type.minimum) for t in fitting[:1]}
        return Decision(tuple(placed.values()))
