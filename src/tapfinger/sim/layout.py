"""The arrays of the batched simulator: named tuples, so that compiled code can take them as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import Mode
from tapfinger.core.model import Cluster, Noise, TaskType
from tapfinger.core.spans import nodes_of
from tapfinger.core.staging import DataLayout, Staging
from tapfinger.profiles.efficient_sizes import WORST_STRETCH, EfficientSize, EfficientSizes
from tapfinger.workloads.base import Workload
from tapfinger.workloads.needs import Ladder

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Stands for no limit on starts per cluster and slot.
NO_LIMIT = 1 << 40


class Tables(NamedTuple):
    """What never changes during a run. N clusters, R resources, T task types, S speeds: of a type on some hardware."""

    capacity: Ints  # (N, R)
    minimum: Ints  # (T, R)
    maximum: Ints  # (T, R)
    extent: Ints  # (T, R) allocations per resource in the rate table
    emptier: Floats  # (N,) 1 where ties go to the emptier cluster, -1 where they go to the fuller node
    wholes: float  # whole clusters, as a share of N
    speed: Ints  # (T, N) which of the S speeds the type has on the cluster
    first_rate: Ints  # (S,) where the rates of a speed begin
    rates: Floats  # (all cells of all speeds,)
    shape_offset: Floats  # (S,) 0 where speed does not change with progress
    noise_kind: int  # 0 none, 1 additive, 2 relative
    noise_amplitude: float
    max_starts: int  # per cluster and slot
    reports: bool  # whether running tasks report their progress
    # Spans, see core.spans: node[node_first[n]..node_first[n+1]] are the nodes of span n; (0,) where there are none.
    span: Ints  # (N,) the span of a node, -1 for none
    node: Ints
    node_first: Ints  # (N+1,)
    # Data sets that a type needs: data[data_first[t]..data_first[t+1]].
    data: Ints
    data_first: Ints  # (T+1,)
    # Ladders of types, see workloads.needs; (0,) where everybody knows what tasks need.
    ladder: Ints  # (T,) the resource of which its tasks may need more than its minimum, -1 for none
    need: Ints  # (T,) what they need of it
    above: Ints  # (T,) the next type of the ladder, -1 for none


class Draws(NamedTuple):
    """One workload per world, padded to J tasks. B worlds.

    Data sets and links come in Y layouts; D data sets, P places, C whole clusters, all 0 where there are no data sets.
    """

    tasks: Ints  # (B,) tasks of each world
    arrival: Ints  # (B, J)
    type: Ints  # (B, J) with which a task comes if none of its family ran out of memory before
    eligible: Bools  # (B, J, N)
    noise_key: npt.NDArray[np.uint64]  # (B, J)
    # Changes of what others use: L of each cluster at most, none where nobody else is.
    others_slot: Ints  # (B, N, L) within the period
    others_amounts: Ints  # (B, N, L, R)
    others_count: Ints  # (B, N)
    others_period: Ints  # (B, N)
    layout: Ints  # (B,) which layout the world has
    data_gb: Floats  # (Y, D)
    data_lies: Bools  # (Y, P, D) whether the data set lies there for good
    data_slots: Floats  # (Y, P, C) slots that the link takes for one GB
    data_cache: Floats  # (Y, C) size of the cache in GB
    data_place: Ints  # (Y, N) the cluster's place


class Worlds(NamedTuple):
    """The state of B worlds."""

    slot: Ints  # (B,)
    turn: Ints  # (B,)
    next_arrival: Ints  # (B,) first task that has not arrived
    queue: Ints  # (B, J) ids of waiting tasks, oldest first
    queue_length: Ints  # (B,)
    running: Ints  # (B, J) ids of running tasks, in order of placement
    running_count: Ints  # (B,)
    waiting: Ints  # (B, N) waiting tasks that may run on the cluster
    free: Ints  # (B, N, R) below zero where others have come to use what tasks hold
    others: Ints  # (B, N, R) in use by others
    others_lately: Floats  # (B, N, R) mean of what they used before this slot
    others_next: Ints  # (B, N) place of the next change of it
    others_due: Ints  # (B, N) slot of that change
    starts: Ints  # (B, N) in this slot
    granted: Bools  # (B, N) whether the cluster got the task it wanted in the last turn
    kind: Ints  # (B, J) type of a task that is in the system: waiting, its family's now; running, that it started with
    cluster: Ints  # (B, J) -1 before it is placed
    allocation: Ints  # (B, J, R)
    progress: Floats  # (B, J)
    elapsed: Ints  # (B, J) slots run
    started: Ints  # (B, J) slot in which it was placed, -1 before
    finished: Ints  # (B, J) slot of end, -1 before
    total: Ints  # (B,) sum over slots of tasks in the system
    conflicts: Ints  # (B,) proposals that lost
    order: Ints  # (B, J) scratch of greedy rounds: waiting tasks in the order they are considered
    rank: Floats  # (B, J) scratch: the key they are ordered by
    room: Ints  # (B, R) scratch of lending: what is left to lend on a cluster
    # Data sets, as in core.staging.Staging; empty arrays where there are none.
    ready: Floats  # (B, P, D) slot from which on the data set is there
    busy: Floats  # (B, P, C) slot until which the link is taken
    used: Ints  # (B, C, D) the last slot in which the data set was asked for or released, -1 before
    users: Ints  # (B, C, D) tasks there that use it
    runs_from: Floats  # (B, J) slot from which on a placed task has its data
    link: Floats  # (B, P) scratch: slot until which links to one cluster are taken
    wait: Floats  # (B, N) scratch of greedy rounds: slots that a task would wait for its data
    # Memory that nobody knows; empty arrays where everybody does.
    now: Ints  # (B, T) type that tasks of this one have since some of its family ran out of memory
    came: Ints  # (B, J) type with which the task came
    attempts: Ints  # (B, J) attempts that ran out of memory
    # (B, J, attempts, 4 + R + nodes * R) of each: slots of placement, start and end, cluster, allocation, parts
    attempt: Ints
    part: Ints  # (B, J, nodes, R) what a task on a span holds of each of its nodes; no nodes where there are no spans
    spare: Ints  # (B, N, R) scratch of lending: what is left on nodes of spans; no clusters where there are no spans
    advised: Ints  # (B, J, advisers) cluster on which each adviser would start a waiting task now, -1 for none
    advised_size: Ints  # (B, J, advisers) the place on the menu of the size it would give


class Observations(NamedTuple):
    """The paper's raw state as arrays; see observation.GraphObs. K pending per cluster, M = N*K nodes."""

    cluster_features: npt.NDArray[np.float32]  # (B, N, R+1) free, backlog
    pending_features: npt.NDArray[np.float32]  # (B, M, R+T+1) minimum, type one-hot, dummy bit
    running_features: npt.NDArray[np.float32]  # (B, N, S, R+T+1) allocation, type one-hot, elapsed
    running_count: Ints  # (B, N)
    task: Ints  # (B, N, K) id of the pending task, -1 for none
    node: Ints  # (B, N, K) its node among pending_features, -1 for none
    startable: Bools  # (B, N, K) whether it may start there now
    largest: Ints  # (B, N, K, R) upper corner of the legal allocations
    waiting: Ints  # (B, N) length of the cluster's queue
    age: Ints  # (B, M) slots each pending node has waited
    running_progress: npt.NDArray[np.float32]  # (B, N, S) as reported, -1 if not reported
    others: npt.NDArray[np.float32]  # (B, N, R) in use by others
    others_lately: npt.NDArray[np.float32]  # (B, N, R) mean of what they used before
    staging: Ints  # (B, N, K) slots that the pending task would wait there for its data


