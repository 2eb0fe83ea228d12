"""A recorded trace -> a workload file and a scenario that every scheduler can run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.errors import ConfigError
from tapfinger.settings import check_settings
from tapfinger.workloads.curves import tidy
from tapfinger.workloads.files import WorkloadFile
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace
from tapfinger.workloads.importers.binning import Bin, bin_tasks
from tapfinger.workloads.importers.clusters import (
    Amounts,
    Kinds,
    Layout,
    distinct,
    eligible_clusters,
    homes,
    lay_out,
)
from tapfinger.workloads.importers.gpu_speeds import speeds
from tapfinger.workloads.importers.options import ConvertOptions
from tapfinger.workloads.importers.sizing import TraceLoad

#: Without a given slot length, the median task takes about this many slots.
MEDIAN_SLOTS = 8
#: Without a given slot length, neither the trace nor its longest task takes more slots than this.
MOST_SLOTS = 200_000


@dataclass
class Imported:
    """What an import produces, before it is written."""

    scenario: dict[str, Any]
    workload: WorkloadFile
    #: Tasks whose request was rounded to a more frequent one.
    rounded: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    #: Speed of every kind of GPU, relative to a V100.
    speeds: Mapping[str, float] = field(default_factory=dict)


def convert(trace: RecordedTrace, options: ConvertOptions) -> Imported:
    """Clusters, task types and arrivals from a trace whose tasks are sorted by arrival."""
    _check(options, trace)
    tasks = _held(trace, options)[: options.limit]
    begin = tasks[0].arrival
    arrival = np.array([(task.arrival - begin) * options.time_scale for task in tasks])
    bins = bin_tasks(tasks, trace.resources, options.types)
    of_bin = np.empty(len(tasks), dtype=np.int64)
    for b, one in enumerate(bins):
        of_bin[list(one.members)] = b
    home = homes(tasks, options)
    # Tasks of a bin have the kinds of its group, also those whose rare request was rounded to another group's.
    kinds_of = {task.group: task.kinds for task in tasks}
    kinds = [kinds_of[one.group] for one in bins]
    layout = lay_out(trace, TraceLoad(bins, of_bin, arrival), kinds, home, options)
    fast = speeds(layout.gpus, options.gpu_speed, trace.kinds_from)
    slot = options.slot_seconds or _slot_seconds(tasks, arrival)
    names = _type_names(bins)
    scenario: dict[str, Any] = {
        "name": options.name,
        "description": f"{len(tasks)} recorded tasks in {len(bins)} types",
        "mode": options.mode,
        "slot_seconds": slot,
        "resources": _resources(trace),
        "arrivals": {"kind": "trace", "file": "workload.csv"},
        "eligibility": {"kind": "subset"},
        "clusters": layout.clusters,
        "task_types": [
            _task_type(name, one, some, trace.resources, layout, fast, options)
            for name, one, some in zip(names, bins, kinds, strict=True)
        ],
    }
    workload = WorkloadFile(
        "import",
        arrival,
        tuple(names[b] for b in of_bin),
        eligible_clusters(layout, of_bin, kinds, home, options),
        tuple(range(1, len(tasks) + 1)),
    )
    rounded = sum((tasks[i].group, tasks[i].request) != (one.group, one.request) for one in bins for i in one.members)
    return Imported(scenario, workload, rounded, dict(trace.dropped), fast)


def _resources(trace: RecordedTrace) -> dict[str, Any]:
    if not trace.shares:
        return trace.resources
    # All as tables: TOML has plain values before tables, and the order of resources counts.
    return {
        name: {"unit": unit, **({"role": "share"} if name in trace.shares else {})}
        for name, unit in trace.resources.items()
    }


def _check(options: ConvertOptions, trace: RecordedTrace) -> None:
    check_settings(options, options=True)
    listed = bool(trace.nodes)
    idle = {
        "load": (options.capacity is not None or listed, f"--{'nodes' if listed else 'capacity'} gives sizes"),
        "capacity": (listed, "--nodes gives the size of clusters"),
        "clusters": (listed, "--nodes gives the clusters"),
        "node_share": (not listed, "there is no list of --nodes"),
        "maximum_factor": (options.elastic is None, "tasks are rigid without --elastic"),
        "drop_oversized": (
            options.capacity is None and not listed,
            "clusters are made large enough without --capacity",
        ),
    }
    for name, (useless, why) in idle.items():
        if useless and getattr(options, name) != getattr(ConvertOptions(""), name):
            raise ConfigError(f"--{name.replace('_', '-')} has no effect: {why}; change that, or leave it out")
    if options.eligible not in (None, "own", "kinds", "all", "draw"):
        raise ConfigError(f"eligible = {options.eligible!r} must be own, kinds, all or draw")
    if options.capacity is not None and set(options.capacity) != set(trace.resources):
        raise ConfigError(
            f"capacity is given for {', '.join(options.capacity) or 'nothing'}, but this trace has "
            f"{', '.join(trace.resources)}; give each of them, for example "
            f"{','.join(f'{name}=64' for name in trace.resources)}"
        )


def _held(trace: RecordedTrace, options: ConvertOptions) -> list[RecordedTask]:
    """The tasks that given nodes or a given capacity can hold; without them, clusters are made large enough."""
    if options.capacity is None and not trace.nodes:
        return trace.tasks
    by_kind = trace.nodes and options.eligible in (None, "kinds")
    faults: dict[tuple[int, Kinds], str] = {}
    held = []
    for task in trace.tasks:
        kinds = task.kinds if by_kind else ()
        key = (id(task.request), kinds)  # equal requests are one object
        if key not in faults:
            faults[key] = _fault(task.request, kinds, trace, options)
        if not faults[key]:
            held.append(task)
        else:
            trace.dropped[faults[key]] += 1
    if not held:
        given = f"nodes of {trace.kinds_from}; give another list" if trace.nodes else "--capacity; raise it"
        raise ConfigError(f"no task fits the given {given}")
    return held


def _fault(request: Amounts, kinds: Kinds, trace: RecordedTrace, options: ConvertOptions) -> str:
    """Why a task is left out; empty if it fits."""
    if options.capacity is not None:
        over = next((name for name, amount in request.items() if amount > options.capacity[name]), None)
        if over is None:
            return ""
        reason = f"request exceeds the {over} of a cluster"
        problem = f"a task asks for {request[over]:g} {over}, but clusters have {options.capacity[over]:g}"
        remedy = "raise --capacity, or leave such tasks out with --drop-oversized"
    else:
        shapes = [shape for shape in trace.nodes if not kinds or shape.kind in kinds]
        if not shapes:
            return "no node has a GPU of a kind that it asks for"
        if any(shape.holds(request) for shape in shapes):
            return ""
        reason = "request exceeds every node that it may run on"
        amounts = ", ".join(f"{amount:g} {name}" for name, amount in request.items())
        named = f" with {' or '.join(kinds)}" if kinds else ""
        problem = f"a task asks for {amounts}, but no node{named} in {trace.kinds_from} has as much"
        remedy = "leave such tasks out with --drop-oversized"
    if options.drop_oversized:
        return reason
    raise ConfigError(f"{problem}; {remedy}")


def _slot_seconds(tasks: Sequence[RecordedTask], arrival: npt.NDArray[np.float64]) -> float:
    """A round number of seconds: short for the median task, long enough for the whole trace."""
    seconds = np.array([task.seconds for task in tasks])
    wanted = max(float(np.median(seconds)) / MEDIAN_SLOTS, max(float(arrival[-1]), float(seconds.max())) / MOST_SLOTS)
    return round_up(wanted)


def round_up(seconds: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ... and of their tenths."""
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= seconds * (1 - 1e-9))


