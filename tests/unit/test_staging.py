"""Data sets: links are queues, caches forget what nobody uses, and a task waits on its cluster for its data."""

from __future__ import annotations

import math

import pytest
from helpers import R, make_task
from strategies import stocked_world

from tapfinger.config import parse_scenario
from tapfinger.core.contract import Decision, Mode, Phase, Placement, Resize
from tapfinger.core.events import (
    Event,
    TaskArrived,
    TaskFinished,
    TaskOutOfMemory,
    TaskRequeued,
    TaskStaging,
    TaskStarted,
)
from tapfinger.core.model import Cluster, SpeedProfile, TaskType
from tapfinger.core.staging import DataLayout, Staging, begins
from tapfinger.core.state import EdgeState
from tapfinger.errors import NotPending
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

#: Data sets of the layout, and its places.
X, Y, Z = 0, 1, 2
LAB, EDGE, SUBMITTERS = 0, 1, 2


def layout(lab_cache: float = 4.0, edge_cache: float = math.inf) -> DataLayout:
    """Two clusters, the first of two nodes; y lies at the edge, everything else at the submitters'."""
    return DataLayout(
        names=("x", "y", "z"),
        gb=(2.0, 1.0, 3.0),
        lies=((False, False, False), (False, True, False), (True, False, True)),
        # Slots for a GB, to the lab and to the edge.
        slots_per_gb=((9.0, 0.25), (2.0, 9.0), (1.5, 1.0)),
        cache_gb=(lab_cache, edge_cache),
        place_of=(LAB, LAB, EDGE),
    )


def begin(**caches: float) -> Staging:
    return Staging.begin(layout(**caches))


def test_a_link_brings_one_data_set_after_the_other() -> None:
    data, runs_from = begin().ask((X,), 0, 0)
    assert runs_from == 3  # 2 GB of 1.5 slots
    assert data.busy == {(SUBMITTERS, LAB): 3.0}
    assert data.wait((Z,), 0, 1) == 7  # from slot 3 on 4.5 slots, so there in slot 8
    data, runs_from = data.ask((Z,), 0, 1)
    assert (runs_from, data.ready[LAB][Z], data.busy[SUBMITTERS, LAB]) == (8, 7.5, 7.5)
    assert data.wait((Y,), 0, 1) == 2, "another link"


def test_a_task_waits_for_the_last_of_its_data_sets() -> None:
    both, runs_from = begin().ask((X, Z), 1, 2)
    assert runs_from == 10  # x in slot 5, z at 9.5
    assert both.ready[LAB] == (5.0, math.inf, 9.5)
    assert begin().ask((X, Y), 1, 2)[1] == 5, "over two links at the same time"
    assert begin().ask((Z, X), 1, 2)[0].ready[LAB] == (9.5, math.inf, 6.5), "in the order in which they are named"


def test_two_tasks_share_one_transfer() -> None:
    first, _ = begin().ask((X,), 0, 0)
    assert first.wait((X,), 1, 2) == 1
    second, runs_from = first.ask((X,), 1, 2)  # another node of the same cluster
    assert runs_from == 3
    assert second.busy == first.busy
    assert second.users[LAB] == (2, 0, 0)
    assert second.missing_gb((X, Z), 0) == 3.0
    assert second.wait((X,), 0, 3) == 0


def test_data_that_lies_there_for_good_is_never_brought_or_removed() -> None:
    data, runs_from = begin(edge_cache=0.0).ask((Y,), 2, 5)
    assert runs_from == 5
    data = data.release((Y,), 2, 6)
    assert (data.ready[EDGE][Y], data.cached_gb(EDGE), data.busy) == (0.0, 0.0, {})


def test_data_comes_from_where_it_is_there_soonest() -> None:
    data, _ = begin().ask((X,), 0, 0)
    there, _ = data.ask((X,), 2, 2)
    assert there.busy == {(SUBMITTERS, LAB): 3.0, (SUBMITTERS, EDGE): 4.0}, "the lab does not have it yet"
    there, runs_from = data.ask((X,), 2, 3)
    assert (runs_from, there.busy[LAB, EDGE]) == (4, 3.5), "the lab's cache is nearer than the submitters"


def test_a_cache_forgets_the_least_recently_used() -> None:
    data, _ = begin().ask((X,), 0, 0)
    data = data.release((X,), 0, 5)
    data, _ = data.ask((Y,), 0, 6)
    data = data.release((Y,), 0, 8)
    assert data.cached_gb(LAB) == 3.0
    data, _ = data.ask((Z,), 0, 9)  # 2 + 1 + 3 GB are 2 too many
    assert data.ready[LAB] == (math.inf, 8.0, 13.5)
    data, _ = data.ask((X,), 0, 9)  # y goes next; x and z are in use
    assert data.ready[LAB] == (16.5, math.inf, 13.5)
    assert data.cached_gb(LAB) == 5.0, "what tasks use stays, also if it is too much"
    data = data.release((Z,), 0, 20)
    assert data.ready[LAB] == (16.5, math.inf, math.inf), "it goes as soon as nobody uses it"
    assert data.used[LAB] == (9, 8, 20)


