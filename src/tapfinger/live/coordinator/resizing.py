"""Changes of a running task's size, by the books: what was asked for, what is debited, and what is confirmed.

Growth is debited before the agent hears of it, and what a task gives back is credited when the agent confirms it. Until
then the books hold the larger of both, so that whatever the agent has done so far, clusters are never over capacity.
Changes of an attempt are numbered: the confirmation of an earlier one says nothing about the latest.
"""

from __future__ import annotations

from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.live.protocol.messages import RunReport
from tapfinger.live.protocol.records import TaskRecord


def larger(one: tuple[int, ...], other: tuple[int, ...]) -> Resources:
    """The larger of both, amount by amount."""
    return Resources([max(a, b) for a, b in zip(one, other, strict=True)])


def ask(record: TaskRecord, size: Resources) -> bool:
    """Note a new size that was debited; whether it differs from what the task has or is to get."""
    if size == Resources(record.wanted if record.wanted is not None else record.allocation or ()):
        return False
    record.allocation = tuple(larger(record.allocation or (), size))
    record.wanted = tuple(size)
    record.resized += 1
    return True


def confirmed(record: TaskRecord, run: RunReport, resources: ResourceTypes) -> Resources | None:
    """The size that an agent confirms, if it is about the latest change and can be true."""
    if record.wanted is None or record.allocation is None or run.size != record.resized or run.allocation is None:
        return None
    named = zip(resources.names, resources.units, strict=True)
    actual = Resources([round(run.allocation.get(name, -unit) / unit) for name, unit in named])
    possible = min(actual) >= 0 and not actual.none and actual.fits(record.allocation)
    return actual if possible else None


def forget(record: TaskRecord) -> None:
    """The attempt is over, or a new one begins."""
    record.wanted, record.resized = None, 0
