"""The distribution ``wide``: random sites as sites are: nodes, unlike hardware, other people's load, memory and data.

Sites are drawn part by part (``PARTS``), each part from its own stream of the seed. A further part of the world is one
more entry. It changes nothing about the parts that are there.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapfinger.config import ArrivalsConfig, Scenario, parse_scenario
from tapfinger.core.contract import Mode
from tapfinger.errors import ConfigError
from tapfinger.workloads.curves import draw_speed, tidy
from tapfinger.workloads.needs import needed
from tapfinger.workloads.sites import (
    LOADS,
    MOST_CELLS,
    MOST_STARTS,
    draw_arrivals,
    draw_eligibility,
    draw_ideals,
    draw_maximum,
    draw_noise,
    log_count,
    log_uniform,
    sustainable_rate,
    within,
)
from tapfinger.workloads.world import World, build_world

MOST_CLUSTERS = 16
#: Most nodes of a site; a cluster without nodes counts as one.
MOST_NODES = 40
#: Most nodes of one shape in a cluster.
MOST_OF_A_SHAPE = 8
CPUS = (1, 128)
#: Seconds per slot, the usual number of a scenario.
SLOT_SECONDS = 10.0
#: GiB per unit of memory.
MEMORY_UNIT = 4
#: How much faster bursts of arrivals are than calm phases, at most.
MOST_BURSTY = 25.0

#: Resource types of a site with their units, and how often it has these. Memory stands before the processors where
#: there are no GPUs: the last resource counts as the one that speeds tasks up.
RESOURCES: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.40, ("cpu", "gpu")),
    (0.30, ("cpu", "gpu", "memory")),
    (0.10, ("memory", "cpu")),
    (0.12, ("cpu",)),
    (0.08, ("gpu",)),
)

#: Kinds of hardware and their usual speeds: of nodes with GPUs, and of nodes without.
HARDWARE: dict[bool, dict[str, float]] = {
    True: {"t4": 0.3, "p100": 0.5, "v100": 1.0, "a100": 2.5},
    False: {"cpu-old": 0.6, "cpu-new": 1.4},
}

#: Part of the seed, so that sites share no random stream with workloads or other distributions.
_STREAM = 0x71DE5

Amounts = dict[str, int]


@dataclass
class Draft:
    """A site while it is drawn."""

    #: The scenario as far as it is drawn.
    data: dict[str, Any]
    #: Names of the resource types.
    names: tuple[str, ...] = ()
    #: What a node (or a cluster without nodes) has, and its kind, for every shape that occurs.
    shapes: list[tuple[Amounts, str]] = field(default_factory=list)
    #: Ideal duration of each task type in slots, and what the node has that it was drawn for.
    ideals: list[float] = field(default_factory=list)
    hosts: list[Amounts] = field(default_factory=list)
    #: Smallest factor of any task type on any hardware.
    slowest: float = 1.0
    #: Mean share of each node that other people leave, by the name of its cluster.
    left: dict[str, float] = field(default_factory=dict)

    @property
    def wholes(self) -> list[str]:
        """Names of the whole clusters."""
        clusters = self.data["clusters"]
        return [
            f"{one['name']}-{copy}" if one["count"] > 1 else one["name"]
            for one in clusters
            for copy in range(one["count"])
        ]


def draw_wide_site(seed: int, tasks: int = 150) -> Scenario:
    """A random site with ``tasks`` tasks per workload: a pure function of its arguments."""
    if seed < 0:
        raise ConfigError(f"site seed {seed} must be 0 or more")
    draft = Draft({"name": f"wide-{seed}", "tasks": tasks})
    for name, part in PARTS.items():
        part(_stream(seed, name), draft)
    site = parse_scenario(draft.data, f"site {seed}")
    rng = _stream(seed, "arrivals")
    load = rng.uniform(*LOADS)
    rate = _rate(build_world(site), load, draft.left)
    arrivals = ArrivalsConfig.model_validate(draw_arrivals(rng, rate, tasks, MOST_BURSTY))
    return site.model_copy(update={"arrivals": arrivals, "description": f"Drawn at random for a load of {load:.2f}"})


def _stream(seed: int, part: str) -> np.random.Generator:
    return np.random.default_rng([_STREAM, seed, zlib.crc32(part.encode())])


def _rate(world: World, load: float, left: Mapping[str, float]) -> float:
    """Mean tasks per slot for a load of what others leave.

    The scarcest type counts: where only a few nodes hold it, they fill up first.
    """
    weights = sum(t.weight for t in world.task_types)
    limit = sustainable_rate(world)
    for task_type in (t for t in world.task_types if t.weight):
        own = sum(
            c.capacity.copies_of(needed(task_type, world.ladders))
            / task_type.on(c.hardware).profile.slots(task_type.minimum)
            for c in world.clusters
        )
        limit = min(limit, own * weights / task_type.weight)
    free = sum(left.get(c.whole, 1.0) for c in world.clusters) / len(world.clusters)
    most = MOST_STARTS * len(world.clusters) if world.mode is Mode.SINGLE else math.inf
    return tidy(min(load * free * limit, most))


# --------------------------------------------------------------------------- parts


def _draw_frame(rng: np.random.Generator, draft: Draft) -> None:
    shares = [share for share, _ in RESOURCES]
    draft.names = RESOURCES[int(rng.choice(len(RESOURCES), p=shares))][1]
    units = {name: float(MEMORY_UNIT) if name == "memory" else 1.0 for name in draft.names}
    switching = tidy(rng.uniform(0.0, 1.0)) if rng.random() < 0.5 else 0.0
    draft.data |= {"mode": str(rng.choice(["single", "multi"])), "resources": units, "switching_cost": switching}
    draft.data["eligibility"] = draw_eligibility(rng)


def _draw_clusters(rng: np.random.Generator, draft: Draft) -> None:
    """Up to four groups of equal clusters: pools, or nodes of one or two shapes; hardware alike or not."""
    count = log_count(rng, MOST_CLUSTERS, 1.8)
    groups = min(count, int(rng.integers(1, 5)))
    cuts = np.sort(rng.permutation(np.arange(1, count))[: groups - 1])
    unlike = bool(rng.random() < 0.5)
    spare = MOST_NODES - count  # every cluster has at least one node
    clusters = []
    for g, copies in enumerate(np.diff(cuts, prepend=0, append=count).tolist()):
        shapes = [_draw_shape(rng, draft.names, unlike, with_gpus=not g)]
        if rng.random() < 0.3 and copies <= spare:
            shapes.append(_draw_shape(rng, draft.names, unlike))
            spare -= copies
        counts = []
        for wanted in rng.integers(1, MOST_OF_A_SHAPE + 1, len(shapes)).tolist():
            more = min(wanted - 1, spare // copies)
            spare -= more * copies
            counts.append(1 + more)
        name = f"edge-{chr(ord('a') + g)}"
        if len(shapes) > 1 or rng.random() < 0.5:
            nodes = [_node(amounts, kind, n) for (amounts, kind), n in zip(shapes, counts, strict=True)]
            clusters.append({"name": name, "count": copies, "nodes": nodes})
        else:
            amounts, kind = shapes[0]
            clusters.append({"name": name, "count": copies, "capacity": amounts, **({"kind": kind} if kind else {})})
        draft.shapes += shapes
    draft.data["clusters"] = clusters


def _draw_shape(
    rng: np.random.Generator, names: tuple[str, ...], unlike: bool, with_gpus: bool = False
) -> tuple[Amounts, str]:
    """A node without GPUs, with 1 to 3, with 4 or 8, or a large pool."""
    how = str(rng.choice(["none", "few", "usual", "many"], p=[0.3, 0.35, 0.25, 0.1]))
    gpus = {
        "none": 0,
        "few": int(rng.integers(1, 4)),
        "usual": int(rng.choice([4, 8])),
        "many": int(rng.integers(9, 65)),
    }
    gpu = gpus[how] if "gpu" in names else 0
    if "gpu" in names and not gpu and (with_gpus or names == ("gpu",)):
        gpu = gpus["few"]
    cpu = within(gpu * log_uniform(rng, 1.0, 12.0) if gpu else log_uniform(rng, 2.0, 64.0), CPUS)
    memory = MEMORY_UNIT * max(1, round(cpu * log_uniform(rng, 1.0, 8.0) / MEMORY_UNIT))
    has = {"cpu": cpu, "gpu": gpu, "memory": memory}
    kind = str(rng.choice(list(HARDWARE[gpu > 0])))
    return {name: has[name] for name in names}, kind if unlike else ""


def _node(amounts: Amounts, kind: str, count: int) -> dict[str, Any]:
    return {**{name: n for name, n in amounts.items() if n}, "count": count, **({"kind": kind} if kind else {})}


def _draw_types(rng: np.random.Generator, draft: Draft) -> None:
    """Every type is drawn for one of the shapes, so it fits there."""
    draft.ideals = draw_ideals(rng)
    kinds = dict.fromkeys(kind for _, kind in draft.shapes if kind)
    types = []
    for i, ideal in enumerate(draft.ideals):
        host = draft.shapes[0 if i == 0 else int(rng.integers(len(draft.shapes)))][0]
        draft.hosts.append(host)
        low = _draw_minimum(rng, host)
        high = {
            name: draw_maximum(rng, low[name], most) if name != "memory" and most else low[name]
            for name, most in host.items()
        }
        if not low.get("gpu") and rng.random() < 0.5:
            high = {name: low[name] if name == "gpu" else amount for name, amount in high.items()}
        if "cpu" in high:
            high["cpu"] = min(high["cpu"], low["cpu"] - 1 + MOST_CELLS // (high.get("gpu", 0) - low.get("gpu", 0) + 1))
        on = {}
        # Some tasks use all that new hardware has, others hardly any of it.
        use = rng.uniform(0.1, 1.0)
        for kind in kinds:
            factor = tidy((HARDWARE[True] | HARDWARE[False])[kind] ** use * np.exp(rng.normal(0.0, 0.1)))
            draft.slowest = min(draft.slowest, factor)
            on[kind] = _speed(rng, low, high, ideal / factor) if rng.random() < 0.1 else factor
        types.append(
            {
                "name": f"type-{i}",
                "weight": tidy(np.exp(rng.normal(0.0, 0.8))),
                "minimum": low,
                "maximum": high,
                "speed": _speed(rng, low, high, ideal),
                **({"on": on} if on else {}),
            }
        )
    draft.data["task_types"] = types


def _draw_minimum(rng: np.random.Generator, host: Amounts) -> Amounts:
    low = {
        "cpu": int(rng.choice([1, 1, 2, 2, 3, 4])),
        "gpu": int(rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 3, 4])),
        "memory": MEMORY_UNIT * round(log_uniform(rng, 1.0, max(1.0, host.get("memory", 0) / MEMORY_UNIT))),
    }
    if "cpu" not in host:
        low["gpu"] = max(1, low["gpu"])
    return {name: min(low[name], amount) for name, amount in host.items()}


def _speed(rng: np.random.Generator, low: Amounts, high: Amounts, ideal: float) -> dict[str, Any]:
    """Speeds depend on CPUs and GPUs. Where there are only GPUs, they take the part of the CPUs."""
    if "cpu" in low:
        return draw_speed(rng, {"gpu": 0, **low}, {"gpu": 0, **high}, ideal)
    drawn = draw_speed(rng, {"cpu": low["gpu"], "gpu": 0}, {"cpu": high["gpu"], "gpu": 0}, ideal)
    return {key: _renamed(value) for key, value in drawn.items()}


def _renamed(value: Any) -> Any:
    """``gpu`` for ``cpu``, as a name or as a key."""
    if isinstance(value, dict):
        return {_renamed(key): inner for key, inner in value.items()}
    return "gpu" if value == "cpu" else value


def _draw_noise(rng: np.random.Generator, draft: Draft) -> None:
    draft.data["noise"] = draw_noise(rng, max(draft.ideals) / draft.slowest)


def _draw_others(rng: np.random.Generator, draft: Draft) -> None:
    """On half of the sites other people use some clusters; at times they leave room for every task."""
    if rng.random() < 0.5:
        return
    names = draft.wholes
    taken = [names[i] for i in rng.permutation(len(names))[: int(rng.integers(1, len(names) + 1))].tolist()]
    cut = int(rng.integers(0, len(taken) + 1))
    entries = []
    for some in (taken[:cut], taken[cut:]):
        if some:
            entry, mean = _draw_other(rng)
            entries.append({**entry, "clusters": sorted(some)})
            draft.left |= dict.fromkeys(some, 1.0 - mean)
    draft.data["others"] = entries


def _draw_other(rng: np.random.Generator) -> tuple[dict[str, Any], float]:
    """Somebody's load, and its mean share. In calm phases and at night nobody is there, so nothing waits for ever."""
    if rng.random() < 0.6:
        lengths = {"calm_slots": log_uniform(rng, 10.0, 200.0), "busy_slots": log_uniform(rng, 5.0, 100.0)}
        busy = tidy(rng.uniform(0.3, 1.0))
        mean = busy * lengths["busy_slots"] / sum(lengths.values())
        return {"kind": "bursty", "busy": busy, **{key: tidy(slots) for key, slots in lengths.items()}}, mean
    mean = rng.uniform(0.15, 0.6)
    # Above the mean, the swing leaves some slots of every night empty.
    swing = mean * rng.uniform(1.1, 1.4)
    period = int(log_uniform(rng, 50.0, 1000.0))
    return {"kind": "day-night", "mean": tidy(mean), "swing": tidy(swing), "period": period}, mean


