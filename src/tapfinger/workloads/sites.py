"""The distribution ``pools``: the random sites that the universal policy learns on (docs/universal.md).

A site is plain scenario data. Nothing here is read by the simulator or by a scheduler. Models record what they were
trained on, so a seed must give the same site for ever; ``wide_sites`` is the distribution with nodes and hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tapfinger.config import ArrivalsConfig, Scenario, parse_scenario
from tapfinger.core.contract import Mode
from tapfinger.errors import ConfigError
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.workloads.curves import draw_speed, tidy
from tapfinger.workloads.world import World, build_world

#: Range of drawn loads.
LOADS = (0.3, 1.15)

#: Maximum mean starts per cluster and slot in single mode: at 1 no queue would ever shrink.
MOST_STARTS = 0.95

MOST_CLUSTERS = 24
MOST_TYPES = 12
GPUS = (4, 64)
CPUS = (4, 128)

#: Largest factor between the capacities of two clusters.
SPREAD = 8.0

#: Range of slots that tasks take under their fastest allocation; a task below 1 still takes a slot.
IDEALS = (0.6, 100.0)

#: Maximum number of cells of a task type's table: more would slow everything down and teach nothing.
MOST_CELLS = 2000

#: Part of the seed, so that sites share no random stream with workloads of the same seed.
_STREAM = 0x51735


def ranges() -> dict[str, tuple[float, float]]:
    """Ranges that sites are drawn from; models record them as what they were trained on."""
    return {
        "clusters": (1, MOST_CLUSTERS),
        "task types": (1, MOST_TYPES),
        "resource types": (2, 2),
        "accelerators of a cluster": GPUS,
        "units of another resource of a cluster": CPUS,
        "times the smallest cluster, the largest": (1, SPREAD),
        "slots of a task's fastest run": IDEALS,
    }


def draw_site(seed: int, tasks: int = 150) -> Scenario:
    """A random site with ``tasks`` tasks per workload: a pure function of its arguments."""
    if seed < 0:
        raise ConfigError(f"site seed {seed} must be 0 or more")
    rng = np.random.default_rng([_STREAM, seed])
    clusters = _draw_clusters(rng)
    largest = max((c["capacity"] for c in clusters), key=lambda capacity: (capacity["gpu"], capacity["cpu"]))
    ideals = draw_ideals(rng)
    data = {
        "name": f"site-{seed}",
        "mode": str(rng.choice(["single", "multi"])),
        "tasks": tasks,
        "clusters": clusters,
        "task_types": [_draw_type(rng, f"type-{i}", largest, ideal) for i, ideal in enumerate(ideals)],
        "eligibility": draw_eligibility(rng),
        "noise": draw_noise(rng, max(ideals)),
        "switching_cost": tidy(rng.uniform(0.0, 1.0)) if rng.random() < 0.5 else 0.0,
    }
    site = parse_scenario(data, f"site {seed}")
    load = rng.uniform(*LOADS)
    rate = rate_for(build_world(site), load)
    arrivals = ArrivalsConfig.model_validate(draw_arrivals(rng, rate, tasks))
    return site.model_copy(update={"arrivals": arrivals, "description": f"Drawn at random for a load of {load:.2f}"})


def sustainable_rate(world: World) -> float:
    """Most tasks per slot that the clusters could finish, if every task had its cheapest size.

    A size costs its slots x the largest share of a mean cluster; a cluster can pay 1 per slot. In single mode it can
    also start only one task per slot. Not counted are sizes that fit badly together, clusters that few tasks may run
    on, and time lost to eligibility. So the true limit is somewhat lower.
    """
    options = EfficientSizes(world.context(0))
    weights = np.array([t.weight for t in world.task_types])
    costs = np.array([min(o.cost for o in options.of[t.name]) for t in world.task_types])
    pools = sum(not cluster.nodes for cluster in world.clusters)  # spans have nothing of their own
    rate = pools * float(weights.sum() / (weights * costs).sum())
    return min(rate, float(len(world.clusters))) if world.mode is Mode.SINGLE else rate


def rate_for(world: World, load: float) -> float:
    """Mean tasks per slot that give this load; never more than 0.95 starts per cluster and slot in single mode."""
    most = MOST_STARTS * len(world.clusters) if world.mode is Mode.SINGLE else float("inf")
    return tidy(min(load * sustainable_rate(world), most))


def offered_load(world: World) -> float:
    """Arrival rate as a share of the sustainable rate."""
    options = world.scenario.arrivals.options()
    if "rate" not in options:
        raise ConfigError(
            f"{world.scenario.source}: arrivals of kind {world.scenario.arrivals.kind!r} have no rate, so the load is "
            "not known; use poisson, bursty or day-night"
        )
    return float(options["rate"]) / sustainable_rate(world)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between the two, each factor as likely as any other."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def log_count(rng: np.random.Generator, most: int, skew: float) -> int:
    """A number from 1 to ``most``; the greater the skew, the more often it is small."""
    first = 1.85  # rounded down, so 1 is not the most frequent
    return int(first * ((most + 1) / first) ** (rng.random() ** skew))


def within(value: float, bounds: tuple[int, int]) -> int:
    """The nearest whole number inside the bounds."""
    return int(min(max(round(value), bounds[0]), bounds[1]))


def _draw_clusters(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Equal clusters, or up to five kinds that differ by a factor of up to 8 in each resource."""
    count = log_count(rng, MOST_CLUSTERS, 1.8)
    gpu = 2.0 ** rng.integers(2, 7) if rng.random() < 0.5 else log_uniform(rng, *GPUS)
    cpu = gpu * (2.0 ** rng.integers(-1, 3) if rng.random() < 0.5 else log_uniform(rng, 0.5, 4.0))
    kinds = 1 if rng.random() < 0.4 else min(count, int(rng.integers(2, 6)))
    # The largest is as drawn, the others are smaller by some share of the spread, equally in both resources or not.
    spread = log_uniform(rng, 1.5, SPREAD)
    shrink = spread ** -rng.random((kinds, 2))
    shrink[0] = 1.0
    if rng.random() < 0.5:
        shrink[:, 1] = shrink[:, 0]
    sizes = [{"cpu": within(cpu * c, CPUS), "gpu": within(gpu * g, GPUS)} for c, g in shrink.tolist()]
    cuts = np.sort(rng.permutation(np.arange(1, count))[: kinds - 1])
    counts = np.diff(cuts, prepend=0, append=count)
    return [
        {"name": f"edge-{chr(ord('a') + i)}", "count": int(n), "capacity": size}
        for i, (n, size) in enumerate(zip(counts, sizes, strict=True))
    ]


