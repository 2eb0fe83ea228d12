"""Learns how fast tasks really are: one belief per task type of the configuration, updated with every run.

Observations only go into an inbox. ``digest`` empties the inbox in a thread and returns immutable results, so requests
never wait for matrix computations.

Only finished runs count. The reported progress of a running attempt counts until the attempt ends. Then its whole
duration replaces the progress; if it has failed, was cancelled or lost, nothing does. Of a task that was resized, only
its progress counts, separately for each allocation.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tapfinger.core.contract import Phase
from tapfinger.core.estimates import work
from tapfinger.core.feasibility import within_bounds
from tapfinger.core.model import NO_NOISE, Resources, TaskType
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.events import LiveEvent, SpeedDrift, SpeedForgotten, Warned
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.profiles.beliefs import Belief, Timed
from tapfinger.profiles.drift import LATEST, Tracked

logger = logging.getLogger(__name__)

#: Default doubt about configured speeds: standard deviation of their logarithm.
DOUBT = 0.3

#: Seconds between saves of what was learned.
SAVE = 5.0

#: Most observations in the inbox; beyond that, the oldest are dropped.
INBOX = 100_000

#: Shortest duration that is assumed for a run, in seconds: agents check their tasks too seldom to tell shorter ones.
TICK = 0.05

#: Seconds after the start of a leader in which it may hear of runs that ended before: their real end is unknown.
SETTLING = 10.0

#: Largest share of the time that is spent on computing new beliefs.
SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Lesson:
    """An observation of an attempt."""

    id: AttemptId
    type: str
    #: None: the attempt does not count, nor does the progress it has reported.
    allocation: Resources | None = None
    seconds: float = 0.0
    #: Progress before and after; None for whole runs.
    progress: tuple[float, float] | None = None
    #: Whether the attempt had the same allocation from start to end.
    steady: bool = True
    at: float = 0.0
    #: Name of the cluster it ran on.
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a type; can be read without waiting for a digest."""

    configured: TaskType
    believed: TaskType
    #: Position in the profile -> runs seen there since the speed last changed.
    runs: Mapping[int, float] = field(default_factory=dict)
    #: Number of all finished runs that counted.
    finished: int = 0
    #: How much equal runs differ: standard deviation of the logarithm of their seconds.
    scatter: float = 0.0
    #: When learning began; and the latest change of speed: since when, and seconds now divided by seconds before.
    since: float = 0.0
    drift: tuple[float, float] | None = None

    @property
    def usual(self) -> Resources:
        """The size with the most runs; the minimum before the first run."""
        if not self.runs:
            return self.configured.minimum
        most = max(self.runs, key=lambda cell: (self.runs[cell], -cell))
        return self.place(most)[1]

    def place(self, cell: int) -> tuple[str, Resources]:
        """Kind of hardware and allocation at a position, which counts through the profiles of all kinds."""
        kind, cell = divmod(cell, len(self.configured.profile.rates))
        kinds = [kind for kind, _ in self.configured.profiles] or [self.configured.hardware]
        return kinds[kind], size_of(self.configured, cell)

    @property
    def factor(self) -> float:
        """Believed duration divided by configured duration, over the sizes seen so far; 1 before the first run."""
        logs = [
            (n, math.log(self.configured.on(kind).profile.rate(size) / self.believed.on(kind).profile.rate(size)))
            for cell, n in self.runs.items()
            for kind, size in [self.place(cell)]
        ]
        return math.exp(sum(n * log for n, log in logs) / sum(n for n, _ in logs)) if logs else 1.0


@dataclass(frozen=True, slots=True)
class Digest:
    """The results of a digest."""

    #: Types with a new belief, including types with a task's own bounds.
    revised: tuple[TaskType, ...] = ()
    known: Mapping[str, Known] = field(default_factory=dict)
    events: tuple[LiveEvent, ...] = ()
    #: Rows to save.
    learned: tuple[Learned, ...] = ()


@dataclass(slots=True)
class _Stretch:
    """Reported progress of an attempt with one allocation."""

    begin: float
    end: float
    slots: float
    timed: Timed


