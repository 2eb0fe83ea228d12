"""What is legal: where a task may start, at which size, and which decisions are valid. All such rules are here.

A task may start on a cluster that is up, that may still start a task in this slot and that the task is eligible for,
with an allocation x of ``minimum <= x <= min(maximum, free)``. A span shares what is free with its nodes
(``core.spans``): together, what starts on nodes must fit on each of them, and what starts on the span into what they
leave. The compiled kernels (``tapfinger.sim``) mirror these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import le
from typing import Protocol

from tapfinger.core.contract import ClusterView, Decision, Phase, Placement, Resize, TaskView
from tapfinger.core.model import Cluster, Resources, Task, TaskType
from tapfinger.core.spans import Parts, nodes_of, pooled
from tapfinger.errors import (
    AboveMaximum,
    BelowMinimum,
    CapacityExceeded,
    ConfigError,
    InvalidDecision,
    NotEligible,
    NotPending,
    TooManyStarts,
)

#: Maximum number of clusters that a message lists.
MOST_SHOWN = 8

_STARTED = (Phase.RUNNING, Phase.PAUSED)

# ---------------------------------------------------------------- questions


def largest_allocation(task_type: TaskType, free: Resources) -> Resources | None:
    """Upper corner of the legal box minimum..x, or None where not even the minimum fits."""
    return task_type.maximum.at_most(free) if task_type.minimum.fits(free) else None


def within_bounds(task_type: TaskType, size: tuple[int, ...]) -> bool:
    """Whether the type allows this size, regardless of the cluster."""
    minimum = task_type.minimum
    return len(size) == len(minimum) and minimum.fits(size) and all(map(le, size, task_type.maximum))


def ever_fits(minimum: Resources, capacity: Resources) -> bool:
    """Whether a task with this minimum could run on an empty cluster of this capacity."""
    return minimum.fits(capacity)


def may_start(cluster: ClusterView) -> bool:
    """Whether the cluster may start a task of any size now."""
    return cluster.up and (cluster.starts_left is None or cluster.starts_left > 0)


def room(cluster: ClusterView) -> Resources | None:
    """The most that a task starting on the cluster now may get; None if nothing may start."""
    return cluster.free if may_start(cluster) else None


def can_start(task: TaskView, cluster: ClusterView) -> bool:
    """Whether the task may start on the cluster now, with at least its minimum."""
    # The list of eligible clusters may be long, so it is searched last.
    return may_start(cluster) and task.type.minimum.fits(cluster.free) and cluster.index in task.eligible


def can_start_with(task: TaskView, cluster: ClusterView, allocation: Resources) -> bool:
    """Whether the task may start on the cluster now with this allocation."""
    legal = may_start(cluster) and cluster.index in task.eligible and allocation.fits(cluster.free)
    return legal and within_bounds(task.type, allocation)


def stranded(cluster: ClusterView, waiting: Iterable[TaskView], span: ClusterView | None = None) -> Resources:
    """What is free on a cluster for which tasks wait that it could hold if it were empty, but none of them fits now.

    ``span``: that of a node, for which tasks may wait as well. A span itself has nothing of its own.
    ``evaluation.metrics`` measures the same after the decisions of each slot.
    """
    usable = [
        (task.type.minimum, pool)
        for task in waiting
        for pool in (cluster, span)
        if pool is not None and pool.index in task.eligible and ever_fits(task.type.minimum, pool.capacity)
    ]
    useless = cluster.up and usable and not any(minimum.fits(pool.free) for minimum, pool in usable)
    return cluster.free if useless and not cluster.nodes else Resources([0] * len(cluster.free))


def resizable(task: TaskView) -> bool:
    """Whether the task's allocation may change now: it is on a cluster and has started."""
    return task.phase in _STARTED


# ------------------------------------------------------------------- checks


class HeldTask(Protocol):
    """A task that is on a cluster, as the state keeps it."""

    task: Task
    cluster: int
    allocation: Resources
    phase: Phase
    parts: Parts


