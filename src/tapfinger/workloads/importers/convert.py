"""A recorded trace -> a workload file and a scenario that every scheduler can run."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.config import MAX_CLUSTERS
from tapfinger.errors import ConfigError
from tapfinger.settings import check_settings
from tapfinger.workloads.files import ALL_CLUSTERS, WorkloadFile
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace
from tapfinger.workloads.importers.binning import Bin, bin_tasks
from tapfinger.workloads.importers.options import ConvertOptions

#: Without a given slot length, the median task takes about this many slots.
MEDIAN_SLOTS = 8
#: Without a given slot length, neither the trace nor its longest task takes more slots than this.
MOST_SLOTS = 200_000
#: Most characters of a name that comes from a trace.
LONGEST_NAME = 100
#: Number of clusters to make if the trace names none.
DEFAULT_CLUSTERS = 3


@dataclass
class Imported:
    """What an import produces, before it is written."""

    scenario: dict[str, Any]
    workload: WorkloadFile
    #: Tasks whose request was rounded to a more frequent one.
    rounded: int
    dropped: Mapping[str, int] = field(default_factory=dict)


def convert(trace: RecordedTrace, options: ConvertOptions) -> Imported:
    """Clusters, task types and arrivals from a trace whose tasks are sorted by arrival."""
    _check(options, trace.resources)
    tasks = _held(trace, options)[: options.limit]
    begin = tasks[0].arrival
    arrival = np.array([(task.arrival - begin) * options.time_scale for task in tasks])
    bins = bin_tasks(tasks, trace.resources, options.types)
    of_bin = np.empty(len(tasks), dtype=np.int64)
    for b, one in enumerate(bins):
        of_bin[list(one.members)] = b
    home = _homes(tasks, options)
    capacities = _capacities(trace.resources, bins, of_bin, arrival, home, options)
    slot = options.slot_seconds or _slot_seconds(tasks, arrival)
    names = _type_names(bins)
    scenario: dict[str, Any] = {
        "name": options.name,
        "description": f"{len(tasks)} recorded tasks in {len(bins)} types",
        "mode": options.mode,
        "slot_seconds": slot,
        "resources": trace.resources,
        "arrivals": {"kind": "trace", "file": "workload.csv"},
        "eligibility": {"kind": "subset"},
        "clusters": [{"name": name, "capacity": capacity} for name, capacity in capacities.items()],
        "task_types": [
            _task_type(name, one, trace.resources, capacities, options) for name, one in zip(names, bins, strict=True)
        ],
    }
    everywhere = ALL_CLUSTERS if options.eligible == "all" else ""
    workload = WorkloadFile(
        "import",
        arrival,
        tuple(names[b] for b in of_bin),
        tuple(home) if home is not None and options.eligible in (None, "own") else (everywhere,) * len(tasks),
        tuple(range(1, len(tasks) + 1)),
    )
    rounded = sum(tasks[i].request != one.request for one in bins for i in one.members)
    return Imported(scenario, workload, rounded, dict(trace.dropped))


def _check(options: ConvertOptions, resources: Mapping[str, float]) -> None:
    check_settings(options, options=True)
    idle = {
        "load": (options.capacity is not None, "--capacity gives the size of clusters"),
        "maximum_factor": (options.elastic is None, "tasks are rigid without --elastic"),
        "drop_oversized": (options.capacity is None, "clusters are made large enough without --capacity"),
    }
    for name, (useless, why) in idle.items():
        if useless and getattr(options, name) != ConvertOptions.__dataclass_fields__[name].default:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect: {why}; change that, or leave it out")
    if options.eligible not in (None, "own", "all", "draw"):
        raise ConfigError(f"eligible = {options.eligible!r} must be own, all or draw")
    if options.capacity is not None and set(options.capacity) != set(resources):
        raise ConfigError(
            f"capacity is given for {', '.join(options.capacity) or 'nothing'}, but this trace has "
            f"{', '.join(resources)}; give each of them, for example {','.join(f'{name}=64' for name in resources)}"
        )


def _held(trace: RecordedTrace, options: ConvertOptions) -> list[RecordedTask]:
    """The tasks that a given capacity can hold; without one, clusters are made large enough."""
    if options.capacity is None:
        return trace.tasks
    held = []
    for task in trace.tasks:
        over = [name for name, amount in task.request.items() if amount > options.capacity[name]]
        if not over:
            held.append(task)
        elif options.drop_oversized:
            trace.dropped[f"request exceeds the {over[0]} of a cluster"] += 1
        else:
            raise ConfigError(
                f"a task asks for {task.request[over[0]]:g} {over[0]}, but clusters have {options.capacity[over[0]]:g}"
                "; raise --capacity, or leave such tasks out with --drop-oversized"
            )
    if not held:
        raise ConfigError("no task fits the given --capacity; raise it")
    return held


def _homes(tasks: Sequence[RecordedTask], options: ConvertOptions) -> list[str] | None:
    """Each task's own cluster under a clean name, or None if clusters must be made up."""
    known = all(task.cluster for task in tasks)
    if options.clusters is not None or not known:
        if options.eligible == "own":
            why = "--clusters replaces them" if known else "not every task of this trace names one"
            raise ConfigError(f"eligible = own needs the trace's own clusters, but {why}")
        return None
    clean = _distinct({task.cluster: task.cluster for task in tasks})
    if len(clean) > MAX_CLUSTERS:
        raise ConfigError(
            f"the trace names {len(clean):,} clusters, at most {MAX_CLUSTERS:,} are possible; make up fewer with "
            "--clusters"
        )
    return [clean[task.cluster] for task in tasks]


