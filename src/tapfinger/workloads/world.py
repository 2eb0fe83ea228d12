"""Scenario (configuration) -> World (domain objects), and the drawing of workloads from a seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.config import Pool, Scenario, TaskTypeConfig
from tapfinger.core.contract import Mode, SchedulerContext
from tapfinger.core.feasibility import MOST_SHOWN, check_eligible, ever_fits
from tapfinger.core.model import (
    MAX_CELLS,
    MAX_SLOTS,
    Cluster,
    Noise,
    Resources,
    ResourceTypes,
    SpeedProfile,
    Task,
    TaskType,
)
from tapfinger.core.state import eligible_ids
from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.profiles.initial_knowledge import told_types
from tapfinger.profiles.speeds import build_rates
from tapfinger.registry import create
from tapfinger.workloads.base import Arrivals, Others, Workload, WorkloadContext
from tapfinger.workloads.data_sets import check_data, draw_layout
from tapfinger.workloads.needs import Ladder, make_ladder, needed
from tapfinger.workloads.others import draw_others
from tapfinger.workloads.resource_types import resource_types


@dataclass(frozen=True)
class Outage:
    """A cluster that is down from slot ``start`` (inclusive) to ``end`` (exclusive)."""

    cluster: int
    start: int
    end: int


@dataclass(frozen=True)
class World:
    """A scenario's domain objects; shared by simulator, environments and schedulers."""

    scenario: Scenario
    resources: ResourceTypes
    clusters: tuple[Cluster, ...]
    #: Those of the scenario, then the higher steps of their ladders.
    task_types: tuple[TaskType, ...]
    mode: Mode
    noise: Noise
    switching_cost: float
    outages: tuple[Outage, ...]
    #: By family: what its tasks need in truth of a resource, where schedulers do not know that.
    ladders: Mapping[str, Ladder] = field(default_factory=dict)

    def context(self, seed: int) -> SchedulerContext:
        """What a scheduler is told before the first slot, including what the scenario reveals of speed profiles."""
        return SchedulerContext(
            resources=self.resources,
            clusters=self.clusters,
            task_types=self._told(seed),
            mode=self.mode,
            seed=int(np.random.SeedSequence([seed, 4]).generate_state(1)[0]),
            switching_cost=self.switching_cost,
            noise=self.noise,
            slot_seconds=self.scenario.slot_seconds,
        )

    def _told(self, seed: int) -> tuple[TaskType, ...]:
        if self.exact:
            return self.task_types
        told = told_types(self.own_types, self.scenario.knowledge, seed)
        return (*told, *_higher({t.name: self.ladders[t.name].of(t) for t in told if t.name in self.ladders}))

    @property
    def own_types(self) -> tuple[TaskType, ...]:
        """The task types of the scenario, without higher steps of ladders."""
        return self.task_types[: len(self.scenario.task_types)]

    @cached_property
    def whole_of(self) -> npt.NDArray[np.int64]:
        """(pools,) for every pool in ``clusters``, the index of its whole cluster."""
        index = {name: n for n, name in enumerate(self.wholes)}
        return np.array([index[cluster.whole] for cluster in self.clusters])

    @cached_property
    def open_to(self) -> npt.NDArray[np.bool_]:
        """(types, pools) whether tasks of the type run there if their whole cluster is eligible.

        Types that span run on spans, and on what is in no span; all others on everything but spans.
        """
        spans = np.array([bool(cluster.nodes) for cluster in self.clusters])
        spanned = np.zeros(len(self.clusters), dtype=np.bool_)
        spanned[[n for cluster in self.clusters for n in cluster.nodes]] = True
        spanning = {config.name for config in self.scenario.task_types if config.spans}
        return np.array([~spanned if t.family in spanning else ~spans for t in self.task_types])

    @cached_property
    def wholes(self) -> tuple[str, ...]:
        """Names of the whole clusters, in order."""
        return tuple(dict.fromkeys(cluster.whole for cluster in self.clusters))

    @property
    def capacity_of(self) -> dict[str, Resources]:
        """Capacity of every whole cluster, by name."""
        found: dict[str, Resources] = {}
        for cluster in self.clusters:
            if cluster.nodes:
                continue
            found[cluster.whole] = (
                cluster.capacity + found[cluster.whole] if cluster.whole in found else cluster.capacity
            )
        return found

    @property
    def exact(self) -> bool:
        """Whether schedulers know the true speed profiles."""
        return self.scenario.knowledge.kind == "exact"


