"""The layer between scheduler and world: no true profile gets through, and what is seen of tasks is read rightly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import R, Scripted, log_of, make_workload, make_world, place

from tapfinger.commands.explaining import Watched
from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, LearningScheduler, Resize, Scheduler, SchedulerContext, Snapshot, TaskView
from tapfinger.core.model import SpeedProfile
from tapfinger.evaluation.specs import parse_spec
from tapfinger.profiles.belief_wrapper import Believing
from tapfinger.profiles.durations import efficient_sizes
from tapfinger.registry import BUILT_IN
from tapfinger.sim.run import informed, new_session, run_scheduler
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, build_world, draw_workload

KINDS: dict[str, dict[str, Any]] = {
    "noisy": {"kind": "noisy"},
    "fast": {"kind": "wrong", "factor": 3.0},
    "slow": {"kind": "wrong", "factor": 0.3},
    "missing": {"kind": "missing"},
}


def shipped(name: str, *changes: str) -> World:
    return build_world(load_scenario(name, changes))


def knowing(name: str, kind: str, learn: bool = True, *changes: str) -> World:
    given = [f"knowledge.{key}={value!r}" for key, value in KINDS[kind].items()]
    return shipped(name, "tasks=60", *given, f"knowledge.learn={str(learn).lower()}", *changes)


class Spy:
    """A scheduler that keeps every speed profile it gets to see."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.one_shot = scheduler.one_shot
        self.seen: dict[str, set[SpeedProfile]] = {}
        self.contexts: list[SchedulerContext] = []
        self.phases: set[str] = set()

    def reset(self, context: SchedulerContext) -> None:
        self._know(context)
        self._scheduler.reset(context)

    def learn(self, context: SchedulerContext) -> None:
        self._know(context)
        if isinstance(self._scheduler, LearningScheduler):
            self._scheduler.learn(context)

    def _know(self, context: SchedulerContext) -> None:
        self.contexts.append(context)
        for task_type in context.task_types:
            self.seen.setdefault(task_type.name, set()).add(task_type.profile)

    def decide(self, snapshot: Snapshot) -> Decision:
        known = {t.name: t for t in self.contexts[-1].task_types}
        for view in views(snapshot):
            assert view.type is known[view.type.name], "snapshots and the context must agree"
            self.phases.add(view.phase.value)
        return self._scheduler.decide(snapshot)


def views(snapshot: Snapshot) -> Iterator[TaskView]:
    yield from snapshot.queue
    for cluster in snapshot.clusters:
        yield from cluster.running
        yield from cluster.paused


# ------------------------------------------------------------- what gets through


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_no_scheduler_ever_sees_a_true_profile(kind: str, learn: bool) -> None:
    # Tiresias pauses tasks; turn by turn, a random scheduler sees those just placed.
    for scheduler, phases in (
        ("tiresias@threshold=2", {"queued", "running", "paused"}),
        ("random", {"queued", "running", "placed"}),
    ):
        spy = Spy(parse_spec(scheduler).create())
        world = knowing("multi-3", kind, learn, "arrivals.rate=6")
        run_scheduler(world, spy, 1)
        assert spy.phases == phases
        wrong = world.task_types[:1] if "wrong" in KINDS[kind].values() else world.task_types
        for true in world.task_types:
            assert true.profile not in spy.seen[true.name]
        for true in wrong:
            rates = [profile.rates for profile in spy.seen[true.name]]
            assert rates
            assert not any(
                math.isclose(a, b, rel_tol=1e-9)
                for told in rates
                for a, b in zip(told, true.profile.rates, strict=True)
            )
        assert (len(spy.contexts) > 1) == learn


def test_exact_knowledge_costs_nothing_and_hides_nothing() -> None:
    scheduler = parse_spec("greedy").create()
    assert informed(shipped("multi-3"), scheduler) is scheduler


# Exploring acts on doubt itself, and lookahead on the time it has.
@pytest.mark.parametrize("name", sorted(set(BUILT_IN["scheduler"]) - {"lookahead", "exploring"}))
def test_a_profile_told_right_changes_no_decision(name: str) -> None:
    exact, told = (
        shipped("synthetic-3", "tasks=40"),
        knowing("synthetic-3", "fast", False, "tasks=40", "knowledge.factor=1.0"),
    )
    assert isinstance(informed(told, parse_spec(name).create()), Believing)
    one, other = (log_of(world, parse_spec(name).create(), seed=3) for world in (exact, told))
    assert one[0] == other[0]


