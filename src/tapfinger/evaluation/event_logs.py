"""Measurements of past runs: event logs of runs, and the history of a live site.

Both consist of events of the core, measured by the same collector as runs in progress. The history of a live site has
seconds in place of slots; its events are counted in slots of about a millionth of the time it covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tapfinger.core import events as core
from tapfinger.core.model import Resources, SpeedProfile, Task, TaskType
from tapfinger.errors import DataError, TapfingerError
from tapfinger.evaluation.live_history import ran, site_of
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.stats import measures
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol import events as live
from tapfinger.records import EventLog, LogHeader, RunRecord, read_events, read_header

#: Number of slots that a live site's history is divided into, and the shortest slot in seconds.
SLOTS, SHORTEST = 2**20, 0.001


@dataclass(frozen=True)
class MeasuredRun:
    """A run, or a live site so far."""

    record: RunRecord
    #: Seconds per slot of the record.
    slot_seconds: float
    #: Number of tasks with events that could not be counted, by reason.
    left_out: Mapping[str, int] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """Every measure by name; times in seconds."""
        found = measures(self.record)
        found |= {name: self.slot_seconds * found[name] for name in _TIMES}
        return {"finished": float(len(self.record.task)), "seconds": found.pop("slots") * self.slot_seconds, **found}


_TIMES = ("mean", "median", "p95", "p99", "max", "waiting", "waiting_p95", "waiting_max", "running")


# --------------------------------------------------------------------------- runs


def find_logs(run: Path) -> list[Path]:
    """The event logs of a comparison's directory, or one log by itself."""
    if run.is_file():
        return [run]
    found = sorted((run / "events").glob("*.jsonl.gz")) or sorted(run.glob("*.jsonl*"))
    if not found:
        what = "holds no event logs" if run.is_dir() else "does not exist"
        raise DataError(
            f"{run} {what}; give the directory of a comparison that kept its event logs, or a file that tapfinger "
            "simulate --events has written"
        )
    return found


def measure_log(path: Path) -> MeasuredRun:
    """Replay an event log into the collector."""
    header = read_header(path)
    if header.minimums is None or header.slot_seconds is None:
        raise DataError(
            f"{path} was written by TapFinger {header.version}, which did not say how long slots are and what tasks "
            "need; run it again"
        )
    number = 1
    try:
        types = [_type(name, minimum, header) for name, minimum in header.minimums.items()]
        collector = MetricsCollector(header.resources, header.clusters, types)
        for event in read_events(path, {kind.name: kind for kind in types}):
            number += 1
            collector(event)
        record = collector.record(header.scenario, header.scheduler, header.seed)
        measured = MeasuredRun(record, header.slot_seconds)
        measured.numbers()
    except DataError:
        raise
    except (TapfingerError, KeyError, IndexError, ValueError, TypeError, ArithmeticError) as error:
        # Each line is an event, but they contradict each other.
        raise DataError(
            f"{path}, line {number}: the log contradicts itself ({type(error).__name__}: {error}); write it again"
        ) from None
    return measured


def _type(name: str, minimum: Resources, header: LogHeader) -> TaskType:
    """A task type as far as a log describes it; measurements do not use its speed."""
    profile, data = SpeedProfile(minimum, minimum, (1.0,)), (0,) if name in header.with_data else ()
    if name in header.higher_steps:
        return TaskType(name, minimum, minimum, profile, weight=0.0, base=name.partition("[")[0], data=data)
    return TaskType(name, minimum, minimum, profile, data=data)


# --------------------------------------------------------------------------- live


def measure_live(told: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], log: Path | None = None) -> MeasuredRun:
    """Measure a live site from the results of ``Client.site`` and ``Client.events``, starting with the first line.

    ``log``: also write an event log there, which ``measure_log`` reads.
    """
    scenario, site = site_of(told)
    history = [live.read_event(line) for line in lines]
    if not history:
        raise TapfingerError("nothing has happened at this site yet")
    origin = history[0].at
    slot_seconds = max(SHORTEST, (history[-1].at - origin) / SLOTS)
    replay = Replay(site, origin, slot_seconds)
    events = list(replay.events(history))
    types = tuple(site.task_types.values())  # with the sizes that tasks have asked for
    collector = MetricsCollector(site.resources.names, site.clusters, types)
    for event in events:
        collector(event)
    if log is not None:
        header = LogHeader(
            scenario.name,
            told["scheduler"],
            0,
            site.resources.names,
            site.clusters,
            slot_seconds=slot_seconds,
            minimums={kind.name: kind.minimum for kind in types},
        )
        with EventLog(log, header) as write:
            for event in events:
                write(event)
    return MeasuredRun(collector.record(scenario.name, told["scheduler"], 0), slot_seconds, replay.left_out)


