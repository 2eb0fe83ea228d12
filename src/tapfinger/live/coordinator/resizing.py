"""Bookkeeping of a running task's resizes: what was asked for, what is debited, and what is confirmed.

Growth is debited before the agent is told; what a task gives back is credited when the agent confirms. Until then the
larger of both sizes is debited, so clusters are never over capacity, whatever the agent has done so far.
The resizes of an attempt are numbered: a confirmation of an earlier one does not count for the latest.
"""

from __future__ import annotations

from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.live.protocol.messages import RunReport
from tapfinger.live.protocol.records import TaskRecord

#: Most resizes of an attempt, each of which leaves two lines in the history; then it keeps its size.
MOST = 1_000


def larger(one: tuple[int, ...], other: tuple[int, ...]) -> Resources:
    """The larger of both, resource by resource."""
    return Resources([max(a, b) for a, b in zip(one, other, strict=True)])


def ask(record: TaskRecord, size: Resources) -> bool:
    """Note a new size that is already debited; False if the task has that size or was already asked to take it."""
    if size == Resources(record.wanted if record.wanted is not None else record.allocation or ()):
        return False
    record.allocation = tuple(larger(record.allocation or (), size))
    record.wanted = tuple(size)
    record.resized += 1
    return True


def confirmed(record: TaskRecord, run: RunReport, resources: ResourceTypes) -> Resources | None:
    """The size that an agent confirms; None if it is not about the latest resize, or impossible."""
    if record.wanted is None or record.allocation is None or run.size != record.resized or run.allocation is None:
        return None
    named = zip(resources.names, resources.units, strict=True)
    actual = Resources([round(run.allocation.get(name, -unit) / unit) for name, unit in named])
    possible = min(actual) >= 0 and not actual.none and actual.fits(record.allocation)
    return actual if possible else None


def forget(record: TaskRecord) -> None:
    """Drop the resizes of an attempt that is over."""
    record.wanted, record.resized = None, 0