@contextmanager
def _naming(scenario: Scenario) -> Iterator[None]:
    """Add to every error which scenario it is about."""
    try:
        yield
    except TapfingerError as error:
        error.args = (f"{scenario.source}: {error}",)  # the same error, with its source
        raise


def build_world(scenario: Scenario) -> World:
    """Check what types alone cannot ensure, and build the domain objects."""
    with _naming(scenario):
        return _build(scenario)


def _build(scenario: Scenario) -> World:
    resources = resource_types(scenario)
    of_nodes = {name: one.of_nodes for name, one in scenario.resources.items() if one.of_nodes is not None}
    wholes = [
        _pools(config.name, *copy, resources, of_nodes) for config in scenario.clusters for copy in config.copies()
    ]
    if any(config.spans for config in scenario.task_types):
        wholes = _with_spans(wholes)
    clusters = tuple(pool for pools in wholes for pool in pools)
    hardware = [cluster.hardware for cluster in clusters]
    names = Counter(pools[0].whole for pools in wholes) + Counter(pool.name for pool in clusters if pool.part_of)
    name, times = names.most_common(1)[0]
    if times > 1:
        raise ConfigError(f"clusters: {times} are named {name!r} (a count adds numbers to a name); rename one")
    for outage in scenario.outages:
        if outage.cluster >= len(wholes):
            raise ConfigError(f"outages: there is no cluster {outage.cluster}; clusters are 0..{len(wholes) - 1}")
    outages = tuple(
        Outage(clusters.index(pool), o.start, o.end) for o in scenario.outages for pool in wholes[o.cluster]
    )
    types = [_task_type(scenario, config, resources, hardware) for config in scenario.task_types]
    ladders = {
        config.name: make_ladder(kind, config.needs, resources, f"task_types.{config.name}.needs")
        for config, kind in zip(scenario.task_types, types, strict=True)
        if config.needs
    }
    check_data(scenario)
    return World(
        scenario=scenario,
        resources=resources,
        clusters=clusters,
        task_types=(*types, *_higher({name: ladder.steps for name, ladder in ladders.items()})),
        mode=Mode(scenario.mode),
        noise=Noise(scenario.noise.kind, scenario.noise.amplitude) if scenario.noise.amplitude else Noise(),
        switching_cost=scenario.switching_cost,
        outages=outages,
        ladders=ladders,
    )


def _higher(ladders: Mapping[str, Sequence[TaskType]]) -> Iterator[TaskType]:
    """The steps of all ladders above the first, which is the scenario's own type."""
    return (step for steps in ladders.values() for step in steps[1:])


def _pools(
    key: str, whole: str, nodes: Iterable[Pool], resources: ResourceTypes, usual: Mapping[str, float]
) -> list[Cluster]:
    """The nodes of a cluster; a cluster without nodes is one pool. ``key``: its name in the scenario.

    ``usual``: amounts of resources that are not named.
    """
    pools = []
    for name, amounts, kind in nodes:
        part_of = whole if name != whole else ""
        # Nodes name only what they have.
        given = {**(dict.fromkeys(resources.names, 0.0) if part_of else {}), **usual, **amounts}
        where = f"clusters.{key}.{'nodes' if part_of else 'capacity'}"
        pools.append(Cluster(name, resources.parse(given, where), part_of, kind))
    return pools


def _with_spans(wholes: Iterable[Sequence[Cluster]]) -> list[list[Cluster]]:
    """After the nodes of each cluster its spans: one for every kind of which there are several nodes."""
    found: list[list[Cluster]] = []
    for pools in wholes:
        first, spans = sum(map(len, found)), []
        kinds = list(dict.fromkeys(pool.hardware for pool in pools))
        for kind in kinds:
            nodes = [n for n, pool in enumerate(pools) if pool.hardware == kind]
            if len(nodes) > 1:
                name = f"{pools[0].whole}:{'all' if len(kinds) == 1 else f'all-{kind}'}"
                total = Resources(map(sum, zip(*(pools[n].capacity for n in nodes), strict=True)))
                spans.append(Cluster(name, total, pools[0].whole, kind, tuple(first + n for n in nodes)))
        found.append([*pools, *spans])
    return found


