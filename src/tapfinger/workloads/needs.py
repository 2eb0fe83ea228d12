"""What tasks need of a resource that no scheduler knows before: memory, as a rule.

A type with ``needs`` has a ladder of types: its own minimum, then twice as much, and so on up to its maximum. An
attempt that holds less than is needed runs out of memory, and its family goes up the ladder. Schedulers know the
ladder, but not the step that is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tapfinger.core.model import Resources, ResourceTypes, TaskType
from tapfinger.errors import ConfigError


@dataclass(frozen=True)
class Ladder:
    """The types of one family, each with more of one resource than the one before, and what is needed in truth."""

    #: Position of the resource.
    resource: int
    #: Amount that is needed.
    need: int
    steps: tuple[TaskType, ...]

    def of(self, first: TaskType) -> tuple[TaskType, ...]:
        """The same ladder for another idea of the type's speed."""
        return climbed(first, self.resource, [step.minimum[self.resource] for step in self.steps])

    def enough(self, allocation: Resources) -> bool:
        """Whether a task with this allocation does not run out of memory."""
        return allocation[self.resource] >= self.need

    def above(self, allocation: Resources) -> TaskType:
        """The first type whose minimum is more than this allocation, which was not enough."""
        return next(step for step in self.steps if step.minimum[self.resource] > allocation[self.resource])


def make_ladder(task_type: TaskType, needs: Mapping[str, float], resources: ResourceTypes, where: str) -> Ladder:
    """The ladder of a type; ``needs``: what is needed in truth, in natural quantities."""
    if len(needs) > 1:
        raise ConfigError(f"{where}: names {' and '.join(needs)}; only one resource can be needed without being known")
    (name,) = needs
    if name not in resources.names:
        raise ConfigError(f"{where}: {name} is not a resource; they are {', '.join(resources.names)}")
    r = resources.names.index(name)
    need = resources.parse({**dict.fromkeys(resources.names, 0.0), **needs}, where)[r]
    least, most = task_type.minimum[r], task_type.maximum[r]
    if not least <= need <= most:
        unit = resources.units[r]
        raise ConfigError(
            f"{where}: {need * unit:g} {name} is not between the type's minimum {least * unit:g} and its maximum "
            f"{most * unit:g}; correct one of them"
        )
    amounts = [least]
    while amounts[-1] < most:
        amounts.append(min(most, max(1, 2 * amounts[-1])))
    return Ladder(r, need, climbed(task_type, r, amounts))


def climbed(task_type: TaskType, resource: int, amounts: Sequence[int]) -> tuple[TaskType, ...]:
    """The type itself, and narrower ones with these minima of a resource; no task arrives with one of the latter."""
    higher = [
        replace(
            task_type.narrowed(
                Resources([a if r == resource else low for r, low in enumerate(task_type.minimum)]), task_type.maximum
            ),
            weight=0.0,
        )
        for a in amounts[1:]
    ]
    return (task_type, *higher)


def needed(task_type: TaskType, ladders: Mapping[str, Ladder]) -> Resources:
    """The most that a task of this type may have to wait for: the first step of its ladder that is enough."""
    ladder = ladders.get(task_type.family)
    if ladder is None:
        return task_type.minimum
    enough = next(step.minimum for step in ladder.steps if ladder.enough(step.minimum))
    return Resources([max(amounts) for amounts in zip(task_type.minimum, enough, strict=True)])
