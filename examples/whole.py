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
        placed: dict[int, Placement] = {}  # by task, so that no task is placed twice
        for cluster in snapshot.clusters:
            if cluster.running:
                continue
            fitting = [t for t in snapshot.queue_of(cluster.index) if can_start(t, cluster) and t.id not in placed]
            for task in fitting[:1]:
                size = Resources(map(min, task.type.maximum, cluster.free))
                placed[task.id] = Placement(task.id, cluster.index, size)
        return Decision(tuple(placed.values()))