def draw_ideals(rng: np.random.Generator) -> list[float]:
    """Slots under the fastest allocation, one per task type: mostly within a factor of 20."""
    count = log_count(rng, MOST_TYPES, 1.2)
    low, high = IDEALS
    spread = high / low if rng.random() < 0.1 else log_uniform(rng, 1.0, 20.0)
    shortest = log_uniform(rng, low, high / spread)
    return [float(shortest * spread**share) for share in rng.random(count)]


def _draw_type(rng: np.random.Generator, name: str, largest: Mapping[str, int], ideal: float) -> dict[str, Any]:
    """A task type whose fastest allocation takes about ``ideal`` slots; all of its sizes fit the largest cluster."""
    low = {"cpu": int(rng.choice([1, 1, 2, 2, 3, 4])), "gpu": int(rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 3, 4]))}
    high = {key: draw_maximum(rng, least, largest[key]) for key, least in low.items()}
    if not low["gpu"] and rng.random() < 0.5:
        high["gpu"] = 0
    # If the table would have too many cells, the maximum of cpus is lowered: it matters less.
    high["cpu"] = min(high["cpu"], low["cpu"] - 1 + MOST_CELLS // (high["gpu"] - low["gpu"] + 1))
    return {
        "name": name,
        "weight": tidy(np.exp(rng.normal(0.0, 0.8))),
        "minimum": low,
        "maximum": high,
        "speed": draw_speed(rng, low, high, ideal),
    }


def draw_maximum(rng: np.random.Generator, least: int, capacity: int) -> int:
    """The largest amount that a task can use: all there is, or anything below."""
    if rng.random() < 0.5:
        return capacity
    return within(log_uniform(rng, max(1, least), capacity), (least, capacity))


def draw_eligibility(rng: np.random.Generator) -> dict[str, Any]:
    """Which clusters tasks may run on."""
    kind = str(rng.choice(["subset", "bandwidth", "all"], p=[0.5, 0.3, 0.2]))
    return {"kind": kind, "minimum_mbps": tidy(rng.uniform(2.0, 8.0))} if kind == "bandwidth" else {"kind": kind}


def draw_noise(rng: np.random.Generator, longest: float) -> dict[str, Any]:
    """Additive noise stays below the gain of the longest task: beyond it, noise would do all the work."""
    kind = str(rng.choice(["none", "additive", "relative"], p=[0.5, 0.25, 0.25]))
    if kind == "none":
        return {"kind": kind}
    share = rng.uniform(0.1, 0.6)
    return {"kind": kind, "amplitude": tidy(share if kind == "relative" else share / longest)}


def draw_arrivals(rng: np.random.Generator, rate: float, tasks: int, most_bursty: float = 8.0) -> dict[str, Any]:
    """All kinds have the same mean rate; a phase is a fraction of the workload, so that each workload has several."""
    kind = str(rng.choice(["poisson", "bursty", "day-night"], p=[0.5, 0.35, 0.15]))
    span = tasks / rate
    if kind == "bursty":
        share = rng.uniform(0.1, 0.4)
        # A calm phase is at least a slot long, as is a burst.
        length = max(1.0 / (1.0 - share), share * span / log_uniform(rng, 4.0, 20.0))
        burst = {"burst_factor": rng.uniform(2.0, most_bursty), "burst_share": share, "burst_slots": length}
        return {"kind": kind, "rate": rate, **{key: tidy(value) for key, value in burst.items()}}
    if kind == "day-night":
        swing = {"swing": rng.uniform(0.3, 1.0), "period": max(2.0, span / log_uniform(rng, 2.0, 6.0))}
        return {"kind": kind, "rate": rate, **{key: tidy(value) for key, value in swing.items()}}
    return {"kind": kind, "rate": rate}
