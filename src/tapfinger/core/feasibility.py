"""Which allocations are legal. The only place that knows the rule: minimum <= x <= min(maximum, free)."""

from __future__ import annotations

from tapfinger.core.contract import ClusterView, TaskView
from tapfinger.core.model import Resources, TaskType
from tapfinger.errors import AboveMaximum, BelowMinimum, InvalidDecision


def largest_allocation(task_type: TaskType, free: Resources) -> Resources | None:
    """Upper corner of the legal box minimum..x, or None where not even the minimum fits."""
    return task_type.maximum.at_most(free) if task_type.minimum.fits(free) else None


def may_start(cluster: ClusterView) -> bool:
    """Whether the cluster may start a task now, whatever its size."""
    return cluster.up and (cluster.starts_left is None or cluster.starts_left > 0)


def can_start(task: TaskView, cluster: ClusterView) -> bool:
    """Whether the task may start on the cluster now, at its minimum at least."""
    return may_start(cluster) and cluster.index in task.eligible and task.type.minimum.fits(cluster.free)


def check_amounts(task_id: int, task_type: TaskType, allocation: Resources) -> None:
    """Raise unless the allocation is one whole number per resource."""
    if not isinstance(allocation, Resources):
        raise InvalidDecision(
            f"task {task_id} ({task_type.name}): allocation {allocation!r} is a {type(allocation).__name__}; "
            "give Resources([...])"
        )
    for amount in allocation:
        # An amount of 1.5 would pass every comparison and break the profile's table later.
        if type(amount) is not int:
            raise InvalidDecision(
                f"task {task_id} ({task_type.name}): allocation {tuple(allocation)} holds a "
                f"{type(amount).__name__}; amounts are whole units, so give int"
            )
    if len(allocation) != len(task_type.minimum):
        raise BelowMinimum(
            f"task {task_id} ({task_type.name}): allocation {tuple(allocation)} has {len(allocation)} amounts, "
            f"there are {len(task_type.minimum)} resources"
        )


def check_size(task_id: int, task_type: TaskType, allocation: Resources) -> None:
    """Raise if the allocation is outside the type's minimum..maximum."""
    check_amounts(task_id, task_type, allocation)
    if not task_type.minimum.fits(allocation):
        raise BelowMinimum(
            f"task {task_id} ({task_type.name}): allocation {tuple(allocation)} is below its minimum "
            f"{tuple(task_type.minimum)}; allot at least that or leave it waiting"
        )
    if not allocation.fits(task_type.maximum):
        raise AboveMaximum(
            f"task {task_id} ({task_type.name}): allocation {tuple(allocation)} is above its maximum "
            f"{tuple(task_type.maximum)}; allot at most that"
        )