def make_tables(
    clusters: Sequence[Cluster],
    types: Sequence[TaskType],
    noise: Noise,
    mode: Mode,
    reports: bool = True,
    ladders: Mapping[str, Ladder] = MappingProxyType({}),
) -> Tables:
    """Domain objects -> arrays. ``ladders``: what tasks need in truth, by family; without them none runs short."""
    kinds = hardware_of(clusters)
    profiles = [t.on(kind).profile for kind in kinds for t in types]
    sizes = [len(profile.rates) for profile in profiles]
    first_speed = np.array([kinds.index(c.hardware) * len(types) for c in clusters], dtype=np.int64)
    return Tables(
        capacity=np.array([c.capacity for c in clusters], dtype=np.int64),
        minimum=np.array([t.minimum for t in types], dtype=np.int64),
        maximum=np.array([t.maximum for t in types], dtype=np.int64),
        extent=np.array([t.profile.extent for t in types], dtype=np.int64),
        emptier=np.array([-1.0 if c.part_of else 1.0 for c in clusters]),
        wholes=len({c.whole for c in clusters}) / len(clusters),
        speed=np.arange(len(types))[:, None] + first_speed,
        first_rate=np.cumsum([0, *sizes[:-1]]).astype(np.int64),
        rates=np.concatenate([np.asarray(profile.rates, dtype=np.float64) for profile in profiles]),
        shape_offset=np.array([profile.shape_offset or 0.0 for profile in profiles], dtype=np.float64),
        noise_kind=("none", "additive", "relative").index(noise.kind),
        noise_amplitude=float(noise.amplitude),
        max_starts=1 if mode is Mode.SINGLE else NO_LIMIT,
        reports=reports,
        **_spans(clusters),
        data=np.array([d for t in types for d in t.data], dtype=np.int64),
        data_first=np.cumsum([0, *(len(t.data) for t in types)]).astype(np.int64),
        **_climbs(types, ladders),
    )


