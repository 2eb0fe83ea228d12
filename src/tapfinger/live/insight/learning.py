"""How fast tasks really are: one belief per task type of the configuration, corrected by every run.

What happens is put into an inbox where it happens, and nowhere else; ``digest`` takes it out in a thread, and gives
back what has come of it, as data that nobody changes any more. So nobody who answers requests waits for a matrix.

Only runs that finished teach. What a running attempt reports counts until it ends: then its whole duration takes the
place of that, or, if it has failed, was cancelled or lost, nothing does. A task that was resized teaches by its
progress alone, allocation by allocation.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tapfinger.core.contract import Phase
from tapfinger.core.estimates import work
from tapfinger.core.feasibility import within_bounds
from tapfinger.core.model import NO_NOISE, Resources, TaskType
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.events import LiveEvent, SpeedDrift, SpeedForgotten
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.profiles.beliefs import Belief, Timed
from tapfinger.profiles.drift import LATEST, Tracked

#: About configured speeds, where the configuration does not say: deviation of their logarithm.
DOUBT = 0.3

#: Seconds between two times that what was learnt is saved.
SAVE = 5.0

#: What was seen and not yet looked at: beyond this the oldest is lost.
INBOX = 100_000

#: Agents look at their tasks so often, in seconds: shorter runs are not told apart.
TICK = 0.05

#: Seconds in which a coordinator that begins hears of what ended while there was none: nobody knows when that was.
SETTLING = 10.0

#: New beliefs are worked out at most in this share of the time.
SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Lesson:
    """Something seen of an attempt."""

    id: AttemptId
    type: str
    #: None: it has come to nothing, and whatever it reported does not count.
    allocation: Resources | None = None
    seconds: float = 0.0
    #: From and to which progress; None for whole runs.
    progress: tuple[float, float] | None = None
    #: Whether it had one allocation from start to end.
    steady: bool = True
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a type; for people, and whoever else does not wait."""

    configured: TaskType
    believed: TaskType
    #: Position in the profile -> runs seen there since the speed last changed.
    runs: Mapping[int, float] = field(default_factory=dict)
    #: Finished runs that have taught, ever.
    finished: int = 0
    #: How much equal runs differ: deviation of the logarithm of their seconds.
    scatter: float = 0.0
    #: When this began, and the latest change of speed: since when, and seconds now over seconds before.
    since: float = 0.0
    drift: tuple[float, float] | None = None

    @property
    def usual(self) -> Resources:
        """The size that was seen most; the smallest before any was."""
        if not self.runs:
            return self.configured.minimum
        most = max(self.runs, key=lambda cell: (self.runs[cell], -cell))
        return size_of(self.configured, most)

    @property
    def factor(self) -> float:
        """How much longer tasks take than configured, at the sizes that were seen; 1 before any was."""
        logs = [
            (n, math.log(self.configured.profile.rates[cell] / self.believed.profile.rates[cell]))
            for cell, n in self.runs.items()
        ]
        return math.exp(sum(n * log for n, log in logs) / sum(n for n, _ in logs)) if logs else 1.0


