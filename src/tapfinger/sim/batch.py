"""BatchSim: B worlds stepped at once, for training and search. Equal, event by event, to SimExecutor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.events import (
    Event,
    OthersChanged,
    TaskArrived,
    TaskFinished,
    TaskOutOfMemory,
    TaskStaging,
    TaskStarted,
    event_key,
)
from tapfinger.core.model import Resources, Task
from tapfinger.core.spans import Parts
from tapfinger.core.state import eligible_ids
from tapfinger.errors import ConfigError, InvalidDecision
from tapfinger.observation import most_running
from tapfinger.sim import kernels
from tapfinger.sim.layout import (
    Bools,
    Ints,
    Observations,
    empty_observations,
    empty_worlds,
    make_tables,
    stack_workloads,
)
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World


class BatchSim:
    """Worlds of one scenario, each with its own workload.

    A step is one turn: every cluster names a place in its pending set (or -1), an allocation and a
    score. When the round is settled, the slot ends. Preemption and outages are not modelled here.
    """

    def __init__(self, world: World, workloads: Sequence[Workload], pending: int = 10) -> None:
        """``pending``: size of the pending set shown per cluster."""
        if world.outages:
            raise ConfigError("the batched simulator has no outages; use the readable one")
        self.world = world
        self.pending = pending
        reports = world.scenario.reports_progress
        self.tables = make_tables(world.clusters, world.task_types, world.noise, world.mode, reports, world.ladders)
        self.load(workloads)

    def load(self, workloads: Sequence[Workload]) -> None:
        """Take new workloads and begin them all."""
        batch = len(workloads)
        self._workloads = tuple(workloads)
        self.draws = stack_workloads(workloads, self.tables)
        self.worlds = empty_worlds(batch, self.draws, self.tables)
        most = most_running(self.world.clusters, self.world.task_types)
        self._observations = empty_observations(batch, self.pending, most, self.tables)
        #: What agents see now. Read-only: legality is judged by the same arrays.
        self.observations: Observations = Observations(*(_read_only(array) for array in self._observations))
        #: (B,) tasks in the system where the last step ended a slot, 0 elsewhere: the negated reward.
        self.cost: Ints = np.zeros(batch, dtype=np.int64)
        #: (B,) whether the last step ended a slot.
        self.settled: Bools = np.zeros(batch, dtype=np.bool_)
        #: (B,) worlds in which every task has ended; they stand still.
        self.done: Bools = np.zeros(batch, dtype=np.bool_)
        self._task = np.zeros(len(self.world.clusters), dtype=np.int64)
        kernels.reset_all(self.tables, self.draws, self.worlds, self._observations)

    def step(
        self, choice: npt.NDArray[np.int64], allocation: npt.NDArray[np.int64], score: npt.NDArray[np.float64]
    ) -> None:
        """One turn. choice (B, N), allocation (B, N, R), score (B, N): Pr(j|n), for conflicts."""
        self._check_shapes(choice, allocation, score)
        bad = kernels.step_all(
            self.tables,
            self.draws,
            self.worlds,
            self._observations,
            choice,
            allocation,
            score,
            self._task,
            self.cost,
            self.settled,
            self.done,
        )
        if bad >= 0:
            raise InvalidDecision(
                f"world {bad}: choice {choice[bad].tolist()} with allocations {allocation[bad].tolist()} is not legal; "
                "choose where observations.startable is true, between the minimum and observations.largest"
            )

    def _check_shapes(self, *given: npt.NDArray[Any]) -> None:
        """Refuse wrong shapes: compiled code would read past the end of an array that is too small."""
        amounts = self.tables.capacity.shape[1]
        agents = (len(self.done), len(self.world.clusters))
        for name, array, shape, kind in zip(
            ("choice", "allocation", "score"), given, (agents, (*agents, amounts), agents), "iif", strict=True
        ):
            if array.shape != shape or array.dtype.kind != kind:
                raise InvalidDecision(
                    f"{name} has shape {array.shape} and type {array.dtype}; {shape} of type "
                    f"{'int64' if kind == 'i' else 'float64'} is needed"
                )

    def replace(self, workloads: Mapping[int, Workload]) -> None:
        """Give worlds other workloads, by index; they must be restarted then. No workload may be longer than before."""
        self._workloads = tuple(workloads.get(b, old) for b, old in enumerate(self._workloads))
        draws = self.draws
        if any(w.others or w.data is not None for w in self._workloads):  # their arrays have another shape each time
            self.draws = stack_workloads(self._workloads, self.tables, draws.arrival.shape[1])
            return
        for b, workload in workloads.items():
            count = draws.tasks[b] = len(workload)
            draws.arrival[b, :count], draws.type[b, :count] = workload.slot, workload.type
            draws.eligible[b, :count], draws.noise_key[b, :count] = workload.eligible, workload.noise_key

    def restart(self, which: Bools) -> None:
        """Restart the workloads of these worlds."""
        for b in np.flatnonzero(which).tolist():
            self.done[b] = False
            kernels.reset(b, self.tables, self.draws, self.worlds)
            kernels.observe(b, self.tables, self.draws, self.worlds, self._observations)

    def events(self, b: int) -> list[Event]:
        """World b's event log so far, as the readable simulator would have written it."""
        draws, worlds, types = self.draws, self.worlds, self.world.task_types
        log: list[Event] = []
        for j in range(int(worlds.next_arrival[b])):
            slot = int(draws.arrival[b, j])
            task = Task(j, types[int(draws.type[b, j])], slot, eligible_ids(draws.eligible[b, j]))
            log.append(TaskArrived(slot, task))
            log += self._attempts(b, j, task.type.family)
            if worlds.started[b, j] >= 0:
                n, amounts = int(worlds.cluster[b, j]), Resources(worlds.allocation[b, j].tolist())
                placed = int(worlds.started[b, j])
                runs_from = int(worlds.runs_from[b, j]) if self._workloads[b].data is not None else placed
                log += self._start(j, n, amounts, placed, runs_from, self._parts(n, worlds.part[b, j]), b)
                if worlds.finished[b, j] >= 0:
                    log.append(TaskFinished(int(worlds.finished[b, j]), j, n))
        for others in self._workloads[b].others:
            so_far = takewhile(lambda change: change[0] <= worlds.slot[b], map(others.change, count()))
            log += [OthersChanged(slot, others.cluster, amounts) for slot, amounts in so_far]
        return sorted(log, key=event_key)

    def _attempts(self, b: int, j: int, family: str) -> Iterator[Event]:
        """Events of the attempts that ran out of memory."""
        worlds = self.worlds
        for i in range(int(worlds.attempts[b, j]) if self.world.ladders else 0):
            placed, runs_from, end, n, *amounts = worlds.attempt[b, j, i].tolist()
            rows = np.reshape(amounts, (-1, worlds.allocation.shape[2]))
            held = Resources(rows[0].tolist())
            yield from self._start(j, n, held, placed, runs_from, self._parts(n, rows[1:]), b)
            yield TaskOutOfMemory(end, j, n, self.world.ladders[family].above(held))

    def _parts(self, n: int, rows: Ints) -> Parts:
        """What a task holds of each node of a span; ``rows`` (nodes, R)."""
        return tuple(Resources(row.tolist()) for row in rows[: len(self.world.clusters[n].nodes)])

    def _start(
        self, j: int, n: int, amounts: Resources, placed: int, runs_from: int, parts: Parts, b: int
    ) -> Iterator[Event]:
        if runs_from > placed:
            yield TaskStaging(placed, j, n, amounts, runs_from, parts)
        if runs_from == placed or runs_from < self.worlds.slot[b]:
            yield TaskStarted(runs_from, j, n, amounts, parts)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
