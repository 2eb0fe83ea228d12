"""Guard rails of the learned scheduler: bounds that hold whatever the network says, and however long it takes.

``Ageing`` bounds how long a task waits, ``SizeLimit`` how slowly it runs, ``TimeBudget`` how long the network computes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence

from tapfinger.core.changes import TaskTracker
from tapfinger.core.contract import Placement, Proposal, Snapshot, TaskView
from tapfinger.core.estimates import staging_pays
from tapfinger.core.feasibility import can_start, ever_fits, largest_allocation
from tapfinger.core.model import TaskType
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.counters import Counting
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lateness import Lateness, RecentPercentile

#: Waiting tasks per cluster up to which a queue is short: the size limit holds in full. At 1, the slowest sizes of
#: synthetic-3, which make the tail, were given as soon as a few more tasks waited; from 4 on the mean suffers.
SHORT_QUEUE = 2.0

#: Waiting tasks per cluster beyond which a queue is long: no size is refused, and tasks become overdue by ``max_wait``
#: instead of ``calm_wait``. At 4 the tail of synthetic-3 began to suffer, at 6 and more the mean in bursts.
LONG_QUEUE = 5.0

#: Factor on the size limit while the queue is neither short nor long. A size that is given then only because nothing
#: else is free leads to the longest runs of all. A lower factor costs starts in overload.
RELAXED = 1.4

#: Stretch beyond which an overdue task is not started; a cluster is held for it instead. The stretch is relative to the
#: task's best size on that cluster. Tasks that wait long and then run long are the very tail.
OVERDUE_STRETCH = 3.0

#: Overdue tasks per cluster beyond which they are started at any size.
MANY_OVERDUE = 3.0

#: Price of resources, for each late task per cluster, when late tasks are started while the queue is not short: cheap
#: sizes keep the queue from growing. At a quarter of this price, means were 0.8 % longer on six sites, and tails in
#: overload 1 to 3 %.
LATE_TASK_PRICE = 60.0

#: While the queue is not short, a cluster is held for a late task only if the task's completion time will exceed this
#: many times what counts as late. Without holding, a task that needs a whole cluster waits while small tasks fill it
#: (drawn site 7004: a p99 of 91 slots instead of 46); at 1.25 the mean of 3-unequal-1.1 rises by 2 %.
FAR_TOO_LATE = 1.5

#: With ``adapt``, ``calm_wait`` is at least the wait that this share of recent tasks stayed below. Where most tasks
#: wait long, a bound that was not chosen for the site would serve tasks by age instead of by need.
USUAL_WAIT_SHARE = 0.98

#: After a pass over budget the network rests for 1, 2, 4, ... slots, at most this many.
LONGEST_REST = 64

_log = logging.getLogger(__name__)


class Ageing(Counting):
    """A task is overdue after ``max_wait`` units of waiting; a unit is its ideal duration, or the types' mean if less.

    While the queue is not long, ``calm_wait`` counts instead if it is less: a few late starts make the tail, and there
    is room to avoid them. In a long queue, serving by age costs the mean. With ``adapt``, a task must also have waited
    longer than is usual on this site (``RecentWaits``). With a ``lateness``, ``calm_wait`` counts only in a short
    queue; otherwise late tasks come first, at cheap sizes, and a cluster is held for a late task only if it is far too
    late.

    Overdue tasks come first: before any other decision, each one that fits somewhere is started, oldest first, on the
    cluster and at the size that Greedy gives it. If a task fits nowhere, or only at a size that is ``OVERDUE_STRETCH``
    times as slow as the best while at most ``MANY_OVERDUE`` tasks per cluster are overdue, a cluster is held for it. A
    held cluster starts nothing else until the task fits; one cluster per task, one task per cluster. Without outages:

    - an overdue task that fits a cluster well is started in the same turn, unless older overdue tasks take
      the room (or, in single-task mode, the start), or the cluster is held for another;
    - a task with r older tasks waiting when it becomes overdue by ``max_wait`` starts within (r + 2) (D + 1) slots,
      where D is the longest running time of any task. Proof: a held cluster is empty after at most D slots, and then
      its task fits and starts, at any size. So among the clusters that could run the task, one that is held is released
      every D + 1 slots, to the oldest overdue task without one. At most r tasks go first; then a cluster is held for
      the task, and it starts at most D + 1 slots later.
    """

    def __init__(
        self,
        site: SiteTables,
        max_wait: float,
        calm_wait: float = math.inf,
        adapt: bool = False,
        lateness: Lateness | None = None,
        counters: dict[str, int] | None = None,
    ) -> None:
        """``max_wait`` and ``calm_wait``: in ideal durations, the shortest a task can have on its clusters."""
        super().__init__(counters)
        self._max_wait, self._calm_wait = max_wait, min(max_wait, calm_wait)
        self._lateness = lateness
        #: Waiting tasks per cluster up to which ``calm_wait`` counts.
        self._calm_queue = LONG_QUEUE if lateness is None else SHORT_QUEUE
        # Both accept any size and serve the oldest first.
        self._greedy = Greedy(max_wait=0.0, short_first=0.0)
        self._thrifty = Greedy(max_wait=0.0, short_first=0.0, calm=0.0, queue_price=LATE_TASK_PRICE)
        #: Cluster -> id of the task that it is held for.
        self._held: dict[int, int] = {}
        self._waits = RecentWaits() if adapt else None
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._site, self._options = site, site.sizes
        self._greedy.learn_from(site)
        self._thrifty.learn_from(site)
        #: Unit of waiting in slots, by type and eligible clusters; none is less than ``_least``.
        self._units: dict[tuple[str, tuple[int, ...]], float] = {}
        self._least = min(sizes[0].slots for sizes in self._options.of.values())

    def start(self, snapshot: Snapshot) -> tuple[tuple[Placement, ...], Snapshot]:
        """Overdue tasks to start, and the snapshot left for other decisions, in which held clusters are down."""
        calm = len(snapshot.queue) <= self._calm_queue * len(snapshot.clusters)
        overdue = self._overdue(snapshot, calm)
        late = [] if calm else self.late(snapshot)
        if not overdue and not late:
            self._held = {}
            return (), snapshot
        # Tasks that may have a cluster held for them.
        waiting = {task.id: task for task in overdue}
        waiting |= {task.id: task for task in late if self._far_too_late(task, snapshot.slot)}
        first = _oldest_first(waiting | {task.id: task for task in late})
        by = self._greedy if calm or self._lateness is None else self._thrifty
        self._held = {n: i for n, i in self._held.items() if i in waiting and snapshot.clusters[n].up}
        rest = snapshot
        placements: tuple[Placement, ...] = ()
        for n, ident in list(self._held.items()):
            if can_start(waiting[ident], rest.clusters[n]):
                others = set(range(len(rest.clusters))) - {n}
                rest, placements = self._place(rest, [waiting[ident]], others, placements, by)
                del self._held[n]
        started = {placement.task for placement in placements}
        rest, placements = self._place(
            rest, [t for t in first if t.id not in started], rest.sharing(self._held), placements, by
        )
        started = {placement.task for placement in placements}
        # A task may have started elsewhere than on the cluster held for it.
        self._held = {n: ident for n, ident in self._held.items() if ident not in started}
        for task in _oldest_first(waiting):
            if task.id not in started and task.id not in self._held.values():
                self._hold(task, rest)
        due = {task.id for task in overdue}
        for task in late:
            if task.id in started and task.id not in due and self._lateness is not None:
                self._lateness.spend(task)
        if placements:
            if not self.counters["forced"]:
                _log.info("slot %d: overdue tasks are started without asking the network", snapshot.slot)
            self.counters["forced"] += len(placements)
        return placements, rest.closed(rest.sharing(self._held))

    def late(self, snapshot: Snapshot) -> list[TaskView]:
        """Late tasks that have waited at least one unit, oldest first."""
        return [] if self._lateness is None else self._lateness.late(snapshot, self._unit)

    def _far_too_late(self, task: TaskView, slot: int) -> bool:
        return self._lateness is not None and self._lateness.ends(task, slot) > FAR_TOO_LATE * self._lateness.late_after

    def _overdue(self, snapshot: Snapshot, calm: bool) -> list[TaskView]:
        """Overdue tasks, oldest first."""
        longest = self._calm_wait if calm else self._max_wait
        if self._waits is not None:
            self._waits.see(snapshot, self._unit)
            longest = min(self._max_wait, max(longest, self._waits.usual))
        found: list[TaskView] = []
        for task in snapshot.queue:
            waited = snapshot.slot - task.arrival
            if waited < longest * self._least:
                break  # the tasks that follow have waited even less
            if waited >= longest * self._unit(task):
                found.append(task)
        return found

    def _unit(self, task: TaskView) -> float:
        """Unit of waiting, in slots. A long task may wait no longer than a usual one: it ends late enough as it is."""
        key = (task.type.name, task.eligible)
        if key not in self._units:
            ideals = [self._options.ideal(name, task.eligible) for name in self._options.of]
            possible = [ideal for ideal in ideals if ideal < float("inf")]
            self._units[key] = min(self._options.ideal(*key), sum(possible) / max(1, len(possible)))
        return self._units[key]

    def _place(
        self,
        snapshot: Snapshot,
        tasks: Sequence[TaskView],
        closed: Collection[int],
        placed: tuple[Placement, ...],
        greedy: Greedy,
    ) -> tuple[Snapshot, tuple[Placement, ...]]:
        """Let Greedy start these tasks where it may; return the snapshot afterwards and all placements so far."""
        more = greedy.decide(snapshot.closed(closed).with_queue(tasks)).placements
        if len(tasks) <= MANY_OVERDUE * len(snapshot.clusters):
            kinds = {task.id: task.type for task in tasks}
            more = tuple(placement for placement in more if self._will_do(placement, kinds[placement.task], snapshot))
        return snapshot.booked(more), placed + more

    def _will_do(self, placement: Placement, kind: TaskType, snapshot: Snapshot) -> bool:
        """Whether the size is fast enough, or the cluster is empty, so that no faster one will ever fit."""
        cluster = snapshot.clusters[placement.cluster]
        slowest = OVERDUE_STRETCH * self._options.ideal_on(kind.name, placement.cluster)
        return (
            self._site.slots(kind, placement.allocation, cluster.index) <= slowest or cluster.free == cluster.capacity
        )

    def _hold(self, task: TaskView, snapshot: Snapshot) -> None:
        """Hold the cluster with the most room among those that could run the task when empty."""
        could = [
            cluster
            for n in task.eligible
            if n not in self._held
            and (cluster := snapshot.clusters[n]).up
            and ever_fits(task.type.minimum, cluster.capacity)
        ]
        if not could:
            return
        best = max(
            could,
            key=lambda c: (
                largest_allocation(task.type, c.free) is not None,
                self._options.free_share(c.free),
                -c.index,
            ),
        )
        self._held[best.index] = task.id
        if not self.counters["holds"]:
            _log.info("slot %d: cluster %s is held for overdue task %d", snapshot.slot, best.name, task.id)
        self.counters["holds"] += 1


def _oldest_first(tasks: dict[int, TaskView]) -> list[TaskView]:
    return sorted(tasks.values(), key=lambda task: (task.arrival, task.id))


class RecentWaits:
    """How long tasks that recently left the queue had waited, in their units."""

    def __init__(self) -> None:
        """Start with no waits seen."""
        self._queue = TaskTracker(lambda snapshot: snapshot.queue)
        self._units: dict[int, float] = {}  # of waiting tasks, by id
        self._waits = RecentPercentile(USUAL_WAIT_SHARE, before=0.0)

    @property
    def usual(self) -> float:
        """Longest usual wait, in units; 0 until enough tasks have left the queue."""
        return self._waits.value

    def see(self, snapshot: Snapshot, unit: Callable[[TaskView], float]) -> None:
        """Record the waits of tasks that have left the queue. Call it in every slot."""
        last = self._queue.slot
        changes = self._queue.observe(snapshot)
        if changes is None:
            return
        if changes.left:
            self._waits.add((last - task.arrival) / self._units.pop(task.id) for task in changes.left)
        self._units |= {task.id: unit(task) for task in changes.came}


class SizeLimit(Counting):
    """Refuses sizes at which a task would run more than ``max_stretch`` times its ideal duration.

    A network gives such a size to one task in thousands, and those few are the tail. With the limit, the cluster is
    void and the task waits for a better size, or until it is overdue. The limit is ``RELAXED`` times as high while the
    queue is not short, and there is none while it is long.
    """

    def __init__(self, site: SiteTables, max_stretch: float, counters: dict[str, int] | None = None) -> None:
        """``max_stretch``: in ideal durations; 0: no limit."""
        super().__init__(counters)
        self._max_stretch = max_stretch
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._site, self._clusters = site, len(site.context.clusters)

    def keep(self, proposals: list[Proposal], snapshot: Snapshot) -> list[Proposal]:
        """Proposals with a size within the limit, where it pays to wait for the task's data."""
        queue = snapshot.queue
        if not self._max_stretch or not proposals or len(queue) > LONG_QUEUE * self._clusters:
            return proposals
        most = self._max_stretch * (1.0 if len(queue) <= SHORT_QUEUE * self._clusters else RELAXED)
        wanted = {proposal.task for proposal in proposals}
        tasks = {task.id: task for task in queue if task.id in wanted}
        kept = [proposal for proposal in proposals if self._will_do(proposal, tasks[proposal.task], most, snapshot)]
        self.counters["refused"] += len(proposals) - len(kept)
        return kept

    def _will_do(self, proposal: Proposal, task: TaskView, most: float, snapshot: Snapshot) -> bool:
        ideal = self._site.sizes.ideal(task.type.name, task.eligible)
        if staging := snapshot.staging_of(task):
            later = staging[proposal.cluster] - min(staging.values())
            if not staging_pays(later, ideal, snapshot.slot - task.arrival):
                return False
        return self._site.slots(task.type, proposal.allocation, proposal.cluster) <= most * ideal


