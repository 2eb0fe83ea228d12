"""The clusters and task types of a live site, including types with a task's own bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.estimates import duration
from tapfinger.core.feasibility import check_eligible
from tapfinger.core.model import Cluster, Resources, ResourceTypes, Task, TaskType, narrowed_name
from tapfinger.core.staging import DataLayout
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.live.coordinator.own_sizes import OwnSizes
from tapfinger.live.coordinator.shown_needs import NOTHING, Least, ShownNeeds, larger_of, next_amount, raised_minimum
from tapfinger.live.protocol.records import TaskRecord, TaskSpec, length

#: Most such types that no task has any more, but that schedulers keep: with another set of types they begin anew.
MAX_IDLE = 20

#: Most characters of a task's arguments and environment: orders for many tasks must fit into one message.
MAX_SPEC = 256 * 1024

#: Most requests that ``Site`` remembers.
MAX_KNOWN = 1_000

_Amounts = tuple[tuple[str, float], ...]
_Request = tuple[str, _Amounts, _Amounts, tuple[str, ...], _Amounts]


def seconds_at(task_type: TaskType, size: Resources, slot_seconds: float) -> float:
    """Seconds that a task takes according to its profile. Not rounded to slots: real tasks end in mid-slot."""
    return duration(task_type, size) * slot_seconds


@dataclass
class Site:
    """Clusters, task types and beliefs about their speed."""

    resources: ResourceTypes
    clusters: tuple[Cluster, ...]
    #: Types by name: first those of the configuration, then those with bounds of tasks that were accepted.
    task_types: dict[str, TaskType]
    slot_seconds: float
    seed: int = 0
    #: The scenario this site was built from, as plain data: ``what-if`` rebuilds it to play the site forward.
    plan: Mapping[str, Any] = field(default_factory=dict)
    #: Which data sets lie where; None on sites without data sets.
    data: DataLayout | None = None
    #: Whether schedulers get the learned speeds (true) or the configured ones (false).
    learn: bool = True
    index: dict[str, int] = field(init=False)
    #: Types by name, with their current beliefs; types not listed here are as configured.
    _believed: dict[str, TaskType] = field(init=False, default_factory=dict)
    #: Type and eligible clusters by request: most tasks ask for the same as earlier ones.
    _known: dict[_Request, tuple[TaskType, tuple[int, ...]]] = field(init=False, default_factory=dict)
    #: Types with bounds of their own by name, of these requests.
    _made: dict[str, TaskType] = field(init=False, default_factory=dict)
    sizes: OwnSizes = field(init=False, default_factory=OwnSizes)
    needs: ShownNeeds = field(init=False, default_factory=ShownNeeds)

    def __post_init__(self) -> None:
        """Index the clusters by name."""
        self.index = {cluster.name: n for n, cluster in enumerate(self.clusters)}
        #: By the name of a cluster or node: itself, or the nodes of the cluster.
        self._pools: dict[str, list[int]] = {name: [n] for name, n in self.index.items()}
        for n, cluster in enumerate(self.clusters):
            if cluster.part_of:
                self._pools.setdefault(cluster.part_of, []).append(n)

    def context(self) -> SchedulerContext:
        """What a scheduler is told."""
        return SchedulerContext(
            resources=self.resources,
            clusters=self.clusters,
            task_types=tuple(map(self.believed, self.task_types.values()) if self.learn else self.task_types.values()),
            mode=Mode.MULTI,
            seed=self.seed,
            slot_seconds=self.slot_seconds,
        )

    def configured_types(self) -> list[TaskType]:
        """The types of the configuration, without types of a task's own bounds. Safe to call from another thread."""
        return [t for t in list(self.task_types.values()) if t.base is None]

    def believe(self, revised: Iterable[TaskType], forget: bool = False) -> None:
        """Use these profiles from now on, also for narrowed types of the same family.

        ``forget``: drop all earlier beliefs, so that every other type is as configured.
        """
        changed = {t.name: t for t in revised}
        before = {} if forget else self._believed
        kept = {name: t for name, t in before.items() if t.family not in changed}
        self._believed = kept | changed

    def believed(self, task_type: TaskType) -> TaskType:
        """The type with its current belief, or as configured if there is none."""
        name = task_type.name
        found = self._believed.get(name)
        if found is None and (base := self._believed.get(task_type.family)) is not None:
            found = base.narrowed(task_type.minimum, task_type.maximum)
            if name in self.task_types:  # those of ended tasks, of which there is no end, are not remembered
                self._believed[name] = found
        return task_type if found is None else found.on(task_type.hardware)

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Seconds that a task of this type takes at this size on its hardware, according to current beliefs."""
        return seconds_at(self.believed(task_type), size, self.slot_seconds)

    def tasks(self, first: int, specs: Sequence[TaskSpec], owner: str, arrival: int) -> list[Task]:
        """The tasks of one submission, numbered from ``first``. Raises an error if any of them cannot be accepted."""
        for spec in specs:
            _check_length(spec)
        least = {spec.type: self.needs.of(owner, spec.type) for spec in specs}
        kinds = {_kind(spec, least[spec.type]): spec for spec in specs if spec.minimum or spec.maximum}
        # Names first: tables of sizes that are refused are not even made.
        self.sizes.check_room({self._name(kind, spec, least[spec.type]) for kind, spec in kinds.items()}, owner)
        return [self.task(first + n, spec, arrival, least[spec.type]) for n, spec in enumerate(specs)]

    def _name(self, kind: _Request, spec: TaskSpec, least: Least) -> str:
        """Name of the type of tasks with this request."""
        if (known := self._known.get(kind)) is not None:
            return known[0].name
        base, minimum, maximum = self._bounds(spec, least)
        return narrowed_name(base.family, minimum, maximum)

    def accepted(self, task: Task, owner: str) -> None:
        """Note a task that waits or runs from now on; schedulers are told of its type."""
        kind = task.type
        if kind.base is None:
            return
        self.sizes.add(task.id, kind.name, owner)
        if kind.name not in self.task_types:
            # Schedulers begin anew with another set of types, so types that no task has go only now.
            idle = [t.name for t in self.task_types.values() if t.base is not None and t.name not in self.sizes]
            for name in idle[: max(0, len(idle) - MAX_IDLE)]:
                del self.task_types[name]
                self._believed.pop(name, None)
            self.task_types[kind.name] = kind

    def task_of(self, record: TaskRecord, arrival: int) -> Task:
        """The task of a record, with what it has shown to need, and its family, if it is not on a cluster already."""
        of_family = NOTHING if record.on_cluster else self.needs.of(record.owner, record.spec.type)
        return self.task(record.id, record.spec, arrival, larger_of(record.least, of_family))

    def more(self, record: TaskRecord, short: str) -> Least | None:
        """What a task gets at least after an attempt that ran out of a resource; None if it had the most it may get.

        The attempt is still in the record.
        """
        if record.allocation is None:
            return None
        r = self.resources.names.index(short)
        held, unit = record.allocation[r], self.resources.units[r]
        wanted = larger_of(record.least, {short: next_amount(self._base(record.spec).minimum[r], held) * unit})
        _, minimum, _ = self._bounds(record.spec, wanted)
        return {**record.least, short: minimum[r] * unit} if minimum[r] > held else None

    def task(self, ident: int, spec: TaskSpec, arrival: int, least: Least = NOTHING) -> Task:
        """The task as schedulers see it. Raises an error with the reason if the task could never run.

        ``least``: natural amounts that it gets at least, as far as possible.
        """
        kind = _kind(spec, least)
        known = self._known.get(kind)
        if known is None:
            known = self._type(spec, least), self._eligible(spec)
            label = f"task {spec.name!r}" if spec.name else "the task"
            check_eligible(Task(ident, known[0], arrival, known[1]), self.clusters, label, self.resources.describe)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
                self._made.clear()
            self._known[kind] = known
        return Task(ident, known[0], arrival, known[1])

    def may_run(self, record: TaskRecord, cluster: str) -> bool:
        """Whether a task may run on a cluster or node, as far as it says itself."""
        return not record.spec.clusters or self.index[cluster] in self._eligible(record.spec)

    def _eligible(self, spec: TaskSpec) -> tuple[int, ...]:
        for name in spec.clusters:
            if name not in self._pools:
                raise UnknownNameError("cluster", name, self._pools)
        return tuple(sorted({n for name in spec.clusters or self.index for n in self._pools[name]}))

    def _base(self, spec: TaskSpec) -> TaskType:
        base = self.task_types.get(spec.type)
        if base is None or base.base is not None:
            raise UnknownNameError("task type", spec.type, [t.name for t in self.configured_types()])
        return base

    def _type(self, spec: TaskSpec, least: Least) -> TaskType:
        base, minimum, maximum = self._bounds(spec, least)
        if not spec.minimum and not spec.maximum and minimum == base.minimum:
            return base
        name = narrowed_name(base.family, minimum, maximum)
        found = self.task_types.get(name) or self._made.get(name)
        if found is None:
            found = self._made[name] = base.narrowed(minimum, maximum)
        return found

    def _bounds(self, spec: TaskSpec, least: Least) -> tuple[TaskType, Resources, Resources]:
        """The type that a task names, and the bounds of its own; ``least`` raises its minimum."""
        base, natural = self._base(spec), self.resources.natural
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
        if least:
            eligible = [self.clusters[n] for n in self._eligible(spec)]
            minimum = raised_minimum(minimum, maximum, least, eligible, self.resources)
        return base, minimum, maximum


def _kind(spec: TaskSpec, least: Least) -> _Request:
    own = tuple(spec.minimum.items()), tuple(spec.maximum.items())
    return (spec.type, *own, spec.clusters, tuple(sorted(least.items())))


def _check_length(spec: TaskSpec) -> None:
    """Refuse a submission that is too long; what is stored already may be from a time without this limit."""
    if (size := length(spec)) > MAX_SPEC:
        raise ConfigError(
            f"arguments and environment have {size} characters, {MAX_SPEC} are possible; pass a file instead"
        )
