"""What tasks of each type have got and how long they took: what profiles say, corrected by what was seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from tapfinger.core.model import Resources, TaskType

#: So many of the latest tasks of a type are remembered.
MEMORY = 50


@cache
def base_name(type_name: str) -> str:
    """The type of the configuration that a size of its own was made of."""
    return type_name.partition("[")[0]


@dataclass
class Habits:
    """Of the latest tasks; nothing is known of a type that has not run yet."""

    slot_seconds: float
    #: By type: seconds measured over seconds that the profile said.
    ratios: dict[str, deque[float]] = field(default_factory=dict)
    #: By type, with its size: what it was granted last.
    sizes: dict[str, Resources] = field(default_factory=dict)

    def copy(self) -> Habits:
        """As they are now, for another thread."""
        return Habits(self.slot_seconds, {name: deque(seen) for name, seen in self.ratios.items()}, dict(self.sizes))

    def granted(self, task_type: TaskType, size: Resources) -> None:
        """A task of this type was given so much."""
        self.sizes[task_type.name] = size

    def finished(self, task_type: TaskType, size: Resources, seconds: float) -> None:
        """A task of this type took so long at that size."""
        seen = self.ratios.setdefault(base_name(task_type.name), deque(maxlen=MEMORY))
        seen.append(max(seconds, 1e-3) / self.predicted(task_type, size))

    def predicted(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task takes by its profile alone."""
        return task_type.profile.slots(size) * self.slot_seconds

    def factor(self, type_name: str) -> float:
        """How much longer than its profile says a task of this type takes; 1 where none was seen."""
        seen = self.ratios.get(base_name(type_name))
        return median(seen) if seen else 1.0

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task takes, as far as can be known."""
        return self.predicted(task_type, size) * self.factor(task_type.name)
