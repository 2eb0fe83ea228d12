"""Tasks that span nodes: what they hold of each, who may start what beside them, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import R, arrive, constant_type, log_of, make_task, make_workload, place, play, resize
from strategies import spanning_world

from tapfinger.commands.explaining import _Words
from tapfinger.config import parse_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Decision, Mode, Placement, Proposal, Resize
from tapfinger.core.events import ClusterJoined, ClusterLost, OthersChanged, TaskFinished, TaskStarted
from tapfinger.core.model import Cluster, Resources, ResourceTypes, TaskType
from tapfinger.core.spans import Rooms, split
from tapfinger.core.state import EdgeState
from tapfinger.errors import CapacityExceeded, ConfigError, TapfingerError, TooManyStarts
from tapfinger.evaluation.gantt import Gantt
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import parse_spec
from tapfinger.live.config import load_site
from tapfinger.policy.explain import AgentView, Explanation
from tapfinger.records import EventLog, LogHeader, read_events, read_header
from tapfinger.workloads.files import ALL_CLUSTERS, SEPARATOR, to_file
from tapfinger.workloads.world import World, build_world, draw_workload

SPAN = 2
WIDE = constant_type((1, 1), (8, 8), name="wide")
CAPACITY = R([8, 4])


def make_state(*nodes: tuple[int, int], mode: Mode = Mode.MULTI) -> EdgeState:
    """One cluster of these nodes, and then their span."""
    made = [Cluster(f"lab:{n}", R(amounts), "lab") for n, amounts in enumerate(nodes)]
    total = R([sum(column) for column in zip(*nodes, strict=True)])
    return EdgeState([*made, Cluster("lab:all", total, "lab", "", tuple(range(len(nodes))))], mode)


def frees(state: EdgeState) -> list[Resources]:
    state.validate()
    return [view.free for view in state.cluster_views()]


def started(state: EdgeState, *tasks: int) -> None:
    """The tasks have started to run."""
    for view in state.cluster_views():
        for task in view.running:
            if task.id in tasks:
                state.apply(TaskStarted(state.slot, task.id, view.index, task.allocation or R([0, 0]), task.parts))


def scenario(*clusters: dict[str, Any], gpus: int = 3, **more: Any) -> dict[str, Any]:
    speed = {"kind": "constant", "slots": 2}
    types = [
        {"name": "wide", "minimum": {"cpu": 1, "gpu": gpus}, "speed": speed, "spans": True},
        {"name": "small", "minimum": {"cpu": 1, "gpu": 1}, "speed": speed},
    ]
    data = {"name": "x", "mode": "multi", "tasks": 40, "arrivals": {"kind": "poisson", "rate": 1.0}}
    return {**data, "clusters": list(clusters), "task_types": types, **more}


LAB = {"name": "lab", "nodes": [{"cpu": 8, "gpu": 2}, {"cpu": 8, "gpu": 1}]}
EDGE = {"name": "edge", "capacity": {"cpu": 4, "gpu": 4}}


def lab() -> World:
    return build_world(parse_scenario(scenario(LAB, EDGE)))


# ---------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("amounts", "rooms", "parts"),
    [
        ((3, 3), [(4, 2), (4, 1)], [(3, 2), (0, 1)]),  # the node that can give most comes first
        ((3, 3), [(4, 1), (4, 2)], [(0, 1), (3, 2)]),
        ((2, 2), [(4, 4), (2, 2)], [(0, 0), (2, 2)]),  # of two that can give all of it, the fuller one
        ((2, 2), [(4, 4), (4, 4)], [(2, 2), (0, 0)]),  # then the first one
        ((4, 2), [(4, 0), (0, 2)], [(4, 0), (0, 2)]),  # each resource from where it is
        ((4, 4), [(3, 3), (-1, 2), (1, 0)], [(3, 3), (0, 1), (1, 0)]),  # more is held than there is
    ],
)
def test_an_allocation_is_on_few_nodes(
    amounts: tuple[int, int], rooms: list[tuple[int, int]], parts: list[tuple[int, int]]
) -> None:
    assert split(R(amounts), [R(room) for room in rooms], R([8, 8])) == tuple(parts)


def test_a_task_keeps_what_it_can_of_its_parts() -> None:
    rooms = [R([4, 4]), R([4, 4]), R([4, 1])]
    held = (R([0, 0]), R([1, 1]), R([1, 1]))
    assert split(R([2, 2]), rooms, CAPACITY, held) == held
    assert split(R([1, 1]), rooms, CAPACITY, held) == (R([0, 0]), R([1, 1]), R([0, 0]))
    assert split(R([3, 4]), rooms, CAPACITY, held) == (R([0, 0]), R([2, 3]), R([1, 1]))
    assert split(R([2, 2]), [R([4, 4]), R([0, 0]), R([4, 1])], CAPACITY, held) == (R([1, 1]), R([0, 0]), R([1, 1]))


def test_rooms_of_spans_follow_their_nodes() -> None:
    rooms = Rooms(make_state((4, 2), (4, 1)).cluster_views())
    assert rooms.take(0, R([1, 1])) == ()
    assert rooms.left == [R([3, 1]), R([4, 1]), R([7, 2])]
    assert rooms.take(SPAN, R([2, 2])) == (R([2, 1]), R([0, 1]))
    assert rooms.left == [R([1, 0]), R([4, 0]), R([5, 0])]
    rooms.give(SPAN, R([2, 2]), (R([2, 1]), R([0, 1])))
    rooms.give(0, R([1, 1]))
    assert rooms.left == [R([4, 2]), R([4, 1]), R([8, 3])]
    assert [sorted(rooms.sharing(n)) for n in range(3)] == [[0, 2], [1, 2], [0, 1, 2]]


# ------------------------------------------------------------------------- state


def test_three_gpus_over_nodes_with_two_and_one() -> None:
    state = make_state((4, 2), (4, 1))
    task = make_task(0, WIDE, eligible=(SPAN,))
    before = state.snapshot()
    (command,) = play(state, *arrive(task), place(0, SPAN, 5, 3))
    assert command.parts == (R([4, 2]), R([1, 1]))
    assert frees(state) == [R([0, 0]), R([3, 0]), R([3, 0])]
    (view,) = state.snapshot().clusters[SPAN].running
    assert (view.cluster, view.allocation, view.parts) == (SPAN, R([5, 3]), command.parts)
    assert not state.snapshot().clusters[0].running
    started(state, 0)
    play(state, TaskFinished(0, 0, SPAN))
    assert frees(state) == [c.free for c in before.clusters] == [R([4, 2]), R([4, 1]), R([8, 3])]


def test_a_snapshot_afterwards_is_what_the_state_shows() -> None:
    state = make_state((4, 2), (4, 1), (2, 2))
    tasks = [make_task(0, WIDE, eligible=(3,)), make_task(1, WIDE, eligible=(1,)), make_task(2, WIDE, eligible=(3,))]
    play(state, *arrive(*tasks))
    placements = (Placement(0, 3, (4, 3)), Placement(1, 1, (1, 1)), Placement(2, 3, (1, 1)))
    said = state.snapshot().after(placements)
    state.commit(Decision(placements))
    assert said.clusters == state.snapshot().clusters
    booked = state.snapshot().booked(())
    assert [c.free for c in booked.clusters] == frees(state)


def test_together_starts_fit_or_the_decision_is_refused() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, *arrive(make_task(0, WIDE, eligible=(SPAN,)), make_task(1, WIDE, eligible=(0,))))
    both = (Placement(0, SPAN, (1, 2)), Placement(1, 0, (1, 2)))
    with pytest.raises(CapacityExceeded, match=r"cluster 2 \(lab:all\).*asks for some of it on its nodes \[0, 1\]"):
        state.commit(Decision(both))
    assert frees(state) == [R([4, 2]), R([4, 1]), R([8, 3])]
    # The span alone would take the first node's gpus; what is placed on that node comes first, in either order.
    fitting = (Placement(0, SPAN, (1, 1)), Placement(1, 0, (1, 2)))
    for placements in (fitting, fitting[::-1]):
        twin = state.fork()
        twin.commit(Decision(placements))
        assert frees(twin) == [R([3, 0]), R([3, 0]), R([6, 0])]


def test_a_resized_task_is_split_anew_and_a_paused_one_holds_nothing() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, *arrive(make_task(0, WIDE, eligible=(SPAN,)), make_task(1, WIDE, eligible=(0,))), place(0, SPAN, 2, 1))
    assert frees(state) == [R([4, 2]), R([2, 0]), R([6, 2])], "the fuller of two nodes that could hold it"
    started(state, 0)
    (command,) = play(state, resize(0, 5, 3))
    assert command.parts == (R([3, 2]), R([2, 1]))
    with pytest.raises(CapacityExceeded, match="cluster 2"):
        state.commit(resize(0, 5, 4))
    # What it gives back may be used in the same decision, on the node where it held it.
    state.commit(Decision((Placement(1, 0, (4, 2)),), (Resize(0, R([2, 1])),)))
    assert frees(state) == [R([0, 0]), R([2, 0]), R([2, 0])]
    play(state, resize(0, 0, 0))
    assert frees(state) == [R([0, 0]), R([4, 1]), R([4, 1])]
    play(state, resize(0, 1, 1))
    assert frees(state) == [R([0, 0]), R([3, 0]), R([3, 0])]


def test_other_sizes_in_a_snapshot() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, *arrive(make_task(0, WIDE, eligible=(SPAN,)), make_task(1, WIDE, eligible=(0,))))
    play(state, Decision((Placement(0, SPAN, (4, 2)), Placement(1, 0, (1, 1)))))
    seen = state.snapshot().with_sizes({0: R([1, 1]), 1: R([2, 1])})
    assert [c.free for c in seen.clusters] == [R([2, 1]), R([3, 0]), R([5, 1])]
    assert seen.clusters[SPAN].running[0].parts == (R([0, 0]), R([1, 1]))


def test_a_lost_node_takes_the_tasks_that_are_on_it() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, *arrive(*(make_task(n, WIDE, eligible=(SPAN,)) for n in (0, 1))))
    play(state, place(0, SPAN, 1, 1), place(1, SPAN, 2, 2))
    started(state, 0, 1)
    assert [t.parts for t in state.cluster_views()[SPAN].running] == [(R([0, 0]), R([1, 1])), (R([2, 2]), R([0, 0]))]
    play(state, ClusterLost(0, 0))
    assert [task.id for task in state.snapshot().queue] == [1]
    assert frees(state)[SPAN] == R([3, 0]), "nothing of the lost node"
    play(state, ClusterLost(0, 1), ClusterLost(0, SPAN), ClusterJoined(5, 0), ClusterJoined(5, 1))
    assert not state.cluster_views()[SPAN].up
    play(state, ClusterJoined(5, SPAN))
    assert frees(state) == [R([4, 2]), R([4, 1]), R([8, 3])]


def test_what_others_use_of_nodes_they_use_of_the_span() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, OthersChanged(0, 0, R([3, 2])), OthersChanged(0, 1, R([1, 0])))
    view = state.cluster_views()[SPAN]
    assert (view.free, view.others, view.others_lately) == (R([4, 1]), R([4, 2]), (4.0, 2.0))


def test_in_single_task_mode_a_span_starts_one_task_a_slot() -> None:
    state = make_state((4, 2), (4, 2), mode=Mode.SINGLE)
    play(state, *arrive(*(make_task(n, WIDE, eligible=(0, SPAN)) for n in range(3))))
    with pytest.raises(TooManyStarts, match="cluster 2 already starts"):
        state.commit(Decision((Placement(0, SPAN, (1, 1)), Placement(1, SPAN, (1, 1)))))
    play(state, Decision((Placement(0, SPAN, (1, 1)), Placement(1, 0, (1, 1)))))
    assert [view.starts_left for view in state.cluster_views()] == [0, 1, 0]


def test_a_span_yields_to_what_its_nodes_start() -> None:
    state = make_state((4, 2), (4, 1))
    wants = [Proposal(0, 1, (1, 1)), Proposal(SPAN, 0, (1, 3)), Proposal(1, 2, (1, 1))]
    minimum = dict.fromkeys(range(3), R([1, 1]))
    seen = state.snapshot()
    decided = resolve(wants, seen.free, minimum, seen.spans)
    assert [p.task for p in decided.placements] == [1, 2]
    assert [p.task for p in decided.lost] == [0]
    smaller = [*wants[:2], Proposal(SPAN, 3, (1, 2))]
    assert not resolve([smaller[0], smaller[2]], seen.free, {1: R([1, 1]), 3: R([1, 1])}, seen.spans).lost


def test_who_holds_a_span_holds_its_nodes() -> None:
    seen = make_state((4, 2), (4, 1)).snapshot()
    assert set(seen.sharing({SPAN})) == {0, 1, SPAN}
    assert set(seen.sharing({1})) == {1, SPAN}
    assert not seen.sharing(set())


# ------------------------------------------------------------------------ worlds


def test_spans_of_a_world() -> None:
    mixed = {
        "name": "mixed",
        "kind": "a",
        "nodes": [{"cpu": 8, "gpu": 2, "count": 2}, {"cpu": 8, "gpu": 4, "kind": "b"}],
    }
    two = [*mixed["nodes"], {"cpu": 8, "gpu": 4, "kind": "b"}]
    given = scenario({**LAB, "kind": "a"}, {**EDGE, "kind": "b"}, mixed, {**mixed, "name": "two", "nodes": two})
    for one in given["task_types"]:
        one["on"] = {"a": 1, "b": 2}
    world = build_world(parse_scenario(given))
    spans = [(c.name, c.capacity, c.whole, c.hardware, c.nodes) for c in world.clusters if c.nodes]
    assert spans == [
        ("lab:all", (16, 3), "lab", "a", (0, 1)),
        ("mixed:all-a", (16, 4), "mixed", "a", (4, 5)),
        ("two:all-a", (16, 4), "two", "a", (8, 9)),
        ("two:all-b", (16, 8), "two", "b", (10, 11)),
    ]
    wide, small = world.open_to
    assert [c.name for c, may in zip(world.clusters, wide, strict=True) if may] == [
        "lab:all",
        "edge",
        "mixed:2",  # the only one of its kind
        "mixed:all-a",
        "two:all-a",
        "two:all-b",
    ]
    assert [c.name for c, may in zip(world.clusters, small, strict=True) if not may] == [name for name, *_ in spans]
    assert world.wholes == ("lab", "edge", "mixed", "two")
    assert world.capacity_of["lab"] == R([16, 3])


def test_where_no_type_spans_there_are_no_spans() -> None:
    given = scenario(LAB, EDGE, gpus=2)
    del given["task_types"][0]["spans"]
    made = parse_scenario(given)
    assert not any(cluster.nodes for cluster in build_world(made).clusters)
    assert all("spans" not in kind for kind in made.resolved()["task_types"])
    spanning = parse_scenario(scenario(LAB, EDGE))
    assert parse_scenario(spanning.resolved()) == spanning


def test_tasks_are_eligible_on_spans_or_on_nodes() -> None:
    world = lab()
    work = draw_workload(world, 3)
    assert [c.name for c in world.clusters] == ["lab:0", "lab:1", "lab:all", "edge"]
    wide = work.eligible[work.type == 0]
    assert not wide[:, :2].any()
    assert wide[:, 2].any()
    assert not work.eligible[work.type == 1][:, 2].any()


def test_a_workload_file_names_whole_clusters() -> None:
    world = lab()
    work = draw_workload(world, 3)
    rows = [
        set(text.split(SEPARATOR)) if text != ALL_CLUSTERS else {"lab", "edge"}
        for text in to_file(world, work).eligible
    ]
    assert [("lab" in row, "edge" in row) for row in rows] == [(row[:3].any(), row[3]) for row in work.eligible]
    assert {frozenset(row) for row in rows} == {frozenset(["lab"]), frozenset(["edge"]), frozenset(["lab", "edge"])}


def test_higher_steps_of_a_ladder_span_as_well() -> None:
    world = spanning_world("multi")
    by_name = dict(zip((t.name for t in world.task_types), world.open_to.tolist(), strict=True))
    higher = [name for name in by_name if name.startswith("wide[")]
    assert higher
    assert all(by_name[name] == by_name["wide"] for name in higher)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spans": "yes"}, r"task_types.0.spans: must be a valid boolean .got 'yes'"),
        ({"spans": 1}, "task_types.0.spans: must be a valid boolean"),
        ({"span": True}, "unknown key 'task_types.0.span'. Did you mean 'spans'"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], fault: str) -> None:
    given = scenario(LAB)
    given["task_types"][0].pop("spans")
    given["task_types"][0] |= change
    with pytest.raises(ConfigError, match=fault):
        parse_scenario(given)


def test_a_minimum_that_no_span_ever_holds_is_refused() -> None:
    world = build_world(parse_scenario(scenario(LAB, gpus=4)))
    with pytest.raises(
        ConfigError, match="'wide': minimum 1 cpu, 4 gpu fits no cluster: lab:all with 16 cpu, 3 gpu; lower"
    ):
        draw_workload(world, 0)
    nodes = [{"cpu": 8, "gpu": 2, "kind": kind} for kind in ("a", "b")]
    given = scenario({"name": "lab", "nodes": nodes})
    for one in given["task_types"]:
        one["on"] = {"a": 1, "b": 1}
    with pytest.raises(ConfigError, match="fits no cluster: lab:0 with 8 cpu, 2 gpu; lab:1"):
        draw_workload(build_world(parse_scenario(given)), 0)


@pytest.mark.parametrize(
    ("second", "possible"), [("0,lab:1,8,0\n40,lab:1,8,1", False), ("0,lab:1,8,1\n40,lab:1,8,0", True)]
)
def test_others_that_never_leave_room_on_a_span_are_refused(tmp_path: Path, second: str, possible: bool) -> None:
    rows = f"seconds,cluster,cpu,gpu\n0,lab:0,0,2\n40,lab:0,0,0\n{second}\n"
    (tmp_path / "others.csv").write_text(rows)
    given = scenario(LAB, others=[{"kind": "trace", "file": "others.csv", "repeat": 80}])
    given["task_types"][1]["weight"] = 0
    world = build_world(parse_scenario(given, directory=str(tmp_path)))
    if possible:
        draw_workload(world, 0)
    else:
        with pytest.raises(ConfigError, match=r"others never leave room for its minimum 1 cpu, 3 gpu.*lab:all"):
            draw_workload(world, 0)


def test_a_live_site_refuses_them(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        '[[clusters]]\nname = "lab"\nnodes = [{ cpu = 2, count = 2 }]\n\n[[task_types]]\nname = "wide"\n'
        "minimum = { cpu = 3, gpu = 0 }\nspans = true\n"
    )
    with pytest.raises(
        TapfingerError, match=r"task_types.wide.spans = true: on a live site every node.*one cluster without"
    ):
        load_site(site)


# ------------------------------------------------------------------ what is told


def measured(world: World, events: list[Any]) -> Any:
    collector = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    for event in events:
        collector(event)
    return collector.record("x", "greedy", 0)


def test_measures_are_by_node(tmp_path: Path) -> None:
    world = build_world(parse_scenario(scenario(LAB)))
    work = make_workload([0, 0, 0], clusters=3, types=[0, 1, 0])
    work.eligible[:] = world.open_to[work.type]
    events, totals = log_of(world, parse_spec("greedy").create(), work)
    starts = {e.task: (e.slot, e.cluster, e.parts) for e in events if isinstance(e, TaskStarted)}
    # The first takes all gpus for two slots, then the small one goes to the emptier cluster it may use.
    assert starts[0] == (0, 2, (R([1, 2]), R([0, 1])))
    record = measured(world, events)
    assert record.capacity.tolist() == [[8, 2], [8, 1], [0, 0]]
    gpu = record.used[:, :, 1] * record.bin_slots
    assert gpu[0].tolist() == [2, 1, 0]
    assert record.utilisation[1] == pytest.approx(14 / (3 * totals.slots))  # 2 x 3 gpus and 1 gpu, two slots each
    assert (record.stranded_by_cluster[2] == 0).all()
    path = tmp_path / "log.jsonl"
    with EventLog(path, LogHeader("x", "greedy", 0, world.resources.names, world.clusters)) as log:
        for event in events:
            log(event)
    assert read_header(path).clusters == world.clusters
    assert list(read_events(path, {t.name: t for t in world.task_types})) == events


def test_what_is_free_on_a_node_is_stranded_only_if_its_span_cannot_use_it_either() -> None:
    types = (constant_type((0, 1), name="small", slots=2), constant_type((0, 3), name="wide", slots=2))
    nodes = [Cluster("lab:0", R([0, 2]), "lab"), Cluster("lab:1", R([0, 2]), "lab")]
    clusters = [*nodes, Cluster("lab:all", R([0, 4]), "lab", "", (0, 1))]

    def stranded(held: int, kind: TaskType, eligible: tuple[int, ...]) -> list[int]:
        collector = MetricsCollector(("cpu", "gpu"), clusters, types)
        first = make_task(0, types[0], eligible=(0, 1))
        events = [*arrive(first, make_task(1, kind, eligible=eligible)), TaskStarted(0, 0, 0, R([0, held]))]
        events += [TaskFinished(0, 0, 0), TaskStarted(1, 1, SPAN, R([0, 3]), (R([0, 2]), R([0, 1])))]
        for event in events:
            collector(event)
        return (collector.record("x", "y", 0).stranded_by_cluster[:, 1] * 2).round().astype(int).tolist()

    assert stranded(1, types[1], (SPAN,)) == [0, 0, 0], "three are free, together"
    assert stranded(2, types[1], (SPAN,)) == [0, 2, 0], "two are free for a task that needs three"


def test_a_chart_shows_a_task_on_each_of_its_nodes() -> None:
    world = lab()
    chart = Gantt(world.clusters, world.task_types)
    task = make_task(0, world.task_types[0], eligible=(2,))
    parts = (R([1, 2]), R([0, 1]))
    for event in (*arrive(task), TaskStarted(0, 0, 2, R([1, 3]), parts), TaskFinished(1, 0, 2)):
        chart(event)
    assert [drawn[2:] for drawn in chart._drawn] == [(0, 0, 2, 0, 2), (1, 0, 1, 0, 2)]
    figure = chart.draw("title", "gpu", 10.0)
    assert len(figure.axes) == 3, "lab:0, lab:1 and edge; a span has no row"


def test_a_chart_of_a_whole_run_with_outages_and_resizes() -> None:
    given = scenario(LAB, EDGE, outages=[{"cluster": 0, "start": 4, "end": 9}])
    world = build_world(parse_scenario(given))
    chart = Gantt(world.clusters, world.task_types)
    events, _ = log_of(world, parse_spec("tiresias-elastic").create())
    for event in events:
        chart(event)
    assert not chart._bars
    assert [len(free) for free in chart._free] == [2, 1, 4]


# -------------------------------------------------------------------- schedulers


@pytest.mark.parametrize(
    "scheduler",
    [
        "greedy",
        "greedy@lend=true",
        "optimus",
        "optimus-central",
        "tiresias",
        "tiresias-elastic",
        "fifo",
        "lookahead",
        "lookahead@lend=true",
        "exploring",
        "unaware",
        "tapfinger",
        "tapfinger@lend=true",
    ],
)
@pytest.mark.parametrize("mode", ["single", "multi"])
def test_schedulers_start_tasks_on_several_nodes(scheduler: str, mode: str) -> None:
    world = spanning_world(mode, tasks=30)
    events, _ = log_of(world, parse_spec(scheduler).create(), seed=1)
    assert sum(isinstance(e, TaskFinished) for e in events) == 30
    assert any(sum(not part.none for part in e.parts) > 1 for e in events if isinstance(e, TaskStarted))


def test_explanations_say_why_a_span_starts_nothing() -> None:
    state = make_state((4, 2), (4, 1))
    play(state, *arrive(make_task(0, WIDE, eligible=(SPAN,)), make_task(1, WIDE, eligible=(0,))))
    seen = state.snapshot()
    wants = [Proposal(0, 1, (1, 1)), None, Proposal(SPAN, 0, (1, 3))]
    decided = resolve([w for w in wants if w], seen.free, dict.fromkeys(range(2), R([1, 1])), seen.spans)
    agents = tuple(AgentView(n, c.name, c.free, (), 1.0, wants[n], 1.0) for n, c in enumerate(seen.clusters))
    explanation = Explanation(0, 0, agents, (), decided, ((),), None)
    words = _Words(explanation, ResourceTypes())
    fates = [words._fate(agent.wants) for agent in agents]
    assert fates == ["starts task 1", "waits", "wants task 0, for which its nodes leave too little"]


def test_mean_clusters_do_not_count_resources_twice() -> None:
    from tapfinger.profiles.efficient_sizes import EfficientSizes

    assert EfficientSizes(lab().context(0)).mean_capacity == pytest.approx((20 / 3, 7 / 3))


def test_examples_of_a_teacher_are_legal() -> None:
    from tapfinger.training.teacher import Recorder

    world = spanning_world("multi", tasks=30)
    examples = Recorder(world, pending=4).record(parse_spec("greedy").create(), [0, 1])
    assert np.isin(examples.choice[~examples.decidable], 4).all()