def _spans(clusters: Sequence[Cluster]) -> dict[str, Ints]:
    """The fields of Tables about spans."""
    span = np.full(len(clusters), -1, dtype=np.int64)
    for n, nodes in nodes_of(clusters).items():
        span[list(nodes)] = n
    return {
        "span": span,
        "node": np.array([node for c in clusters for node in c.nodes], dtype=np.int64),
        "node_first": np.cumsum([0, *(len(c.nodes) for c in clusters)]).astype(np.int64),
    }


def _climbs(types: Sequence[TaskType], ladders: Mapping[str, Ladder]) -> dict[str, Ints]:
    """The fields of Tables about ladders."""
    rows = len(types) if ladders else 0
    found = {name: np.full(rows, -1, dtype=np.int64) for name in ("ladder", "need", "above")}
    kind = {t.name: i for i, t in enumerate(types)}
    for ladder in ladders.values():
        steps = [kind[step.name] for step in ladder.steps]
        found["ladder"][steps], found["need"][steps] = ladder.resource, ladder.need
        found["above"][steps[:-1]] = steps[1:]
    return found


def hardware_of(clusters: Sequence[Cluster]) -> list[str]:
    """The kinds of hardware, in the order of ``Tables.speed``."""
    return list(dict.fromkeys(c.hardware for c in clusters))


def nobody_else(batch: int, clusters: int, resources: int, changes: int = 0) -> dict[str, Any]:
    """The fields of Draws about others, for clusters that nobody else uses."""
    return {
        "others_slot": np.zeros((batch, clusters, changes), dtype=np.int64),
        "others_amounts": np.zeros((batch, clusters, changes, resources), dtype=np.int64),
        "others_count": np.zeros((batch, clusters), dtype=np.int64),
        "others_period": np.ones((batch, clusters), dtype=np.int64),
    }