def _task_type(
    scenario: Scenario, config: TaskTypeConfig, resources: ResourceTypes, hardware: Sequence[str]
) -> TaskType:
    """``hardware``: of every cluster."""
    where = f"task_types.{config.name}"
    usual = {name: one.of_tasks for name, one in scenario.resources.items() if one.of_tasks is not None}
    minimum = resources.parse({**usual, **config.minimum}, f"{where}.minimum")
    maximum = resources.parse({**usual, **config.minimum, **config.maximum}, f"{where}.maximum")
    if not minimum.fits(maximum):
        raise ConfigError(
            f"{where}: minimum {resources.describe(minimum)} exceeds maximum {resources.describe(maximum)}; "
            "lower the minimum or raise the maximum"
        )
    cells = math.prod(hi - lo + 1 for lo, hi in zip(minimum, maximum, strict=True))
    if cells > MAX_CELLS:
        raise ConfigError(
            f"{where}: {cells:,} possible allocations are more than {MAX_CELLS:,}; bound the maximum of resources "
            "that do not change the speed, or use larger units"
        )
    kinds = list(dict.fromkeys(hardware))
    profiles = {kind: _profile(scenario, config, resources, minimum, maximum, kind) for kind in kinds}
    most = max(kinds, key=hardware.count)  # the first of those that most clusters have
    each = tuple(profiles.items()) if kinds != [""] else ()
    names = [one.name for one in scenario.data]
    data = tuple(dict.fromkeys(names.index(name) for name in config.data))
    return TaskType(
        config.name, minimum, maximum, profiles[most], config.weight, hardware=most, profiles=each, data=data
    )


def _profile(
    scenario: Scenario,
    config: TaskTypeConfig,
    resources: ResourceTypes,
    minimum: Resources,
    maximum: Resources,
    kind: str,
) -> SpeedProfile:
    where = f"task_types.{config.name}.{f'on.{kind}' if kind else 'speed'}"
    rates, shape_offset = build_rates(scenario, config, resources, minimum, maximum, kind)
    try:
        return SpeedProfile(minimum, maximum, rates, shape_offset)
    except ConfigError as error:
        slowest = min(range(len(rates)), key=rates.__getitem__)
        if not 0.0 <= rates[slowest] * MAX_SLOTS <= 1.0:
            raise ConfigError(f"{where}: {error}") from None
        amounts = np.add(
            np.unravel_index(slowest, [hi - lo + 1 for lo, hi in zip(minimum, maximum, strict=True)]), minimum
        )
        slots = f"{1 / rates[slowest]:.3g} slots" if rates[slowest] else "for ever"
        raise ConfigError(
            f"{where}: with {resources.describe(Resources(amounts.tolist()))} it takes {slots}, at most "
            f"{MAX_SLOTS:,} slots are possible; make it faster, raise the minimum or use a larger slot_seconds"
        ) from None


def draw_workload(world: World, seed: int) -> Workload:
    """Draw arrivals, types, eligibility and noise, each from its own stream of the seed."""
    with _naming(world.scenario):
        return _draw(world, seed)


def _draw(world: World, seed: int) -> Workload:
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(6)]
    arrivals_rng, types_rng, eligible_rng, noise_rng, others_rng, links_rng = streams
    scenario = world.scenario
    context = WorkloadContext(
        tasks=scenario.tasks,
        type_names=tuple(t.name for t in scenario.task_types),
        cluster_names=world.wholes,
        slot_seconds=scenario.slot_seconds,
        directory=scenario.directory,
    )
    process = create("arrivals", scenario.arrivals.kind, scenario.arrivals.options())
    if not callable(getattr(process, "arrivals", None)):
        raise ConfigError(f"arrivals of kind {scenario.arrivals.kind!r} have no method arrivals(); {_CONTRACT}")
    drawn = _checked(world, process.arrivals(context, arrivals_rng))
    count = len(drawn.slot)
    types = drawn.type if drawn.type is not None else _draw_types(world, count, types_rng)
    eligible = drawn.eligible if drawn.eligible is not None else _draw_eligible(world, types, eligible_rng, drawn)
    if len(world.wholes) < len(world.clusters):  # a task that may run on a cluster may run on each of its nodes
        eligible = eligible[:, world.whole_of] & world.open_to[types]
    keys = noise_rng.integers(0, 2**64, size=count, dtype=np.uint64)
    others = draw_others(scenario, world.clusters, world.resources, others_rng) if scenario.others else ()
    data = draw_layout(scenario, world.wholes, world.whole_of.tolist(), links_rng) if scenario.data else None
    workload = Workload(drawn.slot, types, eligible, keys, others, data)
    _check_possible(world, workload, drawn)
    return workload


_CONTRACT = "see docs/extending-workload.md"


