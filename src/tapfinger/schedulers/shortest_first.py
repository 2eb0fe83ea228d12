"""Shortest-first: waiting tasks in order of their shortest possible duration, by the speed profiles."""

from __future__ import annotations

from collections.abc import Iterable

from tapfinger.core.contract import SchedulerContext, TaskView
from tapfinger.profiles.durations import efficient_sizes
from tapfinger.schedulers.fifo import Fifo


class ShortestFirst(Fifo):
    """FIFO in another order: the task with the shortest possible duration goes first, ties by arrival."""

    def __init__(self, size: str = "best", backfill: bool = True) -> None:
        """``size``: best (the size that ends soonest among those that fit) or min.

        ``backfill``: whether a longer task may start on a cluster where a shorter one waits because its minimum does
        not fit.
        """
        super().__init__(size, backfill)

    def learn(self, context: SchedulerContext) -> None:
        """Look up the shortest mean duration of each type."""
        super().learn(context)
        self._shortest = {t.name: efficient_sizes(t, context.noise)[0].slots for t in context.task_types}

    def _ordered(self, queue: tuple[TaskView, ...]) -> Iterable[TaskView]:
        return sorted(queue, key=lambda task: self._shortest[task.type.name])
