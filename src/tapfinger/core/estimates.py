"""Estimates of a task's progress and remaining time. All such estimates are made here.

A task may report its progress. If it does not, progress is estimated from its speed profile and the slots it has run,
as if it had always held its current allocation.

The formulas follow from the profile: one slot at allocation x adds ``rate(x) * shape(progress)``. ``work`` is the
integral of ``1 / shape``, so ``rate * slots = work(progress before, progress after)``, apart from rounding to whole
slots.
"""

from __future__ import annotations

import math

from tapfinger.core.contract import TaskView
from tapfinger.core.model import Resources, SpeedProfile, TaskType

#: A task that still runs has at least this share of its work left, whatever its profile or its reports say.
LEAST_LEFT = 0.01
#: Upper bound of estimated progress.
MOST_PROGRESS = 1.0 - LEAST_LEFT

#: How much later than elsewhere a task's data may be there for the task to start at once, in its shortest durations. On
#: data-3 Greedy's mean was 12.4 slots at 1, 12.8 at a half, 13.4 at 2 and 18.9 without a bound (4 seeds from 30000 on).
LONGEST_STAGING = 1.0

#: Reported progress from which a task's own pace is trusted more than its profile.
TELLING_PROGRESS = 0.1

#: Minimum remaining time of a task that overruns its expected time, as a share of its time so far.
OVERRUN = 0.1


def work(shape_offset: float | None, begin: float = 0.0, end: float = 1.0) -> float:
    """Work from one progress to another, as rate times slots."""
    if shape_offset is None:
        return end - begin
    return 2.0 * (math.sqrt(shape_offset - begin) - math.sqrt(shape_offset - end))


def duration(task_type: TaskType, size: Resources) -> float:
    """Slots from start to end at this size, not rounded up to whole slots."""
    return work(task_type.profile.shape_offset) / task_type.profile.rate(size)


def advanced(profile: SpeedProfile, size: Resources, slots: float, progress: float = 0.0) -> float:
    """Progress after ``slots`` more slots at this size; at most ``MOST_PROGRESS``."""
    done = profile.rate(size) * slots
    if profile.shape_offset is None:
        return min(MOST_PROGRESS, progress + done)
    # The inverse of ``work``.
    root = max(0.0, math.sqrt(profile.shape_offset - progress) - 0.5 * done)
    return min(MOST_PROGRESS, profile.shape_offset - root * root)


def progress_of(task: TaskView, size: Resources | None = None) -> float:
    """Reported progress; without a report, estimated as if the task had always held ``size`` (or what it holds)."""
    if task.progress is not None:
        return task.progress
    return advanced(task.type.profile, size or held_by(task), task.elapsed)


def held_by(task: TaskView) -> Resources:
    """Allocation of a task; its minimum while it holds nothing."""
    return task.type.minimum if task.allocation is None or task.allocation.none else task.allocation


def share_left(progress: float) -> float:
    """Share of the work that is left, at least ``LEAST_LEFT``."""
    return max(LEAST_LEFT, 1.0 - progress)


def slots_left(task: TaskView, size: Resources | None = None) -> int:
    """Whole slots until the task ends if it continues at ``size`` (default: what it holds)."""
    size = size or held_by(task)
    return task.staging + task.type.profile.slots(size, progress_of(task, size))


def staging_pays(later: float, shortest: float, waited: float) -> bool:
    """Whether to start a task where its data would be there ``later`` slots later than on another eligible cluster.

    ``shortest``: its shortest duration. It pays if the task might wait as long for that other cluster: up to its own
    duration, or as long as it has waited already.
    """
    return later <= max(LONGEST_STAGING * shortest, waited)


def left_at_pace(ran: float, whole: float, progress: float | None, least: float = 0.0) -> float:
    """Remaining time of a real task, in the unit of ``ran`` (its time so far) and ``whole`` (its expected total time).

    From ``TELLING_PROGRESS`` on, the task's own pace counts: its reported progress over ``ran``, or over ``least`` if
    that is longer. Before that, or without reports, ``whole`` counts; at least ``OVERRUN`` of the time so far is left.
    """
    if progress is not None and progress >= TELLING_PROGRESS:
        return max(ran, least) * (1.0 / progress - 1.0)
    return max(whole - ran, OVERRUN * ran)
