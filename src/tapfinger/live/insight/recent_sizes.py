"""The sizes that tasks of each type were granted last; forecasts use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tapfinger.core.model import Resources, TaskType
from tapfinger.live.coordinator.site import seconds_at

#: Most sizes that are remembered; the least recently granted one is dropped. More types never have tasks at a time.
MOST = 2000


@dataclass
class RecentSizes:
    """The last granted size of each task type; types that have not run yet are missing."""

    slot_seconds: float
    #: Returns a type with its current belief.
    believed: Callable[[TaskType], TaskType] = lambda task_type: task_type
    #: Name of the type (with a task's own bounds, if any) -> the size that was granted last; the latest grant last.
    sizes: dict[str, Resources] = field(default_factory=dict)

    def copy(self) -> RecentSizes:
        """A copy for another thread."""
        return RecentSizes(self.slot_seconds, self.believed, dict(self.sizes))

    def granted(self, task_type: TaskType, size: Resources) -> None:
        """Note the size that a task of this type was granted."""
        self.sizes.pop(task_type.name, None)
        self.sizes[task_type.name] = size
        if len(self.sizes) > MOST:
            del self.sizes[next(iter(self.sizes))]

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task of this type takes at this size on its hardware, according to current beliefs."""
        return seconds_at(self.believed(task_type), size, self.slot_seconds)