@dataclass(frozen=True, slots=True)
class Digest:
    """What has come of what was seen."""

    #: Types that are now believed otherwise, also those with sizes of their own.
    revised: tuple[TaskType, ...] = ()
    known: Mapping[str, Known] = field(default_factory=dict)
    events: tuple[LiveEvent, ...] = ()
    #: To be saved.
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
    """One type."""

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
    """Beliefs about all types of a site. ``digest`` and ``take_up`` are for one thread, the rest for another."""

    def __init__(self, site: Site, doubt: float = DOUBT) -> None:
        """``doubt``: about the configured speeds, as a deviation of their logarithm."""
        self._site = site
        self._doubt = doubt
        self._inbox: deque[Lesson] = deque(maxlen=INBOX)
        self._not_before = 0.0
        #: Held by whoever changes beliefs: a coordinator that begins to lead does so in another thread.
        self._changing = threading.RLock()
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._pupils = {
            t.name: _Pupil(doubted(t, self._doubt), digest_of(t, self._doubt), now)
            for t in self._site.configured_types()
        }
        #: Attempts that report, by type.
        self._open: dict[str, dict[AttemptId, list[_Stretch]]] = {name: {} for name in self._pupils}
        self._unsaved: set[str] = set()
        self._saved = self._began = now
        #: By type.
        self.known = {name: self._pupils[name].known(self._site.task_types[name]) for name in self._pupils}

    # ------------------------------------------------------------------ what is seen

    def saw(self, record: TaskRecord) -> None:
        """What was saved of a task."""
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
        """The running attempt of a task has come so far within this many seconds, with this allocation (in units)."""
        stretch = (progress_before, progress_now)
        self._inbox.append(Lesson(task.attempt_id, task.spec.type, Resources(allocation), seconds, stretch))

    def due(self, now: float) -> bool:
        """Whether ``digest`` has something to do."""
        return now >= self._not_before and bool(self._inbox or (self._unsaved and now >= self._saved + SAVE))

    # ------------------------------------------------------------------ in a thread

    def take_up(self, kept: Iterable[Learned], history: Iterable[Lesson], now: float) -> Digest:
        """Go on from what was kept, and from tasks that have finished since.

        ``history``: of the latest tasks, in any order; they also make up for what was not kept at all.
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
        """Take in what was seen; ``every``: look at all types, whether anything was seen of them or not."""
        with self._changing:
            return self._digested(now, every)

    def _digested(self, now: float, every: bool) -> Digest:
        began = time.perf_counter()
        events: list[LiveEvent] = []
        touched = set(self._pupils) if every else set()
        while self._inbox:
            lesson = self._inbox.popleft()
            if lesson.type in self._pupils:
                touched.add(lesson.type)
                events += self._take(lesson, now)
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
        """What is to be saved before the end."""
        with self._changing:
            due = self.digest(now).learned
            return due + self._to_save(now, force=True)

    def _to_save(self, now: float, force: bool = False) -> tuple[Learned, ...]:
        if not self._unsaved or (now < self._saved + SAVE and not force):
            return ()
        names, self._unsaved, self._saved = sorted(self._unsaved), set(), now
        return tuple(self._kept(name) for name in names)

    def _kept(self, name: str) -> Learned:
        """Without what running attempts have reported: when they end, nobody could take it back."""
        pupil = self._pupils[name]
        reported = [stretch.timed for stretches in self._open[name].values() for stretch in stretches]
        for timed in reported:
            pupil.tracked.belief.add(timed, -1.0)
        kept = pupil.learned()
        for timed in reported:
            pupil.tracked.belief.add(timed)
        return kept

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
        whole = Timed(size, math.log(work(pupil.told.profile.shape_offset) / slots), 1.0)
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

    def _report(self, pupil: _Pupil, lesson: Lesson, size: Resources) -> None:
        """Progress of a running attempt: reports of one allocation, one after the other, are one piece of evidence."""
        begin, end = lesson.progress or (0.0, 0.0)
        if not (0.0 <= begin < end <= 1.0 and 0.0 < lesson.seconds < math.inf and within_bounds(pupil.told, size)):
            return
        belief, slots = pupil.tracked.belief, lesson.seconds / self._site.slot_seconds
        stretches = self._open[lesson.type].setdefault(lesson.id, [])
        if stretches and stretches[-1].timed.allocation == size and stretches[-1].end == begin:
            last = stretches.pop()
            belief.add(last.timed, -1.0)
            begin, slots = last.begin, last.slots + slots
        stretches.append(_Stretch(begin, end, slots, belief.see_run(size, slots, begin, end)))


def lesson_of(record: TaskRecord) -> Lesson | None:
    """What a task teaches, as it was saved; None while there is nothing to say."""
    ident, kind = record.attempt_id, record.spec.type
    if record.phase is Phase.FINISHED:
        # Some end without an error and yet are none that count.
        odd = record.incomplete or record.warnings
        if not odd and record.allocation is not None and record.started is not None and record.ended is not None:
            took = max(record.ended - record.started, TICK)
            size, steady = Resources(record.allocation), not record.resized
            return Lesson(ident, kind, size, took, None, steady, record.ended)
    waits_again = record.phase is Phase.QUEUED and record.attempt > 0
    return Lesson(ident, kind) if record.phase in ENDED or waits_again else None


def doubted(task_type: TaskType, doubt: float) -> TaskType:
    """The type as it is configured, with doubt where it has none of its own."""
    profile = task_type.profile
    if profile.doubt is not None:
        return task_type
    return replace(task_type, profile=replace(profile, doubt=(doubt,) * len(profile.rates)))


def digest_of(task_type: TaskType, doubt: float) -> str:
    """A short text that differs for profiles that do."""
    profile = doubted(task_type, doubt).profile
    parts = (tuple(profile.minimum), tuple(profile.maximum), profile.rates, profile.shape_offset, profile.doubt)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def size_of(task_type: TaskType, cell: int) -> Resources:
    """The allocation at a position of the type's profile."""
    amounts = []
    for low, extent in reversed(list(zip(task_type.minimum, task_type.profile.extent, strict=True))):
        cell, place = divmod(cell, extent)
        amounts.append(low + place)
    return Resources(reversed(amounts))