def _draw_needs(rng: np.random.Generator, draft: Draft) -> None:
    """On a third of the sites with memory, some types need two to eight times their minimum, which nobody knows."""
    if "memory" not in draft.names or rng.random() < 0.67:
        return
    for kind, host in zip(draft.data["task_types"], draft.hosts, strict=True):
        low, high = kind["minimum"], kind["maximum"]
        most = min(host["memory"], 8 * low["memory"])
        cells = math.prod(high[name] - low[name] + 1 for name in low if name != "memory")
        steps = (most - low["memory"]) // MEMORY_UNIT
        if rng.random() < 0.5 or not low["memory"] or steps < 1 or cells * (steps + 1) > MOST_CELLS:
            continue
        high["memory"] = most
        kind["needs"] = {"memory": low["memory"] + MEMORY_UNIT * int(rng.integers(1, steps + 1))}


def _draw_data(rng: np.random.Generator, draft: Draft) -> None:
    """On 40 % of the sites some types need data. To bring it takes a tenth to ten times as long as a mean task."""
    if rng.random() < 0.6:
        return
    wholes, usual = draft.wholes, float(np.mean(draft.ideals))
    mbps = tidy(log_uniform(rng, 10.0, 1000.0))
    if rng.random() < 0.3:
        draft.data["links"] = {"kind": "uniform", "minimum_mbps": tidy(mbps / 5.0), "maximum_mbps": tidy(mbps * 2.0)}
    else:
        draft.data["links"] = {"mbps": mbps}
    sets: list[dict[str, Any]] = []
    for i in range(int(rng.integers(1, 5))):
        gb = tidy(log_uniform(rng, 0.1, 10.0) * usual * SLOT_SECONDS * mbps / 8000.0)
        homes = [] if rng.random() < 0.3 else [wholes[int(rng.integers(len(wholes)))]]
        sets.append({"name": f"data-{i}", "gb": gb, **({"at": homes} if homes else {})})
    draft.data["data"] = sets
    needing = [kind for kind in draft.data["task_types"] if rng.random() < 0.6] or draft.data["task_types"][:1]
    for kind in needing:
        count = int(rng.integers(1, min(2, len(sets)) + 1))
        kind["data"] = [sets[n]["name"] for n in sorted(rng.permutation(len(sets))[:count].tolist())]
    largest = max(sum(one["gb"] for one in sets if one["name"] in kind["data"]) for kind in needing)
    for cluster in draft.data["clusters"]:
        if rng.random() < 0.5:
            cluster["cache_gb"] = tidy(1.01 * largest * log_uniform(rng, 1.0, 4.0))


Part = Callable[[np.random.Generator, Draft], None]

#: In this order. A name is part of the seed: renaming a part draws other sites.
PARTS: dict[str, Part] = {
    "frame": _draw_frame,
    "clusters": _draw_clusters,
    "types": _draw_types,
    "noise": _draw_noise,
    "others": _draw_others,
    "needs": _draw_needs,
    "data": _draw_data,
}