@dataclass(slots=True)
class _Pupil:
    """What is learned about one type."""

    told: TaskType
    digest: str
    since: float
    tracked: Tracked = field(init=False)
    finished: int = 0
    at: float = 0.0
    drift: tuple[float, float] | None = None
    believed: TaskType = field(init=False)
    #: When the latest runs ended.
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def __post_init__(self) -> None:
        self.tracked = Tracked(Belief(self.told, NO_NOISE))
        self.believed = self.told

    def known(self, configured: TaskType) -> Known:
        belief, drift = self.tracked.belief, self.drift
        return Known(configured, self.believed, belief.runs, self.finished, belief.scatter, self.since, drift)

    def learned(self) -> Learned:
        drift = None if self.drift is None else list(self.drift)
        own = {"finished": self.finished, "since": self.since, "drift": drift}
        return Learned(self.told.name, self.digest, self.at, {**self.tracked.state(), **own})

    def restore(self, kept: Learned) -> None:
        self.tracked.restore(kept.state)
        self.finished, self.since, self.at = int(kept.state["finished"]), float(kept.state["since"]), kept.at
        drift = kept.state["drift"]
        self.drift = None if drift is None else (float(drift[0]), float(drift[1]))


class Learning:
    """Beliefs about all types of a site. ``digest`` and ``take_up`` may run in another thread than the rest."""

    def __init__(self, site: Site, doubt: float = DOUBT) -> None:
        """``doubt``: about the configured speeds, as a standard deviation of their logarithm."""
        self._site = site
        self._doubt = doubt
        self._inbox: deque[Lesson] = deque(maxlen=INBOX)
        self._not_before = 0.0
        #: Held while beliefs change: a new leader restores them in a different thread from later digests.
        self._changing = threading.RLock()
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._pupils = {
            t.name: _Pupil(doubted(t, self._doubt), digest_of(t, self._doubt), now)
            for t in self._site.configured_types()
        }
        #: Running attempts that report progress, by type.
        self._open: dict[str, dict[AttemptId, list[_Stretch]]] = {name: {} for name in self._pupils}
        #: Running attempts that are not listened to, because of what they said.
        self._unteachable: set[AttemptId] = set()
        self._unsaved: set[str] = set()
        self._saved = self._began = now
        #: What is known, by type.
        self.known = {name: self._pupils[name].known(self._site.task_types[name]) for name in self._pupils}

    # ------------------------------------------------------------------ what is seen

    def saw(self, record: TaskRecord) -> None:
        """Note a task record that was saved."""
        lesson = lesson_of(record)
        if lesson is not None and lesson.at < self._began + SETTLING and (record.started or 0.0) < self._began:
            lesson = Lesson(lesson.id, lesson.type)
        if lesson is not None:
            self._inbox.append(lesson)

    def progressed(
        self,
        task: TaskRecord,
        allocation: tuple[int, ...],
        progress_before: float,
        progress_now: float,
        seconds: float,
    ) -> None:
        """Note progress that a running attempt made in this many seconds, with this allocation (in smallest units)."""
        stretch = (progress_before, progress_now)
        where = task.cluster or ""
        self._inbox.append(
            Lesson(task.attempt_id, task.spec.type, Resources(allocation), seconds, stretch, cluster=where)
        )

    def due(self, now: float) -> bool:
        """Whether ``digest`` has something to do."""
        return now >= self._not_before and bool(self._inbox or (self._unsaved and now >= self._saved + SAVE))

    # ------------------------------------------------------------------ in a thread

    def take_up(self, kept: Iterable[Learned], history: Iterable[Lesson], now: float) -> Digest:
        """Restore what was saved, and learn from tasks that have finished since.

        ``history``: the latest finished tasks, in any order. Of types that were never saved, all of them count.
        """
        with self._changing:
            return self._taken_up(kept, history, now)

    def _taken_up(self, kept: Iterable[Learned], history: Iterable[Lesson], now: float) -> Digest:
        self._inbox.clear()
        self._begin(now)
        events: list[LiveEvent] = []
        fresh = set()
        for row in kept:
            pupil = self._pupils.get(row.type)
            if pupil is None:
                continue
            if pupil.digest == row.digest:
                pupil.restore(row)
                continue
            fresh.add(row.type)
            events.append(SpeedForgotten(now, type=row.type))
            pupil.at = now
            self._unsaved.add(row.type)
        for lesson in sorted(history, key=lambda one: (one.at, one.id)):
            pupil = self._pupils.get(lesson.type)
            if pupil is not None and lesson.at > pupil.at and lesson.type not in fresh:
                self._inbox.append(lesson)
        found = self.digest(now, every=True)
        return replace(found, events=(*events, *found.events))

    def digest(self, now: float, every: bool = False) -> Digest:
        """Process the inbox and update beliefs. ``every``: of all types, not only those with new observations."""
        with self._changing:
            return self._digested(now, every)

    def _digested(self, now: float, every: bool) -> Digest:
        began = time.perf_counter()
        events: list[LiveEvent] = []
        touched = set(self._pupils) if every else set()
        while self._inbox:
            lesson = self._inbox.popleft()
            if lesson.type in self._pupils and lesson.id not in self._unteachable:
                touched.add(lesson.type)
                events += self._take_safely(lesson, now)
            if lesson.progress is None:
                self._unteachable.discard(lesson.id)  # the attempt has ended, and says no more
        revised: list[TaskType] = []
        for name in sorted(touched):
            pupil = self._pupils[name]
            if (new := pupil.tracked.belief.revised()) is not None:
                pupil.believed = new
                revised += [new, *self._sizes_of(new)]
        known = self.known | {name: self._pupils[name].known(self._site.task_types[name]) for name in touched}
        self.known = known
        learned = self._to_save(now)
        self._not_before = now + (time.perf_counter() - began) / SHARE
        return Digest(tuple(revised), known, tuple(events), learned)

    def _sizes_of(self, base: TaskType) -> list[TaskType]:
        types = list(self._site.task_types.values())
        return [base.narrowed(t.minimum, t.maximum) for t in types if t.base == base.name]

    def last(self, now: float) -> tuple[Learned, ...]:
        """The rows to save before the coordinator ends."""
        with self._changing:
            due = self.digest(now).learned
            return due + self._to_save(now, force=True)

    def _to_save(self, now: float, force: bool = False) -> tuple[Learned, ...]:
        if not self._unsaved or (now < self._saved + SAVE and not force):
            return ()
        names, self._unsaved, self._saved = sorted(self._unsaved), set(), now
        return tuple(self._kept(name) for name in names)

    def _kept(self, name: str) -> Learned:
        """The row of a type, without the progress of running attempts: it could not be taken back after a restart."""
        pupil = self._pupils[name]
        reported = [stretch.timed for stretches in self._open[name].values() for stretch in stretches]
        for timed in reported:
            pupil.tracked.belief.add(timed, -1.0)
        kept = pupil.learned()
        for timed in reported:
            pupil.tracked.belief.add(timed)
        return kept

    def _take_safely(self, lesson: Lesson, now: float) -> list[LiveEvent]:
        """As ``_take``; an attempt that says what cannot be worked with is not listened to any more."""
        try:
            return self._take(lesson, now)
        except Exception as error:
            logger.warning("task %d attempt %d teaches nothing about speed: %s", *lesson.id, error)
            self._unteachable.add(lesson.id)
            for stretch in self._open[lesson.type].pop(lesson.id, ()):
                self._pupils[lesson.type].tracked.belief.add(stretch.timed, -1.0)
            text = f"nothing is learnt of its speed: what it reported cannot be worked with ({error})"
            return [Warned(now, *lesson.id, text=text)]

    def _take(self, lesson: Lesson, now: float) -> list[LiveEvent]:
        pupil, size = self._pupils[lesson.type], lesson.allocation
        if lesson.progress is not None:
            if size is not None:
                self._report(pupil, lesson, size)
            return []
        stretches = self._open[lesson.type].pop(lesson.id, [])
        for stretch in stretches:
            pupil.tracked.belief.add(stretch.timed, -1.0)
        if size is None or lesson.seconds <= 0.0 or not within_bounds(pupil.told, size):
            return []
        slots = lesson.seconds / self._site.slot_seconds
        hardware = self._hardware(lesson)
        whole = Timed(size, math.log(work(pupil.told.on(hardware).profile.shape_offset) / slots), 1.0, hardware)
        runs = [whole] if lesson.steady else [stretch.timed for stretch in stretches]
        pupil.finished += bool(runs)
        pupil.at = max(pupil.at, lesson.at)
        self._unsaved.add(lesson.type)
        events: list[LiveEvent] = []
        for timed in runs:
            pupil.ends.append(lesson.at)
            if (drift := pupil.tracked.take(timed)) is not None:
                since = list(pupil.ends)[-drift.runs :][0]
                pupil.drift = (since, drift.factor)
                events.append(SpeedDrift(now, type=lesson.type, factor=drift.factor, since=since))
        return events

    def _hardware(self, lesson: Lesson) -> str:
        """Of the cluster where it ran; that of most clusters if the site does not have it any more."""
        index = self._site.index.get(lesson.cluster)
        return self._pupils[lesson.type].told.hardware if index is None else self._site.clusters[index].hardware

    def _report(self, pupil: _Pupil, lesson: Lesson, size: Resources) -> None:
        """Note progress of a running attempt. Consecutive reports with the same allocation count as one observation."""
        begin, end = lesson.progress or (0.0, 0.0)
        if not (0.0 <= begin < end <= 1.0 and 0.0 < lesson.seconds < math.inf and within_bounds(pupil.told, size)):
            return
        belief, slots = pupil.tracked.belief, lesson.seconds / self._site.slot_seconds
        stretches = self._open[lesson.type].setdefault(lesson.id, [])
        if stretches and stretches[-1].timed.allocation == size and stretches[-1].end == begin:
            last = stretches.pop()
            belief.add(last.timed, -1.0)
            begin, slots = last.begin, last.slots + slots
        stretches.append(_Stretch(begin, end, slots, belief.see_run(size, slots, begin, end, self._hardware(lesson))))


