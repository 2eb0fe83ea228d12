"""Guard rails of the learned scheduler: what holds whatever the network says, and however long it takes.

``Ageing``: no task is refused or overtaken for ever. ``SizeLimit``: no task runs far slower than it could.
``TimeBudget``: when to leave decisions to Greedy.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tapfinger.core.contract import Placement, Proposal, SchedulerContext, Snapshot, TaskView
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import TaskType
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.options import Options
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lateness import Lateness

#: Sizes are limited while there are at most this many waiting tasks per cluster: beyond it, any start is a good one.
#: At 1 the slowest sizes of synthetic-3, the tail, were given where a few more waited; from 4 on the mean suffers.
CALM = 2.0

#: Up to ``FEW`` waiting tasks per cluster, sizes so many times slower than that are still refused: what is given there
#: only because nothing else is free runs for as long as anything ever does. A lower bound costs starts in overload.
EASED = 1.4

#: A cluster is held for an overdue task rather than start it at a size at which it takes this many times as long as at
#: its best there. A task that has waited for long and then runs for long is the very tail.
SLOWEST = 3.0

#: With more overdue tasks per cluster than this, any start is a good one.
CROWDED = 3.0

#: What resources cost, for each late task per cluster, where late tasks are started in a longer queue: cheap sizes are
#: what keeps it from growing. At a quarter of it means were 0.8 % longer on six sites, and tails in overload 1 to 3 %.
LATE_PRICE = 60.0

#: In a longer queue a cluster is held for a late task only if it will take so many times what nearly all take. Without
#: it a task that needs a whole cluster waits while small ones fill it (drawn site 7004: a p99 of 91 slots instead of
#: 46); at 1.25 the mean of 3-unequal-1.1 rises by 2 %.
FAR_TOO_LATE = 1.5

#: With at most this many waiting tasks per cluster, tasks are overdue early (``calm_wait``). With 4 the tail of
#: synthetic-3 began to suffer, with 6 and more the mean in bursts of arrivals.
FEW = 5.0

#: With ``adapt``, tasks are overdue early only if they have waited longer than this share of the last ``RECENT`` did.
#: Where most tasks wait long, a bound that is not made for the site serves by age what should be sorted by need.
LATE = 0.98
RECENT = 300
#: From so many on they count.
ENOUGH = 30

#: After a pass over budget the network rests for 1, 2, 4, ... slots, at most this many.
LONGEST_REST = 64

_log = logging.getLogger(__name__)


class Ageing:
    """A task is overdue once it has waited ``max_wait`` times its ideal duration, or the usual one where that is less.

    While at most ``FEW`` tasks wait per cluster, ``calm_wait`` counts instead where that is less: a few late starts
    make the tail, and there is room to avoid them; in a long queue, serving by age costs the mean. With ``adapt``,
    they must also be late for this site (``RecentWaits``). Given a ``lateness``, few are at most ``CALM``; where more
    wait those that it finds late come first, at cheap sizes; a cluster is held only for one that is far too late.

    An overdue task comes first: before anybody else decides, each one that fits somewhere is started, oldest first,
    with the place and size that Greedy gives it. If it fits nowhere, or only at a size that is ``SLOWEST`` times as
    slow as the best and at most ``CROWDED`` tasks per cluster are overdue, a cluster is held for it, which starts
    nothing else until it fits; one cluster per task and one task per cluster. Hence, without outages:

    - an overdue task that fits a cluster well is started in that very turn, unless older overdue tasks take
      the room (or, in single-task mode, the start), or the cluster is held for another;
    - with r older tasks waiting when it becomes overdue by ``max_wait``, it starts within (r + 2) (D + 1) slots,
      where D is the longest that any task runs. Proof: a held cluster is empty after at most D slots,
      and then its task fits and starts, at any size. So among the clusters that could run the task, one that is held is
      released every D + 1 slots, to the oldest overdue task that lacks one: at most r go before it,
      then it holds one itself and starts D + 1 slots later at most.
    """

    #: Overdue tasks started in this run.
    forced = 0
    #: How often in this run a cluster was held.
    holds = 0

    def __init__(
        self, max_wait: float, calm_wait: float = math.inf, adapt: bool = False, lateness: Lateness | None = None
    ) -> None:
        """In ideal durations, the shortest that a task could have on its clusters. Usual: the types' mean."""
        self._max_wait, self._calm_wait = max_wait, min(max_wait, calm_wait)
        self._adapt, self._lateness = adapt, lateness
        self._few = FEW if lateness is None else CALM
        # Any size will do now, and nobody jumps the queue.
        self._greedy = Greedy(max_wait=0.0, short_first=0.0)
        self._thrifty = Greedy(max_wait=0.0, short_first=0.0, calm=0.0, queue_price=LATE_PRICE)

    def reset(self, context: SchedulerContext) -> None:
        """Forget the run before."""
        #: Which task each held cluster waits for.
        self._held: dict[int, int] = {}
        self._waits = RecentWaits()
        self.forced = self.holds = 0
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Work out how long tasks may wait."""
        self._options = Options(context)
        self._slots = {t.name: mean_slots(t.profile, context.noise) for t in context.task_types}
        self._greedy.learn(context)
        self._thrifty.learn(context)
        #: Ideal durations, or the usual one, by type and eligible clusters; none is less than the least.
        self._units: dict[tuple[str, tuple[int, ...]], float] = {}
        self._least = min(sizes[0].slots for sizes in self._options.of.values())

    def start(self, snapshot: Snapshot) -> tuple[tuple[Placement, ...], Snapshot]:
        """Overdue tasks to start, and what is left for others to decide: held clusters look as if down."""
        few = len(snapshot.queue) <= self._few * len(snapshot.clusters)
        overdue = self._overdue(snapshot, few)
        late = [] if few else self.late(snapshot)
        if not overdue and not late:
            self._held = {}
            return (), snapshot
        # These may have a cluster held for them.
        waiting = {task.id: task for task in overdue}
        waiting |= {task.id: task for task in late if self._far_too_late(task, snapshot.slot)}
        first = _oldest_first(waiting | {task.id: task for task in late})
        by = self._greedy if few or self._lateness is None else self._thrifty
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
                self._lateness.helped(task)
        if placements:
            if not self.forced:
                _log.info("slot %d: overdue tasks are started without asking the network", snapshot.slot)
            self.forced += len(placements)
        return placements, _close(rest, self._held)

    def late(self, snapshot: Snapshot) -> list[TaskView]:
        """Tasks that will be late for this site, and have waited at least a unit; oldest first."""
        return [] if self._lateness is None else self._lateness.late(snapshot, self._unit)

    def _far_too_late(self, task: TaskView, slot: int) -> bool:
        return self._lateness is not None and self._lateness.ends(task, slot) > FAR_TOO_LATE * self._lateness.limit

    def _overdue(self, snapshot: Snapshot, few: bool) -> list[TaskView]:
        """Oldest first."""
        longest = self._calm_wait if few else self._max_wait
        if self._adapt:
            self._waits.see(snapshot, self._unit)
            longest = min(self._max_wait, max(longest, self._waits.late))
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
        more = greedy.decide(replace(_close(snapshot, closed), queue=tuple(tasks))).placements
        if len(tasks) <= CROWDED * len(snapshot.clusters):
            kinds = {task.id: task.type for task in tasks}
            more = tuple(placement for placement in more if self._will_do(placement, kinds[placement.task], snapshot))
        return _after(snapshot, more), placed + more

    def _will_do(self, placement: Placement, kind: TaskType, snapshot: Snapshot) -> bool:
        """Whether it runs fast enough, or no size that ever fits there may be faster."""
        cluster = snapshot.clusters[placement.cluster]
        slots = self._slots[kind.name][kind.profile.index(placement.allocation)]
        fast = slots <= SLOWEST * self._options.ideal_on(kind.name, placement.cluster)
        return bool(fast or cluster.free == cluster.capacity)

    def _hold(self, task: TaskView, snapshot: Snapshot) -> None:
        """Of the clusters that could run it once they are empty, hold the one with most room."""
        could = [
            cluster
            for n in task.eligible
            if n not in self._held and (cluster := snapshot.clusters[n]).up and task.type.minimum.fits(cluster.capacity)
        ]
        if not could:
            return
        best = max(could, key=lambda c: (task.type.minimum.fits(c.free), self._options.free_share(c.free), -c.index))
        self._held[best.index] = task.id
        if not self.holds:
            _log.info("slot %d: cluster %s is held for overdue task %d", snapshot.slot, best.name, task.id)
        self.holds += 1


def _oldest_first(tasks: dict[int, TaskView]) -> list[TaskView]:
    return sorted(tasks.values(), key=lambda task: (task.arrival, task.id))


def _close(snapshot: Snapshot, closed: Collection[int]) -> Snapshot:
    """As if these clusters were down."""
    if not closed:
        return snapshot
    clusters = tuple(replace(c, up=False) if c.index in closed else c for c in snapshot.clusters)
    return replace(snapshot, clusters=clusters)


def _after(snapshot: Snapshot, placements: Sequence[Placement]) -> Snapshot:
    """The room and the queue that these placements leave."""
    if not placements:
        return snapshot
    clusters = list(snapshot.clusters)
    for placement in placements:
        cluster = clusters[placement.cluster]
        left = None if cluster.starts_left is None else cluster.starts_left - 1
        clusters[placement.cluster] = replace(cluster, free=cluster.free - placement.allocation, starts_left=left)
    started = {placement.task for placement in placements}
    queue = tuple(task for task in snapshot.queue if task.id not in started)
    return replace(snapshot, clusters=tuple(clusters), queue=queue)


class RecentWaits:
    """How long the last tasks waited that are gone from the queue, in their units."""

    #: Longer than all but a few.
    late = 0.0

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._waiting: dict[int, tuple[int, float]] = {}  # arrival and unit
        self._waits: deque[float] = deque(maxlen=RECENT)
        self._slot = -1

    def see(self, snapshot: Snapshot, unit: Callable[[TaskView], float]) -> None:
        """Call it in every slot."""
        if snapshot.slot == self._slot:
            return
        there = {task.id for task in snapshot.queue}
        gone = [ident for ident in self._waiting if ident not in there]
        for ident in gone:
            arrival, of = self._waiting.pop(ident)
            self._waits.append((self._slot - arrival) / of)
        for task in snapshot.queue:
            if task.id not in self._waiting:
                self._waiting[task.id] = task.arrival, unit(task)
        self._slot = snapshot.slot
        if gone and len(self._waits) >= ENOUGH:
            self.late = sorted(self._waits)[int(LATE * (len(self._waits) - 1))]


class SizeLimit:
    """Refuses sizes at which a task would run more than ``max_stretch`` times its ideal duration.

    A network gives such a size once in thousands of tasks; those few are the tail. The cluster is void instead, and
    the task waits for a better size, or until it is overdue. Where more than ``CALM`` tasks wait per cluster, slower
    sizes are right (``EASED``), and with more than ``FEW`` nothing is refused. 0: no limit.
    """

    #: Proposals refused in this run.
    refused = 0

    def __init__(self, max_stretch: float) -> None:
        """``max_stretch``: in ideal durations."""
        self._max_stretch = max_stretch

    def reset(self, context: SchedulerContext) -> None:
        """Forget the run before."""
        self.refused = 0
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Look up durations."""
        self._options = Options(context)
        self._slots = {t.name: mean_slots(t.profile, context.noise) for t in context.task_types}
        self._clusters = len(context.clusters)

    def keep(self, proposals: list[Proposal], queue: Sequence[TaskView]) -> list[Proposal]:
        """Those with a size that will do."""
        if not self._max_stretch or not proposals or len(queue) > FEW * self._clusters:
            return proposals
        most = self._max_stretch * (1.0 if len(queue) <= CALM * self._clusters else EASED)
        wanted = {proposal.task for proposal in proposals}
        tasks = {task.id: task for task in queue if task.id in wanted}
        kept = [proposal for proposal in proposals if self._will_do(proposal, tasks[proposal.task], most)]
        self.refused += len(proposals) - len(kept)
        return kept

    def _will_do(self, proposal: Proposal, task: TaskView, most: float) -> bool:
        slots = self._slots[task.type.name][task.type.profile.index(proposal.allocation)]
        return bool(slots <= most * self._options.ideal(task.type.name, task.eligible))