def _distinct(wanted: Mapping[str, str]) -> dict[str, str]:
    """Key -> name fit for files; names that would become equal get a number."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    last: Counter[str] = Counter()
    for key, name in wanted.items():
        base = clean = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:LONGEST_NAME]
        while clean in taken:
            last[base] = max(1, last[base]) + 1
            clean = f"{base}-{last[base]}"
        taken.add(clean)
        names[key] = clean
    return names


def _capacities(
    resources: Mapping[str, float],
    bins: Sequence[Bin],
    of_bin: npt.NDArray[np.int64],
    arrival: npt.NDArray[np.float64],
    home: Sequence[str] | None,
    options: ConvertOptions,
) -> dict[str, dict[str, float]]:
    """Cluster name -> capacity: as given, or large enough for the wanted load and for each request."""
    if home is not None:
        names = sorted(set(home))
        members = {name: np.flatnonzero(np.array(home) == name) for name in names}
    else:
        names = [f"cluster-{n}" for n in range(options.clusters or DEFAULT_CLUSTERS)]
        members = dict.fromkeys(names, np.arange(len(of_bin)))
    if options.capacity is not None:
        return {name: dict(options.capacity) for name in names}
    # A task that may run elsewhere than where it was recorded shares all clusters with the others.
    split = 1 if home is not None else len(names)
    seconds = np.array([one.seconds for one in bins])[of_bin]
    capacities: dict[str, dict[str, float]] = {name: {} for name in names}
    for name, tasks in members.items():
        for resource, unit in resources.items():
            amounts = np.array([one.request[resource] for one in bins])[of_bin][tasks]
            wanted = _mean_demand(arrival[tasks], seconds[tasks], amounts) / options.load / split
            whole = max(unit, 1.0)  # tasks may share a GPU, but a cluster does not have a part of one
            capacities[name][resource] = math.ceil(max(wanted, float(amounts.max())) / whole - 1e-9) * whole
    return capacities


def _mean_demand(
    arrival: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64], amounts: npt.NDArray[np.float64]
) -> float:
    """Mean over tasks of the amount in use when a task arrives, itself included, if every task starts at once.

    The mean over time would be far too low for traces with months of hardly any tasks before the rush.
    """
    ends = np.argsort(arrival + seconds, kind="stable")
    gone = np.concatenate([[0.0], np.cumsum(amounts[ends])])
    ended = np.searchsorted((arrival + seconds)[ends], arrival, side="right")
    return float(np.mean(np.cumsum(amounts) - gone[ended]))


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
    resources: Mapping[str, float],
    capacities: Mapping[str, Mapping[str, float]],
    options: ConvertOptions,
) -> dict[str, Any]:
    minimum = dict(one.request)
    seconds = max(round(one.seconds, 3), 0.001)
    main = next(name for name in ("gpu", *minimum) if minimum.get(name))
    config: dict[str, Any] = {"name": name, "weight": len(one.members), "minimum": minimum}
    if options.elastic is None:
        return {**config, "speed": {"kind": "constant", "seconds": seconds}}
    unit = resources[main]
    most = max(capacity[main] for capacity in capacities.values())
    wanted = round(math.floor(minimum[main] * options.maximum_factor / unit + 1e-9) * unit, 6)
    return {
        **config,
        "maximum": {main: max(minimum[main], min(most, wanted))},
        "speed": {"kind": "amdahl", "seconds": seconds, "parallel": {main: options.elastic}},
    }


def _type_names(bins: Sequence[Bin]) -> list[str]:
    """Readable and unique, for example ``cifar10-8gpu-16cpu-25m``."""
    wanted = {}
    for i, one in enumerate(bins):
        amounts = [f"{amount:g}{name}" for name, amount in reversed(list(one.request.items())) if amount]
        wanted[str(i)] = "-".join([*([one.group] if one.group else []), *amounts, _duration(one.seconds)])
    return list(_distinct(wanted).values())


def _duration(seconds: float) -> str:
    for letter, unit in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f}".removesuffix(".0") + letter
    return f"{seconds:.0f}s"