def lesson_of(record: TaskRecord) -> Lesson | None:
    """What a saved task record teaches; None while its attempt has not ended."""
    ident, kind = record.attempt_id, record.spec.type
    if record.phase is Phase.FINISHED:
        # Some runs end without an error and still do not count.
        odd = record.incomplete or record.warnings
        if not odd and record.allocation is not None and record.started is not None and record.ended is not None:
            took = max(record.ended - record.started, TICK)
            size, steady = Resources(record.allocation), not record.resized
            return Lesson(ident, kind, size, took, None, steady, record.ended, record.cluster or "")
    waits_again = record.phase is Phase.QUEUED and record.attempt > 0
    return Lesson(ident, kind) if record.phase in ENDED or waits_again else None


def doubted(task_type: TaskType, doubt: float) -> TaskType:
    """The type as configured, with this doubt if its profile has none of its own."""
    return task_type.with_profiles(lambda p: p if p.doubt is not None else replace(p, doubt=(doubt,) * len(p.rates)))


def digest_of(task_type: TaskType, doubt: float) -> str:
    """A short hash of a type's profile and doubt."""
    task_type = doubted(task_type, doubt)
    profile = task_type.profile
    parts: tuple[Any, ...] = (tuple(profile.minimum), tuple(profile.maximum))
    if not task_type.profiles:
        parts += (profile.rates, profile.shape_offset, profile.doubt)
    for kind, one in task_type.profiles:
        parts += (kind, one.rates, one.shape_offset, one.doubt)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def size_of(task_type: TaskType, cell: int) -> Resources:
    """The allocation at a position of the type's profile."""
    amounts = []
    for low, extent in reversed(list(zip(task_type.minimum, task_type.profile.extent, strict=True))):
        cell, place = divmod(cell, extent)
        amounts.append(low + place)
    return Resources(reversed(amounts))
