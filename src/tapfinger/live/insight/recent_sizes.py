"""What tasks of each type were granted lately: what a forecast is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tapfinger.core.model import Resources, TaskType
from tapfinger.live.coordinator.site import seconds_at


@dataclass
class RecentSizes:
    """Of the latest tasks; nothing is known of a type that has not run yet."""

    slot_seconds: float
    #: A type as it is believed to be by now.
    believed: Callable[[TaskType], TaskType] = lambda task_type: task_type
    #: By type, with its size: what it was granted last.
    sizes: dict[str, Resources] = field(default_factory=dict)

    def copy(self) -> RecentSizes:
        """As they are now, for another thread."""
        return RecentSizes(self.slot_seconds, self.believed, dict(self.sizes))

    def granted(self, task_type: TaskType, size: Resources) -> None:
        """A task of this type was given so much."""
        self.sizes[task_type.name] = size

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task takes, as far as can be known."""
        return seconds_at(self.believed(task_type), size, self.slot_seconds)
