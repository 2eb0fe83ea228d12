"""Learned lookahead: whose plans it considers, what lending adds, and that effort follows the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers import R, log_of

from tapfinger.config import load_scenario
from tapfinger.core.contract import VOID, Decision, LearningScheduler, Placement, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start
from tapfinger.errors import ConfigError
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers import lookahead as module
from tapfinger.schedulers.learned_lookahead import PolicyPlans, learned
from tapfinger.schedulers.lookahead import Lookahead
from tapfinger.sim.run import new_session
from tapfinger.testing import check_scheduler
from tapfinger.workloads.world import World, build_world, draw_workload

#: A size that no greedy would give: more cpus change nothing.
ODD = R((3, 2))


def shipped(name: str, *changes: str) -> World:
    return build_world(load_scenario(name, changes))


def first_snapshot(world: World) -> Snapshot:
    session = new_session(world, draw_workload(world, 0))
    while not session.state.snapshot().queue:
        session.end_slot()
    return session.state.snapshot()


class OneATurn:
    """Starts the first task that can start, with the odd size."""

    one_shot = False

    def reset(self, context: SchedulerContext) -> None:
        self.told = 0

    def learn(self, context: SchedulerContext) -> None:
        self.told += 1

    def decide(self, snapshot: Snapshot) -> Decision:
        for task in snapshot.queue:
            for n in task.eligible:
                if can_start(task, snapshot.clusters[n]) and ODD.fits(snapshot.clusters[n].free):
                    return Decision((Placement(task.id, n, ODD),))
        return VOID


class Fixed:
    """Proposes what it was given."""

    cost_ms = 0.0

    def __init__(self, *plans: Sequence[Placement]) -> None:
        self._plans = plans

    def reset(self, context: SchedulerContext) -> None: ...

    def learn(self, context: SchedulerContext) -> None: ...

    def propose(self, snapshot: Snapshot) -> Sequence[Sequence[Placement]]:
        return self._plans


def decide(world: World, snapshot: Snapshot, plans: Sequence[Placement], **options: Any) -> tuple[Lookahead, Decision]:
    scheduler = Lookahead(**options)
    scheduler.proposer = Fixed(plans)
    scheduler.reset(world.context(0))
    return scheduler, scheduler.decide(snapshot)


def test_the_policy_plays_all_its_turns_of_the_slot() -> None:
    world = shipped("multi-3")
    snapshot = first_snapshot(world)
    proposer = PolicyPlans(OneATurn())
    proposer.reset(SiteTables(world.context(0)))
    (plan,) = proposer.propose(snapshot)
    tasks = [placement.task for placement in plan]
    assert len(tasks) > 1
    assert len(set(tasks)) == len(tasks)
    left = snapshot.after(plan)
    assert all(amount >= 0 for free in left.free for amount in free)
    assert OneATurn().decide(left).void


def test_in_single_task_mode_the_policy_has_one_turn() -> None:
    world = shipped("synthetic-3")
    proposer = PolicyPlans(OneATurn())
    proposer.reset(SiteTables(world.context(0)))
    (plan,) = proposer.propose(first_snapshot(world))
    assert len(plan) == 1


def test_the_proposed_plan_is_considered_and_the_one_to_beat() -> None:
    # The odd size is in no other plan, and nothing is so much better that it would pass.
    world = shipped("multi-3")
    snapshot = first_snapshot(world)
    plan = [Placement(snapshot.queue[0].id, snapshot.queue[0].eligible[0], ODD)]
    scheduler, decision = decide(world, snapshot, plan, caution=1e9)
    assert decision.placements == tuple(plan)
    assert scheduler.taken == {"proposed": 1}


def test_a_foolish_proposal_is_beaten() -> None:
    # Nothing runs, and the network would leave it at that.
    world = shipped("multi-3")
    snapshot = first_snapshot(world)
    assert decide(world, snapshot, [], caution=1.5)[1].placements


def test_a_proposal_that_is_not_legal_is_left_out() -> None:
    world = shipped("multi-3")
    snapshot = first_snapshot(world)
    task = snapshot.queue[0]
    below = [Placement(task.id, task.eligible[0], R((1, 1)))]
    assert decide(world, snapshot, below, caution=1e9)[1].void
    elsewhere = [n for n in range(3) if n not in task.eligible]
    for n in elsewhere:
        assert decide(world, snapshot, [Placement(task.id, n, ODD)], caution=1e9)[1].void


@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-3", "hetero-6", "testbed-3"])
def test_keeps_the_contract(scenario: str) -> None:
    check_scheduler(lambda: learned(budget_ms=1.0), [load_scenario(scenario, ["tasks=25"])])


@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-3"])
def test_lookahead_alone_may_lend_too(scenario: str) -> None:
    check_scheduler(lambda: Lookahead(budget_ms=1.0, lend=True), [load_scenario(scenario, ["tasks=25"])])


def test_it_lends_only_if_told_to() -> None:
    world = shipped("multi-3", "tasks=80")
    resized = {}
    for lend in (False, True):
        events, _ = log_of(world, learned(budget_ms=2.0, lend=lend), seed=1)  # checks the state in every slot
        resized[lend] = sum(type(e).__name__ == "TaskResized" for e in events)
    assert resized[False] == 0
    assert resized[True] > 0
    default, without = (log_of(world, learned(budget_ms=2.0, **told), seed=1)[0] for told in ({}, {"lend": False}))
    assert default == without


def test_the_same_seed_gives_the_same_decisions_and_a_scheduler_can_be_used_again() -> None:
    world = shipped("multi-3", "tasks=60")
    scheduler = learned(budget_ms=3.0)
    assert log_of(world, scheduler, seed=2)[0] == log_of(world, learned(budget_ms=3.0), seed=2)[0]
    assert log_of(world, scheduler, seed=2)[0] == log_of(world, learned(budget_ms=3.0), seed=2)[0]


def test_less_time_means_less_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = shipped("hetero-6")
    snapshot = first_snapshot(world)
    played: list[int] = []
    real = module.plan_kernels.roll_out

    def counted(*args: Any) -> None:
        played[-1] += len(args[5]) * (args[7] - args[6])
        real(*args)

    monkeypatch.setattr(module.plan_kernels, "roll_out", counted)
    for budget in (6.0, 20.0, 60.0):
        scheduler = learned(budget_ms=budget)
        played.append(0)  # what warming up plays
        scheduler.reset(world.context(0))
        played.append(0)
        scheduler.decide(snapshot)
    few, some, many = played[1::2]
    assert few < 0.6 * some
    assert some < 0.7 * many


def test_the_proposer_is_told_of_other_profiles() -> None:
    world = shipped("multi-3")
    policy = OneATurn()
    scheduler = Lookahead()
    scheduler.proposer = PolicyPlans(policy)
    scheduler.reset(world.context(0))
    assert isinstance(scheduler, LearningScheduler)
    scheduler.learn(world.context(0))
    assert policy.told == 1


def test_bad_option() -> None:
    with pytest.raises(ConfigError, match="lookahead: lend = 2 must be true or false"):
        learned(lend=2)  # type: ignore[arg-type]