def _task_type(
    name: str,
    one: Bin,
    kinds: Kinds,
    resources: Mapping[str, float],
    layout: Layout,
    fast: Mapping[str, float],
    options: ConvertOptions,
) -> dict[str, Any]:
    """``fast``: the speed of every kind of GPU."""
    minimum = dict(one.request)
    seconds = max(round(one.seconds, 3), 0.001)
    main = next(name for name in ("gpu", *minimum) if minimum.get(name))
    config: dict[str, Any] = {"name": name, "weight": len(one.members), "minimum": minimum}
    if options.elastic is None:
        config["speed"] = {"kind": "constant", "seconds": seconds}
    else:
        unit = resources[main]
        rooms = [room for kind, some in layout.rooms.items() if not kinds or kind in kinds for room in some]
        most = max((room[main] for room in rooms), default=0.0)
        wanted = round(math.floor(minimum[main] * options.maximum_factor / unit + 1e-9) * unit, 6)
        config["maximum"] = {main: max(minimum[main], min(most, wanted))}
        config["speed"] = {"kind": "amdahl", "seconds": seconds, "parallel": {main: options.elastic}}
    return {**config, "on": _factors(kinds, bool(minimum.get("gpu")), layout, fast)} if fast else config


def _factors(kinds: Kinds, uses_gpus: bool, layout: Layout, fast: Mapping[str, float]) -> dict[str, float]:
    """Kind of GPU -> factor on the speed.

    The trace does not say on which of them a task ran, so its duration counts as that on the mean GPU of those it may
    have run on.
    """
    if not uses_gpus:
        return dict.fromkeys(fast, 1.0)
    may = {kind: layout.gpus[kind] for kind in fast if kind in kinds} or layout.gpus
    mean = sum(fast[kind] * count for kind, count in may.items()) / sum(may.values())
    return {kind: tidy(speed / mean) for kind, speed in fast.items()}


def _type_names(bins: Sequence[Bin]) -> list[str]:
    """Readable and unique, for example ``cifar10-8gpu-16cpu-25m``."""
    wanted = {}
    for i, one in enumerate(bins):
        amounts = [f"{amount:g}{name}" for name, amount in reversed(list(one.request.items())) if amount]
        wanted[str(i)] = "-".join([*([one.group] if one.group else []), *amounts, _duration(one.seconds)])
    return list(distinct(wanted).values())


def _duration(seconds: float) -> str:
    for letter, unit in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f}".removesuffix(".0") + letter
    return f"{seconds:.0f}s"
