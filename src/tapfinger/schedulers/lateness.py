"""Which tasks are late for their site, and how they get a start that another task was to have.

The 99th percentile of completion times is made by tasks that waited long and then ran as long as their type usually
does. Faster sizes for them cost others more than they gain, and so does a cluster that is held; that they go first, at
the size they would get anyway, costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from tapfinger.core.contract import Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.options import Options

#: A task is late if it will take longer than this share of the last ``RECENT`` tasks took.
LATE = 0.97
RECENT = 300
#: From so many on they count.
ENOUGH = 30

#: Runs of one type that say how long it usually runs.
RUNS = 50

#: At most this share of all tasks in the system is late, the oldest ones, but always one: in a burst everybody is later
#: than those before, and to serve everybody by age costs the mean.
SHARE = 0.03

#: Every task that ends brings so much credit, and a late one that goes first takes the square of its work in mean
#: ones: it takes the place of as many others, and makes each wait as long. Without it, where a quarter of the tasks are
#: as much work as all others and many wait, most of that quarter went first, and means grew by up to a quarter.
CREDIT = 0.6
#: And so much there is to begin with: what 50 tasks bring.
FIRST_CREDIT = 30.0

#: A late task takes a start only if it will run no longer than so many times what is usual for its type: where it
#: would, it waits for room, and for a reason.
SLOWEST = 1.5


class Lateness:
    """Remembers how long tasks took from arrival to end, and how long they ran."""

    #: In slots: longer than nearly all take.
    limit = float("inf")

    def __init__(self, context: SchedulerContext) -> None:
        """Nothing has been seen."""
        self.learn(context)
        self._there: dict[int, TaskView] = {}
        self._took: deque[int] = deque(maxlen=RECENT)
        self._runs: dict[str, deque[int]] = {}
        self._usual: dict[str, float] = {}
        self._works: deque[float] = deque(maxlen=RECENT)
        self._slot = -1
        self._most = 1
        self._credit = FIRST_CREDIT

    def learn(self, context: SchedulerContext) -> None:
        """Look up how much work tasks are: slots of a mean cluster, at the size that takes least of it."""
        self._work = {name: min(o.cost for o in sizes) for name, sizes in Options(context).of.items()}

    def see(self, snapshot: Snapshot) -> None:
        """Call it in every slot."""
        if snapshot.slot == self._slot:
            return
        there = {task.id: task for c in snapshot.clusters for task in (*c.running, *c.paused)}
        there |= {task.id: task for task in snapshot.queue}
        gone = [task for ident, task in self._there.items() if ident not in there]
        for task in gone:
            self._took.append(snapshot.slot - task.arrival)
            # One that waited when it was last seen has started and ended since.
            runs = self._runs.setdefault(task.type.name, deque(maxlen=RUNS))
            runs.append(task.elapsed + snapshot.slot - self._slot)
            # A site may have dropped the type with its last task.
            self._works.extend([self._work[task.type.name]] if task.type.name in self._work else [])
            self._usual[task.type.name] = sum(runs) / len(runs)
        self._credit = min(CREDIT * RECENT, self._credit + CREDIT * len(gone))
        if gone and len(self._took) >= ENOUGH:
            self.limit = sorted(self._took)[int(LATE * (len(self._took) - 1))]
        self._there, self._slot = there, snapshot.slot
        self._most = max(1, round(SHARE * len(there)))

    def usual(self, type_name: str) -> float:
        """How long tasks of the type run here, in slots; infinite before one has."""
        return self._usual.get(type_name, float("inf"))

    def ends(self, task: TaskView, slot: int) -> float:
        """Slots from its arrival to its end if it starts now and runs as usual; infinite before its type has run."""
        return slot - task.arrival + self.usual(task.type.name)

    def late(self, snapshot: Snapshot, least_wait: Callable[[TaskView], float]) -> list[TaskView]:
        """Waiting tasks that will be late, oldest first; only those that have waited for ``least_wait`` slots.

        A type that always takes that long is not late when it arrives. None while there is no credit.
        """
        most = min(self._most, int(self._credit))
        if most < 1:
            return []
        found: list[TaskView] = []
        longest = max(self._usual.values(), default=0.0)
        for task in snapshot.queue:
            waited = snapshot.slot - task.arrival
            if waited + longest <= self.limit:
                break  # and so will all that follow
            if self.limit < self.ends(task, snapshot.slot) < float("inf") and waited >= least_wait(task):
                found.append(task)
                if len(found) >= most:
                    break
        return found

    def helped(self, task: TaskView) -> None:
        """It was late and has gone first."""
        work = self._work[task.type.name]
        mean = sum(self._works) / len(self._works) if self._works else work
        self._credit -= (work / mean) ** 2


#: The start that a cluster would give to one of these tasks, by their ids; None where it could start none of them.
Choose = Callable[[int, Collection[int]], Placement | None]


class LateFirst:
    """A late task takes the start of one that is not late, at the size that the network would give it there."""

    #: Starts of this run that a late task took.
    taken = 0

    def reset(self, context: SchedulerContext) -> None:
        """Forget the run before."""
        self.taken = 0
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Look up durations."""
        self._slots = {t.name: mean_slots(t.profile, context.noise) for t in context.task_types}

    def put_first(
        self, placements: Sequence[Placement], late: Sequence[TaskView], lateness: Lateness, choose: Choose
    ) -> tuple[Placement, ...]:
        """The same clusters start something."""
        if not late:
            return tuple(placements)
        started = {placement.task for placement in placements}
        waiting = {task.id: task for task in late if task.id not in started}
        of_late = {task.id for task in late}
        result = []
        for placement in placements:
            found = choose(placement.cluster, waiting) if waiting and placement.task not in of_late else None
            if found is not None and self._will_do(found, waiting[found.task], lateness):
                lateness.helped(waiting.pop(found.task))
                self.taken += 1
                placement = found
            result.append(placement)
        return tuple(result)

    def _will_do(self, placement: Placement, task: TaskView, lateness: Lateness) -> bool:
        slots = self._slots[task.type.name][task.type.profile.index(placement.allocation)]
        return bool(slots <= SLOWEST * lateness.usual(task.type.name))