def check_amounts(task_id: int, task_type: TaskType, allocation: Resources) -> None:
    """Raise unless the allocation is one whole number per resource."""
    if not isinstance(allocation, Resources):
        raise InvalidDecision(
            f"task {task_id} ({task_type.name}): allocation {allocation!r} is a {type(allocation).__name__}; "
            "give a tuple of amounts"
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


def check_eligible(
    task: Task,
    clusters: Iterable[Cluster],
    label: str = "",
    describe: Callable[[Resources], str] = lambda amounts: str(tuple(amounts)),
) -> None:
    """Refuse a task whose minimum fits none of its eligible clusters: it would wait forever.

    For the message, ``label`` names the task and ``describe`` puts amounts in words.
    """
    listed = list(clusters)
    who = f"{label or f'task {task.id}'} ({task.type.name})"
    if not task.eligible:
        raise ConfigError(f"{who}: no eligible cluster; name at least one of {', '.join(c.name for c in listed)}")
    bad = [n for n in task.eligible if not 0 <= n < len(listed)]
    if bad:
        raise ConfigError(f"{who}: there is no cluster {bad[0]}; clusters are 0..{len(listed) - 1}")
    if not any(ever_fits(task.type.minimum, listed[n].capacity) for n in task.eligible):
        shown = [f"{listed[n].name} with {describe(listed[n].capacity)}" for n in task.eligible[:MOST_SHOWN]]
        more = len(task.eligible) - len(shown)
        raise ConfigError(
            f"{who}: minimum {describe(task.type.minimum)} fits none of its eligible clusters: {'; '.join(shown)}"
            f"{f' and {more} more' if more else ''}; lower the minimum, raise a capacity or make another cluster "
            "eligible"
        )


def check_decision(
    decision: Decision,
    clusters: Sequence[ClusterView],
    waiting: Mapping[int, TaskView],
    held: Mapping[int, HeldTask],
    story: Callable[[int], str],
) -> dict[int, Resources]:
    """Raise on the first fault; return what the decision leaves free on each cluster it affects.

    ``waiting`` and ``held``: tasks in the queue and tasks on clusters, by id. ``story``: describes a task, for
    messages.
    """
    free: dict[int, Resources] = {}
    seen: set[int] = set()
    limited = False
    for resize in decision.resizes:
        mine = held.get(resize.task)
        if mine is None:
            raise NotPending(f"resize of task {resize.task}: it is on no cluster ({story(resize.task)}); leave it out")
        if resize.task in seen or mine.phase is Phase.PLACED:
            twice = "it appears twice in one decision; leave one out"
            why = twice if resize.task in seen else "it has not started yet; leave it out in this slot"
            raise NotPending(f"resize of task {resize.task}: {why}")
        seen.add(resize.task)
        check_amounts(resize.task, mine.task.type, resize.allocation)
        if not resize.allocation.none:
            check_size(resize.task, mine.task.type, resize.allocation)
        now = free.get(mine.cluster, clusters[mine.cluster].free)
        free[mine.cluster] = now + mine.allocation - resize.allocation
    for placement in decision.placements:
        task = waiting.get(placement.task)
        if task is None or placement.task in seen:
            twice = "it appears twice in one decision; leave one out"
            why = twice if task else f"it does not wait ({story(placement.task)}); leave it out"
            raise NotPending(f"placement of task {placement.task} on cluster {placement.cluster}: {why}")
        seen.add(placement.task)
        cluster = _checked_cluster(task, placement.cluster, clusters)
        limited |= cluster.starts_left is not None
        check_size(placement.task, task.type, placement.allocation)
        free[cluster.index] = free.get(cluster.index, cluster.free) - placement.allocation
    if limited:
        _check_starts(decision, clusters)
    if spans := nodes_of(clusters):
        _share_spans(free, spans, decision, clusters, held)
    for index, amount in free.items():
        if min(amount) < 0:
            _raise_capacity(decision, clusters[index], held)
    return free


def _share_spans(
    free: dict[int, Resources],
    spans: Mapping[int, tuple[int, ...]],
    decision: Decision,
    clusters: Sequence[ClusterView],
    held: Mapping[int, HeldTask],
) -> None:
    """Put into ``free`` what the decision leaves on nodes and spans: tasks on spans that are resized are split anew."""
    for span, nodes in spans.items():
        if span not in free and not any(n in free for n in nodes):
            continue
        asked = clusters[span].free - free.get(span, clusters[span].free)  # less what resized tasks hold now
        for mine in (held[resize.task] for resize in decision.resizes if held[resize.task].cluster == span):
            asked = asked + mine.allocation
            for n, part in zip(nodes, mine.parts, strict=True):
                free[n] = free.get(n, clusters[n].free) + part
        left = pooled([free.get(n, clusters[n].free) for n in nodes], [clusters[n].up for n in nodes])
        free[span] = left - asked


def _checked_cluster(task: TaskView, cluster: int, clusters: Sequence[ClusterView]) -> ClusterView:
    if type(cluster) is not int or cluster not in task.eligible:
        raise NotEligible(
            f"placement of task {task.id}: cluster {cluster!r} is not among its eligible clusters "
            f"{list(task.eligible)}; choose one of those"
        )
    found = clusters[cluster]
    if not found.up:
        up = [n for n in task.eligible if clusters[n].up]
        raise NotEligible(
            f"placement of task {task.id}: cluster {cluster} ({found.name}) is down; "
            + (f"choose one of {up}" if up else "leave it waiting")
        )
    return found


def _check_starts(decision: Decision, clusters: Sequence[ClusterView]) -> None:
    started: Counter[int] = Counter()
    for placement in decision.placements:
        most = clusters[placement.cluster].starts_left
        if most is None:
            continue
        started[placement.cluster] += 1
        if started[placement.cluster] > most:
            raise TooManyStarts(
                f"placement of task {placement.task}: cluster {placement.cluster} already starts a task in "
                "this slot, and single-task mode allows one; choose another cluster or leave it waiting"
            )


def _raise_capacity(decision: Decision, cluster: ClusterView, held: Mapping[int, HeldTask]) -> None:
    asked = [f"task {p.task} asks {tuple(p.allocation)}" for p in decision.placements if p.cluster == cluster.index]
    resized = [r for r in decision.resizes if held[r.task].cluster == cluster.index]
    asked += [f"task {r.task} asks {tuple(r.allocation)} instead of {tuple(held[r.task].allocation)}" for r in resized]
    most = cluster.free
    for r in resized:
        most = most + held[r.task].allocation
    if cluster.nodes:
        asked.append(f"the rest of the decision asks for some of it on its nodes {list(cluster.nodes)}")
    raise CapacityExceeded(
        f"cluster {cluster.index} ({cluster.name}) has {tuple(cluster.free)} free of {tuple(cluster.capacity)}: "
        f"{'; '.join(asked)}. Ask for at most {tuple(most)}{' in all' if len(asked) > 1 else ''}, or leave a task out"
    )


def check_form(decision: object) -> None:
    """Refuse anything that only looks like a decision: a generator, for example, would be used up by the checks."""
    if not isinstance(decision, Decision):
        raise InvalidDecision(f"a scheduler must return a Decision, got {decision!r}")
    for name, kind in (("placements", Placement), ("resizes", Resize)):
        entries = getattr(decision, name)
        if not isinstance(entries, tuple | list):
            raise InvalidDecision(f"the {name} of a decision must be a tuple of {kind.__name__}, got {entries!r}")
        for entry in entries:
            if not isinstance(entry, kind):
                raise InvalidDecision(f"the {name} of a decision must be {kind.__name__} objects, got {entry!r}")
            if type(entry.task) is not int:
                raise InvalidDecision(f"a task is named by its id, an int; got {entry.task!r} in {entry!r}")
