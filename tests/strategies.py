"""Hypothesis strategies: random small worlds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.workloads.world import World, build_world

amounts = st.integers(0, 3)


@st.composite
def worlds(draw: st.DrawFn, modes: tuple[str, ...] = ("single", "multi")) -> World:
    """1-5 clusters, one perhaps of nodes, 1-3 resources, 1-3 task types, with and without noise; 25 tasks.

    Some have other people's load, data sets, memory that nobody knows, or types that span nodes.
    """
    names = ["cpu", "gpu", "memory"][: draw(st.integers(1, 3))]
    types = []
    for i in range(draw(st.integers(1, 3))):
        minimum = {n: draw(amounts) for n in names}
        minimum[draw(st.sampled_from(names))] = draw(st.integers(1, 4))  # a task needs something
        sensitive = next(n for n, m in minimum.items() if m)
        speed = draw(
            st.sampled_from(
                [
                    {"kind": "constant", "slots": 3},
                    {"kind": "tanh", "resource": sensitive, "scale": 6, "shape_offset": 1.2},
                    {"kind": "amdahl", "seconds": 70, "parallel": {sensitive: 0.7}},
                ]
            )
        )
        maximum = {n: m + draw(st.integers(0, 4)) for n, m in minimum.items()}
        types.append({"name": f"t{i}", "minimum": minimum, "maximum": maximum, "speed": speed})
    if unknown := draw(st.booleans()):
        for one in types:
            if draw(st.booleans()):
                name = draw(st.sampled_from(names))
                one["needs"] = {name: draw(st.integers(one["minimum"][name], one["maximum"][name]))}
    least = 8 if unknown else 4
    clusters = [
        {"name": f"c{i}", "capacity": {n: draw(st.integers(0, 12)) for n in names}}
        for i in range(draw(st.integers(0, 3)))
    ]
    # Some clusters may be too small for some types, but every type needs one that holds it.
    if draw(st.booleans()):
        sizes = st.fixed_dictionaries({n: st.integers(0, 8) for n in names} | {"count": st.integers(1, 2)})
        clusters.append({"name": "nodes", "nodes": draw(st.lists(sizes, min_size=1, max_size=3))})
        for one in types:
            one["spans"] = draw(st.booleans())
    clusters.append({"name": "roomy", "capacity": {n: draw(st.integers(least, 12)) for n in names}})
    if draw(st.booleans()):
        for cluster in clusters:
            cluster["kind"] = draw(st.sampled_from(["old", "new"]))
        for one in types:
            one["on"] = {"old": draw(st.sampled_from([1, 0.5])), "new": draw(st.sampled_from([2, one["speed"]]))}
    others = []
    if draw(st.booleans()):
        bursty = {"kind": "bursty", "busy": draw(st.sampled_from([0.5, 1.0])), "calm_slots": 4, "busy_slots": 3}
        others.append({**bursty, "clusters": ["roomy"]})
        if len(clusters) > 1:
            others.append({"kind": "day-night", "period": 7, "clusters": [clusters[0]["name"]]})
        if len(clusters) > 2 and clusters[-2]["name"] == "nodes":
            others.append({**bursty, "clusters": ["nodes"]})
    stocked = with_data(draw, clusters, types) if draw(st.booleans()) else {}
    data = {
        "name": "random",
        **stocked,
        "others": others,
        "mode": draw(st.sampled_from(modes)),
        "tasks": 25,
        "resources": dict.fromkeys(names, 1.0),
        "clusters": clusters,
        "task_types": types,
        "arrivals": {"kind": "poisson", "rate": draw(st.sampled_from([0.5, 2.0, 8.0]))},
        "eligibility": {"kind": draw(st.sampled_from(["subset", "all"]))},
        "noise": draw(
            st.sampled_from(
                [{"kind": "none"}, {"kind": "additive", "amplitude": 0.1}, {"kind": "relative", "amplitude": 0.3}]
            )
        ),
    }
    return build_world(parse_scenario(data))


def with_data(draw: st.DrawFn, clusters: list[dict[str, Any]], types: list[dict[str, Any]]) -> dict[str, Any]:
    """Data sets and links of a scenario; types need some of them, and caches hold little more than one type needs."""
    names = [cluster["name"] for cluster in clusters]
    gb = {f"d{i}": draw(st.sampled_from([0.3, 1.0, 2.5])) for i in range(draw(st.integers(2, 3)))}
    places = st.lists(st.sampled_from(names), max_size=2, unique=True)
    sets = [{"name": name, "gb": size, "at": draw(places)} for name, size in gb.items()]
    for one in types:
        one["data"] = draw(st.lists(st.sampled_from(list(gb)), max_size=2, unique=True))
    for cluster in clusters:
        away = {one["name"]: one["gb"] for one in sets if cluster["name"] not in one["at"]}
        most = max(sum(away.get(name, 0.0) for name in one["data"]) for one in types)
        if (spare := draw(st.sampled_from([0.0, 0.5, None]))) is not None:
            cluster["cache_gb"] = most + spare
    links = draw(
        st.sampled_from(
            [
                {"mbps": 700.0},
                {"mbps": 300.0, "between": [{"ends": [names[0], "submitters"], "mbps": 2000.0}]},
                {"kind": "uniform", "minimum_mbps": 100.0, "maximum_mbps": 3000.0},
            ]
        )
    )
    return {"data": sets, "links": links}


def stocked_world(mode: str, links: str = "uniform", tasks: int = 40) -> World:
    """Three clusters, one of them of nodes; three data sets, small caches, and one type that needs more memory."""
    speed = {"kind": "amdahl", "seconds": 90, "parallel": {"gpu": 0.8}}
    types = [
        {"name": "small", "minimum": {"gpu": 1, "memory": 1}, "maximum": {"gpu": 4, "memory": 8}, "speed": speed},
        {"name": "large", "minimum": {"gpu": 2, "memory": 2}, "maximum": {"gpu": 4, "memory": 9}, "speed": speed},
        {
            "name": "plain",
            "minimum": {"gpu": 1, "memory": 0},
            "maximum": {"gpu": 2},
            "speed": {"kind": "constant", "slots": 3},
        },
    ]
    types[0] |= {"data": ["images", "weights"], "needs": {"memory": 3}}
    types[1] |= {"data": ["text", "weights"], "needs": {"memory": 7}}
    uniform = {"kind": "uniform", "minimum_mbps": 100.0, "maximum_mbps": 3000.0}
    data = {
        "name": "stocked",
        "mode": mode,
        "tasks": tasks,
        "arrivals": {"kind": "poisson", "rate": 1.5},
        "resources": {"gpu": 1, "memory": 1},
        "clusters": [
            {"name": "lab", "nodes": [{"gpu": 4, "memory": 12, "count": 2}], "cache_gb": 3.5},
            {"name": "edge", "capacity": {"gpu": 6, "memory": 20}, "cache_gb": 3.0},
            {"name": "home", "capacity": {"gpu": 4, "memory": 16}},
        ],
        "task_types": types,
        "data": [
            {"name": "images", "gb": 2.0, "at": ["home"]},
            {"name": "text", "gb": 2.5},
            {"name": "weights", "gb": 0.5, "at": ["edge", "home"]},
        ],
        "links": uniform if links == "uniform" else {"mbps": 600.0},
    }
    return build_world(parse_scenario(data))


def spanning_world(mode: str, tasks: int = 40, **changes: Any) -> World:
    """Clusters of nodes, one of two kinds; two types span nodes, one of them with data and more memory than is known.

    Others use some of the first cluster.
    """
    speed = {"kind": "amdahl", "seconds": 90, "parallel": {"gpu": 0.8}}
    constant = {"kind": "constant", "slots": 3}
    on = {"old": 1, "new": 2}
    data = {
        "name": "spanning",
        "mode": mode,
        "tasks": tasks,
        "arrivals": {"kind": "poisson", "rate": 1.5},
        "resources": {"gpu": 1, "memory": 1},
        "clusters": [
            {
                "name": "lab",
                "kind": "old",
                "nodes": [{"gpu": 2, "memory": 6, "count": 2}, {"gpu": 1, "memory": 8}, {"gpu": 4, "memory": 9}],
                "cache_gb": 2.5,
            },
            {"name": "home", "kind": "old", "capacity": {"gpu": 4, "memory": 16}},
            {
                "name": "two",
                "kind": "new",
                "nodes": [{"gpu": 2, "memory": 5, "count": 2}, {"gpu": 3, "memory": 7, "kind": "old", "count": 2}],
            },
        ],
        "task_types": [
            {"name": "one", "minimum": {"gpu": 1, "memory": 1}, "maximum": {"gpu": 3, "memory": 4}, "speed": speed},
            {"name": "wide", "minimum": {"gpu": 3, "memory": 2}, "maximum": {"gpu": 7, "memory": 12}, "speed": speed},
            {"name": "pair", "minimum": {"gpu": 2, "memory": 0}, "maximum": {"gpu": 4}, "speed": constant},
        ],
        "others": [{"kind": "bursty", "clusters": ["lab"], "busy": 0.6, "calm_slots": 5, "busy_slots": 4}],
        "data": [{"name": "images", "gb": 2.0, "at": ["home"]}],
        "links": {"mbps": 600.0},
    }
    for one in data["task_types"]:
        one["on"] = on
    data["task_types"][1] |= {"spans": True, "needs": {"memory": 5}, "data": ["images"]}
    data["task_types"][2] |= {"spans": True}
    return build_world(parse_scenario({**data, **changes}))