def _checked(world: World, drawn: Any) -> Arrivals:
    """Refuse arrivals that no simulator could play, before the run and not in the middle of it."""
    kind = f"arrivals of kind {world.scenario.arrivals.kind!r}"
    if not isinstance(drawn, Arrivals):
        raise ConfigError(f"{kind}: arrivals() must return Arrivals, got {type(drawn).__name__}; {_CONTRACT}")
    slot = np.asarray(drawn.slot)
    if slot.size == 0:
        raise ConfigError(f"{kind}: there are no tasks; draw at least one")
    count, clusters, types = slot.size, len(world.wholes), len(world.scenario.task_types)
    for name, value, shape, wanted in (
        ("slot", slot, (count,), np.integer),
        ("type", drawn.type, (count,), np.integer),
        ("eligible", drawn.eligible, (count, clusters), np.bool_),
    ):
        array = np.asarray(value)
        if value is not None and (array.shape != shape or not np.issubdtype(array.dtype, wanted)):
            what = "booleans" if wanted is np.bool_ else "whole numbers"
            raise ConfigError(
                f"{kind}: {name} must be an array of {what} of shape {shape}, got {array.dtype} of shape "
                f"{array.shape}; {_CONTRACT}"
            )
    slot = slot.astype(np.int64)
    bad = np.flatnonzero(np.diff(slot, prepend=0) < 0)
    if len(bad):
        raise ConfigError(f"{kind}: slots must ascend from 0 on; task {bad[0]} has slot {slot[bad[0]]}; sort them")
    type_ = None if drawn.type is None else np.asarray(drawn.type).astype(np.int64)
    bad = np.flatnonzero((type_ < 0) | (type_ >= types)) if type_ is not None else bad
    if type_ is not None and len(bad):
        raise ConfigError(f"{kind}: task {bad[0]} has type {type_[bad[0]]}; types are 0..{types - 1}, {_CONTRACT}")
    eligible = None if drawn.eligible is None else np.asarray(drawn.eligible)
    return Arrivals(slot, type_, eligible, drawn.where)


def _check_possible(world: World, workload: Workload, drawn: Arrivals) -> None:
    """Refuse a task that none of its eligible clusters could ever hold."""
    fits = _possible(world)
    for room in (fits, fits & _beside_others(world, workload.others)):
        nowhere = np.flatnonzero(~(workload.eligible & room[workload.type]).any(axis=1))
        if not len(nowhere):
            continue
        i = int(nowhere[0])
        task = Task(
            i, _in_truth(world, int(workload.type[i])), int(workload.slot[i]), eligible_ids(workload.eligible[i])
        )
        label = drawn.where(i) if drawn.where else ""
        check_eligible(task, world.clusters, label, world.resources.describe)
        shown = ", ".join(world.clusters[n].name for n in task.eligible[:MOST_SHOWN])
        raise ConfigError(
            f"{label or f'task {i}'} ({task.type.name}): others never leave room for its minimum "
            f"{world.resources.describe(task.type.minimum)} on any of its eligible clusters ({shown}); lower what "
            "others use, or the minimum"
        )


def _in_truth(world: World, type_: int) -> TaskType:
    """The type with what its tasks need in truth as its minimum."""
    kind = world.task_types[type_]
    need = needed(kind, world.ladders)
    return kind if need == kind.minimum else replace(kind.narrowed(need, kind.maximum), name=kind.name)


def _beside_others(world: World, others: Iterable[Others]) -> npt.NDArray[np.bool_]:
    """(types, clusters) where others at times leave room for the type's minimum."""
    fits: npt.NDArray[np.bool_] = np.ones((len(world.task_types), len(world.clusters)), dtype=np.bool_)
    minimum = np.array([needed(t, world.ladders) for t in world.task_types])
    for one in others:
        room = np.array(world.clusters[one.cluster].capacity) - one.amounts  # (changes, resources)
        fits[:, one.cluster] = np.any(np.all(minimum[:, None, :] <= room, axis=2), axis=1)
    by_node = {one.cluster: one for one in others}
    for span, cluster in enumerate(world.clusters):
        if not by_node.keys().isdisjoint(cluster.nodes):
            room = _room_of_span([world.clusters[n] for n in cluster.nodes], [by_node.get(n) for n in cluster.nodes])
            fits[:, span] = np.any(np.all(minimum[:, None, :] <= room, axis=2), axis=1)
    return fits


