"""A scheduler that is not told of nodes, hardware, other people and data: to measure what knowing them is worth.

It sees each whole cluster as one pool of mean speed that nobody else uses and where all data lies, as many schedulers
do. What it decides is
carried out on the node where it fits best. What is too large for every node is cut to what the best one has; a task
whose minimum fits on none waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tapfinger.core.contract import ClusterView, Decision, Placement, Resize, SchedulerContext, Snapshot, TaskView
from tapfinger.core.feasibility import can_start_with
from tapfinger.core.model import Cluster, Resources, TaskType
from tapfinger.core.spans import Rooms
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.registry import create


class Unaware(SchedulerWrapper):
    """Another scheduler, to which nodes, kinds of hardware, other people and data do not show."""

    def reset(self, context: SchedulerContext) -> None:
        """Begin a new run."""
        super().reset(self._told(context))

    def learn(self, context: SchedulerContext) -> None:
        """Pass on changed speeds, as their means."""
        super().learn(self._told(context))

    def _told(self, context: SchedulerContext) -> SchedulerContext:
        names = list(dict.fromkeys(cluster.whole for cluster in context.clusters))
        #: For each cluster its whole cluster; for each whole cluster its nodes.
        self._whole = [names.index(cluster.whole) for cluster in context.clusters]
        self._nodes = [[n for n, whole in enumerate(self._whole) if whole == w] for w in range(len(names))]
        self._eligible: dict[tuple[int, ...], tuple[int, ...]] = {}
        wholes = tuple(
            Cluster(name, total([context.clusters[n].capacity for n in nodes if not context.clusters[n].nodes]))
            for name, nodes in zip(names, self._nodes, strict=True)
        )
        self._types = {t.name: mean_type(t, context.clusters) for t in context.task_types}
        return replace(context, clusters=wholes, task_types=tuple(self._types.values()))

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide on whole clusters, and find nodes."""
        decision = self.inner.decide(self._seen(snapshot))
        placements, waiting = [], {task.id: task for task in snapshot.queue}
        resizes, free = possible(decision.resizes, snapshot)
        room = replace(
            snapshot, clusters=tuple(replace(c, free=f) for c, f in zip(snapshot.clusters, free, strict=True))
        )
        for placement in decision.placements:
            nodes = [room.clusters[n] for n in self._nodes[placement.cluster]]
            placed = fitted(waiting[placement.task], nodes, placement.allocation)
            if placed is not None:
                room = room.after((placed,))
                placements.append(placed)
        return Decision(tuple(placements), resizes, decision.lost)

    def _seen(self, snapshot: Snapshot) -> Snapshot:
        clusters = tuple(self._joined(w, [snapshot.clusters[n] for n in nodes]) for w, nodes in enumerate(self._nodes))
        return replace(snapshot, clusters=clusters, queue=tuple(map(self._view, snapshot.queue)), data=None)

    def _joined(self, index: int, pools: Sequence[ClusterView]) -> ClusterView:
        """``pools``: nodes and spans of a whole cluster."""
        nodes = [pool for pool in pools if not pool.nodes]
        up = [node for node in nodes if node.up]
        starts = [node.starts_left for node in up if node.starts_left is not None]
        return ClusterView(
            index,
            nodes[0].name,
            total([node.capacity for node in nodes]),
            total([node.free if node.others is None else node.free + node.others for node in up or nodes]),
            tuple(self._view(task) for pool in pools for task in pool.running),
            tuple(self._view(task) for pool in pools for task in pool.paused),
            bool(up),
            sum(starts) if starts else None,
        )

    def _view(self, task: TaskView) -> TaskView:
        if task.eligible not in self._eligible:
            self._eligible[task.eligible] = tuple(dict.fromkeys(self._whole[n] for n in task.eligible))
        cluster = None if task.cluster is None else self._whole[task.cluster]
        kind, eligible = self._types[task.type.name], self._eligible[task.eligible]
        return replace(task, type=kind, eligible=eligible, cluster=cluster, parts=())


def possible(resizes: Iterable[Resize], snapshot: Snapshot) -> tuple[tuple[Resize, ...], list[Resources]]:
    """Those for which the task's own node has room, and what they leave free; tasks that shrink go first."""
    held = {task.id: (c.index, task) for c in snapshot.clusters for task in (*c.running, *c.paused)}
    rooms = Rooms(snapshot.clusters)
    kept = []
    for resize in sorted(resizes, key=lambda r: sum(r.allocation) - sum(held[r.task][1].allocation or ())):
        node, task = held[resize.task]
        now = task.allocation or resize.allocation
        if resize.allocation.fits(rooms[node] + now):
            rooms.resize(node, task, now, resize.allocation)
            kept.append(resize)
    return tuple(kept), rooms.left


def total(amounts: Sequence[Resources]) -> Resources:
    """The sum of these amounts."""
    return Resources(map(sum, zip(*amounts, strict=True)))


def mean_type(task_type: TaskType, clusters: Sequence[Cluster]) -> TaskType:
    """The type with one speed everywhere: the geometric mean over the clusters."""
    if not task_type.profiles:
        return task_type
    rates = [np.log(task_type.on(cluster.hardware).profile.rates) for cluster in clusters]
    profile = replace(task_type.profile, rates=tuple(np.exp(np.mean(rates, axis=0)).tolist()))
    return replace(task_type, profile=profile, hardware="", profiles=())


def fitted(task: TaskView, nodes: Sequence[ClusterView], allocation: Resources) -> Placement | None:
    """The task on the node that is left with the least of what is scarcest, at this size or what is there of it."""
    sizes = [(node, allocation.at_most(node.free)) for node in nodes]
    sizes = [(node, size) for node, size in sizes if can_start_with(task, node, size)]
    if not sizes:
        return None
    own = [node for node in nodes if not node.nodes]
    free = total([node.free for node in own])
    capacity = total([node.capacity for node in own])
    shares = [a / c if c else 1.0 for a, c in zip(free, capacity, strict=True)]
    scarce = shares.index(min(shares))
    node, size = min(
        sizes, key=lambda s: (sum(allocation) - sum(s[1]), s[0].free[scarce] - s[1][scarce], sum(s[0].free))
    )
    return Placement(task.id, node.index, size)


def unaware(of: str = "greedy") -> Unaware:
    """Another scheduler (of) to which nodes, hardware, other people and data do not show."""
    return Unaware(create("scheduler", of, {}))