def data_arrays(layouts: Sequence[DataLayout | None]) -> dict[str, Any]:
    """The fields of Draws about data sets, one layout per world; worlds that are all alike share one."""
    shared = all(layout == layouts[0] for layout in layouts)
    known = [layout for layout in (layouts[:1] if shared else layouts) if layout is not None]
    count, places = len(known), len(known[0].lies) if known else 0
    clusters, sets = max(0, places - 1), len(known[0].names) if known else 0
    nodes = len(known[0].place_of) if known else 0
    return {
        "layout": np.zeros(len(layouts), dtype=np.int64) if shared else np.arange(len(layouts)),
        "data_gb": np.array([one.gb for one in known], dtype=np.float64).reshape(count, sets),
        "data_lies": np.array([one.lies for one in known], dtype=np.bool_).reshape(count, places, sets),
        "data_slots": np.array([one.slots_per_gb for one in known], dtype=np.float64).reshape(count, places, clusters),
        "data_cache": np.array([one.cache_gb for one in known], dtype=np.float64).reshape(count, clusters),
        "data_place": np.array([one.place_of for one in known], dtype=np.int64).reshape(count, nodes),
    }


def stack_workloads(workloads: Sequence[Workload], tables: Tables, least: int = 0) -> Draws:
    """Workloads -> one batch, padded to the longest, or to ``least`` tasks if that is more."""
    most = max(least, *(len(w) for w in workloads))

    def pad(name: str, dtype: Any, *tail: int) -> Any:
        out = np.zeros((len(workloads), most, *tail), dtype=dtype)
        for b, workload in enumerate(workloads):
            out[b, : len(workload)] = getattr(workload, name)
        return out

    clusters = workloads[0].eligible.shape[1]
    changes = max((len(others.slot) for w in workloads for others in w.others), default=0)
    shared = nobody_else(len(workloads), clusters, tables.capacity.shape[1], changes)
    for b, workload in enumerate(workloads):
        for others in workload.others:
            at, length = (b, others.cluster), len(others.slot)
            shared["others_count"][at], shared["others_period"][at] = length, others.period
            shared["others_slot"][at][:length] = others.slot
            shared["others_amounts"][at][:length] = others.amounts
    return Draws(
        tasks=np.array([len(w) for w in workloads], dtype=np.int64),
        arrival=pad("slot", np.int64),
        type=pad("type", np.int64),
        eligible=pad("eligible", np.bool_, clusters),
        noise_key=pad("noise_key", np.uint64),
        **shared,
        **data_arrays([w.data for w in workloads]),
    )


def empty_worlds(batch: int, draws: Draws, tables: Tables, advisers: int = 0) -> Worlds:
    """Room for B worlds, as many tasks each as the draws have; ``kernels.reset`` fills it.

    ``advisers``: number of advisers.
    """
    clusters, resources = tables.capacity.shape
    tasks, (places, sets) = draws.arrival.shape[1], draws.data_lies.shape[1:]
    wholes, staged = draws.data_cache.shape[1], bool(sets)
    kinds, climbing = len(tables.need), bool(len(tables.need))
    attempts = _longest_climb(tables)
    nodes = int(np.diff(tables.node_first).max())

    def ints(*shape: int) -> Ints:
        return np.zeros((batch, *shape), dtype=np.int64)

    return Worlds(
        slot=ints(),
        turn=ints(),
        next_arrival=ints(),
        queue=ints(tasks),
        queue_length=ints(),
        running=ints(tasks),
        running_count=ints(),
        waiting=ints(clusters),
        free=ints(clusters, resources),
        others=ints(clusters, resources),
        others_lately=np.zeros((batch, clusters, resources)),
        others_next=ints(clusters),
        others_due=ints(clusters),
        starts=ints(clusters),
        granted=np.zeros((batch, clusters), dtype=np.bool_),
        kind=ints(tasks),
        cluster=ints(tasks),
        allocation=ints(tasks, resources),
        progress=np.zeros((batch, tasks)),
        elapsed=ints(tasks),
        started=ints(tasks),
        finished=ints(tasks),
        total=ints(),
        conflicts=ints(),
        order=ints(tasks),
        rank=np.zeros((batch, tasks)),
        room=ints(resources),
        ready=np.zeros((batch, places, sets)),
        busy=np.zeros((batch, places, wholes)),
        used=ints(wholes, sets),
        users=ints(wholes, sets),
        runs_from=np.zeros((batch, tasks * staged)),
        link=np.zeros((batch, places)),
        wait=np.zeros((batch, clusters * staged)),
        now=ints(kinds),
        came=ints(tasks * climbing),
        attempts=ints(tasks * climbing),
        attempt=ints(tasks * climbing, attempts, 4 + resources * (1 + nodes)),
        part=ints(tasks, nodes, resources),
        spare=ints(clusters * bool(nodes), resources),
        advised=ints(tasks, advisers),
        advised_size=ints(tasks, advisers),
    )