def _room_of_span(nodes: Sequence[Cluster], others: Sequence[Others | None]) -> npt.NDArray[np.int64]:
    """(changes, resources) what others leave of these nodes together; the most they may, if their periods differ."""
    known = [one for one in others if one is not None]
    together = len({one.period for one in known}) == 1
    slots = np.unique(np.concatenate([one.slot for one in known])) if together else np.zeros(1, dtype=np.int64)
    total = np.zeros((len(slots), len(nodes[0].capacity)), dtype=np.int64)
    for node, one in zip(nodes, others, strict=True):
        room = np.array([node.capacity], dtype=np.int64) - (0 if one is None else one.amounts)
        when = np.searchsorted(one.slot, slots, side="right") - 1 if one is not None and together else None
        total += room.max(axis=0) if when is None else room[when]
    return total


def _draw_types(world: World, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    weights = np.array([t.weight for t in world.task_types])
    if weights.sum() <= 0:
        raise ConfigError("task_types: at least one weight must be above 0")
    return rng.choice(len(weights), size=count, p=weights / weights.sum())


def _possible(world: World) -> npt.NDArray[np.bool_]:
    """(types, clusters) where a task of the type fits at all, with what it needs in truth."""
    holders = np.array([_holders(world.clusters, needed(t, world.ladders)) for t in world.task_types], dtype=np.bool_)
    return np.logical_and(world.open_to, holders)


@lru_cache(maxsize=256)
def _holders(clusters: tuple[Cluster, ...], minimum: Resources) -> npt.NDArray[np.bool_]:
    return np.array([ever_fits(minimum, c.capacity) for c in clusters])


def _draw_eligible(
    world: World, types: npt.NDArray[np.int64], rng: np.random.Generator, drawn: Arrivals
) -> npt.NDArray[np.bool_]:
    """(tasks, whole clusters) by the scenario's model, in chunks, so that intermediate arrays stay small."""
    possible = _possible(world)
    if len(world.wholes) < len(world.clusters):
        firsts = np.flatnonzero(np.diff(world.whole_of, prepend=-1))
        possible = np.logical_or.reduceat(possible, firsts, axis=1)
    present = set(np.unique(types).tolist())
    for i, task_type in enumerate(world.task_types):
        # A type that fits nowhere is no fault as long as no task can have that type.
        if not possible[i].any() and (i in present or (drawn.type is None and task_type.weight > 0)):
            first = int(np.argmax(types == i))
            label = f"{drawn.where(first)}: " if drawn.where and i in present else ""
            there = [c for c, may in zip(world.clusters, world.open_to[i], strict=True) if may]
            shown = [f"{c.name} with {world.resources.describe(c.capacity)}" for c in there[:MOST_SHOWN]]
            more = len(there) - len(shown)
            need, who = needed(task_type, world.ladders), f"{label}task type {task_type.name!r}"
            amounts = world.resources.describe(need)
            what = (
                f": minimum {amounts} fits" if need == task_type.minimum else f" needs a step of {amounts}, which fits"
            )
            raise ConfigError(
                f"{who}{what} no cluster: {'; '.join(shown)}{f' and {more} more' if more else ''}; lower the minimum "
                "or raise a capacity"
            )
    if world.scenario.eligibility.kind == "all":
        return np.ones((len(types), len(world.wholes)), dtype=np.bool_)
    chunks = [types[i : i + 4096] for i in range(0, len(types), 4096)]
    return np.concatenate([_draw_eligible_chunk(world, possible[chunk], rng) for chunk in chunks])


def _draw_eligible_chunk(
    world: World, possible: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Tasks that could run nowhere are drawn again."""
    config = world.scenario.eligibility
    count, clusters = possible.shape
    eligible = np.zeros((count, clusters), dtype=np.bool_)
    redo = np.arange(count)
    for _ in range(1000):
        if config.kind == "subset":
            rank = rng.random((len(redo), clusters)).argsort(axis=1).argsort(axis=1)
            drawn = rank < rng.integers(1, clusters + 1, size=(len(redo), 1))
        else:
            drawn = rng.uniform(0.0, config.maximum_mbps, (len(redo), clusters)) >= config.minimum_mbps
        eligible[redo] = drawn
        redo = redo[~(drawn & possible[redo]).any(axis=1)]
        if len(redo) == 0:
            return eligible
    # Only bandwidth gets here: a subset contains any given cluster with a probability above one half.
    raise ConfigError(
        f"eligibility: after 1000 draws {len(redo)} tasks still had no cluster that holds their minimum "
        f"(minimum_mbps {config.minimum_mbps:g} of {config.maximum_mbps:g}); lower minimum_mbps or raise capacities"
    )
