"""A fixed matrix of sites to judge universal policies on: built by hand, none drawn from the training distribution."""

from __future__ import annotations

from typing import Any, NamedTuple

from tapfinger.config import Scenario, parse_scenario
from tapfinger.workloads.sites import rate_for
from tapfinger.workloads.world import build_world


class Site(NamedTuple):
    """One cell of the matrix."""

    clusters: int
    #: "equal" or "unequal".
    capacities: str
    load: float
    mode: str
    #: Key of MIXES that gives the task types.
    mix: str

    @property
    def name(self) -> str:
        """Name of the site in the report."""
        return f"{self.clusters}-{self.capacities}-{self.load:g}" + ("-testbed" if self.mix == "testbed" else "")


SITES = (
    Site(3, "equal", 0.6, "multi", "mixed"),
    Site(3, "equal", 0.8, "single", "amdahl"),
    Site(3, "equal", 1.1, "multi", "rebound"),
    Site(3, "unequal", 0.6, "single", "saturating"),
    Site(3, "unequal", 0.8, "multi", "measured"),
    Site(3, "unequal", 1.1, "single", "sub-linear"),
    Site(8, "equal", 0.6, "single", "measured"),
    Site(8, "equal", 0.8, "multi", "sub-linear"),
    Site(8, "equal", 1.1, "single", "mixed"),
    Site(8, "unequal", 0.6, "multi", "amdahl"),
    Site(8, "unequal", 0.8, "single", "rebound"),
    Site(8, "unequal", 1.1, "multi", "steady"),
    Site(20, "equal", 0.6, "multi", "saturating"),
    Site(20, "equal", 0.8, "single", "mixed"),
    Site(20, "equal", 1.1, "multi", "measured"),
    Site(20, "unequal", 0.6, "single", "sub-linear"),
    Site(20, "unequal", 0.8, "multi", "steady"),
    Site(20, "unequal", 1.1, "single", "amdahl"),
    Site(3, "equal", 0.6, "multi", "testbed"),
    Site(3, "equal", 0.8, "single", "testbed"),
    Site(3, "unequal", 1.1, "single", "testbed"),
    Site(8, "unequal", 0.6, "single", "testbed"),
    Site(8, "equal", 0.8, "multi", "testbed"),
    Site(8, "equal", 1.1, "multi", "testbed"),
)

#: (number of clusters, cpus, gpus) of each kind; not always powers of two, nor in a constant ratio.
CAPACITIES = {
    (3, "equal"): ((3, 24, 12),),
    (3, "unequal"): ((1, 40, 20), (1, 20, 10), (1, 8, 5)),
    (8, "equal"): ((8, 32, 16),),
    (8, "unequal"): ((2, 48, 24), (3, 24, 10), (3, 10, 6)),
    (20, "equal"): ((20, 16, 8),),
    (20, "unequal"): ((3, 60, 32), (7, 24, 16), (10, 8, 6)),
}


def _type(
    name: str, minimum: tuple[int, int], maximum: tuple[int, int], weight: float, **speed: object
) -> dict[str, Any]:
    """A task type; amounts are (cpu, gpu)."""
    low, high = (dict(zip(("cpu", "gpu"), amounts, strict=True)) for amounts in (minimum, maximum))
    return {"name": name, "weight": weight, "minimum": low, "maximum": high, "speed": speed}


