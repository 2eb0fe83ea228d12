"""Hypothesis strategies: random small worlds."""

from __future__ import annotations

from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.workloads.world import World, build_world

amounts = st.integers(0, 3)


@st.composite
def worlds(draw: st.DrawFn, modes: tuple[str, ...] = ("single", "multi")) -> World:
    """1-5 clusters, one perhaps of nodes, 1-3 resources, 1-3 task types, with and without noise; 25 tasks."""
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
    clusters = [
        {"name": f"c{i}", "capacity": {n: draw(st.integers(0, 12)) for n in names}}
        for i in range(draw(st.integers(0, 3)))
    ]
    # Some clusters may be too small for some types, but every type needs one that holds it.
    if draw(st.booleans()):
        sizes = st.fixed_dictionaries({n: st.integers(0, 8) for n in names} | {"count": st.integers(1, 2)})
        clusters.append({"name": "nodes", "nodes": draw(st.lists(sizes, min_size=1, max_size=3))})
    clusters.append({"name": "roomy", "capacity": {n: draw(st.integers(4, 12)) for n in names}})
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
    data = {
        "name": "random",
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