class TimeBudget(Counting):
    """Limits the time that the network takes in one slot, over all turns.

    A running pass cannot be stopped, so time is measured afterwards: once a slot's passes have used up the budget,
    Greedy decides the rest of the slot. If a single pass exceeds the budget, the network rests for one slot, after the
    next such pass for two, then four, ... up to ``LONGEST_REST``; a pass within the budget ends this. So a slot exceeds
    the budget by at most one pass, and a network that stays slow does so rarely.
    """

    def __init__(
        self,
        budget_ms: float,
        clock: Callable[[], float] = time.perf_counter,
        counters: dict[str, int] | None = None,
    ) -> None:
        """``budget_ms``: milliseconds; 0: no limit, and the ``clock`` (in seconds) is never read."""
        super().__init__(counters)
        self._budget = budget_ms / 1e3
        self._clock = clock
        self._slot = -1
        self._spent = 0.0
        self._rest = 1
        self._resume = 0

    def allows(self, slot: int) -> bool:
        """Whether the network may be asked in this slot now."""
        if slot != self._slot:
            self._slot, self._spent = slot, 0.0
        return not self._budget or (slot >= self._resume and self._spent <= self._budget)

    def begin(self) -> float:
        """Time at which an allowed pass begins, in seconds."""
        return self._clock() if self._budget else 0.0

    def end(self, begin: float) -> None:
        """Count the pass that began at ``begin``."""
        if not self._budget:
            return
        took = self._clock() - begin
        self._spent += took
        if took > self._budget:
            self._resume = self._slot + 1 + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        else:
            self._rest = 1
        if self._spent > self._budget:
            if not self.counters["over_budget"]:
                spent, budget = 1e3 * self._spent, 1e3 * self._budget
                _log.warning("slot %d: the network took %.1f of %.1f ms; greedy decides", self._slot, spent, budget)
            self.counters["over_budget"] += 1
