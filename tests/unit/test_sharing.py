"""Sharing: who gets how much of a cluster, who is let in, and when it is worth it."""

from __future__ import annotations

import dataclasses
import math

import pytest
from helpers import R, arrive, make_state, make_task, play, running
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.core.contract import VOID, Decision, Placement, SchedulerContext, Snapshot
from tapfinger.core.events import TaskStarted
from tapfinger.core.model import Cluster, ResourceTypes, SpeedProfile, TaskType
from tapfinger.core.state import EdgeState
from tapfinger.errors import ConfigError
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.registry import create
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.sharing import Sharing, sharing_pays
from tapfinger.sim.run import run_scheduler
from tapfinger.testing import check_scheduler, tiny_scenarios
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import World, build_world


def by_gpus(name: str, slots: float, exponent: float) -> TaskType:
    """Takes ``slots`` on one gpu; it may have up to 8."""
    low, high = R((1, 1)), R((1, 8))
    return TaskType(name, low, high, SpeedProfile(low, high, tuple(g**exponent / slots for g in range(1, 9))))


LONG, SHORT, LINEAR = by_gpus("long", 40.0, 0.5), by_gpus("short", 30.0, 0.5), by_gpus("linear", 40.0, 1.0)


def tables(state: EdgeState, *types: TaskType, cost: float = 0.0) -> SiteTables:
    clusters = tuple(Cluster(c.name, c.capacity) for c in state.clusters)
    context = SchedulerContext(ResourceTypes(), clusters, types or (LONG, SHORT), state.mode, switching_cost=cost)
    return SiteTables(context)


def ready(state: EdgeState, *types: TaskType, cost: float = 0.0) -> Sharing:
    return Sharing(tables(state, *types, cost=cost))


def first_that_fits(snapshot: Snapshot) -> Decision:
    """Starts the oldest task at its maximum, or at its minimum where that is all there is."""
    for task in snapshot.queue:
        for size in (task.type.maximum, task.type.minimum):
            if size.fits(snapshot.free[0]):
                return Decision((Placement(task.id, 0, size),))
    return VOID


def held(state: EdgeState) -> dict[int, int]:
    return {t.id: t.allocation[1] for c in state.snapshot().clusters for t in c.running if t.allocation}


def test_it_pays_where_small_sizes_are_more_efficient_and_changes_are_free():
    state = make_state((16, 8))
    assert sharing_pays(tables(state, LONG))  # the fastest size costs 8 ** 0.5 times what the cheapest does
    assert not sharing_pays(tables(state, LINEAR))
    assert not sharing_pays(tables(state, LONG, cost=0.5))


def test_who_waits_is_let_in_and_the_others_shrink():
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 8)
    play(state, *arrive(make_task(1, LONG)))
    play(state, ready(state).decide(state.snapshot(), first_that_fits))
    assert sum(held(state).values()) == 8
    assert set(held(state)) == {0, 1}
    assert min(held(state).values()) >= 3


def test_who_ends_sooner_gets_more_but_not_everything():
    state = make_state((16, 8))
    running(state, make_task(0, LONG), 0, 1, 4)
    running(state, make_task(1, SHORT), 0, 1, 4)
    play(state, ready(state).decide(state.snapshot(), first_that_fits))
    assert held(state)[1] > held(state)[0] > 1


def test_everything_goes_to_a_task_that_is_alone():
    state = make_state((16, 12))
    running(state, make_task(0, LONG), 0, 1, 2)
    play(state, ready(state).decide(state.snapshot(), first_that_fits))
    assert held(state) == {0: 8}


def test_whoever_decides_sees_the_sizes_it_gave_first_and_then_everybody_at_the_minimum():
    state = make_state((16, 8))
    sharing = ready(state)
    play(state, *arrive(make_task(0, LONG)))
    play(state, sharing.decide(state.snapshot(), first_that_fits), TaskStarted(0, 0, 0, R((1, 8))))
    state.end_slot({0: 0.1})
    play(state, *arrive(make_task(1, LONG, arrival=1)))
    seen: list[tuple[int, int]] = []

    def look(snapshot: Snapshot) -> Decision:
        running_task = snapshot.clusters[0].running[0]
        assert running_task.allocation is not None
        seen.append((running_task.allocation[1], snapshot.free[0][1]))
        return VOID

    sharing.decide(state.snapshot(), look)
    assert seen == [(8, 0), (1, 7)]
    assert sharing.finished(state.snapshot())


