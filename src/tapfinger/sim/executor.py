"""The readable simulator: the executable specification that the batched one must equal.

Order in a slot: commands take effect; every running task ages and progresses; tasks that are done end;
then time moves on and the next slot's tasks arrive. A task that arrives at slot t can start at t.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tapfinger.core.events import (
    ClusterJoined,
    ClusterLost,
    Command,
    Event,
    OthersChanged,
    StartTask,
    TaskArrived,
    TaskFinished,
    TaskOutOfMemory,
    TaskResized,
    TaskStaging,
    TaskStarted,
)
from tapfinger.core.model import DONE, Noise, Resources, SpeedProfile, Task, TaskType
from tapfinger.core.session import SlotOutcome
from tapfinger.core.spans import Parts
from tapfinger.core.state import eligible_ids
from tapfinger.workloads.base import Workload
from tapfinger.workloads.needs import Ladder
from tapfinger.workloads.world import Outage, World


@dataclass(slots=True)
class _Run:
    """A task on a cluster, with its true progress."""

    #: Its speed on this cluster.
    profile: SpeedProfile
    cluster: int
    allocation: Resources
    noise_key: int
    #: Rate of its profile at this allocation, 0 while it is paused.
    rate: float
    progress: float = 0.0
    #: Slots run so far: the counter of its noise.
    slots: int = 0
    #: Slots of work still lost to changes of allocation.
    overhead: float = 0.0
    #: Slot from which on it has its data and runs, if that was not at once.
    runs_from: int = 0
    staged: bool = False
    #: What it needs of a resource, if schedulers do not know that.
    ladder: Ladder | None = None
    #: What it holds of each node, on a span.
    parts: Parts = ()


class SimExecutor:
    """Plays a workload; tasks and noise come from arrays drawn before the run."""

    def __init__(self, world: World, workload: Workload, begun: Mapping[int, float] | None = None) -> None:
        """``begun``: progress that tasks have made before the run, by task id."""
        self._types: Sequence[TaskType] = world.task_types
        self._ladders = world.ladders
        self._hardware = [cluster.hardware for cluster in world.clusters]
        self._noise: Noise = world.noise
        self._switching_cost = world.switching_cost
        self._reports = world.scenario.reports_progress
        self._workload = workload
        self._begun = begun or {}
        self._next = 0
        self._runs: dict[int, _Run] = {}
        self._outages: tuple[Outage, ...] = world.outages
        #: The next change of what others use, of each entry of the workload: slot, and how many came before.
        self._changes = [(0, n, 0) for n in range(len(workload.others))]

    @property
    def exhausted(self) -> bool:
        """Whether every task of the workload has arrived."""
        return self._next == len(self._workload)

    def begin(self) -> list[Event]:
        """Events of slot 0."""
        return [*self._others(0), *self._arrivals(0)]

    def _arrivals(self, slot: int) -> list[Event]:
        events: list[Event] = []
        work = self._workload
        while self._next < len(work) and work.slot[self._next] <= slot:
            i = self._next
            task = Task(i, self._types[int(work.type[i])], int(work.slot[i]), eligible_ids(work.eligible[i]))
            events.append(TaskArrived(slot, task))
            self._next += 1
        return events

    def _others(self, slot: int) -> list[Event]:
        events: list[Event] = []
        while self._changes and self._changes[0][0] <= slot:
            _, n, count = self._changes[0]
            others = self._workload.others[n]
            events.append(OthersChanged(slot, others.cluster, others.change(count)[1]))
            heapq.heapreplace(self._changes, (others.change(count + 1)[0], n, count + 1))
        return events

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        """Carry out commands, advance running tasks by one slot, and report what happened."""
        events = [self._obey(slot, command) for command in commands]
        reports: dict[int, float] = {}
        ended: list[int] = []
        for ident, run in self._runs.items():
            if run.rate == 0.0 or run.runs_from > slot:
                continue
            if run.staged and run.slots == 0:
                events.append(TaskStarted(slot, ident, run.cluster, run.allocation, run.parts))
            self._progress(run)
            if run.ladder is not None and not run.ladder.enough(run.allocation):
                ended.append(ident)
                events.append(TaskOutOfMemory(slot, ident, run.cluster, run.ladder.above(run.allocation)))
            elif run.progress >= DONE:
                ended.append(ident)
                events.append(TaskFinished(slot, ident, run.cluster))
            elif self._reports:
                reports[ident] = run.progress
        for ident in ended:
            del self._runs[ident]
        events += [*self._fail_and_join(slot + 1), *self._others(slot + 1), *self._arrivals(slot + 1)]
        return SlotOutcome(events, reports)

    def _obey(self, slot: int, command: Command) -> Event:
        ident = command.task.id
        if isinstance(command, StartTask):
            key = int(self._workload.noise_key[ident])
            profile = command.task.type.on(self._hardware[command.cluster]).profile
            rate, begun = profile.rate(command.allocation), self._begun.get(ident, 0.0)
            run = _Run(profile, command.cluster, command.allocation, key, rate, begun)
            run.runs_from, run.staged = command.runs_from, command.runs_from > slot
            run.ladder = self._ladders.get(command.task.type.family)
            run.parts = command.parts
            self._runs[ident] = run
            if run.staged:
                return TaskStaging(slot, ident, command.cluster, command.allocation, run.runs_from, command.parts)
            return TaskStarted(slot, ident, command.cluster, command.allocation, command.parts)
        run = self._runs[ident]
        if run.allocation != command.allocation and not command.allocation.none:
            run.overhead += self._switching_cost
        run.allocation, run.parts = command.allocation, command.parts
        run.rate = 0.0 if command.allocation.none else run.profile.rate(command.allocation)
        return TaskResized(slot, ident, command.cluster, command.allocation, command.parts)

    def _progress(self, run: _Run) -> None:
        gain = run.rate * run.profile.shape(run.progress)
        gain = self._noise.apply(gain, run.noise_key, run.slots)
        if run.overhead:
            lost = min(1.0, run.overhead)
            run.overhead -= lost
            gain *= 1.0 - lost
        run.progress += gain
        run.slots += 1

    def _fail_and_join(self, slot: int) -> list[Event]:
        events: list[Event] = []
        for outage in self._outages:
            if outage.start == slot:
                events.append(ClusterLost(slot, outage.cluster))
                self._runs = {i: run for i, run in self._runs.items() if run.cluster != outage.cluster}
            if outage.end == slot:
                events.append(ClusterJoined(slot, outage.cluster))
        return events