def _longest_climb(tables: Tables) -> int:
    """Most attempts of one task that can run out of memory: each goes up a ladder by a step or more."""
    most = 0
    for kind in range(len(tables.above)):
        steps, at = 0, kind
        while tables.above[at] >= 0:
            steps, at = steps + 1, int(tables.above[at])
        most = max(most, steps)
    return most


def fill_staging(worlds: Worlds, b: int, data: Staging, slot: int) -> None:
    """Write which data sets are where into world b, slots counted from ``slot``."""
    worlds.ready[b] = np.array(data.ready) - slot
    worlds.busy[b] = 0.0
    for link, until in data.busy.items():
        worlds.busy[b][link] = until - slot
    worlds.used[b] = np.array(data.used) - slot
    worlds.users[b] = data.users


def empty_observations(batch: int, pending: int, most_running: int, tables: Tables) -> Observations:
    """Room for B observations of ``pending`` waiting and ``most_running`` running tasks per cluster."""
    clusters, resources = tables.capacity.shape
    width = resources + len(tables.minimum) + 1
    return Observations(
        cluster_features=np.zeros((batch, clusters, resources + 1), dtype=np.float32),
        pending_features=np.zeros((batch, clusters * pending, width), dtype=np.float32),
        running_features=np.zeros((batch, clusters, most_running, width), dtype=np.float32),
        running_count=np.zeros((batch, clusters), dtype=np.int64),
        task=np.zeros((batch, clusters, pending), dtype=np.int64),
        node=np.zeros((batch, clusters, pending), dtype=np.int64),
        startable=np.zeros((batch, clusters, pending), dtype=np.bool_),
        largest=np.zeros((batch, clusters, pending, resources), dtype=np.int64),
        waiting=np.zeros((batch, clusters), dtype=np.int64),
        age=np.zeros((batch, clusters * pending), dtype=np.int64),
        running_progress=np.full((batch, clusters, most_running), -1.0, dtype=np.float32),
        others=np.zeros((batch, clusters, resources), dtype=np.float32),
        others_lately=np.zeros((batch, clusters, resources), dtype=np.float32),
        staging=np.zeros((batch, clusters, pending), dtype=np.int64),
    )


class Sizes(NamedTuple):
    """The efficient sizes of all types, for greedy rounds. O options in total, fastest first within each speed."""

    first: Ints  # (S+1,) options of speed s are first[s]..first[s+1]
    allocation: Ints  # (O, R)
    slots: Floats  # (O,) mean duration
    cost: Floats  # (O,) slots x largest share of a mean cluster
    ideal: Floats  # (T, N) shortest duration on the empty cluster over its pace; inf where it does not fit
    pace: Floats  # (T, N) EfficientSizes.pace
    mean_capacity: Floats  # (R,)
    least_slots: Floats  # (T,) duration of the fastest option on the hardware that most clusters have
    speed_slots: Floats  # (S,) duration of the fastest option
    shortest: Floats  # (all cells of all speeds,) bounded duration of the fastest option that fits, as Tables.rates
    fastest: Ints  # (all cells of all speeds,) that option, -1 where none fits
    rate: Floats  # (O,) progress per slot


