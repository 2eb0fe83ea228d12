"""Stage ``waiting``: no task waits for ever, whatever the network says. A stated bound, with its proof."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from tapfinger.core.contract import Placement, Snapshot, TaskView
from tapfinger.core.feasibility import can_start, ever_fits, largest_allocation
from tapfinger.core.model import Task
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.stages.base import Plan, Stage, Start

_log = logging.getLogger(__name__)


class Waiting(Stage):
    """A task is overdue after ``max_wait`` units of waiting; a unit is its ideal duration, or the types' mean if less.

    Overdue tasks come first: each one that fits somewhere is started, oldest first, on the cluster and at the size that
    Greedy gives it. If a task fits nowhere, a cluster is reserved for it, which starts nothing else until the task
    fits; one cluster per task, one task per cluster. What is lent to running tasks counts as free. Without outages:

    - an overdue task that fits a cluster is started in the same turn, unless older overdue tasks take the room (or, in
      single-task mode, the start), or the cluster is reserved for another;
    - a task with r older tasks waiting when it becomes overdue starts within (r + 2) (D + 1) slots, where D is the
      longest running time of any task. Proof: a reserved cluster is empty after at most D slots, and then its task fits
      and starts. So among the clusters that could run the task, one that is reserved is released every D + 1 slots, to
      the oldest overdue task without one. At most r tasks go first; then a cluster is reserved for the task, and it
      starts at most D + 1 slots later.
    """

    name = "waiting"
    meaning = "Starts of tasks that had waited for the longest time allowed, without asking the network."

    def __init__(self, max_wait: float) -> None:
        """``max_wait``: in ideal durations, the shortest a task can have on its clusters."""
        self._max_wait = max_wait
        # Accepts any size and serves the oldest first.
        self._greedy = Greedy(max_wait=0.0, short_first=0.0)

    def reset(self, site: SiteTables, counters: dict[str, int]) -> None:
        """No cluster is reserved."""
        #: Cluster -> id of the task that it is reserved for.
        self._reserved: dict[int, int] = {}
        super().reset(site, counters)

    def learn(self, site: SiteTables) -> None:
        """Use these speed profiles from now on."""
        self._sizes = site.sizes
        self._greedy.learn_from(site)
        #: Unit of waiting in slots, by type and eligible clusters; none is less than ``_least``.
        self._units: dict[tuple[str, tuple[int, ...]], float] = {}
        self._least = min(sizes[0].slots for sizes in site.sizes.of.values())

    def apply(self, plan: Plan) -> Plan:
        """Start overdue tasks, and reserve clusters for those that do not fit."""
        waiting = {task.id: task for task in self._overdue(plan.snapshot)}
        if not waiting:
            self._reserved = {}
            return plan
        clusters = plan.snapshot.clusters
        self._reserved = {n: i for n, i in self._reserved.items() if i in waiting and clusters[n].up}
        rest, placements = plan.snapshot, list[Placement]()
        for n, ident in self._reserved.items():
            if can_start(waiting[ident], rest.clusters[n]):
                others = set(range(len(clusters))) - {n}
                rest = self._start(rest, [waiting.pop(ident)], others, placements)
        self._reserved = {n: ident for n, ident in self._reserved.items() if ident in waiting}
        rest = self._start(rest, list(waiting.values()), rest.sharing(self._reserved), placements)
        started = {placement.task for placement in placements}
        # A task may have started elsewhere than on the cluster reserved for it.
        self._reserved = {n: ident for n, ident in self._reserved.items() if ident not in started}
        for task in waiting.values():
            if task.id not in started and task.id not in self._reserved.values():
                self._reserve(task, rest)
        if placements and not self.counters[self.name]:
            _log.info("slot %d: overdue tasks are started without asking the network", plan.snapshot.slot)
        plan = plan.with_starts(Start(placement, (self.name,)) for placement in placements)
        return replace(plan, reserved=plan.reserved | self._reserved.keys())

    def _overdue(self, snapshot: Snapshot) -> list[TaskView]:
        """Overdue tasks, oldest first."""
        found: list[TaskView] = []
        for task in snapshot.queue:
            waited = snapshot.slot - task.arrival
            if waited < self._max_wait * self._least:
                break  # the tasks that follow have waited even less
            if waited >= self._max_wait * self.unit(task):
                found.append(task)
        return found

    def unit(self, task: Task | TaskView) -> float:
        """Unit of waiting, in slots. A long task may wait no longer than a usual one: it ends late enough as it is."""
        key = (task.type.name, task.eligible)
        if key not in self._units:
            ideals = [self._sizes.ideal(name, task.eligible) for name in self._sizes.of]
            possible = [ideal for ideal in ideals if ideal < float("inf")]
            self._units[key] = min(self._sizes.ideal(*key), sum(possible) / max(1, len(possible)))
        return self._units[key]

    def _start(
        self, snapshot: Snapshot, tasks: Sequence[TaskView], closed: Collection[int], placed: list[Placement]
    ) -> Snapshot:
        """Let Greedy start these tasks where it may; adds to ``placed`` and returns the snapshot afterwards."""
        more = self._greedy.decide(snapshot.closed(closed).with_queue(tasks)).placements
        placed += more
        return snapshot.booked(more)

    def _reserve(self, task: TaskView, snapshot: Snapshot) -> None:
        """Reserve the cluster with the most room among those that could run the task when empty."""
        could = [
            cluster
            for n in task.eligible
            if n not in self._reserved
            and (cluster := snapshot.clusters[n]).up
            and ever_fits(task.type.minimum, cluster.capacity)
        ]
        if not could:
            return
        best = max(
            could,
            key=lambda c: (
                largest_allocation(task.type, c.free) is not None,
                self._sizes.free_share(c.free),
                -c.index,
            ),
        )
        self._reserved[best.index] = task.id
        if not self.counters["reserved"]:
            _log.info("slot %d: cluster %s is reserved for overdue task %d", snapshot.slot, best.name, task.id)
        self.counters["reserved"] += 1
