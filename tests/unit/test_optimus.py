"""Optimus: the fit, the marginal-gain rule by hand, admission, and what must not be touched."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import R, arrive, constant_type, log_of, make_state, make_task, place, play, running
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Mode, Placement, Resize, SchedulerContext
from tapfinger.core.events import ClusterLost, TaskArrived
from tapfinger.core.model import NO_NOISE, Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError
from tapfinger.schedulers.optimus import (
    NO_GAIN,
    Optimus,
    SpeedModel,
    _Share,
    central,
    first_wins,
    fit_speed,
    hand_out,
    nonnegative_least_squares,
    static,
)
from tapfinger.workloads.world import build_world

STEADY = constant_type()


def table_type(slots, minimum, maximum, name="table"):
    """A type whose duration is ``slots(*allocation)``."""
    low, high = R(minimum), R(maximum)
    rates = [1.0 / slots(*cell) for cell in SpeedProfile.allocations(SpeedProfile(low, high, ones(low, high)))]
    return TaskType(name, low, high, SpeedProfile(low, high, tuple(rates)))


def ones(low, high):
    return (1.0,) * int(np.prod([b - a + 1 for a, b in zip(low, high, strict=True)]))


#: Duration 12/gpu, whatever the cpu: gains are easy to compute by hand.
TWELFTHS = table_type(lambda _, gpu: 1200 / gpu, (2, 1), (8, 8), "twelfths")


def ready(scheduler: Optimus, state: EdgeState, *types: TaskType) -> Optimus:
    scheduler.reset(
        SchedulerContext(ResourceTypes(), tuple(Cluster(c.name, c.capacity) for c in state.clusters), types, state.mode)
    )
    return scheduler


# ------------------------------------------------------------------------------------------------ the fit


@given(
    st.integers(1, 4),
    st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=40, max_size=40),
)
def test_least_squares_agrees_with_scipy(columns, numbers):
    matrix = np.array(numbers[:32]).reshape(8, 4)[:, :columns]
    target = np.array(numbers[32:])
    ours = nonnegative_least_squares(matrix, target)
    assert (ours >= 0).all()
    assert np.linalg.norm(matrix @ ours - target) == pytest.approx(nnls(matrix, target)[1], rel=1e-6, abs=1e-6)


def test_least_squares_drops_a_column_that_would_be_negative():
    # Unconstrained: x = (2, -1). With x >= 0 only the first column is left: (2*1 + 1*1) / (1 + 1) = 1.5.
    matrix = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert nonnegative_least_squares(matrix, np.array([2.0, 1.0])) == pytest.approx([1.5, 0.0])


def test_fit_recovers_known_coefficients_on_the_right_axes():
    truth = SpeedModel(a=9000, b=2000, c=1500, d=100, e=40)
    fitted = fit_speed(table_type(truth.slots, (2, 1), (12, 8)), NO_NOISE, ResourceTypes())
    for name in ("a", "b", "c", "d", "e"):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=0.01), name
    # 2 cpus with 8 gpus is far from 8 cpus with 2 gpus: swapped axes would show here.
    assert fitted.slots(2, 8) == pytest.approx(truth.slots(2, 8), rel=0.001)
    assert fitted.slots(8, 2) == pytest.approx(truth.slots(8, 2), rel=0.001)
    assert truth.slots(2, 8) > 1.2 * truth.slots(8, 2)


def test_the_published_fit_takes_cpu_for_gpu():
    fitted = fit_speed(TWELFTHS, NO_NOISE, ResourceTypes(), published=True)
    assert fitted.slots(8, 8) < 0.5 * fitted.slots(2, 8)  # in truth cpus change nothing
    right = fit_speed(TWELFTHS, NO_NOISE, ResourceTypes())
    assert right.slots(8, 8) == pytest.approx(right.slots(2, 8))


def test_fit_of_a_constant_profile_is_constant():
    fitted = fit_speed(STEADY, NO_NOISE, ResourceTypes())
    assert fitted.slots(2, 1) == pytest.approx(4)
    assert fitted.slots(16, 16) == pytest.approx(4)


def test_fit_uses_first_and_last_resource_and_leaves_the_middle_at_its_minimum():
    three = table_type(lambda p, memory, w: 900 / w + 50 * w / p + 10000 * (memory - 4), (1, 4, 1), (6, 8, 6))
    fitted = fit_speed(three, NO_NOISE, ResourceTypes(("cpu", "memory", "gpu"), (1.0, 1.0, 1.0)))
    assert fitted.slots(3, 2) == pytest.approx(900 / 2 + 50 * 2 / 3, rel=0.01)


def test_fit_with_one_resource_has_no_p_terms():
    fitted = fit_speed(table_type(lambda w: 900 / w + 30, (1,), (8,)), NO_NOISE, ResourceTypes(("gpu",), (1.0,)))
    assert (fitted.c, fitted.e) == (0, 0)
    assert fitted.slots(5, 5) == pytest.approx(210, rel=0.01)


def test_fit_survives_a_minimum_of_zero():
    fitted = fit_speed(table_type(lambda p, w: 600 / (w + 1) + p, (1, 0), (4, 4)), NO_NOISE, ResourceTypes())
    assert np.isfinite(fitted.slots(1, 0))
    assert fitted.slots(1, 0) > fitted.slots(1, 1) > fitted.slots(1, 4)


# ---------------------------------------------------------------------------------------------- the rule


def test_the_next_unit_goes_to_the_larger_gain():
    # Remaining time 12/w and half of it. First gpu: A saves 6, B 3 -> A. Then A saves 2 per 2 held = 1,
    # B 3 -> B. Then A 1, B 0.5 -> A. Three spare gpus: A ends with 3, B with 2. Cpus gain nothing.
    state = make_state((16, 5))
    running(state, make_task(1, TWELFTHS), 0, 2, 1)
    running(state, make_task(2, TWELFTHS), 0, 2, 1)
    state.end_slot({1: 0.0, 2: 0.5})
    decision = ready(Optimus(), state, TWELFTHS).decide(state.snapshot())
    assert decision == Decision(resizes=(Resize(1, R((2, 3))), Resize(2, R((2, 2)))))


def test_a_gain_counts_per_unit_already_held():
    # A has all its work left, B a quarter. A's first gpu saves 6, its second 2, which is 1 per gpu held;
    # B's first saves 1.5. Two spare gpus therefore go to A and B, not both to A.
    state = make_state((16, 4))
    running(state, make_task(1, TWELFTHS), 0, 2, 1)
    running(state, make_task(2, TWELFTHS), 0, 2, 1)
    state.end_slot({1: 0.0, 2: 0.75})
    decision = ready(Optimus(), state, TWELFTHS).decide(state.snapshot())
    assert decision.resizes == (Resize(1, R((2, 2))), Resize(2, R((2, 2))))


#: a, b, c, d, e: the terms that make units worth having outweigh those that make them harmful.
COEFFICIENTS = st.tuples(*(st.integers(0, most) for most in (90, 9, 30, 1, 1)))


@given(
    st.lists(st.tuples(COEFFICIENTS, st.integers(1, 8)), min_size=1, max_size=4),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_the_heap_does_what_trying_every_unit_each_time_would_do(tasks, room):
    views = make_state((99, 99))
    play(views, *arrive(*[make_task(i, constant_type((2, 1), (4, 4))) for i in range(len(tasks))]))

    def shares():
        pairs = zip(views.snapshot().queue, tasks, strict=True)
        return [_Share(view, SpeedModel(*coefficients), left / 8) for view, (coefficients, left) in pairs]

    ours, plain, left = shares(), shares(), list(room)
    hand_out(ours, R(room))
    while True:
        offers = [
            (s.gain(r, s.model.duration(s.amounts)), -i, -r) for i, s in enumerate(plain) for r in (0, 1) if left[r]
        ]
        gain, i, r = max(offers, default=(0.0, 0, 0))
        if gain <= NO_GAIN:
            break
        plain[-i].amounts[-r] += 1
        left[-r] -= 1
    assert [s.amounts for s in ours] == [s.amounts for s in plain]


def test_every_slot_starts_over_from_the_minimum():
    # A newcomer arrives beside a task that holds everything: equal work left, so both end with 2 of 4.
    state = make_state((16, 4))
    running(state, make_task(1, TWELFTHS), 0, 2, 4)
    state.end_slot({1: 0.0})
    play(state, *arrive(make_task(2, TWELFTHS, arrival=1)))
    decision = ready(Optimus(), state, TWELFTHS).decide(state.snapshot())
    assert decision == Decision(placements=(Placement(2, 0, R((2, 2))),), resizes=(Resize(1, R((2, 2))),))
    play(state, decision)


def test_p_is_given_where_the_model_says_so_up_to_the_maximum():
    # 100 + 600 w/p: a gpu more is slower, each cpu more is faster.
    pushed = table_type(lambda p, w: 100 + 600 * w / p, (2, 1), (5, 4), "pushed")
    state = make_state((16, 16))
    play(state, *arrive(make_task(1, pushed)))
    assert ready(Optimus(), state, pushed).decide(state.snapshot()).placements == (Placement(1, 0, R((5, 1))),)


def test_what_gains_nothing_gets_nothing_and_unchanged_sizes_are_not_resized():
    state = make_state((16, 16))
    running(state, make_task(1, STEADY), 0, 2, 1)
    state.end_slot({1: 0.25})
    assert ready(Optimus(), state, STEADY).decide(state.snapshot()).void


def test_unreported_progress_is_estimated_from_the_time_run():
    # Both ran 600 of 1,200 slots' worth at 1 gpu (task 1 only); task 2 is new: it has more left and gets more.
    state = make_state((16, 5))
    running(state, make_task(1, TWELFTHS), 0, 2, 1)
    for _ in range(900):
        state.end_slot({})
    play(state, *arrive(make_task(2, TWELFTHS, arrival=900)))
    decision = ready(Optimus(), state, TWELFTHS).decide(state.snapshot())
    # Left: 0.25 and 1. B saves 6; then B (6-4)/2 = 1, A 0.25 * 6 = 1.5 -> A; then B 1, A 0.25 -> B.
    assert decision == Decision(placements=(Placement(2, 0, R((2, 3))),), resizes=(Resize(1, R((2, 2))),))


def test_a_task_that_is_only_just_starting_is_left_alone():
    state = make_state((16, 4))
    play(state, *arrive(make_task(1, TWELFTHS)), place(1, 0, 2, 3))
    assert ready(Optimus(), state, TWELFTHS).decide(state.snapshot()).void


# -------------------------------------------------------------------------------------------- admission


def test_single_mode_starts_one_per_cluster_and_multi_mode_all_that_fit():
    tasks = [make_task(i, STEADY) for i in range(10)]
    for mode, started in ((Mode.SINGLE, 1), (Mode.MULTI, 8)):  # 16 cpus hold 8 minima of 2
        state = make_state((16, 16), mode=mode)
        play(state, *arrive(*tasks))
        decision = ready(Optimus(), state, STEADY).decide(state.snapshot())
        assert len(decision.placements) == started
        play(state, decision)


def test_admit_limits_starts_in_multi_mode():
    state = make_state((16, 16))
    play(state, *arrive(*[make_task(i, STEADY) for i in range(10)]))
    assert len(ready(Optimus(admit=3), state, STEADY).decide(state.snapshot()).placements) == 3


def test_a_lost_conflict_costs_the_slot_but_not_with_central_admission():
    # One task both may run, one that only cluster 1 may run. With a pending set of one, both clusters draw task 0.
    tasks = (make_task(0, STEADY, eligible=(0, 1)), make_task(1, STEADY, eligible=(1,)))
    state = make_state((8, 8), (16, 16), mode=Mode.SINGLE)
    play(state, *arrive(*tasks))
    where = {}
    for name, scheduler in {
        "bayes": Optimus(pending=1),
        "first": first_wins(pending=1),
        "oldest": central(),
    }.items():
        decision = ready(scheduler, state, STEADY).decide(state.snapshot())
        where[name] = ({p.task: p.cluster for p in decision.placements}, len(decision.lost))
    assert where["bayes"] == ({0: 1}, 1)  # 8 copies of the minimum fit in cluster 1, 4 in cluster 0
    assert where["first"] == ({0: 0}, 1)
    assert where["oldest"] == ({0: 1}, 0)  # the oldest where there is most room; task 1 has no other cluster


def test_central_admission_serves_the_oldest_first_and_spreads():
    state = make_state((4, 4), (4, 4), mode=Mode.SINGLE)
    play(state, *arrive(*[make_task(i, STEADY, eligible=(0, 1)) for i in range(5)]))
    decision = ready(central(), state, STEADY).decide(state.snapshot())
    assert [(p.task, p.cluster) for p in decision.placements] == [(0, 0), (1, 1)]


def test_a_lost_cluster_gets_nothing():
    state = make_state((8, 8), (8, 8))
    play(state, ClusterLost(0, 0), *arrive(make_task(0, STEADY, eligible=(0, 1))))
    for scheduler in (Optimus(), central()):
        assert [p.cluster for p in ready(scheduler, state, STEADY).decide(state.snapshot()).placements] == [1]


def test_a_paused_task_is_resumed_if_it_fits():
    state = make_state((4, 4))
    running(state, make_task(1, STEADY), 0, 2, 1)
    play(state, Decision(resizes=(Resize(1, R((0, 0))),)))
    assert ready(Optimus(), state, STEADY).decide(state.snapshot()).resizes == (Resize(1, R((2, 1))),)


def test_static_sizes_once_from_what_is_free():
    state = make_state((16, 4))
    running(state, make_task(1, TWELFTHS), 0, 2, 2)
    state.end_slot({1: 0.0})
    play(state, TaskArrived(1, make_task(2, TWELFTHS, arrival=1)))
    decision = ready(static(), state, TWELFTHS).decide(state.snapshot())
    assert decision == Decision(placements=(Placement(2, 0, R((2, 2))),))


@pytest.mark.parametrize("options", [{"admission": "oldst"}, {"pending": 0}, {"admit": 0}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        Optimus(**options)


def test_whole_runs_are_legal_and_repeat_and_central_admission_is_stronger():
    world = build_world(load_scenario("synthetic-6", ["tasks=150"]))
    log, drawn = log_of(world, Optimus(), seed=3)
    again, _ = log_of(world, Optimus(), seed=3)
    assert log == again
    _, centrally = log_of(world, central(), seed=3)
    _, fixed = log_of(world, static(), seed=3)
    assert centrally.conflicts == 0 < drawn.conflicts
    assert centrally.total_completion_time < drawn.total_completion_time < fixed.total_completion_time
