"""The clusters and task types that live scheduling works with, and sizes that differ from task to task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.model import Cluster, Resources, ResourceTypes, SpeedProfile, Task, TaskType, check_eligible
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.live.tasks import TaskSpec

#: Every size that differs from its type's is a type of its own for schedulers, with tables to match.
MAX_TYPES = 300

#: Characters of a task's arguments and environment: orders for many tasks must fit into one message.
MAX_SPEC = 256 * 1024

#: Requests that are remembered.
MAX_KNOWN = 10_000

_Amounts = tuple[tuple[str, float], ...]
_Request = tuple[str, _Amounts, _Amounts, tuple[str, ...]]


@dataclass
class Site:
    """What there is to schedule on."""

    resources: ResourceTypes
    clusters: tuple[Cluster, ...]
    #: By name: those of the configuration, then those that tasks asked for.
    task_types: dict[str, TaskType]
    slot_seconds: float
    seed: int = 0
    #: The scenario that it was made of, as plain data: whoever plays it forward makes it anew.
    plan: Mapping[str, Any] = field(default_factory=dict)
    index: dict[str, int] = field(init=False)
    #: What requests came to: most tasks ask for the same as others before them.
    _known: dict[_Request, tuple[TaskType, tuple[int, ...]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Clusters by name."""
        self.index = {cluster.name: n for n, cluster in enumerate(self.clusters)}

    def context(self) -> SchedulerContext:
        """What a scheduler is told."""
        return SchedulerContext(
            resources=self.resources,
            clusters=self.clusters,
            task_types=tuple(self.task_types.values()),
            mode=Mode.MULTI,
            seed=self.seed,
            slot_seconds=self.slot_seconds,
        )

    def task(self, ident: int, spec: TaskSpec, arrival: int) -> Task:
        """The task as schedulers see it; refuses what could never run, with the reason."""
        size = sum(map(len, (*spec.argv, *spec.env, *spec.env.values())))
        if size > MAX_SPEC:
            raise ConfigError(
                f"arguments and environment have {size} characters, {MAX_SPEC} are possible; pass a file instead"
            )
        kind = (spec.type, tuple(spec.minimum.items()), tuple(spec.maximum.items()), spec.clusters)
        known = self._known.get(kind)
        if known is None:
            known = self._type(spec), self._eligible(spec)
            label = f"task {spec.name!r}" if spec.name else "the task"
            check_eligible(Task(ident, known[0], arrival, known[1]), self.clusters, label, self.resources.describe)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[kind] = known
        return Task(ident, known[0], arrival, known[1])

    def _eligible(self, spec: TaskSpec) -> tuple[int, ...]:
        for name in spec.clusters:
            if name not in self.index:
                raise UnknownNameError("cluster", name, self.index)
        return tuple(sorted({self.index[name] for name in spec.clusters or self.index}))

    def _type(self, spec: TaskSpec) -> TaskType:
        base = self.task_types.get(spec.type)
        if base is None or "[" in spec.type:
            raise UnknownNameError("task type", spec.type, [name for name in self.task_types if "[" not in name])
        if not spec.minimum and not spec.maximum:
            return base
        natural = self.resources.natural
        minimum = self.resources.parse({**natural(base.minimum), **spec.minimum}, "minimum")
        maximum = self.resources.parse({**natural(base.maximum), **spec.maximum}, "maximum")
        describe = self.resources.describe
        if not minimum.fits(maximum):
            raise ConfigError(f"minimum {describe(minimum)} exceeds maximum {describe(maximum)}")
        if not (base.minimum.fits(minimum) and maximum.fits(base.maximum)):
            raise ConfigError(
                f"task type {base.name!r} is from {describe(base.minimum)} to {describe(base.maximum)}; "
                f"{describe(minimum)} to {describe(maximum)} is not within that"
            )
        name = f"{base.name}[{','.join(map(str, minimum))}:{','.join(map(str, maximum))}]"
        if name not in self.task_types:
            if len(self.task_types) >= MAX_TYPES:
                raise ConfigError(f"tasks have asked for {MAX_TYPES} different sizes already; use one of those")
            self.task_types[name] = _narrowed(base, name, minimum, maximum)
        return self.task_types[name]


def _narrowed(base: TaskType, name: str, minimum: Resources, maximum: Resources) -> TaskType:
    """The same speeds over a smaller box of sizes."""
    within = [x for x in base.profile.allocations() if minimum.fits(x) and x.fits(maximum)]
    rates = tuple(base.profile.rate(x) for x in within)
    doubt = base.profile.doubt and tuple(base.profile.doubt[base.profile.index(x)] for x in within)
    profile = SpeedProfile(minimum, maximum, rates, base.profile.shape_offset, doubt)
    return replace(base, name=name, minimum=minimum, maximum=maximum, profile=profile)
