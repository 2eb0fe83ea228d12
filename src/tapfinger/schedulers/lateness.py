"""Late tasks go first: tasks that will take longer than nearly all recent tasks of the site did.

The 99th percentile of completion times consists of tasks that waited long and then ran as long as their type usually
does. Giving them faster sizes, or holding a cluster for them, costs others more than they gain. Letting them go first,
at the size they would get anyway, costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from tapfinger.core.changes import TaskTracker
from tapfinger.core.contract import Placement, Snapshot, TaskView
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.counters import Counting

#: A task is late if its completion time will be longer than this share of the recent ones.
LATE_SHARE = 0.97

#: Number of samples that percentiles of the recent past are taken from, and the minimum before they are used.
RECENT = 300
MIN_SAMPLES = 30

#: Number of a type's last runs over which its usual running time is averaged.
RUNS_PER_TYPE = 50

#: Maximum share of the tasks in the system that count as late, oldest first; at least one task does. In a burst every
#: task is later than the tasks before it, and serving all of them by age costs the mean.
MOST_LATE = 0.03

#: Credit that every task brings when it ends. A late task that goes first spends the square of its work, in units of a
#: mean task's work: it displaces that many others and makes each wait that long. Without the limit, on a site where a
#: quarter of the tasks made half of the work and many tasks waited, most of that quarter went first, and means rose by
#: a quarter.
CREDIT = 0.6
#: Credit at the beginning: what 50 tasks bring.
FIRST_CREDIT = 30.0

#: A late task takes a start only if it will run there for at most this many times its type's usual running time.
LATE_STRETCH = 1.5


class RecentPercentile:
    """A percentile of the last ``RECENT`` values."""

    def __init__(self, share: float, before: float) -> None:
        """``before``: the value until ``MIN_SAMPLES`` have been added."""
        self._share = share
        self._values: deque[float] = deque(maxlen=RECENT)
        self.value = before

    def add(self, values: Iterable[float]) -> None:
        """Add these values."""
        self._values.extend(values)
        if len(self._values) >= MIN_SAMPLES:
            self.value = sorted(self._values)[int(self._share * (len(self._values) - 1))]


class Lateness:
    """Remembers how long tasks took from arrival to end, and how long they ran."""

    def __init__(self, site: SiteTables) -> None:
        """Start with no ended tasks."""
        self.learn(site)
        self._tasks = TaskTracker()
        self._completion = RecentPercentile(LATE_SHARE, before=float("inf"))
        self._runs: dict[str, deque[int]] = {}
        self._usual: dict[str, float] = {}
        self._works: deque[float] = deque(maxlen=RECENT)
        self._most = 1
        self._credit = FIRST_CREDIT

    def learn(self, site: SiteTables) -> None:
        """Look up the work of each type: the cost of its cheapest size, in slots."""
        self._work = {name: size.cost for name, size in site.sizes.cheapest.items()}

    @property
    def late_after(self) -> float:
        """Completion time in slots beyond which a task is late; infinite until enough tasks have ended."""
        return self._completion.value

    def see(self, snapshot: Snapshot) -> None:
        """Record the tasks that have ended. Call it in every slot."""
        changes = self._tasks.observe(snapshot)
        if changes is None:
            return
        for task in changes.left:
            # A task that was waiting when last seen has started and ended since.
            runs = self._runs.setdefault(task.type.name, deque(maxlen=RUNS_PER_TYPE))
            runs.append(task.elapsed + changes.slots)
            # A site may have dropped the type with its last task.
            self._works.extend([self._work[task.type.name]] if task.type.name in self._work else [])
            self._usual[task.type.name] = sum(runs) / len(runs)
        self._credit = min(CREDIT * RECENT, self._credit + CREDIT * len(changes.left))
        if changes.left:
            self._completion.add(snapshot.slot - task.arrival for task in changes.left)
        self._most = max(1, round(MOST_LATE * len(self._tasks.there)))

    def usual(self, type_name: str) -> float:
        """Mean running time of the type's last tasks, in slots; infinite before one has ended."""
        return self._usual.get(type_name, float("inf"))

    def ends(self, task: TaskView, slot: int) -> float:
        """Completion time in slots if the task starts now and runs as usual; infinite before its type has run."""
        return slot - task.arrival + self.usual(task.type.name)

    def late(self, snapshot: Snapshot, least_wait: Callable[[TaskView], float]) -> list[TaskView]:
        """Waiting tasks that will be late, oldest first; none while there is no credit.

        A late task has waited at least ``least_wait`` slots: a type that always takes long is not late on arrival.
        """
        most = min(self._most, int(self._credit))
        if most < 1:
            return []
        found: list[TaskView] = []
        longest = max(self._usual.values(), default=0.0)
        for task in snapshot.queue:
            waited = snapshot.slot - task.arrival
            if waited + longest <= self.late_after:
                break  # the tasks that follow will not be late either
            if self.late_after < self.ends(task, snapshot.slot) < float("inf") and waited >= least_wait(task):
                found.append(task)
                if len(found) >= most:
                    break
        return found

    def spend(self, task: TaskView) -> None:
        """Pay for a late task that goes first."""
        work = self._work[task.type.name]
        mean = sum(self._works) / len(self._works) if self._works else work
        self._credit -= (work / mean) ** 2


#: (cluster, task ids) -> the start that the cluster would give to one of these tasks; None if it could start none.
Choose = Callable[[int, Collection[int]], Placement | None]


class LateFirst(Counting):
    """A late task takes the start of a task that is not late, at the size the network would give it there."""

    def __init__(self, site: SiteTables, counters: dict[str, int] | None = None) -> None:
        """Ready for a run."""
        super().__init__(counters)
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._site = site

    def put_first(
        self, placements: Sequence[Placement], late: Sequence[TaskView], lateness: Lateness, choose: Choose
    ) -> tuple[Placement, ...]:
        """Give starts to late tasks; the same clusters start something as before."""
        if not late:
            return tuple(placements)
        started = {placement.task for placement in placements}
        waiting = {task.id: task for task in late if task.id not in started}
        of_late = {task.id for task in late}
        result = []
        for placement in placements:
            found = choose(placement.cluster, waiting) if waiting and placement.task not in of_late else None
            if found is not None and self._will_do(found, waiting[found.task], lateness):
                lateness.spend(waiting.pop(found.task))
                self.counters["late_starts"] += 1
                placement = found
            result.append(placement)
        return tuple(result)

    def _will_do(self, placement: Placement, task: TaskView, lateness: Lateness) -> bool:
        slots = self._site.slots(task.type, placement.allocation, placement.cluster)
        return slots <= LATE_STRETCH * lateness.usual(task.type.name)
