"""Whatever is seen of tasks, beliefs remain usable profiles; where nothing is noisy, what was seen is the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from helpers import R
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import worlds

from tapfinger.config import parse_scenario
from tapfinger.core.model import MAX_SLOTS, Noise, SpeedProfile, TaskType
from tapfinger.evaluation.specs import parse_spec
from tapfinger.profiles.belief_wrapper import Believing
from tapfinger.profiles.beliefs import FLOOR, HAIR, Belief
from tapfinger.sim.run import informed, new_session
from tapfinger.workloads.world import World, build_world, draw_workload

BOX = R((0, 1)), R((3, 4))
CELLS = 16

rates = st.floats(1.1 / MAX_SLOTS, 10.0)
shares = st.floats(0.0, 1.0)
noises = st.sampled_from([Noise(), Noise("additive", 0.1), Noise("relative", 0.9)])
places = st.tuples(st.integers(0, 3), st.integers(1, 4))
progress = st.tuples(places, st.floats(0.0, 0.999), shares, shares)
ends = st.tuples(places, st.integers(1, 3000))


@given(
    st.lists(rates, min_size=CELLS, max_size=CELLS),
    st.lists(st.floats(0.0, 3.0), min_size=CELLS, max_size=CELLS),
    st.sampled_from([None, 1.001, 1.2]),
    noises,
    st.lists(progress | ends, max_size=30),
)
@settings(deadline=None)
def test_beliefs_are_profiles_whatever_is_seen(
    told: list[float], doubt: list[float], offset: float | None, noise: Noise, seen: list[Any]
) -> None:
    belief = Belief(TaskType("any", *BOX, SpeedProfile(*BOX, tuple(told), offset, tuple(doubt))), noise)
    for observation in seen:
        allocation = R(observation[0])
        if len(observation) == 2:
            belief.see_end(allocation, observation[1])
        else:
            belief.see_progress(allocation, *observation[1:])
        belief.revised()
    found = belief.believed().profile  # made by SpeedProfile, which checks it; once more in our own words
    values = np.array(found.rates)
    assert np.isfinite(values).all()
    assert (values > 1.0 / MAX_SLOTS).all()
    assert found.doubt is not None
    assert (np.array(found.doubt) <= np.array(doubt) + 1e-9).all(), "seeing never leaves more doubt"


def knowing(world: World, knowledge: dict[str, Any], cost: float, reports: bool) -> World:
    data = world.scenario.resolved() | {"noise": {}, "switching_cost": cost, "reports_progress": reports}
    outage = {"cluster": 0, "start": 5, "end": 9}
    return build_world(parse_scenario(data | {"knowledge": knowledge, "outages": [outage]}))


@given(
    worlds(),
    st.sampled_from(
        [{"kind": "noisy", "amount": 1.0}, {"kind": "wrong", "factor": 0.2}, {"kind": "wrong", "factor": 4}]
    ),
    st.sampled_from([0.0, 0.5, 1.5]),
    st.booleans(),
    st.sampled_from(["optimus", "tiresias-elastic", "greedy", "random"]),
    st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_without_noise_what_was_seen_is_true(
    plain: World, knowledge: dict[str, Any], cost: float, reports: bool, name: str, seed: int
) -> None:
    world = knowing(plain, knowledge, cost, reports)
    player = informed(world, parse_spec(name).create())
    assert isinstance(player, Believing)
    session = new_session(world, draw_workload(world, seed))
    player.reset(world.context(seed))
    while not session.done:
        session.play_round(player)
        session.end_slot()
        assert session.state.slot < 5000
    player.decide(session.state.snapshot())  # to see the end of the last task
    for true in world.task_types:
        rates = [rate for _, profile in true.profiles for rate in profile.rates] or true.profile.rates
        for cell, seen in player._evidence._beliefs[true.name]._seen.items():
            value, variance = seen.estimate(world.noise)
            # A task of one slot says only that it is fast: taken for up to two in a slot, it may be faster still.
            truth = min(math.log(rates[cell]), value + math.sqrt(3.0 * variance))
            assert abs(value - truth) <= max(HAIR * FLOOR, math.sqrt(3.0 * variance) + 0.02)