class Replay:
    """A live site's history as events of the core."""

    def __init__(self, site: Site, origin: float, slot_seconds: float) -> None:
        """``origin``: beginning of slot 0, in seconds since the epoch."""
        self._site = site
        self._origin = origin
        self._slot_seconds = slot_seconds
        self._now = 0
        self._open: dict[int, Task] = {}
        #: Cluster and allocation granted to each task; then the tasks that run.
        self._granted: dict[int, tuple[int, Resources]] = {}
        self._running: set[int] = set()
        self._heard: set[str] = set()
        self._drained: set[str] = set()
        self.left_out: Counter[str] = Counter()

    def events(self, history: Iterable[live.LiveEvent]) -> Iterator[core.Event]:
        """Events in the order of the history; clusters take tasks only once their agents have joined."""
        yield from (core.ClusterClosed(-1, index) for index in range(len(self._site.clusters)))
        yield from chain.from_iterable(map(self._translate, history))

    def _translate(self, line: live.LiveEvent) -> Iterator[core.Event]:
        # Coordinators that take over may have different clocks; the collector's time must not go back.
        self._now = max(self._now, int((line.at - self._origin) / self._slot_seconds))
        if isinstance(line, live.Submitted):
            yield from self._submitted(line)
        elif isinstance(line, live.LINKS) and line.cluster in self._site.index:
            yield from self._link(line, line.cluster)
        elif line.task in self._open:
            yield from self._of_task(line, line.task)

    def _submitted(self, line: live.Submitted) -> Iterator[core.Event]:
        row = {"type": line.type, "minimum": line.minimum, "maximum": line.maximum, "clusters": line.clusters}
        found = ran(self._site, {"task": line.task, "submitted": line.at, **row})
        if found is None or line.task is None:
            self.left_out["of a type, size or cluster that the configuration does not have any more"] += 1
            return
        names = found.clusters or self._site.index
        task = Task(line.task, found.type, self._now, tuple(sorted(self._site.index[name] for name in names)))
        self._open[line.task] = task
        yield core.TaskArrived(self._now, task)

    def _of_task(self, line: live.LiveEvent, task: int) -> Iterator[core.Event]:
        before = self._now - 1  # an end takes effect after its slot
        cluster, size = self._granted.get(task, (0, Resources()))
        if isinstance(line, live.Granted) and line.cluster in self._site.index:
            self._granted[task] = self._site.index[line.cluster], self._units(line.allocation)
        elif isinstance(line, live.AttemptStarted | live.AttemptRecovered) and task in self._granted:
            self._running.add(task)
            yield core.TaskStarted(self._now, task, cluster, size)
        elif isinstance(line, live.AttemptResized) and task in self._running:
            self._granted[task] = cluster, self._units(line.allocation)
            yield core.TaskResized(self._now, task, cluster, self._granted[task][1])
        elif isinstance(line, live.Requeued):
            if task in self._running:
                yield core.TaskRequeued(before, task, cluster)
            self._running.discard(task)
        elif isinstance(line, live.TaskClosed):
            if task not in self._running and isinstance(line, live.ClosedCancelled):
                yield core.TaskWithdrawn(before, task)
            elif isinstance(line, live.ClosedFinished) and task in self._running:
                yield core.TaskFinished(before, task, cluster)
            else:
                yield core.TaskFailed(before, task, cluster, line.kind)
            self._running.discard(task)
            del self._open[task]

    def _units(self, amounts: live.Amounts) -> Resources:
        named = zip(self._site.resources.names, self._site.resources.units, strict=True)
        return Resources([round(amounts.get(name, 0.0) / unit) for name, unit in named])

    def _link(self, line: live.LiveEvent, cluster: str) -> Iterator[core.Event]:
        was = cluster in self._heard and cluster not in self._drained
        if isinstance(line, live.AgentJoined | live.AgentAway | live.AgentSilent):
            (self._heard.add if isinstance(line, live.AgentJoined) else self._heard.discard)(cluster)
        else:
            (self._drained.add if isinstance(line, live.ClusterDrained) else self._drained.discard)(cluster)
        is_open = cluster in self._heard and cluster not in self._drained
        index = self._site.index[cluster]
        if is_open and not was:
            yield core.ClusterJoined(self._now, index)
        elif was and not is_open:
            yield core.ClusterClosed(self._now - 1, index)