class TimeBudget:
    """How long the network may take in one slot, all turns together.

    A pass that runs cannot be stopped, so time is taken afterwards: once a slot's passes have taken the
    budget, the rest of the slot is Greedy's. If a single pass took that long, the network rests for a
    slot, after the next such pass for two, then four, ... up to 64; a pass in time ends that.
    So a slot exceeds the budget by one pass at most, and a network that stays slow does so rarely.
    """

    #: Slots of this run in which the budget was used up.
    late = 0

    def __init__(self, budget_ms: float) -> None:
        """Milliseconds; 0: no limit, and the clock is never asked."""
        self._budget = budget_ms / 1e3
        self.clock = time.perf_counter

    def reset(self) -> None:
        """Forget the run before."""
        self._slot = -1
        self._spent = 0.0
        self._rest = 1
        self._resume = 0
        self.late = 0

    def allows(self, slot: int) -> bool:
        """Whether the network may be asked in this slot now."""
        if slot != self._slot:
            self._slot, self._spent = slot, 0.0
        return not self._budget or (slot >= self._resume and self._spent <= self._budget)

    def begin(self) -> float:
        """When a pass that was allowed begins."""
        return self.clock() if self._budget else 0.0

    def end(self, begin: float) -> None:
        """Count the pass that began then."""
        if not self._budget:
            return
        took = self.clock() - begin
        self._spent += took
        if took > self._budget:
            self._resume = self._slot + 1 + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        else:
            self._rest = 1
        if self._spent > self._budget:
            if not self.late:
                spent, budget = 1e3 * self._spent, 1e3 * self._budget
                _log.warning("slot %d: the network took %.1f of %.1f ms; greedy decides", self._slot, spent, budget)
            self.late += 1
