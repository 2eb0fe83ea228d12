"""Plays a live site forward in the simulator: its queue, its running tasks, and a future like its recent past.

Every variant gets the same tasks at the same times; variants differ in schedulers, clusters or the rate of arrivals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from tapfinger.config import KnowledgeConfig
from tapfinger.core.contract import Decision, Mode, Placement, Snapshot
from tapfinger.core.estimates import MOST_PROGRESS, advanced
from tapfinger.core.feasibility import can_start, ever_fits
from tapfinger.core.model import NO_NOISE, Cluster, Resources, TaskType
from tapfinger.core.session import Session
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError
from tapfinger.evaluation.live_history import History, Ran, ran
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.evaluation.stats import measures
from tapfinger.live.coordinator.decisions import Decider
from tapfinger.records import RunRecord
from tapfinger.sim.executor import SimExecutor
from tapfinger.sim.run import STUCK_SLOTS, StuckError
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World

#: Most waiting tasks that are played, oldest first, and approximate number of future ones: the time of a decision
#: grows with the queue.
MOST_WAITING = 1_000
MOST_FUTURE = 1_000
#: Slots that a median task takes, approximately.
SLOTS_PER_TASK = 10
#: Seconds of future arrivals: as long as the known past, within these bounds.
HORIZON = (60.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Running:
    """A task that is on a cluster now."""

    task: Ran
    cluster: str
    allocation: Resources
    progress: float


@dataclass
class Present:
    """The site as it is."""

    history: History
    #: Clusters open now; tasks on other clusters are not played.
    clusters: tuple[Cluster, ...]
    waiting: list[Ran]
    running: list[Running]
    now: float
    #: Number of tasks that are not played, by reason.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def recent(self) -> list[Ran]:
        """All tasks submitted recently, oldest first."""
        known = {task.id: task for task in (*self.history.tasks, *self.waiting, *(run.task for run in self.running))}
        return sorted(known.values(), key=lambda task: task.submitted)

    @property
    def rate(self) -> float:
        """Recent tasks per second; 0 if fewer than two were seen."""
        recent = self.recent
        span = recent[-1].submitted - recent[0].submitted if recent else 0.0
        return (len(recent) - 1) / span if span > 0 else 0.0

    @property
    def horizon(self) -> float:
        """Seconds of future that are played."""
        recent = self.recent
        span = recent[-1].submitted - recent[0].submitted if recent else 0.0
        most = MOST_FUTURE / self.rate if self.rate else HORIZON[1]
        return min(max(span, HORIZON[0]), HORIZON[1], most)


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration to try."""

    label: str
    scheduler: SchedulerSpec
    clusters: tuple[Cluster, ...]
    #: Rate of arrivals, relative to the current one.
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a variant; times in seconds."""

    wait: float
    completion: float
    completion_p95: float
    #: Utilisation by resource, until arrivals end.
    utilisation: dict[str, float]
    #: Seconds until every task that waits now has started.
    queue_gone: float
    tasks: int
    #: Number of tasks that no cluster of the variant can hold.
    homeless: int


def read_present(
    history: History, clusters: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], now: float
) -> Present:
    """The present from ``clusters`` and ``rows`` (tasks that have not ended), as a coordinator reports them."""
    site = history.site
    up = {c["name"] for c in clusters if c["connected"] and not c["drained"]}
    found = Present(history, tuple(c for c in site.clusters if c.name in up), [], [], now)
    if not found.clusters:
        raise ConfigError("no cluster takes tasks now, so there is nothing to compare with; see: tapfinger clusters")
    lost = {"unknown": 0, "closed": 0, "beyond": 0}
    for row in sorted(rows, key=lambda r: r["submitted"]):
        task = ran(site, row)
        if task is None:
            lost["unknown"] += 1
        elif row["cluster"] is None:
            found.waiting.append(task)
        elif row["cluster"] not in up:
            lost["closed"] += 1
        else:
            size = site.resources.parse(row["allocation"], f"task {task.id}")
            spent = now - (row["started"] if row["started"] is not None else now)
            progress = row.get("progress")
            if progress is None:
                progress = advanced(site.believed(task.type).profile, size, spent / site.slot_seconds)
            progress = min(MOST_PROGRESS, progress)
            found.running.append(Running(task, row["cluster"], size, progress))
    lost["beyond"] = max(0, len(found.waiting) - MOST_WAITING)
    del found.waiting[MOST_WAITING:]
    texts = {
        "unknown": "are of a type or size that the configuration does not have",
        "closed": "run on clusters that take no tasks now",
        "beyond": f"wait behind the first {MOST_WAITING}",
    }
    found.left_out = {texts[key]: count for key, count in lost.items() if count}
    return found


# -------------------------------------------------------------------------- play


class Player:
    """Plays variants of one present."""

    def __init__(self, present: Present) -> None:
        """Choose the length of a slot, and convert the speeds of tasks to it."""
        self._present = present
        site, seconds = present.history.site, present.history.seconds
        recent = present.recent
        if not recent:
            raise ConfigError("nothing has run, nothing runs and nothing waits: there is nothing to play forward")
        typical = median(seconds(task.type, task.type.minimum) for task in recent)
        self.slot_seconds = min(max(typical / SLOTS_PER_TASK, 0.01), 600.0)
        names = {task.type.name: task.type for task in recent}
        factor = self.slot_seconds / site.slot_seconds
        self._types = {name: _faster(site.believed(kind), factor) for name, kind in names.items()}
        self._index = {name: n for n, name in enumerate(self._types)}

    def play(self, variant: Variant, seed: int) -> Result:
        """Play one future."""
        present, site = self._present, self._present.history.site
        placed = {c.name: n for n, c in enumerate(variant.clusters)}
        rows: list[tuple[int, Ran, Running | None]] = []
        for run in present.running:
            rows.append((self._slot(run.task), run.task, run if run.cluster in placed else None))
        rows += [(self._slot(task), task, None) for task in present.waiting]
        now = len(rows)
        rows = sorted(rows, key=lambda row: row[0]) + [(s, t, None) for s, t in self._future(variant.rate, seed)]
        homes = [self._eligible(task, variant.clusters) for _, task, _ in rows]
        homeless = sum(not any(home) for home in homes)
        now -= sum(not any(home) for home in homes[:now])
        rows = [row for row, home in zip(rows, homes, strict=True) if any(home)]
        if not rows:
            raise ConfigError(f"{variant.label}: there is no task to play; submit some, or keep a cluster they fit")
        workload = Workload(
            np.array([slot for slot, _, _ in rows], dtype=np.int64),
            np.array([self._index[task.type.name] for _, task, _ in rows], dtype=np.int64),
            np.array([home for home in homes if any(home)], dtype=np.bool_),
            np.zeros(len(rows), dtype=np.uint64),
        )
        runs = {n: run for n, (_, _, run) in enumerate(rows) if run is not None}
        scenario = present.history.scenario.model_copy(
            update={"slot_seconds": self.slot_seconds, "knowledge": KnowledgeConfig(), "reports_progress": False}
        )
        types = tuple(self._types.values())
        world = World(scenario, site.resources, variant.clusters, types, Mode.MULTI, NO_NOISE, 0.0, ())
        collector = MetricsCollector(site.resources.names, variant.clusters, types)
        executor = SimExecutor(world, workload, {n: run.progress for n, run in runs.items()})
        session = Session(EdgeState(variant.clusters, Mode.MULTI), executor, [collector])
        session.turn(Decision(tuple(Placement(n, placed[r.cluster], r.allocation) for n, r in runs.items())))
        _run(session, variant, world, seed)
        waiting = [n for n in range(now) if n not in runs]
        record = collector.record(scenario.name, variant.label, seed)
        return self._result(record, waiting, runs, homeless)

    def _slot(self, task: Ran) -> int:
        """Slot of the task's submission; now is 0, so it is zero or less."""
        return -int(max(0.0, self._present.now - task.submitted) / self.slot_seconds)

    def _future(self, rate: float, seed: int) -> list[tuple[int, Ran]]:
        """Tasks like the recent ones, at their rate; a higher rate brings the same tasks sooner, and more of them."""
        count = int(2 * MOST_FUTURE * max(1.0, rate))  # enough for any rate, with the same beginning
        gaps = np.random.default_rng([seed, 0]).exponential(1.0, count)
        picks = np.random.default_rng([seed, 1]).random(count)
        recent, per_second = self._present.recent, self._present.rate * rate
        if per_second <= 0.0:
            return []
        times = np.cumsum(gaps / per_second)
        count = int((times < self._present.horizon).sum())
        return [(int(times[n] / self.slot_seconds), recent[int(picks[n] * len(recent))]) for n in range(count)]

    def _eligible(self, task: Ran, clusters: Sequence[Cluster]) -> list[bool]:
        return [
            (not task.clusters or c.name in task.clusters) and ever_fits(task.type.minimum, c.capacity)
            for c in clusters
        ]

    def _result(self, record: RunRecord, waiting: list[int], runs: Mapping[int, Running], homeless: int) -> Result:
        """``waiting``: tasks that wait now; ``runs``: tasks that run now. Arrivals before now are below zero."""
        second = self.slot_seconds
        queued = ~np.isin(record.task, list(runs))
        waits = (record.start - record.arrival)[queued]
        names = self._present.history.site.resources.names
        span = max(1, int(self._present.horizon / second))
        played = np.minimum(span, record.end + 1) - np.maximum(0, record.start)  # (finished,) slots before arrivals end
        used = np.maximum(0, played) @ record.allocation
        has = record.capacity.sum(axis=0)
        shares = {name: float(u / (h * span)) for name, u, h in zip(names, used, has, strict=True) if h}
        gone = record.start[np.isin(record.task, waiting)]
        found = measures(record)
        return Result(
            wait=float(waits.mean()) * second if len(waits) else 0.0,
            completion=found["mean"] * second,
            completion_p95=found["p95"] * second,
            utilisation=shares,
            queue_gone=float(gone.max(initial=0)) * second,
            tasks=record.tasks,
            homeless=homeless,
        )


def _faster(kind: TaskType, factor: float) -> TaskType:
    """The task type with rates for longer slots."""
    profile = replace(kind.profile, rates=tuple(rate * factor for rate in kind.profile.rates))
    return replace(kind, profile=profile)


def _run(session: Session, variant: Variant, world: World, seed: int) -> None:
    """Play until every task has ended."""
    scheduler = Decider(variant.scheduler.create())
    scheduler.reset(world.context(seed))
    idle = 0
    while not session.done:
        snapshot = session.state.snapshot()
        if _possible(snapshot):
            session.play_round(scheduler)
        session.end_slot()
        idle = 0 if any(c.running for c in session.state.snapshot().clusters) or not snapshot.queue else idle + 1
        if idle > STUCK_SLOTS:
            raise StuckError(f"{variant.label}: nothing was started for {idle} slots although every cluster is idle")


def _possible(snapshot: Snapshot) -> bool:
    kinds = {(task.type.name, task.eligible): task for task in snapshot.queue}
    return any(can_start(task, cluster) for task in kinds.values() for cluster in snapshot.clusters)
