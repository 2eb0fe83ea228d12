"""Who came and who left between one slot and the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tapfinger.core.contract import Snapshot, TaskView


class Changes(NamedTuple):
    """What differs from the slot that was observed before."""

    #: Tasks that were not there then, in the order of the snapshot.
    came: tuple[TaskView, ...]
    #: Tasks that are not there any more, as they were last seen.
    left: tuple[TaskView, ...]
    #: Slots since then; 0 for the first observation.
    slots: int


class TaskTracker:
    """Compares the tasks of each slot with those of the slot before."""

    def __init__(self, whom: Callable[[Snapshot], Iterable[TaskView]] = Snapshot.tasks) -> None:
        """``whom``: the tasks of a snapshot that are tracked; all of them if left out."""
        self._whom = whom
        #: Tasks as last seen, by id.
        self.there: dict[int, TaskView] = {}
        #: The slot that was observed last; -1 before the first.
        self.slot = -1

    def observe(self, snapshot: Snapshot) -> Changes | None:
        """What has changed; None if this slot was observed already. Call it in every slot."""
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
