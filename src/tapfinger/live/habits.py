"""What tasks of each type have got lately, and how long they take at a size: what a forecast is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from tapfinger.core.model import Resources, TaskType
from tapfinger.profiles.beliefs import whole_work


@cache
def base_name(type_name: str) -> str:
    """The type of the configuration that a size of its own was made of."""
    return type_name.partition("[")[0]


def seconds_at(task_type: TaskType, size: Resources, slot_seconds: float) -> float:
    """How long a task takes by its profile, not rounded to slots: real tasks end in the middle of one."""
    return whole_work(task_type.profile.shape_offset) / task_type.profile.rate(size) * slot_seconds


@dataclass
class Habits:
    """Of the latest tasks; nothing is known of a type that has not run yet."""

    slot_seconds: float
    #: A type as it is believed to be by now.
    believed: Callable[[TaskType], TaskType] = lambda task_type: task_type
    #: By type, with its size: what it was granted last.
    sizes: dict[str, Resources] = field(default_factory=dict)

    def copy(self) -> Habits:
        """As they are now, for another thread."""
        return Habits(self.slot_seconds, self.believed, dict(self.sizes))

    def granted(self, task_type: TaskType, size: Resources) -> None:
        """A task of this type was given so much."""
        self.sizes[task_type.name] = size

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task takes, as far as can be known."""
        return seconds_at(self.believed(task_type), size, self.slot_seconds)