def test_nothing_changes_for_a_task_without_data() -> None:
    data = begin()
    assert data.ask((), 0, 7) == (data, 7)
    assert data.release((), 0, 7) is data
    assert data.wait((), 0, 7) == 0


def test_asking_changes_nothing_of_what_was_known_before() -> None:
    before = begin()
    before.ask((X, Y), 0, 0)
    assert before == begin()


@pytest.mark.parametrize(("until", "slot"), [(3.0, 3), (3.0 + 1e-12, 3), (3.1, 4), (2.9, 3)])
def test_what_ends_within_a_slot_lets_the_next_one_begin(until: float, slot: int) -> None:
    assert begins(until) == slot


# --------------------------------------------------------------------------- tasks

ONE = TaskType("one", R([1]), R([4]), SpeedProfile(R([1]), R([4]), (0.5,) * 4), data=(X,))


def state_with_a_placed_task() -> EdgeState:
    clusters = [Cluster("lab:0", R([4]), "lab"), Cluster("lab:1", R([4]), "lab"), Cluster("edge", R([4]))]
    state = EdgeState(clusters, Mode.MULTI, begin())
    state.apply(TaskArrived(0, make_task(0, ONE, eligible=(0, 2))))
    snapshot = state.snapshot()
    assert [snapshot.staging(snapshot.queue[0], n) for n in (0, 2)] == [3, 2]
    placement = Placement(0, 0, R([2]))
    assert snapshot.after([placement]).clusters[0].running[0].staging == 3
    (command,) = state.commit(Decision((placement,)))
    assert command.runs_from == 3
    return state


def test_a_task_holds_its_size_while_it_waits_for_its_data_and_cannot_be_resized() -> None:
    state = state_with_a_placed_task()
    state.apply(TaskStaging(0, 0, 0, R([2]), 3))
    for left in (3, 2, 1):
        view = state.snapshot().clusters[0]
        (task,) = view.running
        assert (view.free, task.phase, task.staging, task.elapsed) == (R([2]), Phase.PLACED, left, 0)
        with pytest.raises(NotPending, match="has not started yet"):
            state.commit(Decision(resizes=(Resize(0, R([1])),)))
        state.end_slot({})
    state.apply(TaskStarted(3, 0, 0, R([2])))
    state.end_slot({})
    (task,) = state.snapshot().clusters[0].running
    assert (task.phase, task.staging, task.elapsed) == (Phase.RUNNING, 0, 1)
    state.apply(TaskFinished(4, 0, 0))
    assert state.data is not None
    assert state.data.users[LAB] == (0, 0, 0)
    state.validate()


def test_a_task_that_goes_back_to_the_queue_leaves_its_data_in_the_cache() -> None:
    state = state_with_a_placed_task()
    state.apply(TaskRequeued(0, 0, 0))
    assert state.data is not None
    assert (state.data.users[LAB][X], state.data.ready[LAB][X]) == (0, 3.0)
    assert state.snapshot().staging(state.snapshot().queue[0], 1) == 3


def test_the_simulator_starts_tasks_when_their_data_is_there() -> None:
    scenario = {
        "name": "one",
        "mode": "multi",
        "tasks": 2,
        "slot_seconds": 10,
        "arrivals": {"kind": "poisson", "rate": 50},
        "resources": {"gpu": 1},
        "clusters": [{"name": "lab", "capacity": {"gpu": 4}}],
        "task_types": [
            {"name": "a", "minimum": {"gpu": 1}, "speed": {"kind": "constant", "slots": 2}, "data": ["images"]}
        ],
        "data": [{"name": "images", "gb": 1}],
        "links": {"mbps": 320},  # 25 seconds
    }
    log: list[Event] = []
    totals = run_scheduler(build_world(parse_scenario(scenario)), create("scheduler", "greedy", {}), 0, [log.append])
    told = [(type(e).__name__, e.slot) for e in log if not isinstance(e, TaskArrived)]
    assert told == [("TaskStaging", 0)] * 2 + [("TaskStarted", 3)] * 2 + [("TaskFinished", 4)] * 2
    assert totals.total_completion_time == 2 * 5


@pytest.mark.parametrize("mode", ["single", "multi"])
@pytest.mark.parametrize(
    "spec", ["min", "greedy", "greedy-lend", "optimus", "tiresias-elastic", "tiresias", "shortest-first", "fifo"]
)
def test_every_kind_of_scheduler_ends_with_data_and_unknown_memory(spec: str, mode: str) -> None:
    world, log = stocked_world(mode), []
    name = spec.removesuffix("-lend")
    run_scheduler(world, create("scheduler", name, {"lend": True} if name != spec else {}), 1, [log.append])
    kinds = {type(event) for event in log}
    assert {TaskStaging, TaskFinished} <= kinds
    assert spec != "min" or TaskOutOfMemory in kinds