def test_progress_that_is_not_reported_is_counted_by_what_was_held():
    silent = make_state((16, 8))
    running(silent, make_task(0, LONG), 0, 1, 8)
    sharing = ready(silent)
    sharing.decide(_without_progress(silent.snapshot()), first_that_fits)
    silent.end_slot({0: 0.05})
    sharing.decide(_without_progress(silent.snapshot()), first_that_fits)
    rate = LONG.profile.rate(R((1, 8)))
    passed = silent.snapshot().slot
    assert sharing._progress[0] == pytest.approx(passed * rate)


def _without_progress(snapshot: Snapshot) -> Snapshot:
    def silent(task):
        return dataclasses.replace(task, progress=None)

    clusters = tuple(dataclasses.replace(c, running=tuple(map(silent, c.running))) for c in snapshot.clusters)
    return dataclasses.replace(snapshot, clusters=clusters)


class SharingGreedy(Greedy):
    """Greedy's starts, shared out."""

    def reset(self, context: SchedulerContext) -> None:
        super().reset(context)
        self.sharing = Sharing(SiteTables(context))

    def decide(self, snapshot: Snapshot) -> Decision:
        return self.sharing.decide(snapshot, super().decide)


def test_it_keeps_the_contract():
    check_scheduler(SharingGreedy(), tiny_scenarios())


def site(seed: int, tasks: int) -> World:
    data = draw_site(seed, tasks=tasks).resolved()
    return build_world(parse_scenario({**data, "switching_cost": 0.0}))


@given(seed=st.integers(0, 10_000), starts=st.integers(0, 3))
def test_decisions_are_legal_on_any_site(seed: int, starts: int):
    """Runs raise on a decision that is not."""
    world = site(seed, 25)
    assert run_scheduler(world, SharingGreedy(), starts).tasks == 25


def test_long_concave_tasks_end_sooner_than_under_the_same_greedy():
    types = [
        {
            "name": "long",
            "minimum": {"cpu": 1, "gpu": 1},
            "maximum": {"cpu": 4, "gpu": 8},
            "speed": {"kind": "amdahl", "seconds": 400, "parallel": {"gpu": 0.8}},
        }
    ]
    data = {
        "name": "concave",
        "mode": "multi",
        "tasks": 150,
        "clusters": [{"name": "edge", "count": 2, "capacity": {"cpu": 16, "gpu": 8}}],
        "task_types": types,
        "arrivals": {"kind": "poisson", "rate": 0.5},
    }
    world = build_world(parse_scenario(data))

    def mean(scheduler: Greedy) -> float:
        found = [run_scheduler(world, scheduler, seed) for seed in range(3)]
        return sum(run.total_completion_time / run.tasks for run in found) / 3

    assert mean(SharingGreedy()) < 0.95 * min(mean(Greedy()), mean(Greedy(lend=True)))


def test_tapfinger_shares_where_it_pays_unless_told_otherwise():
    world = site(7, 20)
    chosen = create("scheduler", "tapfinger", {"model": "universal"})
    run_scheduler(world, chosen, 0)
    assert chosen.shares == sharing_pays(SiteTables(world.context(0)))
    for share in (True, False):
        told = create("scheduler", "tapfinger", {"model": "universal", "share": share})
        run_scheduler(world, told, 0)
        assert told.shares is share
    with pytest.raises(ConfigError, match="share = 3 must be true or false"):
        create("scheduler", "tapfinger", {"share": 3})


def test_who_will_be_late_gets_more():
    sizes = {}
    for late in (math.inf, 15.0):
        state = make_state((16, 8))
        running(state, make_task(0, LONG), 0, 1, 4)
        for _ in range(4):
            state.end_slot({})
        running(state, make_task(1, LONG, arrival=state.slot), 0, 1, 4)
        # Alone, the older one would take 14.1 slots, 4 of which it has had at half that speed.
        play(state, ready(state).decide(state.snapshot(), first_that_fits, late))
        sizes[late] = held(state)
    assert sizes[15.0][0] > sizes[math.inf][0]
    assert sizes[15.0][1] < sizes[math.inf][1]
