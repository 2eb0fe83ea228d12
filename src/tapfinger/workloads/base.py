"""What a workload is: arrays drawn up front from a seed, the same for every scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tapfinger.core.model import Resources
from tapfinger.core.staging import DataLayout


@dataclass(frozen=True)
class Arrivals:
    """When tasks arrive and, if the process knows it, their types and eligible clusters."""

    #: (tasks,) slot of arrival, ascending.
    slot: npt.NDArray[np.int64]
    #: (tasks,) index into the scenario's task types; None: drawn by weight.
    type: npt.NDArray[np.int64] | None = None
    #: (tasks, clusters) whether the task may run there; None: drawn by the scenario's eligibility.
    eligible: npt.NDArray[np.bool_] | None = None
    #: Name of a task in messages, such as its file and line; None: its number.
    where: Callable[[int], str] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class WorkloadContext:
    """What an arrival process may use of its scenario."""

    #: Number of tasks wanted; None: as many as the process has.
    tasks: int | None
    type_names: tuple[str, ...]
    cluster_names: tuple[str, ...]
    slot_seconds: float
    #: Directory that file names are relative to.
    directory: str


class ArrivalProcess(Protocol):
    """The contract of a workload; ``tapfinger.testing.check_workload`` tests an implementation."""

    def arrivals(self, context: WorkloadContext, rng: np.random.Generator) -> Arrivals:
        """Draw one workload; all randomness comes from ``rng``."""
        ...


@dataclass(frozen=True)
class Others:
    """What people use of a cluster who are not scheduled here: changes, which are repeated after ``period`` slots."""

    #: Index of the cluster.
    cluster: int
    period: int
    #: (changes,) slots within the period, ascending from 0.
    slot: npt.NDArray[np.int64]
    #: (changes, resources) amounts in use from then on.
    amounts: npt.NDArray[np.int64]

    def change(self, count: int) -> tuple[int, Resources]:
        """Slot and amounts of a change; they are counted from 0, without end."""
        times, i = divmod(count, len(self.slot))
        return times * self.period + int(self.slot[i]), Resources(self.amounts[i].tolist())


@dataclass(frozen=True)
class Workload:
    """A complete draw: nothing random is left."""

    #: (tasks,) slot of arrival, ascending.
    slot: npt.NDArray[np.int64]
    #: (tasks,) index of the task type.
    type: npt.NDArray[np.int64]
    #: (tasks, clusters) whether the task may run there.
    eligible: npt.NDArray[np.bool_]
    #: (tasks,) key of the task's progress noise.
    noise_key: npt.NDArray[np.uint64]
    #: Other people's use, at most one entry per cluster.
    others: tuple[Others, ...] = ()
    #: Data sets, places and links; None where there are no data sets.
    data: DataLayout | None = None

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.slot)
