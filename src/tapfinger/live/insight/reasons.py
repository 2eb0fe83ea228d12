"""Explains why tasks wait, when they may start, and why they got their cluster and size."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tapfinger.core.contract import Phase, Snapshot, TaskView
from tapfinger.core.feasibility import ever_fits
from tapfinger.core.model import Resources
from tapfinger.errors import TapfingerError
from tapfinger.live.coordinator.grants import durations
from tapfinger.live.coordinator.inputs import Instructions
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.shown_needs import larger_of
from tapfinger.live.coordinator.site import Site
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.explain import rests, summary, verdicts
from tapfinger.live.insight.forecast import Forecast, forecast
from tapfinger.live.insight.learning import Learning
from tapfinger.live.insight.recent_sizes import RecentSizes
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import Granted, Requeued
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.live.store.store import Store

#: Most grants that are remembered, to find tasks that have overtaken others.
GRANTS = 10_000
#: Most overtaking tasks in one answer.
OVERTAKERS = 20
#: Seconds for which a forecast is reused when many tasks are shown.
FRESH = 1.0
#: Longest wait for a scheduler's probabilities, in seconds: it may be deciding.
PATIENCE = 2.0
#: Name of a fault of a coordinator: nothing is started, since its store is an older copy.
HOLDING = "older store"
#: Names of the schedulers among the faults of a coordinator.
DECIDERS = ("scheduler", "fallback")


class Reasons:
    """Answers questions about the tasks of one coordinator; never changes it."""

    def __init__(
        self,
        site: Site,
        machine: Callable[[], Coordinator],
        store: Store,
        clock: Callable[[], float],
        decision_thread: Worker,
        recent_sizes: RecentSizes,
        learning: Learning,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        """``machine``: returns the leader's state machine; raises if this coordinator does not lead.

        ``decision_thread``: the thread in which its scheduler decides. ``faults``: what is wrong at the moment.
        """
        self._site = site
        self._machine = machine
        self._store = store
        self._clock = clock
        self._decision_thread = decision_thread
        self._recent_sizes = recent_sizes
        self._learning = learning
        self._faults: Mapping[str, str] = {} if faults is None else faults
        self._worker = Worker("insight")
        self._forecast: tuple[float, Forecast] | None = None
        self._forecasting = asyncio.Lock()
        #: Time, task and cluster of each grant.
        self._grants: deque[tuple[float, int, str]] = deque(maxlen=GRANTS)
        #: Task -> since when it waits, for tasks that were requeued.
        self._since: dict[int, float] = {}

    def saw(self, instructions: Instructions) -> None:
        """Note events that were saved."""
        for line in instructions.history:
            if isinstance(line, Granted) and line.task is not None:
                self._grants.append((line.at, line.task, line.cluster or ""))
                self._since.pop(line.task, None)
            elif isinstance(line, Requeued) and line.task is not None:
                self._since[line.task] = line.at
        for record in instructions.records:
            if record.phase in ENDED:
                self._since.pop(record.id, None)

    async def explain(self, record: TaskRecord) -> dict[str, Any]:
        """Why a task waits, or why it got its cluster and size."""
        now = self._clock()
        machine = self._machine()
        snapshot = machine.snapshot
        since = self._waiting_since(record)
        found: dict[str, Any] = {
            "task": record.id,
            "phase": record.phase.value,
            "summary": self._told(record, now),
            "waiting_since": None,
            "waited": max(0.0, (record.started or record.ended or now) - record.submitted),
            "estimate": {"seconds": None, "how": "it waits no more"},
            "clusters": [],
            "overtaken_by": [],
            "placement": self._placement(record),
        }
        if record.phase is Phase.QUEUED and record.not_before > now:
            how = "it rests until then, and waits like any other afterwards"
            return found | {
                "summary": rests(record, now),
                "waiting_since": since,
                "waited": now - since,
                "estimate": {"seconds": record.not_before - now, "how": how},
            }
        position = next((n for n, view in enumerate(snapshot.queue) if view.id == record.id), None)
        if record.phase is not Phase.QUEUED or position is None:
            return found
        view = snapshot.queue[position]
        overtakers = self._overtakers(view, since)
        odds = await self._odds(machine)
        closed = self._closed(machine, now)
        clusters = verdicts(
            view, snapshot, self._site.resources, self._site.clusters, closed, odds, self._site.slot_seconds
        )
        ahead = await self._ahead(snapshot, 0.0)
        when, how = ahead.of(view.id, position)
        index = ahead.clusters.get(view.id)
        return found | {
            "summary": " ".join([summary(view, clusters, len(overtakers)), *self._more(record), *self._faulty()]),
            "waiting_since": since,
            "waited": now - since,
            "estimate": {"seconds": when, "how": how, **({} if index is None else self._where(index))},
            "clusters": [asdict(verdict) for verdict in clusters],
            "overtaken_by": overtakers[:OVERTAKERS],
            "placement": None,
        }

    async def queue(self, limit: int, seen: Callable[[TaskRecord], TaskRecord] = lambda r: r) -> dict[str, Any]:
        """The first waiting tasks, each with the reason in one sentence; those that rest come last.

        ``seen``: a task as the reader may see it.
        """
        now, machine = self._clock(), self._machine()
        snapshot = machine.snapshot
        ahead, closed = await self._ahead(snapshot, FRESH), self._closed(machine, now)
        said: dict[tuple[str, tuple[int, ...]], str] = {}  # tasks of one kind wait for the same reason
        rows = []
        for position, view in enumerate(snapshot.queue[:limit]):
            kind = (view.type.name, view.eligible)
            if kind not in said:
                slot = self._site.slot_seconds
                found = verdicts(view, snapshot, self._site.resources, self._site.clusters, closed, {}, slot)
                said[kind] = summary(view, found, 0).removeprefix(f"Task {view.id} ")
            record = machine.tasks.get(view.id)
            if record is not None:
                waited = now - self._since.get(view.id, record.submitted)
                text, when = f"Task {view.id} {said[kind]}", ahead.of(view.id, position)[0]
                rows.append({"task": view.id, "summary": text, "waited": waited, "estimate": when})
        for record in machine.resting(limit - len(rows)):
            waited = now - self._since.get(record.id, record.submitted)
            left = max(0.0, record.not_before - now)
            rows.append({"task": record.id, "summary": rests(seen(record), now), "waited": waited, "estimate": left})
        return {"tasks": rows, "total": machine.waiting}

    def _waiting_since(self, record: TaskRecord) -> float:
        if record.id in self._since or not record.attempt:
            return self._since.get(record.id, record.submitted)
        lines = [line for _, line in self._store.history(0, 10_000, record.id) if isinstance(line, Requeued)]
        return lines[-1].at if lines else record.submitted

    def _overtakers(self, view: TaskView, since: float) -> list[int]:
        """Later tasks that were started on clusters where this one could run, while it waited."""
        eligible = (self._site.clusters[n] for n in view.eligible)
        clusters = {cluster.name for cluster in eligible if ever_fits(view.type.minimum, cluster.capacity)}
        later = {task for at, task, where in self._grants if at >= since and task > view.id and where in clusters}
        return sorted(later)

    def _closed(self, machine: Coordinator, now: float) -> dict[str, str]:
        """By name: why a cluster takes no tasks, for those that take none."""
        return {
            str(c["name"]): "it is drained"
            if c["drained"]
            else str(c["trouble"])
            if c["connected"]
            else f"its agent is {words.silence(c['last_heard'])}"
            for c in machine.clusters(now)
            if c["drained"] or not c["connected"] or c["trouble"]
        }

    def _more(self, record: TaskRecord) -> list[str]:
        """What it gets because it, or another of its owner's tasks of this type, ran out of it, in a sentence."""
        least = larger_of(record.least, self._site.needs.of(record.owner, record.spec.type))
        who = "it" if record.least else f"another {record.spec.type} task of {record.owner}"
        return (
            [f"It gets at least {words.some(least)}, as far as it may, since {who} ran out with less."] if least else []
        )

    def _faulty(self) -> list[str]:
        """Why nothing may be decided at the moment, in sentences."""
        faults = sorted(self._faults.items())
        said = [f"The {name} does not decide: {text}" for name, text in faults if name in DECIDERS]
        return [*said, *(text for name, text in faults if name == HOLDING)]

    async def _odds(self, machine: Coordinator) -> Mapping[tuple[int, int], float]:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._decision_thread.run(machine.deciders[0].odds)
        except TimeoutError:
            return {}

    async def _ahead(self, snapshot: Snapshot, fresh: float) -> Forecast:
        """A forecast that is at most this many seconds old."""
        async with self._forecasting:  # many may ask at once, and one forecast is enough
            if self._forecast is None or self._clock() - self._forecast[0] > fresh:
                recent_sizes = self._recent_sizes.copy()
                made = await self._worker.run(lambda: forecast(snapshot, recent_sizes))
                self._forecast = self._clock(), made
            return self._forecast[1]

    def _told(self, record: TaskRecord, now: float) -> str:
        """The state of a task that does not wait, in one sentence."""
        where = f" on {record.cluster}" if record.cluster else ""
        why = f": {record.reason}" if record.reason else ""
        begun = record.started if record.started is not None else now
        if record.phase is Phase.PLACED:
            return f"Task {record.id} is about to start{where}."
        if record.phase is Phase.RUNNING:
            far = "" if record.progress is None else f", and says that {record.progress:.0%} of it are done"
            return f"Task {record.id} runs{where} for {words.seconds(now - begun)} so far{far}."
        if record.phase is Phase.QUEUED:
            return f"Task {record.id} is about to join the queue."
        if record.started is None or record.ended is None:
            return f"Task {record.id}: {record.phase.value} before it ran{why}."
        return f"Task {record.id}: {record.phase.value} after {words.seconds(record.ended - begun)}{where}{why}."

    def _where(self, index: int) -> dict[str, str]:
        """A cluster or node by name, with its kind of hardware if it has one."""
        cluster = self._site.clusters[index]
        return {"cluster": cluster.name, **({"kind": cluster.hardware} if cluster.hardware else {})}

    def _placement(self, record: TaskRecord) -> dict[str, Any] | None:
        if record.cluster is None or record.allocation is None:
            return None
        lines = [line for _, line in self._store.history(0, 10_000, record.id) if isinstance(line, Granted)]
        size = Resources(record.allocation)
        found: dict[str, Any] = {
            "cluster": record.cluster,
            "allocation": self._site.resources.natural(size),
            "text": words.detail(lines[-1]) if lines else "",
        }
        index = self._site.index.get(record.cluster)
        found |= {} if index is None else self._where(index)
        try:
            task_type = self._site.task_of(record, 0).type
            if index is not None:
                task_type = task_type.on(self._site.clusters[index].hardware)
            names = ("expected_seconds", "minimum_seconds", "maximum_seconds")
            found |= dict(zip(names, durations(self._site, task_type, size), strict=True))
            found["measured_factor"] = self._learning.known[task_type.family].factor
        except TapfingerError:
            pass  # its type or size is not in this configuration
        return found
