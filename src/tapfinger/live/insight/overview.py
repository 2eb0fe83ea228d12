"""Data for a page about the whole site: recent attempts, numbers of tasks over time, the latest events.

It is made only from the history in the store, event by event, and has a bounded size: its cost does not grow with the
queue, which is counted once, at the beginning. Standbys can show it as well as the leader.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tapfinger.core.contract import Phase
from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.store.store import Store

#: Most events of the history that are read at the first request, or after a long time without requests.
LOOK_BACK = 20_000
#: Events read at once.
CHUNK = 250
#: Most attempts kept; those that ended first are dropped first.
RUNS = 2000
#: Most events kept.
LINES = 300
#: Most points kept of the numbers of tasks, and seconds between them: an hour in all.
POINTS, STEP = 1800, 2.0
#: Most characters of a task's label.
LABEL = 80

#: Event -> change of the number of waiting tasks, and of tasks on clusters.
_CHANGES: dict[type[LiveEvent], tuple[int, int]] = {
    events.Submitted: (1, 0),
    events.Granted: (-1, 1),
    events.AttemptEnded: (0, -1),
    events.Requeued: (1, 0),
    events.AttemptRecovered: (-1, 1),
}

Run = dict[str, Any]


class Overview:
    """Follows the history of one store. May be used by several threads."""

    def __init__(
        self, store: Store, resources: ResourceTypes, open_part: Callable[[TaskRecord], TaskRecord] = lambda r: r
    ) -> None:
        """Nothing is read before the first ``catch_up``. ``open_part``: a task as everyone may see it."""
        self._store = store
        self._open_part = open_part
        self._resources = resources
        self._turn = threading.Lock()
        self._begin(0)

    def _begin(self, seq: int) -> None:
        #: Number of the latest event that was read, and of the last event before the first one that was read.
        self.seq = self._first = seq
        self._runs: dict[AttemptId, Run] = {}
        #: Labels for those who may see all of the task, where they differ from the label in the run.
        self._labels: dict[AttemptId, str] = {}
        self._ended: deque[AttemptId] = deque()
        self._lines: deque[tuple[int, LiveEvent]] = deque(maxlen=LINES)
        # Time, tasks waiting, tasks on clusters (both relative to where the known history begins), number of the event.
        self._points: deque[tuple[float, int, int, int]] = deque(maxlen=POINTS)
        self._waiting = self._running = 0
        self._ends = {phase.value: 0 for phase in events.CLOSED}
        self._base: dict[str, int] | None = None  # numbers where the known history begins

    def catch_up(self) -> None:
        """Read the events since the last call."""
        with self._turn:
            last = self._store.last_line()
            if self._base is None or last - self.seq > LOOK_BACK:
                self._begin(max(0, last - LOOK_BACK))
            while self._read():
                pass
            self.seq = max(self.seq, last)  # the latest events may not be kept any more
            if self._base is None:
                self._count()

    def _read(self) -> bool:
        """Read some events. Returns whether there may be more."""
        lines = self._store.history(self.seq, CHUNK)
        for seq, line in lines:
            self.seq = seq
            self._take(line)
        return len(lines) == CHUNK

    def _count(self) -> None:
        """Count the tasks. Another coordinator may be writing, so repeat until the count matches the events read."""
        while True:
            found = self._store.counts()
            last = self._store.last_line()
            if last == self.seq:
                break
            while self._read():
                pass
            self.seq = max(self.seq, last)
        on_clusters = found.get("placed", 0) + found.get("running", 0)
        self._base = {
            "waiting": found.get("queued", 0) - self._waiting,
            "running": on_clusters - self._running,
            **{kind: found.get(kind, 0) - count for kind, count in self._ends.items()},
        }
        # Running attempts may have been granted before the events that were read.
        alive = self._store.tasks((Phase.PLACED, Phase.RUNNING), RUNS)
        older = [(r.attempt_id, self._old_run(r)) for r in alive if r.attempt_id not in self._runs]
        self._runs = {**dict(reversed(older)), **self._runs}

    # --------------------------------------------------------------------- lines

    def _take(self, line: LiveEvent) -> None:
        self._lines.append((self.seq, line))
        waiting, running = _CHANGES.get(type(line), (0, 0))
        if isinstance(line, events.ClosedCancelled) and line.cluster is None:
            waiting = -1  # it was waiting, not on a cluster
        if waiting or running:
            self._waiting += waiting
            self._running += running
            if self._points and line.at // STEP == self._points[-1][0] // STEP:
                self._points.pop()
            self._points.append((line.at, self._waiting, self._running, self.seq))
        if isinstance(line, events.TaskClosed):
            self._ends[line.kind] += 1
        if line.task is not None and line.attempt is not None:
            self._follow((line.task, line.attempt), line)

    def _follow(self, ident: AttemptId, line: LiveEvent) -> None:
        if isinstance(line, events.Granted):
            self._runs[ident] = self._new_run(ident, line)
            return
        run = self._runs.get(ident)
        if run is None:
            return
        if isinstance(line, events.AttemptStarted):
            run["started"] = line.at
        elif isinstance(line, events.AttemptEnded):
            run["ended"], run["result"] = line.at, line.result
            self._ended.append(ident)
            while len(self._runs) > RUNS and self._ended:
                oldest = self._ended.popleft()
                self._runs.pop(oldest, None)
                self._labels.pop(oldest, None)
        elif isinstance(line, events.AttemptResizing):  # what it gives back is its own until it has confirmed that
            run["size"] = {name: max(amount, run["size"].get(name, 0.0)) for name, amount in line.allocation.items()}
        elif isinstance(line, events.AttemptResized):
            run["size"] = dict(line.allocation)
        elif isinstance(line, events.TaskClosed):
            run["result"], run["final"] = line.kind, True
        else:
            return
        run["seq"] = self.seq

    def _new_run(self, ident: AttemptId, line: events.Granted) -> Run:
        record = self._store.task(ident[0])
        said = "" if record is None else label(self._open_part(record))
        if record is not None and label(record) != said:
            self._labels[ident] = label(record)
        return {
            "task": ident[0],
            "attempt": ident[1],
            "label": said,
            "type": "" if record is None else record.spec.type,
            "owner": "" if record is None else record.owner,
            "submitted": line.at if record is None else record.submitted,
            "cluster": line.cluster,
            "size": dict(line.allocation),
            "granted": line.at,
            "started": None,
            "ended": None,
            #: How the attempt ended; for the last attempt, how the task ended.
            "result": None,
            "final": False,
            "seq": self.seq,
        }

    def _old_run(self, record: TaskRecord) -> Run:
        """An attempt that was granted before the events that were read; its start is shown as the grant."""
        at = record.submitted if record.started is None else record.started
        size = self._resources.natural(Resources(record.allocation or ()))
        line = events.Granted(at, record.id, record.attempt, record.cluster, size)
        return {**self._new_run(record.attempt_id, line), "started": record.started, "seq": self._first}

    # --------------------------------------------------------------------- views

    def since(self, after: int, sees: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """Changes since the event with that number; everything, if that is too long ago.

        ``sees``: whether the reader may see everything of this owner's tasks. Events are as stored, with their numbers.
        """
        with self._turn:
            return self._since(after, sees)

    def _since(self, after: int, sees: Callable[[str], bool]) -> dict[str, Any]:
        whole = after < self._first or after > self.seq or after == 0
        base = self._base or {}
        now = {"waiting": self._waiting, "running": self._running, **self._ends}
        runs = self._runs.values() if whole else [run for run in self._runs.values() if run["seq"] > after]
        waiting, running = base.get("waiting", 0), base.get("running", 0)
        return {
            "seq": self.seq,
            "whole": whole,
            "counts": {name: base.get(name, 0) + count for name, count in now.items()},
            "runs": [self._labelled(run) if sees(run["owner"]) else run for run in runs],
            "points": [[at, w + waiting, r + running] for at, w, r, seq in self._points if whole or seq > after],
            "events": [(seq, line) for seq, line in self._lines if whole or seq > after],
        }

    def _labelled(self, run: Run) -> Run:
        full = self._labels.get((run["task"], run["attempt"]))
        return run if full is None else {**run, "label": full}


def label(record: TaskRecord) -> str:
    """A task's name, or the beginning of its command line."""
    text = " ".join((record.spec.name or " ".join(word[:LABEL] for word in record.spec.argv[:LABEL])).split())
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"
