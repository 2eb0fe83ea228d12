"""The fluid plan: worth by hand, starts and resizes by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import arrive, constant_type, make_state, make_task, play, running

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode, SchedulerContext, Snapshot
from tapfinger.core.events import OthersChanged
from tapfinger.core.model import Resources, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.fluid import Fluid
from tapfinger.schedulers.fluid_sizes import FluidSizes
from tapfinger.schedulers.fluid_worth import FluidWorth
from tapfinger.sim.run import run_scheduler
from tapfinger.testing import check_scheduler
from tapfinger.workloads.world import build_world


def linear(work: float, name: str = "linear", most: int = 4) -> TaskType:
    """A type of one cpu and 1 to ``most`` GPUs that takes ``work`` GPU-slots whatever its size."""
    low, high = Resources((1, 1)), Resources((1, most))
    return TaskType(name, low, high, SpeedProfile(low, high, tuple(gpus / work for gpus in range(1, most + 1))))


def decide(state: EdgeState, *types: TaskType, cost: float = 0.0, **options: bool) -> tuple[dict, dict]:
    """Starts as task -> (cluster, GPUs), and resizes as task -> GPUs; a decision that is not legal raises."""
    scheduler = Fluid(**options)
    context = SchedulerContext(ResourceTypes(), state.clusters, types, state.mode, switching_cost=cost)
    scheduler.reset(context)
    decision = scheduler.decide(state.snapshot())
    state.commit(decision)
    starts = {p.task: (p.cluster, p.allocation[1]) for p in decision.placements}
    return starts, {r.task: r.allocation[1] for r in decision.resizes}


# ------------------------------------------------------------------------ worth

SLOTS, UNITS = np.array([4.0, 2.0]), np.array([1, 2])


def test_the_longest_task_is_worth_its_shortest_duration() -> None:
    worth = FluidWorth(np.array([2]), 2, 0.0)
    assert worth.worth(0, SLOTS, UNITS) == 2.0


def test_a_shorter_task_is_worth_what_it_makes_the_longer_one_wait() -> None:
    # Both are linear. Alone, the longer one gains 1 a slot in two units and a half in one. The shorter one costs
    # 4 x (2 - 0.5) in one unit and 2 x (2 - 0) in two: it gets both.
    worth = FluidWorth(np.array([2]), 2, 0.0)
    worth.add(0, worth.worth(0, SLOTS, UNITS), SLOTS, UNITS, must=False)
    assert worth.worth(0, SLOTS, UNITS) == 4.0
    choice = worth.add(0, 4.0, SLOTS, UNITS, must=False)
    assert choice.tolist() == [-1, 0, 1]


def test_at_the_best_sizes_the_tasks_gain_as_many_slots_as_they_are() -> None:
    rng = np.random.default_rng(3)
    worth = FluidWorth(np.array([12]), 12, 0.0)
    for count in range(1, 6):
        units = np.array([2, 5, 12])
        slots = np.sort(rng.uniform(2.0, 30.0, 3))[::-1]
        value = worth.worth(0, slots, units)
        worth.add(0, value, slots, units, must=False)
        assert worth.tasks[0] == count
        # A further task that took nothing would lose nobody anything.
        free = worth.costs(np.array([0]), np.array([[7.0]]), np.array([[0]]), np.ones(1))
        assert free.tolist() == pytest.approx([7.0])


def test_without_room_a_cluster_costs_infinitely_much() -> None:
    worth = FluidWorth(np.array([2, 1]), 2, 0.0)
    costs = worth.costs(np.array([0, 1]), np.array([[5.0], [5.0]]), np.array([[2], [2]]), np.zeros(2))
    assert costs.tolist() == [5.0, np.inf]


def test_units_follow_the_scarcer_resource() -> None:
    state = make_state((64, 4))
    kind = linear(8.0)
    sizes = FluidSizes(SiteTables(SchedulerContext(ResourceTypes(), state.clusters, (kind,), Mode.MULTI)))
    assert sizes.units.tolist() == [24]
    found = sizes.of("linear", 0)
    assert found is not None
    assert [tuple(size) for size in found.allocations] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert found.units.tolist() == [6, 12, 18, 24]
    assert sizes.room(Resources((64, 2)), 0) == 12


def test_a_type_that_never_fits_has_no_size() -> None:
    state = make_state((64, 1), (64, 4))
    kind = constant_type((2, 2), (2, 4))
    sizes = FluidSizes(SiteTables(SchedulerContext(ResourceTypes(), state.clusters, (kind,), Mode.MULTI)))
    assert sizes.of(kind.name, 0) is None
    slots, units = sizes.everywhere(kind.name)
    assert np.isinf(slots[0]).all()
    assert (units[0] > sizes.most).all()


# -------------------------------------------------------------------- decisions


def test_where_speed_up_is_linear_the_shortest_task_gets_everything() -> None:
    short, long = linear(4.0, "short"), linear(40.0, "long")
    state = make_state((16, 4))
    play(state, *arrive(make_task(0, long), make_task(1, short)))
    assert decide(state, short, long) == ({1: (0, 4)}, {})


def test_where_nothing_speeds_up_all_start() -> None:
    kind = constant_type((1, 1), (1, 4), 6.0)
    state = make_state((16, 4))
    play(state, *arrive(*(make_task(i, kind) for i in range(3))))
    assert decide(state, kind) == ({0: (0, 1), 1: (0, 1), 2: (0, 1)}, {})


def test_a_running_task_shrinks_for_a_shorter_one_and_grows_again() -> None:
    short, long = linear(4.0, "short"), linear(40.0, "long")
    state = running(make_state((16, 4)), make_task(0, long), 0, 1, 4)
    play(state, *arrive(make_task(1, short)))
    # Three GPUs would take two slots as well.
    assert decide(state, short, long) == ({1: (0, 2)}, {0: 2})
    alone = running(make_state((16, 4)), make_task(0, long), 0, 1, 1)
    assert decide(alone, short, long) == ({}, {0: 4})


def test_a_change_that_costs_more_than_it_saves_is_not_made() -> None:
    # Two GPUs instead of one would save half of two slots.
    kind = linear(2.0, most=2)
    for cost, expected in ((0.0, {0: 2}), (1.5, {})):
        state = running(make_state((16, 2)), make_task(0, kind), 0, 1, 1)
        assert decide(state, kind, cost=cost) == ({}, expected)


def test_without_resizing_sizes_stay() -> None:
    short, long = linear(4.0, "short"), linear(40.0, "long")
    state = running(make_state((16, 4)), make_task(0, long), 0, 1, 3)
    play(state, *arrive(make_task(1, short)))
    starts, resizes = decide(state, short, long, resize=False)
    assert (set(starts) <= {1}, resizes) == (True, {})


def test_tasks_go_to_the_cluster_where_they_add_least() -> None:
    kind = linear(8.0)
    state = running(make_state((16, 4), (16, 4)), make_task(9, kind, eligible=(0, 1)), 0, 1, 4)
    play(state, *arrive(make_task(0, kind, eligible=(0, 1))))
    assert decide(state, kind) == ({0: (1, 4)}, {})


def test_in_single_mode_a_cluster_starts_one_task() -> None:
    kind = constant_type((1, 1), (1, 1), 6.0)
    state = make_state((16, 4), (16, 4), mode=Mode.SINGLE)
    play(state, *arrive(*(make_task(i, kind, eligible=(0, 1)) for i in range(5))))
    starts, _ = decide(state, kind)
    assert sorted(cluster for cluster, _ in starts.values()) == [0, 1]


def test_nothing_starts_on_a_cluster_that_is_down_or_taken_by_others() -> None:
    kind = constant_type((1, 1), (1, 1), 6.0)
    state = make_state((16, 4))
    play(state, OthersChanged(0, 0, Resources((16, 4))), *arrive(make_task(0, kind)))
    assert decide(state, kind) == ({}, {})
    scheduler = Fluid()
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, (kind,), state.mode))
    free = make_state((16, 4))
    play(free, *arrive(make_task(0, kind)))
    closed: Snapshot = free.snapshot().closed([0])
    assert scheduler.decide(closed).void
    assert scheduler.decide(free.snapshot()).placements


def test_where_capacity_fell_below_what_tasks_hold_nothing_changes() -> None:
    kind = constant_type((1, 2), (1, 4), 6.0)
    state = running(running(make_state((16, 4)), make_task(0, kind), 0, 1, 2), make_task(1, kind), 0, 1, 2)
    play(state, *arrive(make_task(2, kind)))
    scheduler = Fluid()
    scheduler.reset(SchedulerContext(ResourceTypes(), state.clusters, (kind,), state.mode))
    seen = state.snapshot()
    short = replace(seen.clusters[0], capacity=Resources((16, 3)), free=Resources((14, 0)))
    assert scheduler.decide(replace(seen, clusters=(short,))).void


@pytest.mark.parametrize("options", [{}, {"resize": False}], ids=str)
def test_it_passes_the_conformance_kit(options: dict[str, bool]) -> None:
    check_scheduler(lambda: Fluid(**options))


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fluid: resize = 'no' must be true or false"):
        Fluid("no")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["multi-3", "nodes-3", "hardware-3", "shared-3", "data-3", "memory-3"])
def test_every_task_of_a_shipped_scenario_ends(name: str) -> None:
    world = build_world(load_scenario(name, ["tasks=60"]))
    for spec in ("fluid", "fluid@resize=false"):
        assert run_scheduler(world, parse_spec(spec).create(), 3).tasks == 60
