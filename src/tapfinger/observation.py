"""Snapshot -> arrays: the paper's raw state of every cluster, for environments and learned schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Snapshot, TaskView
from tapfinger.core.feasibility import largest_allocation, may_start
from tapfinger.core.model import Cluster, TaskType


@dataclass(frozen=True)
class GraphObs:
    """One observation. N clusters, K pending per cluster, M = N*K nodes, S running per cluster, R resources, T types.

    K, M and S are upper bounds; without padding, the numbers in use now.
    A task that waits for several clusters is ONE node, linked to each of them through ``node``.
    """

    #: (N, R+1) free resources; backlog.
    cluster_features: npt.NDArray[np.float32]
    #: (M, R+T+1) minimum; type one-hot; dummy bit.
    pending_features: npt.NDArray[np.float32]
    #: (N, S, R+T+1) allocation; type one-hot; slots run.
    running_features: npt.NDArray[np.float32]
    #: (N,) number of the S rows that hold tasks.
    running_count: npt.NDArray[np.int64]
    #: (N, K) id of each pending task, -1 for none.
    task: npt.NDArray[np.int64]
    #: (N, K) node of each pending task, -1 for none.
    node: npt.NDArray[np.int64]
    #: (N, K) whether the task may start on the cluster now: the mask of the task choice.
    startable: npt.NDArray[np.bool_]
    #: (N, K, R) upper corner of the task's legal allocations (the minimum is the lower one); 0 where not startable.
    largest: npt.NDArray[np.int64]
    #: (N,) length of the cluster's queue.
    waiting: npt.NDArray[np.int64]
    #: (M,) slots that each pending node has waited; not part of the paper's state.
    age: npt.NDArray[np.int64]
    #: (N, S) progress that running tasks reported, -1 where unreported; not part of the paper's state.
    running_progress: npt.NDArray[np.float32]
    #: (N, R) what other people use now, and lately (``ClusterView.others_lately``); not part of the paper's state.
    others: npt.NDArray[np.float32]
    others_lately: npt.NDArray[np.float32]
    #: (N, K) slots that the pending task would wait there for its data; not part of the paper's state.
    staging: npt.NDArray[np.int64]


class Observer:
    """Turns snapshots of one set of clusters and task types into arrays."""

    def __init__(self, clusters: Sequence[Cluster], task_types: Sequence[TaskType], pending: int = 10) -> None:
        """``pending``: size of the pending set (10 in the paper)."""
        self.pending = pending
        self._types = tuple(task_types)
        self._kind = {t.name: kind for kind, t in enumerate(task_types)}
        self._resources = len(task_types[0].minimum)
        self._index = np.arange(len(clusters))[:, None]
        self._nobody = (0,) * self._resources
        #: (T+1, R+T+1) row of a pending task of each type, then the row of no task. Rows of running tasks differ in the
        #: amounts and the last column.
        self._rows = np.zeros((len(task_types) + 1, self._resources + len(task_types) + 1), dtype=np.float32)
        for kind, t in enumerate(task_types):
            self._rows[kind, : self._resources] = t.minimum
            self._rows[kind, self._resources + kind] = 1.0
        self._rows[-1, -1] = 1.0
        #: S: the most tasks one cluster can run at once.
        self.most_running = most_running(clusters, task_types)

    def observe(self, snapshot: Snapshot, padded: bool = True, advised: Sequence[Mapping[int, int]] = ()) -> GraphObs:
        """Arrays of this moment. If not ``padded``: only the nodes, places and rows in use, at least one of each.

        ``advised``: cluster by task, one mapping per adviser. Pending sets begin with the tasks advised there.
        """
        size = self.pending
        tasks, nodes, waiting = self._queues(snapshot, advised)
        places = size if padded else max(1, min(size, max(waiting)))
        spare = (len(waiting) * size if padded else max(1, len(tasks))) - len(tasks)  # nodes without a task
        # A place without a task has node -1, the last element: the arrays have one more element than there are tasks.
        node = np.array([mine + [-1] * (places - len(mine)) for mine in nodes], dtype=np.int64)
        kinds, none = [self._kind[task.type.name] for task in tasks], len(self._types)
        there = self._index, np.array([*kinds, none])[node]
        largest = self._room(snapshot)[there]
        running, running_count, progress = self._running(snapshot, padded)
        clusters = snapshot.clusters
        return GraphObs(
            cluster_features=np.array(
                [(*c.free, max(0, count - size)) for c, count in zip(clusters, waiting, strict=True)], dtype=np.float32
            ),
            pending_features=self._rows[kinds + [none] * spare],
            running_features=running,
            running_count=running_count,
            task=np.array([*(task.id for task in tasks), -1], dtype=np.int64)[node],
            node=node,
            # A minimum is never zero, so only a task that cannot start has a largest allocation of zero.
            startable=np.asarray(largest.any(axis=2)),
            largest=largest,
            waiting=np.array(waiting, dtype=np.int64),
            age=np.array([snapshot.slot - task.arrival for task in tasks] + [0] * spare, dtype=np.int64),
            running_progress=progress,
            others=np.array([c.others or self._nobody for c in clusters], dtype=np.float32),
            others_lately=np.array([c.others_lately or self._nobody for c in clusters], dtype=np.float32),
            staging=self._staging(snapshot, tasks, nodes, places),
        )

    def _staging(
        self, snapshot: Snapshot, tasks: list[TaskView], nodes: list[list[int]], places: int
    ) -> npt.NDArray[np.int64]:
        """(N, K) slots until each pending task would have its data."""
        waits = np.zeros((len(nodes), places), dtype=np.int64)
        if snapshot.data is not None:
            of = [snapshot.data.waits(task.type.data, snapshot.slot) for task in tasks]
            place_of = snapshot.data.layout.place_of
            for n, mine in enumerate(nodes):
                waits[n, : len(mine)] = [of[node][place_of[n]] for node in mine]
        return waits

    # Lists are gathered first and each array is made in one step: writing single elements is ten times slower.

    def _queues(
        self, snapshot: Snapshot, advised: Sequence[Mapping[int, int]]
    ) -> tuple[list[TaskView], list[list[int]], list[int]]:
        """The pending tasks by node; each cluster's nodes, advised first, then oldest first; how many wait."""
        size = self.pending
        tasks: list[TaskView] = []
        nodes: list[list[int]] = [[] for _ in snapshot.clusters]
        waiting = [0] * len(nodes)
        known: dict[int, int] = {}  # node of each task that is shown
        first = {(n, j) for adviser in advised for j, n in adviser.items()}  # shown by the first pass

        def show(task: TaskView, n: int) -> None:
            if task.id not in known:
                known[task.id] = len(tasks)
                tasks.append(task)
            nodes[n].append(known[task.id])

        for task in snapshot.queue if first else ():
            for n in dict.fromkeys(adviser[task.id] for adviser in advised if task.id in adviser):
                if len(nodes[n]) < size:
                    show(task, n)
        for task in snapshot.queue:
            for n in task.eligible:
                waiting[n] += 1
                if len(nodes[n]) < size and (n, task.id) not in first:
                    show(task, n)
        return tasks, nodes, waiting

    def _room(self, snapshot: Snapshot) -> npt.NDArray[np.int64]:
        """(N, T+1, R): the most a task of each type could get on each cluster now; 0 if nothing, and for no task."""
        none = (0,) * self._resources
        nothing = [none] * (len(self._types) + 1)
        tops = [
            [*(largest_allocation(t, cluster.free) or none for t in self._types), none]
            if may_start(cluster)
            else nothing
            for cluster in snapshot.clusters
        ]
        return np.array(tops, dtype=np.int64)

    def _running(
        self, snapshot: Snapshot, padded: bool
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Features of running tasks (N, S, R+T+1), their number per cluster, and their progress (N, S)."""
        counts = [len(cluster.running) for cluster in snapshot.clusters]
        size = self.most_running if padded else max(1, min(self.most_running, max(counts)))
        features = np.zeros((len(counts) * size, self._rows.shape[1]), dtype=np.float32)
        progress = np.full(len(counts) * size, -1.0, dtype=np.float32)
        tasks: list[TaskView] = []
        flat: list[int] = []  # cluster * S + row
        for n, cluster in enumerate(snapshot.clusters):
            shown = cluster.running[:size]
            tasks += shown
            flat += range(n * size, n * size + len(shown))
        if tasks:
            rows = self._rows[[self._kind[task.type.name] for task in tasks]]
            rows[:, : self._resources] = [task.allocation for task in tasks]
            rows[:, -1] = [task.elapsed for task in tasks]
            features[flat] = rows
            progress[flat] = [-1.0 if task.progress is None else task.progress for task in tasks]
        shape = len(counts), size
        return features.reshape(*shape, -1), np.array(counts, dtype=np.int64), progress.reshape(shape)


def most_running(clusters: Sequence[Cluster], task_types: Sequence[TaskType]) -> int:
    """An upper bound on the tasks that any one cluster can run at once, for any mix of types."""
    least = task_types[0].minimum
    for task_type in task_types:
        least = least.at_most(task_type.minimum)
    if least.none:  # no resource is needed by every type: bound each type alone
        return max(sum(c.capacity.copies_of(t.minimum) for t in task_types) for c in clusters)
    return max(c.capacity.copies_of(least) for c in clusters)
