"""Memory that nobody knows: an attempt with too little ends, and all of its family then get more."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import R, make_task

from tapfinger.config import parse_scenario
from tapfinger.core.contract import Decision, Mode, Placement
from tapfinger.core.events import Event, TaskArrived, TaskFinished, TaskOutOfMemory, TaskStarted
from tapfinger.core.model import Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError, InvalidTransition
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.needs import Ladder, make_ladder, needed
from tapfinger.workloads.world import World, build_world, draw_workload

RESOURCES = ResourceTypes(("gpu", "memory"), (1.0, 2.0))


def make_type(name: str = "a", least: int = 1, most: int = 8) -> TaskType:
    low, high = R([1, least]), R([1, most])
    return TaskType(name, low, high, SpeedProfile(low, high, (0.5,) * (most - least + 1)))


def ladder_of(task_type: TaskType, amount: float) -> Ladder:
    """``amount``: needed memory, in natural quantities; one unit is 2."""
    return make_ladder(task_type, {"memory": amount}, RESOURCES, "task_types.a.needs")


# -------------------------------------------------------------------------- the ladder


@pytest.mark.parametrize(
    ("least", "most", "steps"), [(1, 8, [1, 2, 4, 8]), (3, 7, [3, 6, 7]), (0, 5, [0, 1, 2, 4, 5]), (4, 4, [4])]
)
def test_each_step_has_twice_as_much_up_to_the_maximum(least: int, most: int, steps: list[int]) -> None:
    ladder = ladder_of(make_type(least=least, most=most), 2.0 * most)
    assert [step.minimum for step in ladder.steps] == [R([1, amount]) for amount in steps]
    assert {step.family for step in ladder.steps} == {"a"}
    assert [step.weight for step in ladder.steps[1:]] == [0.0] * (len(steps) - 1)
    assert ladder.need == most


def test_what_is_enough_and_what_comes_next() -> None:
    ladder = ladder_of(make_type(), 6.0)
    assert [ladder.enough(R([1, amount])) for amount in (1, 2, 3, 8)] == [False, False, True, True]
    assert [ladder.above(R([1, amount])).minimum[1] for amount in (1, 2)] == [2, 4]


def test_a_task_may_have_to_wait_for_the_first_step_that_is_enough() -> None:
    ladder = ladder_of(make_type(), 6.0)
    assert needed(make_type(), {"a": ladder}) == R([1, 4]), "with 2 it runs short, and then it gets 4"
    assert needed(ladder.steps[3], {"a": ladder}) == R([1, 8])
    assert needed(make_type("b"), {"a": ladder}) == R([1, 1])


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"memory": 4, "gpu": 1}, "names memory and gpu; only one resource"),
        ({"disk": 4}, "disk is not a resource; they are gpu, memory"),
        ({"memory": 18}, "18 memory is not between the type's minimum 2 and its maximum 16"),
        ({"memory": 0}, "0 memory is not between"),
    ],
)
def test_bad_needs_are_refused(needs: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_ladder(make_type(), needs, RESOURCES, "task_types.a.needs")
    assert str(caught.value).startswith("task_types.a.needs")


# --------------------------------------------------------------------------- the state


def state_of(*tasks: Any) -> EdgeState:
    state = EdgeState([Cluster("lab", R([8, 32]))], Mode.MULTI)
    for task in tasks:
        state.apply(TaskArrived(task.arrival, task))
    return state


def run(state: EdgeState, task: int, memory: int) -> None:
    state.commit(Decision((Placement(task, 0, R([1, memory])),)))
    state.apply(TaskStarted(0, task, 0, R([1, memory])))


def seen(state: EdgeState) -> list[tuple[int, int]]:
    """Waiting tasks, oldest first, and the least memory of each."""
    state.validate()
    return [(task.id, task.type.minimum[1]) for task in state.snapshot().queue]


def test_the_family_goes_up_and_others_do_not() -> None:
    a, b = make_type("a"), make_type("b")
    ladder = ladder_of(a, 6.0)
    state = state_of(make_task(0, a), make_task(1, b), make_task(2, a), make_task(3, a))
    run(state, 0, 1)
    run(state, 3, 1)
    state.apply(TaskOutOfMemory(0, 0, 0, ladder.steps[1]))
    assert seen(state) == [(0, 2), (1, 1), (2, 2)], "back at its place by order of arrival"
    assert state.snapshot().clusters[0].free == R([7, 31])
    assert state.snapshot().clusters[0].running[0].type.minimum[1] == 1, "running tasks keep their type"
    state.apply(TaskArrived(1, make_task(4, a, arrival=1)))
    assert seen(state)[-1] == (4, 2)


def test_what_is_known_never_becomes_less() -> None:
    a = make_type("a")
    ladder = ladder_of(a, 10.0)
    state = state_of(*(make_task(i, a) for i in range(3)))
    run(state, 1, 1)
    run(state, 2, 4)
    state.apply(TaskOutOfMemory(0, 2, 0, ladder.steps[3]))
    assert seen(state) == [(0, 8), (2, 8)]
    state.apply(TaskOutOfMemory(0, 1, 0, ladder.steps[1]))
    assert seen(state) == [(0, 8), (1, 8), (2, 8)]
    assert state.fork().snapshot().queue == state.snapshot().queue
    state.apply(TaskArrived(1, make_task(5, a, arrival=1)))
    assert seen(state)[-1] == (5, 8)


def test_only_running_tasks_run_out_of_memory() -> None:
    a = make_type("a")
    state = state_of(make_task(0, a))
    with pytest.raises(InvalidTransition, match="task 0 should be running"):
        state.apply(TaskOutOfMemory(0, 0, 0, ladder_of(a, 6.0).steps[1]))


# ------------------------------------------------------------------------- whole runs


def world_of(memory: int = 8, **changes: Any) -> World:
    speed = {"kind": "constant", "slots": 1}
    hungry = {"name": "hungry", "minimum": {"gpu": 1, "memory": 1}, "maximum": {"memory": 8}, "speed": speed}
    scenario = {
        "name": "needs",
        "mode": "multi",
        "tasks": 6,
        "arrivals": {"kind": "poisson", "rate": 2},
        "resources": {"gpu": 1, "memory": 1},
        "clusters": [{"name": "lab", "capacity": {"gpu": 2, "memory": memory}}],
        "task_types": [hungry | {"needs": {"memory": 3}}],
    }
    return build_world(parse_scenario(scenario | changes))


def test_running_out_of_memory_comes_before_finishing() -> None:
    log: list[Event] = []
    run_scheduler(world_of(), create("scheduler", "min", {}), 0, [log.append])
    short = [event for event in log if isinstance(event, TaskOutOfMemory)]
    # Two tasks start side by side, with 1 and then with 2; all tasks after them are given 4.
    assert [event.type.minimum[1] for event in short] == [2, 2, 4, 4]
    started = {e.task: e for e in log if isinstance(e, TaskStarted)}
    assert {tuple(e.allocation) for e in started.values()} == {(1, 4)}
    finished = [event for event in log if isinstance(event, TaskFinished)]
    assert sorted(event.task for event in finished) == list(range(6))
    assert min(event.slot for event in finished) > max(event.slot for event in short)


def test_a_cluster_that_is_too_small_for_the_step_that_is_enough_is_refused() -> None:
    draw_workload(world_of(memory=4), 0)
    with pytest.raises(ConfigError, match="fits no"):
        draw_workload(world_of(memory=3), 0)


def test_schedulers_know_the_ladder_but_not_the_need() -> None:
    context = world_of().context(0)
    assert [t.minimum[1] for t in context.task_types] == [1, 2, 4, 8]
