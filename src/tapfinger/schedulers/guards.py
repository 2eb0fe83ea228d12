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
from tapfinger.core.feasibility import can_start, ever_fits, largest_allocation
from tapfinger.core.model import TaskType
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.counters import Counting
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lateness import Lateness, RecentPercentile

#: Waiting tasks per cluster up to which a queue is short: sizes have their full limit. At 1 the slowest sizes of
#: synthetic-3, the tail, were given where a few more waited; from 4 on the mean suffers.
SHORT_QUEUE = 2.0

#: Waiting tasks per cluster beyond which a queue is long: no size is refused, and tasks become overdue by ``max_wait``
#: instead of ``calm_wait``. With 4 the tail of synthetic-3 began to suffer, with 6 and more the mean in bursts.
LONG_QUEUE = 5.0

#: In a queue that is neither short nor long, the limit of sizes is this many times as high. What is given there only
#: because nothing else is free runs for as long as anything ever does. A lower limit costs starts in overload.
RELAXED = 1.4

#: A cluster is held for an overdue task rather than start it at a size at which it takes this many times as long as at
#: its best there. A task that has waited for long and then runs for long is the very tail.
OVERDUE_STRETCH = 3.0

#: Overdue tasks per cluster beyond which they are started at any size.
MANY_OVERDUE = 3.0

#: Price of resources, for each late task per cluster, where late tasks are started in a queue that is not short: cheap
#: sizes keep it from growing. At a quarter of it means were 0.8 % longer on six sites, tails in overload 1 to 3 %.
LATE_TASK_PRICE = 60.0

#: In such a queue a cluster is held for a late task only if its completion time will be this many times what counts as
#: late. Without it a task that needs a whole cluster waits while small ones fill it (drawn site 7004: a p99 of 91 slots
#: instead of 46); at 1.25 the mean of 3-unequal-1.1 rises by 2 %.
FAR_TOO_LATE = 1.5

#: With ``adapt``, ``calm_wait`` is at least the wait that this share of the recent tasks stayed below. Where most tasks
#: wait long, a bound that is not made for the site serves by age what should be sorted by need.
USUAL_WAIT_SHARE = 0.98

#: After a pass over budget the network rests for 1, 2, 4, ... slots, at most this many.
LONGEST_REST = 64

_log = logging.getLogger(__name__)


