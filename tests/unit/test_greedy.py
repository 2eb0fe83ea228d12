from __future__ import annotations

import pytest
from helpers import arrive, constant_type, make_state, make_task, play, running

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Mode, SchedulerContext
from tapfinger.core.model import Cluster, Resources, ResourceTypes
from tapfinger.core.state import EdgeState
from tapfinger.schedulers.greedy import Greedy
from tapfinger.workloads.world import build_world

INSENSITIVE, SENSITIVE = build_world(load_scenario("multi-3")).task_types


def decide(state: EdgeState, **options: float) -> list[tuple[int, int, tuple[int, ...]]]:
    scheduler = Greedy(**options)
    types = tuple({t.type.name: t.type for t in state.snapshot().queue}.values())
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, types or (INSENSITIVE,), state.mode))
    decision: Decision = scheduler.decide(state.snapshot())
    state.commit(decision)  # legal, or this raises
    return [(p.task, p.cluster, tuple(p.allocation)) for p in decision.placements]


def test_takes_the_fastest_size_on_the_emptier_cluster() -> None:
    state = make_state((16, 12), (16, 16))
    play(state, *arrive(make_task(0, SENSITIVE, eligible=(0, 1))))
    assert decide(state) == [(0, 1, (2, 10))]


def test_waits_rather_than_take_a_far_slower_size() -> None:
    # 4 GPUs are left: 5 slots instead of 2. Patience 2.2 refuses 5 > 4.4; patience 3 accepts.
    state = running(make_state((16, 16)), make_task(7, constant_type((2, 12))), 0, 2, 12)
    play(state, *arrive(make_task(0, SENSITIVE)))
    assert decide(state, patience=2.2) == []
    assert decide(state, patience=3.0) == [(0, 0, (2, 4))]


def test_patience_ends() -> None:
    state = running(make_state((16, 16)), make_task(7, constant_type((2, 12))), 0, 2, 12)
    play(state, *arrive(make_task(0, SENSITIVE)))
    for _ in range(20):
        state.end_slot({})
    assert decide(state, max_wait=10.0) == [(0, 0, (2, 4))]


def test_the_ideal_is_what_its_own_clusters_could_give() -> None:
    # On a cluster of 4 GPUs, 5 slots are the ideal, so the task starts at once.
    state = make_state((4, 4))
    play(state, *arrive(make_task(0, SENSITIVE)))
    assert decide(state) == [(0, 0, (2, 4))]


def test_congestion_makes_it_choose_the_cheaper_size() -> None:
    # 7 GPUs for 3 slots cost 21 GPU-slots, 10 for 2 cost 20, 5 for 4 cost 20, 4 for 5 cost 20.
    # With a room of 9 and a high price, 5 GPUs (4 slots, less cost) beat 7 (3 slots, more cost).
    state = running(make_state((16, 16)), make_task(77, constant_type((2, 7))), 0, 2, 7)
    tasks = [make_task(i, SENSITIVE) for i in range(40)]
    play(state, *arrive(*tasks))
    state.end_slot({})
    assert decide(state, queue_price=0.0)[0] == (0, 0, (2, 7))
    state = running(make_state((16, 16)), make_task(77, constant_type((2, 7))), 0, 2, 7)
    play(state, *arrive(*tasks))
    state.end_slot({})
    assert decide(state, queue_price=10.0, calm=1.5, patience=2.2)[0] == (0, 0, (2, 5))


@pytest.mark.parametrize(("short_first", "first"), [(0.0, 0), (1.5, 1), (9.0, 1)])
def test_order_weighs_age_against_shortness(short_first: float, first: int) -> None:
    state = make_state((3, 3))
    long, short = constant_type((3, 3), (3, 3), 10, "long"), constant_type((3, 3), (3, 3), 1, "short")
    play(state, *arrive(make_task(0, long)))
    state.end_slot({})
    play(state, *arrive(make_task(1, short, arrival=1)))
    assert [task for task, _, _ in decide(state, short_first=short_first)] == [first]


def test_an_old_long_task_overtakes_a_fresh_short_one() -> None:
    state = make_state((3, 3))
    long, short = constant_type((3, 3), (3, 3), 10, "long"), constant_type((3, 3), (3, 3), 1, "short")
    play(state, *arrive(make_task(0, long)))
    for _ in range(14):
        state.end_slot({})
    play(state, *arrive(make_task(1, short, arrival=14)))
    assert [task for task, _, _ in decide(state, short_first=1.5)] == [0]


def test_single_mode_starts_one_task_per_cluster() -> None:
    state = make_state((16, 16), (16, 16), mode=Mode.SINGLE)
    play(state, *arrive(*(make_task(i, INSENSITIVE, eligible=(0, 1)) for i in range(5))))
    placed = decide(state)
    assert sorted(cluster for _, cluster, _ in placed) == [0, 1]


def test_works_with_other_resources() -> None:
    low, high = (1, 1, 4), (2, 2, 4)
    kind = constant_type(low, high, 3)
    state = EdgeState([Cluster("a", Resources((4, 4, 7)))], Mode.MULTI)
    play(state, *arrive(make_task(0, kind), make_task(1, kind)))
    scheduler = Greedy()
    names = ResourceTypes(("cpu", "gpu", "memory"), (1.0, 1.0, 4.0))
    scheduler.reset(SchedulerContext(names, state.clusters, (kind,), state.mode))
    assert [tuple(p.allocation) for p in scheduler.decide(state.snapshot()).placements] == [(1, 1, 4)]
