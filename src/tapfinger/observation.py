"""Snapshot -> arrays: the paper's raw state of every cluster, for environments and learned schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Snapshot
from tapfinger.core.feasibility import can_start, largest_allocation
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
        self._resources = len(task_types[0].minimum)
        width = self._resources + len(task_types) + 1
        #: (R+T+1,) row of a pending task of each type; a running task's differs in amounts and the last column.
        self._rows = {t.name: np.zeros(width, dtype=np.float32) for t in task_types}
        for i, t in enumerate(task_types):
            self._rows[t.name][: self._resources] = t.minimum
            self._rows[t.name][self._resources + i] = 1.0
        self._width = width
        self._clusters = len(clusters)
        #: S: the most tasks one cluster can run at once.
        self.most_running = most_running(clusters, task_types)

    def observe(self, snapshot: Snapshot) -> GraphObs:
        """Arrays of this moment."""
        n_clusters, size, amounts, width = self._clusters, self.pending, self._resources, self._width
        obs = GraphObs(
            cluster_features=np.zeros((n_clusters, amounts + 1), dtype=np.float32),
            pending_features=np.zeros((n_clusters * size, width), dtype=np.float32),
            running_features=np.zeros((n_clusters, self.most_running, width), dtype=np.float32),
            running_count=np.zeros(n_clusters, dtype=np.int64),
            task=np.full((n_clusters, size), -1, dtype=np.int64),
            node=np.full((n_clusters, size), -1, dtype=np.int64),
            startable=np.zeros((n_clusters, size), dtype=np.bool_),
            largest=np.zeros((n_clusters, size, amounts), dtype=np.int64),
            waiting=np.zeros(n_clusters, dtype=np.int64),
            age=np.zeros(n_clusters * size, dtype=np.int64),
        )
        self._pending(snapshot, obs)
        for n, cluster in enumerate(snapshot.clusters):
            obs.cluster_features[n, :amounts] = cluster.free
            obs.cluster_features[n, amounts] = max(0, obs.waiting[n] - size)
            obs.running_count[n] = len(cluster.running)
            for row, task in zip(obs.running_features[n], cluster.running, strict=False):
                row[:] = self._rows[task.type.name]
                row[:amounts] = task.allocation
                row[-1] = task.elapsed
        return obs

    def _pending(self, snapshot: Snapshot, obs: GraphObs) -> None:
        waiting = [0] * self._clusters  # a list: counting in an array is several times slower
        nodes = 0
        for task in snapshot.queue:
            node = -1
            for n in task.eligible:
                place = waiting[n]
                waiting[n] += 1
                if place >= self.pending:
                    continue
                if node < 0:
                    node, nodes = nodes, nodes + 1
                    obs.pending_features[node] = self._rows[task.type.name]
                    obs.age[node] = snapshot.slot - task.arrival
                obs.task[n, place] = task.id
                obs.node[n, place] = node
                cluster = snapshot.clusters[n]
                top = largest_allocation(task.type, cluster.free)
                if top is not None and can_start(task, cluster):
                    obs.startable[n, place] = True
                    obs.largest[n, place] = top
        obs.waiting[:] = waiting
        obs.pending_features[nodes:, -1] = 1.0


def most_running(clusters: Sequence[Cluster], task_types: Sequence[TaskType]) -> int:
    """A bound on the tasks that any one cluster can run at once, of whatever mix of types."""
    least = task_types[0].minimum
    for task_type in task_types:
        least = least.at_most(task_type.minimum)
    if least.none:  # no resource is needed by every type: bound each type alone
        return max(sum(c.capacity.copies_of(t.minimum) for t in task_types) for c in clusters)
    return max(c.capacity.copies_of(least) for c in clusters)
