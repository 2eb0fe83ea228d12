"""Random and Min: each cluster takes a random pending task, with a random legal allocation or the minimum."""

from __future__ import annotations

import numpy as np

from tapfinger.core.conflict import resolve
from tapfinger.core.contract import VOID, Decision, Proposal, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start, largest_allocation
from tapfinger.core.model import Resources, TaskType
from tapfinger.errors import ConfigError


class _RandomTask:
    """One agent per cluster, each choosing uniformly among its pending tasks that fit."""

    one_shot = False

    def __init__(self, pending: int = 10) -> None:
        """``pending``: size of the pending set each cluster chooses from."""
        if pending < 1:
            raise ConfigError(f"pending = {pending!r} must be at least 1, or no cluster could choose a task")
        self._pending = pending
        self._rng = np.random.default_rng(0)

    def reset(self, context: SchedulerContext) -> None:
        """Start the scheduler's own random stream."""
        self._rng = np.random.default_rng(context.seed)

    def decide(self, snapshot: Snapshot) -> Decision:
        """One proposal per cluster that has a task to start; Bayes' rule settles conflicts."""
        proposals = []
        minimum = {}
        for cluster in snapshot.clusters:
            fitting = [t for t in snapshot.pending(cluster.index, self._pending) if can_start(t, cluster)]
            if not fitting:
                continue
            task = fitting[int(self._rng.integers(len(fitting)))]
            allocation = self._size(task.type, cluster.free)
            proposals.append(Proposal(cluster.index, task.id, allocation, 1.0 / len(fitting)))
            minimum[task.id] = task.type.minimum
        return resolve(proposals, snapshot.free, minimum, snapshot.spans) if proposals else VOID

    def _size(self, task_type: TaskType, free: Resources) -> Resources:
        raise NotImplementedError


class Min(_RandomTask):
    """The minimum allocation."""

    def _size(self, task_type: TaskType, free: Resources) -> Resources:  # noqa: ARG002
        return task_type.minimum


class Random(_RandomTask):
    """A uniformly random legal allocation."""

    def _size(self, task_type: TaskType, free: Resources) -> Resources:
        top = largest_allocation(task_type, free)
        if top is None:  # cannot happen: the task fits
            return task_type.minimum
        return Resources([int(self._rng.integers(lo, hi + 1)) for lo, hi in zip(task_type.minimum, top, strict=True)])