class DeviatedTurns(NamedTuple):
    """A turn of L worlds with A actions for each cluster to choose from; it takes the first one."""

    task: Ints  # (L, N, A) ids, -1 for void
    allocation: Ints  # (L, N, A, R)
    score: Floats  # (L, N, A) Pr(j|n), for conflicts


class Moves(NamedTuple):
    """Placements that P plans begin with, at most K each; placements that turn out to be illegal are left out."""

    length: Ints  # (P,)
    task: Ints  # (P, K) waiting tasks, each at most once
    cluster: Ints  # (P, K)
    allocation: Ints  # (P * K, R)


def empty_moves(plans: int, most: int, tables: Tables) -> Moves:
    """Room for P plans with no moves yet."""
    shape = (plans, most)
    return Moves(
        length=np.zeros(plans, dtype=np.int64),
        task=np.zeros(shape, dtype=np.int64),
        cluster=np.zeros(shape, dtype=np.int64),
        allocation=np.zeros((plans * most, tables.capacity.shape[1]), dtype=np.int64),
    )


class GreedyPlan(NamedTuple):
    """Parameters of one greedy round; the names are Greedy's options."""

    queue_price: float
    calm: float
    patience: float
    max_wait: float
    short_first: float
    emptiest: float = 1.0  # ties go to the emptier cluster; -1: to the fuller one
    jitter: float = 0.0  # relative random change of scores
    hold: float = 0.0  # chance that a task is left waiting
    choosy_first: float = 0.0
    room_price: float = 0.0
    crowd_price: float = 0.0


def make_sizes(options: EfficientSizes, types: Sequence[TaskType]) -> Sizes:
    """Options -> arrays."""
    speeds = [(t.on(kind), sizes[t.name]) for kind, sizes in options.at.items() for t in types]
    flat = [option for _, sizes in speeds for option in sizes]
    first = np.cumsum([0, *(len(sizes) for _, sizes in speeds)]).astype(np.int64)
    return Sizes(
        first=first,
        allocation=np.array([o.allocation for o in flat], dtype=np.int64),
        slots=np.array([o.slots for o in flat], dtype=np.float64),
        cost=np.array([o.cost for o in flat], dtype=np.float64),
        ideal=np.array([[options.usual_ideal(t.name, (n,)) for n in range(len(options.clusters))] for t in types]),
        pace=np.array([options.paces[t.name] for t in types]),
        mean_capacity=np.array(options.mean_capacity),
        least_slots=np.array([options.of[t.name][0].slots for t in types]),
        speed_slots=np.array([sizes[0].slots for _, sizes in speeds]),
        shortest=np.concatenate([_shortest(sizes, t) for t, sizes in speeds]),
        fastest=np.concatenate([_fastest(sizes, t, f) for (t, sizes), f in zip(speeds, first, strict=False)]),
        rate=np.array([t.profile.rate(o.allocation) for t, sizes in speeds for o in sizes]),
    )


def _shortest(options: Sequence[EfficientSize], task_type: TaskType) -> Floats:
    """EfficientSizes.durations of one type, for every room from its minimum to its maximum."""
    worst = WORST_STRETCH * options[0].slots
    slots = np.array([*(min(worst, option.slots) for option in options), worst])
    return slots[_fastest(options, task_type, 0)]


def _fastest(options: Sequence[EfficientSize], task_type: TaskType, first: int) -> Ints:
    """For every room from the type's minimum to its maximum, the first option that fits, counted from ``first``."""
    found = np.full(task_type.profile.extent, -1, dtype=np.int64)
    for o in reversed(range(len(options))):  # the fastest last
        size = options[o].allocation
        found[tuple(slice(a - low, None) for a, low in zip(size, task_type.minimum, strict=True))] = first + o
    return found.reshape(-1)
