"""What a coordinator tells whoever learns how fast tasks are."""

from __future__ import annotations

from typing import Protocol

from tapfinger.live.tasks import TaskRecord


class Learner(Protocol):
    """Hears of progress as agents report it; must return at once."""

    def progressed(
        self,
        task: TaskRecord,
        allocation: tuple[int, ...],
        progress_before: float,
        progress_now: float,
        seconds: float,
    ) -> None:
        """The running attempt of a task has come so far within so many seconds, with this allocation (in units)."""
        ...


class Nobody:
    """Does not listen."""

    def progressed(
        self,
        task: TaskRecord,
        allocation: tuple[int, ...],
        progress_before: float,
        progress_now: float,
        seconds: float,
    ) -> None:
        """Nothing is done of it."""