def test_the_same_seed_gives_the_same_events_while_learning() -> None:
    for kind in KINDS:
        one, other = (log_of(knowing("testbed-3", kind), parse_spec("greedy").create(), seed=4)[0] for _ in range(2))
        assert one == other


# --------------------------------------------------------------- what is learnt


def learnt(world: World, scheduler: Scheduler, seed: int = 0, workload: Workload | None = None) -> Believing:
    player = informed(world, scheduler)
    assert isinstance(player, Believing)
    session = new_session(world, workload if workload is not None else draw_workload(world, seed))
    player.reset(world.context(seed))
    while not session.done:
        session.play_round(player)
        session.end_slot()
    player.decide(session.state.snapshot())  # to see the end of the last task
    return player


def estimates(world: World, player: Believing) -> Iterator[tuple[float, float, float]]:
    """Of every allocation of every type that was seen: log rate, its standard deviation, the truth."""
    for true in world.task_types:
        for cell, seen in player._evidence._beliefs[true.name]._seen.items():
            value, variance = seen.estimate(world.noise)
            yield value, math.sqrt(variance), math.log(true.profile.rates[cell])


@pytest.mark.parametrize("scheduler", ["optimus-central", "tiresias-elastic", "random"])
def test_reported_progress_gives_the_very_rates_whatever_is_resized_or_paused(scheduler: str) -> None:
    changes = ("switching_cost=0.7", "outages=[{cluster=0, start=6, end=14}]")
    world = knowing("multi-3", "fast", True, *changes)
    player = learnt(world, parse_spec(scheduler).create(), 2)
    found = [(value, truth) for value, deviation, truth in estimates(world, player) if deviation < 0.01]
    assert len(found) > 10
    assert all(value == pytest.approx(truth, abs=1e-6) for value, truth in found)


@pytest.mark.parametrize("scheduler", ["greedy", "tiresias", "random"])
def test_without_reports_durations_bound_the_rates(scheduler: str) -> None:
    changes = ("reports_progress=false", "switching_cost=0.7", "outages=[{cluster=0, start=6, end=14}]")
    world = knowing("multi-3", "slow", True, *changes)
    found = list(estimates(world, learnt(world, parse_spec(scheduler).create(), 2)))
    assert len(found) > 1
    # Uniform on the interval that rounding leaves: never off by more than the square root of three deviations.
    assert all(abs(value - truth) <= math.sqrt(3.0) * deviation + 0.004 for value, deviation, truth in found)


def test_a_resized_task_that_does_not_report_tells_nothing() -> None:
    world = make_world(reports_progress=False, knowledge={"kind": "wrong"})
    decisions = {(0, 0): place(0, 0, 2, 1), (2, 0): Decision(resizes=(Resize(0, R((4, 4))),))}
    player = learnt(world, Scripted(decisions, one_shot=True), workload=make_workload([0]))
    assert list(estimates(world, player)) == []
    steady = learnt(world, Scripted({(0, 0): place(0, 0, 2, 1)}, one_shot=True), workload=make_workload([0]))
    assert len(list(estimates(world, steady))) == 1


def test_a_task_that_ends_in_its_first_slot_is_seen_too() -> None:
    speed = {"kind": "constant", "slots": 1}
    quick = {"name": "quick", "minimum": {"cpu": 1, "gpu": 1}, "maximum": {"cpu": 2, "gpu": 2}, "speed": speed}
    world = make_world(task_types=[quick], knowledge={"kind": "wrong", "factor": 0.1})
    player = learnt(world, Scripted({(0, 0): place(0, 0, 1, 1)}, one_shot=True), workload=make_workload([0]))
    believed = player._types["quick"].profile
    assert believed.slots((1, 1)) == 1
    assert believed.slots((2, 2)) < 10


def completion(world: World, scheduler: str, seeds: range) -> float:
    runs = [run_scheduler(world, parse_spec(scheduler).create(), seed) for seed in seeds]
    return sum(run.total_completion_time for run in runs) / sum(run.tasks for run in runs)


