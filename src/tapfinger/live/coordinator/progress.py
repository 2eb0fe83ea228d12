"""The coordinator's view of what running attempts report: their latest progress, and any faults in it.

Each cluster reports up to once a second. Reports are kept in memory, and saved every ``SAVE`` seconds and when the
attempt ends. A coordinator that takes over uses the saved progress until the next report.
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

#: Seconds between saves if only progress has changed.
SAVE = 10.0
#: A task stands still if its progress has not changed for STANDSTILL times its usual interval between changes, and for
#: at least AT_LEAST seconds.
STANDSTILL, AT_LEAST = 20.0, 60.0
#: Most characters of a warning: it comes from an agent, and is stored.
LONGEST = 300
#: Progress that schedulers see of a task that has reported 1 but not ended.
ALMOST = 0.999


class ProgressLearner(Protocol):
    """Learns the speed of tasks from their progress."""

    def progressed(
        self, task: TaskRecord, allocation: Resources, progress_before: float, progress_now: float, seconds: float
    ) -> None:
        """A task went from one progress to another at one size; ``seconds`` are by the task's own clock.

        The first call for an attempt covers the time from its start, so it includes the task's set-up.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Heard:
    """The latest report of an attempt."""

    progress: float
    #: Seconds since the attempt started; None if its agent does not know.
    ran: float | None
    allocation: tuple[int, ...] | None


@dataclass(slots=True)
class _Pace:
    """How often the progress of an attempt changes. Times are of the coordinator's clock."""

    first: float
    #: When the progress last changed, when the agent last reported it (changed or not), and the number of changes.
    changed: float
    alive: float
    changes: int = 0
    warned: bool = False

    def still(self) -> float:
        """Seconds without a change if that is unusually long, else 0."""
        usual = (self.changed - self.first) / self.changes if self.changes else 0.0
        still = self.alive - self.changed
        return still if still > max(AT_LEAST, STANDSTILL * usual) else 0.0


@dataclass(frozen=True, slots=True)
class News:
    """What is new in a report of an attempt."""

    #: Progress for schedulers; None if there is none.
    progress: float | None = None
    warnings: tuple[str, ...] = ()
    #: Whether it is time to save.
    save: bool = False


NONE = News()


class Progressing:
    """Follows the progress of all running attempts."""

    def __init__(self) -> None:
        """Start without a learner."""
        self.learner: ProgressLearner | None = None
        #: Increases with every change of progress or metrics.
        self.count = 0
        self._heard: dict[AttemptId, _Heard] = {}
        self._saved: dict[AttemptId, float] = {}
        self._paces: dict[AttemptId, _Pace] = {}

    def hear(self, record: TaskRecord, run: RunReport, now: float) -> News:
        """Write what the current attempt of a task reports into its record."""
        still = self._standstill(record, run, now)
        faults = (*run.faults, still) if still else run.faults
        warnings = tuple(text[:LONGEST] for text in faults if text[:LONGEST] not in record.warnings)
        warnings = warnings[: max(0, MOST_FAULTS - len(record.warnings))]
        record.warnings = (*record.warnings, *warnings)
        # Agents check what tasks report. Progress that goes back may also come from a late or foreign report.
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
        """A warning about a task that stands still, once per standstill. It only warns: people decide what to do."""
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
        # After a restart of the coordinator, earlier progress is known but not its time: measure from this report on.
        known = ident in self._saved
        before = self._heard.get(ident, None if known or record.resized else _Heard(0.0, 0.0, size))
        if before is not None and progress == before.progress:
            return  # the time it stands still counts towards the next change
        self._heard[ident] = _Heard(progress, ran, size if record.wanted is None else None)
        if self.learner is None or before is None or ran is None or before.ran is None or size is None:
            return
        if before.allocation == size and record.wanted is None and ran > before.ran:
            self.learner.progressed(record, Resources(size), before.progress, progress, ran - before.ran)

    def restored(self, record: TaskRecord) -> None:
        """Note an attempt that may have reported to an earlier coordinator."""
        if record.progress is not None:
            self._saved[record.attempt_id] = -math.inf

    def ended(self, record: TaskRecord, outcome: Outcome) -> str:
        """Note that an attempt is over. Returns a warning about how it ended, or an empty text."""
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
    """Drop what an earlier attempt has reported and left, before a new attempt begins."""
    record.results, record.results_until = "", None
    record.progress, record.metrics, record.warnings, record.incomplete = None, {}, (), False
