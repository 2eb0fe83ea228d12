"""What running attempts report of themselves, as the coordinator keeps it: the latest, and what was wrong with it.

Reports come up to once a second for each cluster. They are kept in memory at once and saved now and then, and with the
attempt's end; a coordinator that takes over goes on from what was saved until the next report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from tapfinger.core.model import Resources
from tapfinger.live.protocol.messages import AttemptId, Outcome, RunReport
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.progress import COMPLETE, LONGEST_NAME, MOST_FAULTS, MOST_METRICS

#: Seconds between saves of what only progress has changed.
SAVE = 10.0
#: A task has come to a standstill if its progress has not changed for so many times as long as it usually took, and for
#: so many seconds at least.
STANDSTILL, AT_LEAST = 20.0, 60.0
#: Characters of a warning: it comes from an agent, and is kept.
LONGEST = 300
#: What schedulers see of a task that says it has done everything and has not ended yet.
ALMOST = 0.999


class ProgressLearner(Protocol):
    """Whoever learns from progress how fast tasks are."""

    def progressed(
        self, task: TaskRecord, allocation: Resources, progress_before: float, progress_now: float, seconds: float
    ) -> None:
        """A task went from one progress to another at one size, in this many seconds of its own clock.

        The first time it is told of an attempt, that is from its start, so the task's set-up is part of it.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Heard:
    """The latest of an attempt."""

    progress: float
    #: Seconds from its start; None where its agent does not know.
    ran: float | None
    allocation: tuple[int, ...] | None


@dataclass(slots=True)
class _Pace:
    """How often the progress of an attempt changes, by the coordinator's clock."""

    first: float
    #: When it last changed, how often it has, and when its agent last told of it, changed or not.
    changed: float
    alive: float
    changes: int = 0
    warned: bool = False

    def still(self) -> float:
        """Seconds without a change, if that is unusually long; 0 if not."""
        usual = (self.changed - self.first) / self.changes if self.changes else 0.0
        still = self.alive - self.changed
        return still if still > max(AT_LEAST, STANDSTILL * usual) else 0.0


@dataclass(frozen=True, slots=True)
class News:
    """What a report of an attempt has brought."""

    #: Its progress, for schedulers; None where there is none.
    progress: float | None = None
    warnings: tuple[str, ...] = ()
    #: Whether it is time to save.
    save: bool = False


NONE = News()


class Progressing:
    """Follows all attempts that run."""

    def __init__(self) -> None:
        """Nobody learns from it yet."""
        self.learner: ProgressLearner | None = None
        #: Rises with every change that people may want to see.
        self.count = 0
        self._heard: dict[AttemptId, _Heard] = {}
        self._saved: dict[AttemptId, float] = {}
        self._paces: dict[AttemptId, _Pace] = {}

    def hear(self, record: TaskRecord, run: RunReport, now: float) -> News:
        """Take note of what the current attempt of a task says, and write it into the record."""
        still = self._standstill(record, run, now)
        faults = (*run.faults, still) if still else run.faults
        warnings = tuple(text[:LONGEST] for text in faults if text[:LONGEST] not in record.warnings)
        warnings = warnings[: max(0, MOST_FAULTS - len(record.warnings))]
        record.warnings = (*record.warnings, *warnings)
        # An agent checks what tasks say; that it goes back is also what a late or foreign report looks like.
        fits = run.progress is not None and (record.progress or 0.0) <= run.progress <= 1.0
        if run.progress is None or not fits:
            return News(warnings=warnings, save=bool(warnings)) if warnings else NONE
        numbers = ((name[:LONGEST_NAME], value) for name, value in run.metrics.items() if math.isfinite(value))
        metrics = dict(islice(numbers, MOST_METRICS))
        if (record.progress, record.metrics) != (run.progress, metrics):
            self.count += 1
        record.progress, record.metrics = run.progress, metrics
        self._teach(record, run.progress, run.ran)
        since = self._saved.setdefault(record.attempt_id, now)
        save = bool(warnings) or now >= since + SAVE
        if save:
            self._saved[record.attempt_id] = now
        return News(min(run.progress, ALMOST), warnings, save)

    def _standstill(self, record: TaskRecord, run: RunReport, now: float) -> str:
        """What to say of a task that goes no further, once each time. Nothing else is done: only people know better."""
        if run.progress is None:
            return ""
        pace = self._paces.setdefault(record.attempt_id, _Pace(now, now, now))
        pace.alive = now
        if run.progress != record.progress:
            pace.changed, pace.changes, pace.warned = now, pace.changes + 1, False
        elif run.outcome is None and not pace.warned and (seconds := pace.still()):
            pace.warned = True
            return f"its progress has stood still at {run.progress:.4g} for {seconds:.0f} s; it may hang"
        return ""

    def _teach(self, record: TaskRecord, progress: float, ran: float | None) -> None:
        ident, size = record.attempt_id, record.allocation
        # After a restart of the coordinator, where an attempt was before is known, but not when: a new beginning.
        known = ident in self._saved
        before = self._heard.get(ident, None if known or record.resized else _Heard(0.0, 0.0, size))
        if before is not None and progress == before.progress:
            return  # the time it stands still is part of the way to what comes next
        self._heard[ident] = _Heard(progress, ran, size if record.wanted is None else None)
        if self.learner is None or before is None or ran is None or before.ran is None or size is None:
            return
        if before.allocation == size and record.wanted is None and ran > before.ran:
            self.learner.progressed(record, Resources(size), before.progress, progress, ran - before.ran)

    def restored(self, record: TaskRecord) -> None:
        """An attempt that may have reported to an earlier coordinator."""
        if record.progress is not None:
            self._saved[record.attempt_id] = -math.inf

    def ended(self, record: TaskRecord, outcome: Outcome) -> str:
        """An attempt is over; what is wrong with how it ended, if anything."""
        self._heard.pop(record.attempt_id, None)
        self._saved.pop(record.attempt_id, None)
        self._paces.pop(record.attempt_id, None)
        if outcome.result != "finished" or record.progress is None or record.progress >= COMPLETE:
            return ""
        record.incomplete = True
        text = (
            f"it ended with code 0, but the last progress it reported is {record.progress:.4g}: it counts as finished "
            "and as incomplete, and teaches nothing about speed. A task that has done all its work reports 1"
        )
        record.warnings = (*record.warnings, text)
        return text


def forget(record: TaskRecord) -> None:
    """A new attempt begins, or will: what an earlier one has reported counts for nothing."""
    record.progress, record.metrics, record.warnings, record.incomplete = None, {}, (), False
