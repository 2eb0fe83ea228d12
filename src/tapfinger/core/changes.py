"""Tasks that came or left between one slot and the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tapfinger.core.contract import Snapshot, TaskView


class Changes(NamedTuple):
    """Differences from the slot observed before."""

    #: Tasks that were not there before, in the order of the snapshot.
    came: tuple[TaskView, ...]
    #: Tasks that are gone, as they were last seen.
    left: tuple[TaskView, ...]
    #: Slots since the last observation; 0 for the first one.
    slots: int


class TaskTracker:
    """Compares the tasks of each slot with the tasks of the slot before."""

    def __init__(self, whom: Callable[[Snapshot], Iterable[TaskView]] = Snapshot.tasks) -> None:
        """``whom``: selects the tasks of a snapshot to track; all of them by default."""
        self._whom = whom
        #: Tasks as last seen, by id.
        self.there: dict[int, TaskView] = {}
        #: The last observed slot; -1 before the first observation.
        self.slot = -1

    def observe(self, snapshot: Snapshot) -> Changes | None:
        """Return what has changed, or None if this slot was observed already. Call it in every slot."""
        if snapshot.slot == self.slot:
            return None
        before, self.there = self.there, {task.id: task for task in self._whom(snapshot)}
        slots = snapshot.slot - self.slot if self.slot >= 0 else 0
        self.slot = snapshot.slot
        return Changes(
            tuple(task for ident, task in self.there.items() if ident not in before),
            tuple(task for ident, task in before.items() if ident not in self.there),
            slots,
        )