_SHORT = _type("short", (2, 1), (8, 4), 1.0, kind="constant", slots=2)
_STEADY = _type("steady", (3, 2), (8, 8), 0.5, kind="constant", slots=15)
_POWER = _type("power", (2, 1), (12, 16), 1.0, kind="power", seconds=500, exponent={"gpu": 0.85, "cpu": 0.2})
_ROOT = _type("root", (1, 1), (4, 12), 0.7, kind="power", seconds=160, exponent={"gpu": 0.5})
_CPU_ONLY = _type("cpu-only", (2, 0), (16, 0), 0.4, kind="power", seconds=300, exponent={"cpu": 0.75})
_TANH = _type("tanh", (2, 1), (8, 12), 1.0, kind="tanh", scale=7, slots=3, shape_offset=1.2)
_LEVEL = _type("level", (3, 1), (6, 16), 0.6, kind="tanh", scale=12, slots=6)
_CPU_TANH = _type("cpu-tanh", (2, 1), (16, 2), 0.8, kind="tanh", resource="cpu", scale=9, slots=5, shape_offset=1.5)
_AMDAHL = _type("amdahl", (2, 1), (8, 16), 1.0, kind="amdahl", seconds=600, parallel={"gpu": 0.95})
_BOTH = _type("both", (2, 2), (16, 12), 0.8, kind="amdahl", seconds=280, parallel={"gpu": 0.6, "cpu": 0.3})
_SERIAL = _type("serial", (1, 1), (8, 8), 0.5, kind="amdahl", seconds=90, parallel={"gpu": 0.4})
_FED = _type("fed", (1, 1), (16, 16), 1.0, kind="rebound", fixed=20, compute=420, feeding=35)
_HUNGRY = _type("hungry", (2, 2), (20, 10), 0.6, kind="rebound", fixed=8, compute=260, feeding=70)
_LIGHT = _type("light", (2, 1), (8, 6), 0.9, kind="rebound", fixed=15, compute=90, feeding=10)
_BUMPY = _type(
    "bumpy",
    (1, 1),
    (8, 12),
    1.0,
    kind="grid",
    amounts={"gpu": [1, 2, 3, 4, 6, 8, 12]},
    seconds=[410, 222, 160, 171, 104, 92, 97],
)
_LOADER = _type(
    "loader",
    (2, 1),
    (16, 8),
    0.8,
    kind="grid",
    amounts={"cpu": [2, 4, 8, 16], "gpu": [1, 2, 4, 8]},
    seconds=[190, 121, 131, 260, 186, 104, 82, 118, 181, 107, 70, 77, 184, 99, 72, 69],
)
_STEPS = _type("steps", (2, 2), (6, 8), 0.5, kind="grid", amounts={"gpu": [2, 4, 5, 8]}, seconds=[330, 214, 209, 131])

MIXES: dict[str, tuple[dict[str, Any], ...]] = {
    "steady": (_SHORT, _STEADY),
    "sub-linear": (_POWER, _ROOT, _CPU_ONLY),
    "saturating": (_TANH, _LEVEL, _CPU_TANH),
    "amdahl": (_AMDAHL, _BOTH, _SERIAL),
    "rebound": (_FED, _HUNGRY, _LIGHT),
    "measured": (_BUMPY, _LOADER, _STEPS),
    "mixed": (_STEADY, _POWER, _TANH, _SERIAL, _FED, _BUMPY, _CPU_ONLY),
    "testbed": tuple(
        _type(name, (2, 1), (16, 8), weight, kind="testbed")
        for name, weight in (("image-classification", 1.0), ("language-modeling", 1.5), ("speech-recognition", 0.5))
    ),
}

#: Share of a slot to save and resume a task, as in the shipped scenarios; free in multi-task scheduling.
SWITCHING_COST = {"single": 0.5, "multi": 0.0}

#: Taken in turn over the sites, so that each occurs with several cluster counts, modes and loads.
ELIGIBILITY = ({"kind": "subset"}, {"kind": "bandwidth", "minimum_mbps": 6.0}, {"kind": "all"}, {"kind": "subset"})
NOISE = (
    {"kind": "none"},
    {"kind": "relative", "amplitude": 0.25},
    {"kind": "none"},
    {"kind": "relative", "amplitude": 0.1},
    {"kind": "additive", "amplitude": 0.02},
)
BURSTS = {"kind": "bursty", "burst_factor": 5.0, "burst_share": 0.25, "burst_slots": 12.0}
ARRIVALS = ({"kind": "poisson"}, {"kind": "poisson"}, BURSTS)


def scenario_of(site: Site) -> Scenario:
    """The scenario of one cell, with its rate set to the load."""
    at = SITES.index(site)
    clusters = [
        {"name": f"edge-{cpu}", "count": count, "capacity": {"cpu": cpu, "gpu": gpu}}
        for count, cpu, gpu in CAPACITIES[site.clusters, site.capacities]
    ]
    data: dict[str, Any] = {
        "name": f"unseen-{site.name}",
        "description": f"{site.clusters} {site.capacities} clusters, {site.mix} tasks, load {site.load:g}",
        "mode": site.mode,
        "tasks": max(200, 40 * site.clusters),
        "clusters": clusters,
        "task_types": list(MIXES[site.mix]),
        "eligibility": ELIGIBILITY[at % len(ELIGIBILITY)],
        "noise": NOISE[at % len(NOISE)],
        "switching_cost": SWITCHING_COST[site.mode],
    }
    rate = rate_for(build_world(parse_scenario(data)), site.load)
    return parse_scenario({**data, "arrivals": {**ARRIVALS[at % len(ARRIVALS)], "rate": rate}}, f"site {site.name}")
