"""Snapshot -> arrays: the paper's raw state of every cluster, for environments and learned schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Snapshot, TaskView
from tapfinger.core.feasibility import largest_allocation, may_start
from tapfinger.core.model import Cluster, TaskType

#: Raised whenever the meaning of an array changes; checkpoints carry it.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class GraphObs:
    """One observation. N clusters, K pending per cluster, M = N*K nodes, S running per cluster, R resources, T types.

    A task that waits for several clusters is ONE node, joined to each of them through ``node``.
    """

    #: (N, R+1) free resources; number waiting beyond the pending set.
    cluster_features: npt.NDArray[np.float32]
    #: (M, R+T+1) minimum; type one-hot; dummy bit.
    pending_features: npt.NDArray[np.float32]
    #: (N, S, R+T+1) allocation; type one-hot; slots run.
    running_features: npt.NDArray[np.float32]
    #: (N,) how many of the S rows are tasks.
    running_count: npt.NDArray[np.int64]
    #: (N, K) id of each pending task, -1 for none.
    task: npt.NDArray[np.int64]
    #: (N, K) its node, -1 for none.
    node: npt.NDArray[np.int64]
    #: (N, K) whether it may start on the cluster now: the mask of the task choice.
    startable: npt.NDArray[np.bool_]
    #: (N, K, R) upper corner of its legal allocations (minimum is the lower one); 0 where not startable.
    largest: npt.NDArray[np.int64]
    #: (N,) length of the cluster's queue.
    waiting: npt.NDArray[np.int64]
    #: (M,) slots each pending node has waited; not part of the paper's state.
    age: npt.NDArray[np.int64]


class Observer:
    """Turns snapshots of one set of clusters and task types into arrays."""

    def __init__(self, clusters: Sequence[Cluster], task_types: Sequence[TaskType], pending: int = 10) -> None:
        """``pending``: size of the pending set (10 in the paper)."""
        self.pending = pending
        self._clusters = len(clusters)
        self._types = tuple(task_types)
        self._kind = {t.name: kind for kind, t in enumerate(task_types)}
        self._resources = len(task_types[0].minimum)
        #: (T, R+T+1) row of a pending task of each type; a running task's differs in amounts and the last column.
        self._rows = np.zeros((len(task_types), self._resources + len(task_types) + 1), dtype=np.float32)
        for kind, t in enumerate(task_types):
            self._rows[kind, : self._resources] = t.minimum
            self._rows[kind, self._resources + kind] = 1.0
        #: S: the most tasks one cluster can run at once.
        self.most_running = most_running(clusters, task_types)

    def observe(self, snapshot: Snapshot) -> GraphObs:
        """Arrays of this moment."""
        n_clusters, size, amounts, width = self._clusters, self.pending, self._resources, self._rows.shape[1]
        obs = GraphObs(
            cluster_features=np.zeros((n_clusters, amounts + 1), dtype=np.float32),
            pending_features=np.zeros((n_clusters * size, width), dtype=np.float32),
            running_features=np.zeros((n_clusters, self.most_running, width), dtype=np.float32),
            running_count=np.array([len(cluster.running) for cluster in snapshot.clusters], dtype=np.int64),
            task=np.full((n_clusters, size), -1, dtype=np.int64),
            node=np.full((n_clusters, size), -1, dtype=np.int64),
            startable=np.zeros((n_clusters, size), dtype=np.bool_),
            largest=np.zeros((n_clusters, size, amounts), dtype=np.int64),
            waiting=np.zeros(n_clusters, dtype=np.int64),
            age=np.zeros(n_clusters * size, dtype=np.int64),
        )
        self._pending(snapshot, obs)
        self._running(snapshot, obs)
        obs.cluster_features[:, :amounts] = [cluster.free for cluster in snapshot.clusters]
        obs.cluster_features[:, amounts] = np.maximum(0, obs.waiting - size)
        return obs

    # Both gather lists and write each array once: writing single elements is ten times slower.

    def _pending(self, snapshot: Snapshot, obs: GraphObs) -> None:
        size = self.pending
        waiting = [0] * self._clusters
        tasks: list[TaskView] = []  # by node
        flat: list[int] = []  # cluster * K + place of each pending task
        node: list[int] = []  # its node
        for task in snapshot.queue:
            before = len(flat)
            for n in task.eligible:
                place = waiting[n]
                waiting[n] = place + 1
                if place < size:
                    flat.append(n * size + place)
            if len(flat) > before:
                node += [len(tasks)] * (len(flat) - before)
                tasks.append(task)
        obs.waiting[:] = waiting
        obs.pending_features[len(tasks) :, -1] = 1.0
        if not tasks:
            return
        kind = np.array([self._kind[task.type.name] for task in tasks])  # (nodes,)
        obs.pending_features[: len(tasks)] = self._rows[kind]
        obs.age[: len(tasks)] = snapshot.slot - np.array([task.arrival for task in tasks])
        at, of = np.array(flat), np.array(node)
        obs.task.reshape(-1)[at] = np.array([task.id for task in tasks])[of]
        obs.node.reshape(-1)[at] = of
        startable, largest = self._room(snapshot)
        where = at // size, kind[of]
        obs.startable.reshape(-1)[at] = startable[where]
        obs.largest.reshape(-1, self._resources)[at] = largest[where]

    def _room(self, snapshot: Snapshot) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Whether a task of each type could start on each cluster (N, T), and its largest allocation (N, T, R)."""
        none = (0,) * self._resources
        tops = [
            [(may_start(cluster) and largest_allocation(t, cluster.free)) or none for t in self._types]
            for cluster in snapshot.clusters
        ]
        largest = np.array(tops, dtype=np.int64)
        # A minimum asks for something, so only what cannot start has a largest allocation of nothing.
        return np.asarray(largest.any(axis=2)), largest

    def _running(self, snapshot: Snapshot, obs: GraphObs) -> None:
        tasks: list[TaskView] = []
        flat: list[int] = []  # cluster * S + row
        for n, cluster in enumerate(snapshot.clusters):
            shown = cluster.running[: self.most_running]
            tasks += shown
            flat += range(n * self.most_running, n * self.most_running + len(shown))
        if not tasks:
            return
        rows = self._rows[[self._kind[task.type.name] for task in tasks]]
        rows[:, : self._resources] = [task.allocation for task in tasks]
        rows[:, -1] = [task.elapsed for task in tasks]
        obs.running_features.reshape(-1, rows.shape[1])[flat] = rows


def most_running(clusters: Sequence[Cluster], task_types: Sequence[TaskType]) -> int:
    """A bound on the tasks that any one cluster can run at once, of whatever mix of types."""
    least = task_types[0].minimum
    for task_type in task_types:
        least = least.at_most(task_type.minimum)
    if least.none:  # no resource is needed by every type: bound each type alone
        return max(sum(c.capacity.copies_of(t.minimum) for t in task_types) for c in clusters)
    return max(c.capacity.copies_of(least) for c in clusters)