@pytest.mark.parametrize("kind", ["noisy", "fast", "missing"])
def test_learning_brings_greedy_nearer_to_what_it_does_with_the_truth(kind: str) -> None:
    more = ("knowledge.types=['sensitive']", "tasks=192")
    exact = completion(shipped("multi-3"), "greedy", range(1000, 1004))
    wrong, learned = (
        completion(knowing("multi-3", kind, on, *more), "greedy", range(1000, 1004)) for on in (False, True)
    )
    assert wrong > exact + 0.5
    assert learned - exact < 0.6 * (wrong - exact)


# ---------------------------------------------------------------- who is told


@pytest.mark.parametrize("name", sorted(set(BUILT_IN["scheduler"]) - {"min", "random"}))
def test_schedulers_with_tables_make_them_anew_and_keep_the_rest(name: str) -> None:
    """After learning the truth in the middle of a run, a scheduler goes on as one that knew it all along would."""
    # So much to do that tasks become overdue, and are paused in another order than they came in.
    world = shipped("multi-3", "tasks=150", "arrivals.rate=10")
    truth = world.context(0)
    told = build_world(load_scenario("multi-3", ["knowledge.kind='wrong'", "knowledge.factor=0.01"])).context(0)
    spec = parse_spec(name if name != "lookahead" else "lookahead@budget_ms=2")
    decisions = []
    for context in (truth, told):
        scheduler = spec.create()
        assert isinstance(scheduler, LearningScheduler)
        scheduler.reset(context)
        scheduler.learn(truth)
        session = new_session(world, draw_workload(world, 0))
        taken = []
        while not session.done:
            if session.state.slot % 3 == 1:
                scheduler.learn(truth)  # which must not lose anything that it remembers
            taken.append(scheduler.decide(session.state.snapshot()))
            if session.turn(taken[-1]) or scheduler.one_shot:
                session.end_slot()
        decisions.append(taken)
    assert decisions[0] == decisions[1]
    scheduler = spec.create()
    plain: list[Decision] = []
    recorder = Recorder(scheduler, plain)
    run_scheduler(world, recorder, 0)
    assert plain == decisions[0]


def test_tiresias_remembers_who_started_when() -> None:
    world = shipped("multi-3", "tasks=20")
    tiresias, context = parse_spec("tiresias").create(), world.context(0)
    session = new_session(world, draw_workload(world, 0))
    tiresias.reset(context)
    session.play_round(tiresias)
    started = dict(tiresias._started)  # type: ignore[attr-defined]
    assert started
    tiresias.learn(context)  # type: ignore[attr-defined]
    assert tiresias._started == started  # type: ignore[attr-defined]


class Recorder:
    """Keeps what a scheduler decides."""

    def __init__(self, scheduler: Scheduler, taken: list[Decision]) -> None:
        self._scheduler, self._taken = scheduler, taken
        self.one_shot, self.reset = scheduler.one_shot, scheduler.reset

    def decide(self, snapshot: Snapshot) -> Decision:
        self._taken.append(self._scheduler.decide(snapshot))
        return self._taken[-1]


def test_a_scheduler_without_the_hook_plays_all_the_same() -> None:
    taken: list[Decision] = []
    recorder = Recorder(parse_spec("greedy").create(), taken)
    assert not isinstance(recorder, LearningScheduler)
    run_scheduler(knowing("multi-3", "noisy"), recorder, 0)
    assert taken


def test_a_watched_scheduler_learns_as_it_would_unwatched() -> None:
    world = knowing("multi-3", "slow")
    one = log_of(world, parse_spec("tapfinger").create(), seed=1)[0]
    other = log_of(world, Watched(parse_spec("tapfinger").create(), "tapfinger", ()), seed=1)[0]
    assert one == other


def test_what_is_believed_ends_up_in_greedys_sizes() -> None:
    world = knowing("multi-3", "slow", True, "knowledge.types=['sensitive']")
    greedy = parse_spec("greedy").create()
    player = learnt(world, greedy, 0)
    believed, true = player._types["sensitive"], world.task_types[1]
    told = world.context(0).task_types[1]
    ideal = [efficient_sizes(t, world.noise)[0].slots for t in (told, believed, true)]
    assert ideal[0] > ideal[1] == ideal[2]
    assert greedy._options.of["sensitive"][0].slots == ideal[1]  # type: ignore[attr-defined]
