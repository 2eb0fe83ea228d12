"""The clusters of an import, and on which of them each task may run.

There are four cases: the nodes of a node list, a cluster for every kind of GPU that tasks name, the trace's own
clusters, and clusters that are made up.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.config import MAX_CLUSTERS, MAX_PAIRS
from tapfinger.errors import ConfigError
from tapfinger.workloads.files import ALL_CLUSTERS, SEPARATOR
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace
from tapfinger.workloads.importers.nodes import NodeShape
from tapfinger.workloads.importers.options import ConvertOptions
from tapfinger.workloads.importers.sizing import TraceLoad, capacities

#: Most characters of a name that comes from a trace.
LONGEST_NAME = 100
#: Number of clusters to make if the trace names none.
DEFAULT_CLUSTERS = 3
#: Name of the cluster of nodes without GPUs.
WITHOUT_GPUS = "cpu"

#: Natural quantities by resource name.
Amounts = Mapping[str, float]
#: Kinds of GPU that tasks may run on; any if empty.
Kinds = tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The clusters of an import."""

    #: As a scenario states them.
    clusters: list[dict[str, Any]]
    #: What their pools or nodes have, by kind of GPU; the kind is empty if there is none or none is known.
    rooms: Mapping[str, Sequence[Amounts]]
    #: Name of the cluster of every kind; empty if clusters have no kinds.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Number of GPUs of every kind, in all.
    gpus: Mapping[str, float] = field(default_factory=dict)


def lay_out(
    trace: RecordedTrace, load: TraceLoad, kinds: Sequence[Kinds], home: Sequence[str] | None, options: ConvertOptions
) -> Layout:
    """Choose the clusters. ``kinds``: those that each bin may run on; ``home``: each task's own cluster."""
    if trace.nodes:
        return _of_nodes(_part_of_nodes(trace, options), len(load.of_bin))
    named = sorted({kind for some in kinds for kind in some})
    if options.clusters is None and named:
        names = distinct({kind: kind for kind in named})
        takers = {kind: np.array([not some or kind in some for some in kinds]) for kind in named}
        spread = np.array([len(some) or len(named) for some in kinds])[load.of_bin]
        members = {names[kind]: np.flatnonzero(taken[load.of_bin]) for kind, taken in takers.items()}
        sizes = capacities(trace.resources, load, members, spread, options)
        return Layout(
            [{"name": name, "kind": kind, "capacity": sizes[name]} for kind, name in names.items()],
            {kind: [sizes[name]] for kind, name in names.items()},
            names,
            {kind: sizes[name]["gpu"] for kind, name in names.items()},
        )
    if home is not None:
        members = {name: np.flatnonzero(np.array(home) == name) for name in sorted(set(home))}
        split = 1
    else:
        # A task that may run elsewhere than where it was recorded shares all clusters with the others.
        split = options.clusters or DEFAULT_CLUSTERS
        members = {f"cluster-{n}": np.arange(len(load.of_bin)) for n in range(split)}
    sizes = capacities(trace.resources, load, members, np.full(len(load.of_bin), split), options)
    return Layout(
        [{"name": name, "capacity": capacity} for name, capacity in sizes.items()], {"": list(sizes.values())}
    )


def eligible_clusters(
    layout: Layout,
    of_bin: npt.NDArray[np.int64],
    kinds: Sequence[Kinds],
    home: Sequence[str] | None,
    options: ConvertOptions,
) -> tuple[str, ...]:
    """The workload file's column ``eligible``."""
    how = options.eligible or ("own" if home is not None else "kinds" if layout.names else "draw")
    if how == "own":
        return tuple(home or ())
    if how == "kinds":
        if not layout.names:
            raise ConfigError("eligible = kinds needs kinds of GPUs, and this import has none; leave it out")
        known = [[layout.names[kind] for kind in some if kind in layout.names] for some in kinds]
        texts = [SEPARATOR.join(names) or ALL_CLUSTERS for names in known]
        return tuple(texts[b] for b in of_bin)
    return (ALL_CLUSTERS if how == "all" else "",) * len(of_bin)


def _part_of_nodes(trace: RecordedTrace, options: ConvertOptions) -> dict[NodeShape, int]:
    """The nodes that are taken, of every shape at least one."""
    nodes = {shape: max(1, round(count * options.node_share)) for shape, count in trace.nodes.items()}
    if (count := sum(nodes.values())) > MAX_CLUSTERS:
        raise ConfigError(
            f"there are {count:,} nodes, at most {MAX_CLUSTERS:,} are possible; take a part of them with --node-share"
        )
    return nodes


def _of_nodes(nodes: Mapping[NodeShape, int], tasks: int) -> Layout:
    """One cluster per kind of GPU, and one of the nodes without GPUs."""
    if (pairs := sum(nodes.values()) * tasks) > MAX_PAIRS:
        raise ConfigError(
            f"{tasks:,} tasks on {sum(nodes.values()):,} nodes make {pairs:,} pairs of a task and a node, at most "
            f"{MAX_PAIRS:,} are possible; take fewer tasks with --limit, or fewer nodes with --node-share"
        )
    by_kind: dict[str, dict[NodeShape, int]] = defaultdict(dict)
    for shape in sorted(nodes, key=lambda shape: (shape.kind, shape.amounts)):
        by_kind[shape.kind][shape] = nodes[shape]
    names = distinct({kind: kind or WITHOUT_GPUS for kind in by_kind})
    clusters = [
        {
            "name": names[kind],
            **({"kind": kind} if kind else {}),
            "nodes": [
                {**{name: amount for name, amount in shape.amounts if amount}, "count": count}
                for shape, count in shapes.items()
            ],
        }
        for kind, shapes in by_kind.items()
    ]
    rooms = {kind: [dict(shape.amounts) for shape in shapes] for kind, shapes in by_kind.items()}
    gpus = {
        kind: sum(dict(shape.amounts)["gpu"] * count for shape, count in shapes.items())
        for kind, shapes in by_kind.items()
        if kind
    }
    return Layout(clusters, rooms, names, gpus)


def homes(tasks: Sequence[RecordedTask], options: ConvertOptions) -> list[str] | None:
    """Each task's own cluster under a clean name, or None if the trace does not say it or others are wanted."""
    known = all(task.cluster for task in tasks)
    if options.clusters is not None or not known:
        if options.eligible == "own":
            why = "--clusters replaces them" if known else "not every task of this trace names one"
            raise ConfigError(f"eligible = own needs the trace's own clusters, but {why}")
        return None
    clean = distinct({task.cluster: task.cluster for task in tasks})
    if len(clean) > MAX_CLUSTERS:
        raise ConfigError(
            f"the trace names {len(clean):,} clusters, at most {MAX_CLUSTERS:,} are possible; make up fewer with "
            "--clusters"
        )
    return [clean[task.cluster] for task in tasks]


def distinct(wanted: Mapping[str, str]) -> dict[str, str]:
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