class Ageing(Counting):
    """A task is overdue once it has waited ``max_wait`` units: its ideal duration, or the types' mean if that is less.

    Until the queue is long, ``calm_wait`` counts instead where that is less: a few late starts make the tail, and there
    is room to avoid them; in a long queue, serving by age costs the mean. With ``adapt``, a task must also have waited
    longer than is usual on this site (``RecentWaits``). Given a ``lateness``, ``calm_wait`` counts only in a short
    queue; in any other, late tasks come first, at cheap sizes, and a cluster is held only for one that is far too late.

    An overdue task comes first: before anybody else decides, each one that fits somewhere is started, oldest first,
    with the place and size that Greedy gives it. If it fits nowhere, or only at a size that is ``OVERDUE_STRETCH``
    times as slow as the best while at most ``MANY_OVERDUE`` tasks per cluster are overdue, a cluster is held for it.
    That cluster starts nothing else until the task fits; one cluster per task, one task per cluster. Without outages:

    - an overdue task that fits a cluster well is started in that very turn, unless older overdue tasks take
      the room (or, in single-task mode, the start), or the cluster is held for another;
    - with r older tasks waiting when it becomes overdue by ``max_wait``, it starts within (r + 2) (D + 1) slots,
      where D is the longest that any task runs. Proof: a held cluster is empty after at most D slots,
      and then its task fits and starts, at any size. So among the clusters that could run the task, one that is held is
      released every D + 1 slots, to the oldest overdue task that lacks one: at most r go before it,
      then it holds one itself and starts D + 1 slots later at most.
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
        """``max_wait`` and ``calm_wait``: in ideal durations, the shortest that a task could have on its clusters."""
        super().__init__(counters)
        self._max_wait, self._calm_wait = max_wait, min(max_wait, calm_wait)
        self._lateness = lateness
        #: Waiting tasks per cluster up to which ``calm_wait`` counts.
        self._calm_queue = LONG_QUEUE if lateness is None else SHORT_QUEUE
        # Both take any size, oldest first.
        self._greedy = Greedy(max_wait=0.0, short_first=0.0)
        self._thrifty = Greedy(max_wait=0.0, short_first=0.0, calm=0.0, queue_price=LATE_TASK_PRICE)
        #: Which task each held cluster waits for.
        self._held: dict[int, int] = {}
        self._waits = RecentWaits() if adapt else None
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Take other profiles from now on."""
        self._site, self._options = site, site.sizes
        self._greedy.learn_from(site)
        self._thrifty.learn_from(site)
        #: Ideal durations, or the types' mean, by type and eligible clusters; none is less than the least.
        self._units: dict[tuple[str, tuple[int, ...]], float] = {}
        self._least = min(sizes[0].slots for sizes in self._options.of.values())

    def start(self, snapshot: Snapshot) -> tuple[tuple[Placement, ...], Snapshot]:
        """Overdue tasks to start, and what is left for others to decide: held clusters look as if down."""
        calm = len(snapshot.queue) <= self._calm_queue * len(snapshot.clusters)
        overdue = self._overdue(snapshot, calm)
        late = [] if calm else self.late(snapshot)
        if not overdue and not late:
            self._held = {}
            return (), snapshot
        # These may have a cluster held for them.
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
        rest, placements = self._place(rest, [t for t in first if t.id not in started], self._held, placements, by)
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
        return placements, rest.closed(self._held)

    def late(self, snapshot: Snapshot) -> list[TaskView]:
        """Late tasks that have waited at least a unit, oldest first."""
        return [] if self._lateness is None else self._lateness.late(snapshot, self._unit)

    def _far_too_late(self, task: TaskView, slot: int) -> bool:
        return self._lateness is not None and self._lateness.ends(task, slot) > FAR_TOO_LATE * self._lateness.late_after

    def _overdue(self, snapshot: Snapshot, calm: bool) -> list[TaskView]:
        """Oldest first."""
        longest = self._calm_wait if calm else self._max_wait
        if self._waits is not None:
            self._waits.see(snapshot, self._unit)
            longest = min(self._max_wait, max(longest, self._waits.usual))
        found: list[TaskView] = []
        for task in snapshot.queue:
            waited = snapshot.slot - task.arrival
            if waited < longest * self._least:
                break  # and so have all that follow
            if waited >= longest * self._unit(task):
                found.append(task)
        return found

    def _unit(self, task: TaskView) -> float:
        """In slots. A long task may wait no longer than a usual one: it comes late enough as it is."""
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
        """Have Greedy start these tasks where it may; the snapshot afterwards, and all placements so far."""
        more = greedy.decide(snapshot.closed(closed).with_queue(tasks)).placements
        if len(tasks) <= MANY_OVERDUE * len(snapshot.clusters):
            kinds = {task.id: task.type for task in tasks}
            more = tuple(placement for placement in more if self._will_do(placement, kinds[placement.task], snapshot))
        return snapshot.booked(more), placed + more

    def _will_do(self, placement: Placement, kind: TaskType, snapshot: Snapshot) -> bool:
        """Whether it runs fast enough, or no size that ever fits there may be faster."""
        cluster = snapshot.clusters[placement.cluster]
        slowest = OVERDUE_STRETCH * self._options.ideal_on(kind.name, placement.cluster)
        return self._site.slots(kind, placement.allocation) <= slowest or cluster.free == cluster.capacity

    def _hold(self, task: TaskView, snapshot: Snapshot) -> None:
        """Of the clusters that could run it once they are empty, hold the one with most room."""
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
    """How long the tasks waited that have left the queue lately, in their units."""

    def __init__(self) -> None:
        """No task has left."""
        self._queue = TaskTracker(lambda snapshot: snapshot.queue)
        self._units: dict[int, float] = {}  # of waiting tasks, by id
        self._waits = RecentPercentile(USUAL_WAIT_SHARE, before=0.0)

    @property
    def usual(self) -> float:
        """The longest usual wait, in units; 0 until enough tasks have left."""
        return self._waits.value

    def see(self, snapshot: Snapshot, unit: Callable[[TaskView], float]) -> None:
        """Call it in every slot."""
        last = self._queue.slot
        changes = self._queue.observe(snapshot)
        if changes is None:
            return
        if changes.left:
            self._waits.add((last - task.arrival) / self._units.pop(task.id) for task in changes.left)
        self._units |= {task.id: unit(task) for task in changes.came}


class SizeLimit(Counting):
    """Refuses sizes at which a task would run more than ``max_stretch`` times its ideal duration.

    A network gives such a size once in thousands of tasks; those few are the tail. The cluster is void instead, and
    the task waits for a better size, or until it is overdue. The limit is ``RELAXED`` where the queue is not short, and
    there is none where it is long.
    """

    def __init__(self, site: SiteTables, max_stretch: float, counters: dict[str, int] | None = None) -> None:
        """``max_stretch``: in ideal durations; 0: no limit."""
        super().__init__(counters)
        self._max_stretch = max_stretch
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Take other profiles from now on."""
        self._site, self._clusters = site, len(site.context.clusters)

    def keep(self, proposals: list[Proposal], queue: Sequence[TaskView]) -> list[Proposal]:
        """The proposals with a size that will do."""
        if not self._max_stretch or not proposals or len(queue) > LONG_QUEUE * self._clusters:
            return proposals
        most = self._max_stretch * (1.0 if len(queue) <= SHORT_QUEUE * self._clusters else RELAXED)
        wanted = {proposal.task for proposal in proposals}
        tasks = {task.id: task for task in queue if task.id in wanted}
        kept = [proposal for proposal in proposals if self._will_do(proposal, tasks[proposal.task], most)]
        self.counters["refused"] += len(proposals) - len(kept)
        return kept

    def _will_do(self, proposal: Proposal, task: TaskView, most: float) -> bool:
        slowest = most * self._site.sizes.ideal(task.type.name, task.eligible)
        return self._site.slots(task.type, proposal.allocation) <= slowest


class TimeBudget(Counting):
    """Limits the time that the network takes in one slot, all turns together.

    A running pass cannot be stopped, so time is measured afterwards: once a slot's passes have used up the budget,
    Greedy decides the rest of the slot. If a single pass took that long, the network rests for a slot, after the next
    such pass for two, then four, ... up to ``LONGEST_REST``; a pass in time ends that. So a slot exceeds the budget by
    one pass at most, and a network that stays slow does so rarely.
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
        """When a pass that was allowed begins."""
        return self._clock() if self._budget else 0.0

    def end(self, begin: float) -> None:
        """Count the pass that began then."""
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
