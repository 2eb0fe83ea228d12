"""First come, first served among equals: a start goes to the oldest task of its type that can take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tapfinger.core.contract import Placement, Snapshot, TaskView
from tapfinger.schedulers.counters import Counting


class Seniority(Counting):
    """An older task takes the start of a younger one of its type, unless it has more eligible clusters.

    A network tells tasks of one type apart by little more than age and clusters, and now and then passes over a task
    that was just as good. Tasks of one type run alike, so the exchange delays only the younger task, which has at least
    as many eligible clusters: the mean stays, the tail gets shorter.
    """

    def put_first(self, placements: Sequence[Placement], snapshot: Snapshot) -> tuple[Placement, ...]:
        """The same starts, older tasks first. ``snapshot``: the one the placements were decided on."""
        if not placements:
            return ()
        left = {placement.task for placement in placements}
        waiting: dict[str, list[TaskView]] = {}
        chosen: dict[int, TaskView] = {}
        for task in snapshot.queue:  # oldest first
            waiting.setdefault(task.type.name, []).append(task)
            if task.id in left:
                chosen[task.id] = task
                left.remove(task.id)
                if not left:
                    break
        taken = set(chosen)
        result = []
        for placement in placements:
            task = chosen[placement.task]
            older = next(t for t in waiting[task.type.name] if t is task or _could_be(t, task, placement, taken))
            if older is not task:
                taken ^= {task.id, older.id}
                self.counters["exchanged"] += 1
            result.append(replace(placement, task=older.id))
        return tuple(result)


def _could_be(other: TaskView, task: TaskView, placement: Placement, taken: set[int]) -> bool:
    return other.id not in taken and placement.cluster in other.eligible and len(other.eligible) <= len(task.eligible)
