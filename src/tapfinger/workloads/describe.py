"""Figures that describe a workload: number of tasks, arrival rate, types, and amount of work."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.workloads.files import ALL_CLUSTERS, SEPARATOR, WorkloadFile
from tapfinger.workloads.world import World

#: Mean tasks per interval in which burstiness is measured: with fewer, bursts would be cut into pieces.
TASKS_PER_INTERVAL = 5


@dataclass(frozen=True)
class TypeSummary:
    """One task type in a workload."""

    name: str
    count: int
    share: float
    #: Minimum allocation, for people to read; empty without a scenario.
    minimum: str = ""
    #: Seconds under the minimum; None without a scenario.
    seconds: float | None = None


@dataclass(frozen=True)
class Burstiness:
    """How unevenly tasks arrive."""

    #: Variance over mean of the tasks in an interval: 1 for Poisson, more for bursts, 0 for regular arrivals.
    dispersion: float
    #: Length of an interval in seconds.
    interval: float


@dataclass(frozen=True)
class WorkloadSummary:
    """Figures that describe a workload."""

    tasks: int
    #: Seconds from the start to the last arrival.
    span: float
    #: Tasks per hour from the first to the last arrival; None for fewer than two distinct times.
    rate_per_hour: float | None
    #: None for too few tasks.
    burstiness: Burstiness | None
    types: tuple[TypeSummary, ...]
    #: Number of tasks whose eligible clusters are not in the workload but drawn by the scenario.
    drawn: int
    #: Cluster name -> number of tasks that name it as eligible.
    eligible: dict[str, int]
    #: Mean number of eligible clusters of tasks that name them; None if none does.
    mean_eligible: float | None
    #: Resource -> work under minimum allocations, divided by capacity and span; None without a scenario.
    load: dict[str, float] | None


def summarise(workload: WorkloadFile, world: World | None = None) -> WorkloadSummary:
    """Describe a workload; with a world, also in terms of its clusters and task types."""
    arrival = workload.arrival
    gaps = np.diff(np.sort(arrival))
    busy = len(gaps) > 0 and float(gaps.sum()) > 0
    counts = Counter(workload.type)
    clusters = _clusters(workload, world)
    named = [names for names in clusters if names]
    return WorkloadSummary(
        tasks=len(workload),
        span=float(arrival.max()),
        rate_per_hour=3600.0 * len(gaps) / float(gaps.sum()) if busy else None,
        burstiness=_burstiness(np.sort(arrival)) if busy else None,
        types=tuple(_type(name, count, len(workload), world) for name, count in counts.most_common()),
        drawn=len(clusters) - len(named),
        eligible=dict(sorted(Counter(name for names in named for name in names).items())),
        mean_eligible=float(np.mean([len(names) for names in named])) if named else None,
        load=_load(counts, float(arrival.max()), world) if world is not None else None,
    )


def _burstiness(arrival: npt.NDArray[np.float64]) -> Burstiness | None:
    """Use counts and not gaps between tasks, because tasks that arrive in whole slots have many gaps of zero."""
    gaps = np.diff(arrival)
    # If times are whole slots, so are all gaps: an interval of several times the smallest gap cuts through no slot.
    step = float(gaps[gaps > 1e-9 * gaps.sum()].min())  # less is rounding
    at = np.floor((arrival - arrival[0]) / step + 1e-6).astype(np.int64)
    steps = math.ceil(TASKS_PER_INTERVAL * int(at[-1]) / len(gaps))
    whole = int(at[-1]) // steps  # the rest is cut off: the workload ends somewhere in it
    if whole < 2:
        return None
    counts = np.bincount(at[at < whole * steps] // steps, minlength=whole)
    return Burstiness(float(counts.var(ddof=1) / counts.mean()), steps * step)


def _clusters(workload: WorkloadFile, world: World | None) -> list[tuple[str, ...]]:
    """Names of eligible clusters per task; without a scenario, ``*`` stands for itself."""
    everywhere = world.wholes if world is not None else (ALL_CLUSTERS,)
    return [
        everywhere if text == ALL_CLUSTERS else tuple(name.strip() for name in text.split(SEPARATOR) if name.strip())
        for text in workload.eligible
    ]


def _type(name: str, count: int, total: int, world: World | None) -> TypeSummary:
    if world is None:
        return TypeSummary(name, count, count / total)
    task_type = next(t for t in world.task_types if t.name == name)
    slots = task_type.profile.slots(task_type.minimum)
    minimum = world.resources.describe(task_type.minimum)
    return TypeSummary(name, count, count / total, minimum, slots * world.scenario.slot_seconds)


def _load(counts: Counter[str], span: float, world: World) -> dict[str, float]:
    slots = span / world.scenario.slot_seconds + 1.0
    load = {}
    for position, name in enumerate(world.resources.names):
        capacity = sum(cluster.capacity[position] for cluster in world.clusters if not cluster.nodes)
        work = sum(counts[t.name] * t.minimum[position] * t.profile.slots(t.minimum) for t in world.task_types)
        load[name] = work / (capacity * slots) if capacity else float("inf" if work else 0.0)
    return load
