"""Whatever a network says, in whatever world: decisions are legal, every task starts, and none too late."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.contract import Decision, SchedulerContext, Snapshot, TaskView
from tapfinger.core.events import Event, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.feasibility import can_start
from tapfinger.policy.actions import Scores
from tapfinger.policy.card import make_card
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.schedulers import tapfinger as module
from tapfinger.schedulers.stages.waiting import Waiting
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import run_scheduler
from tapfinger.testing import check_scheduler, tiny_scenarios
from tapfinger.workloads.world import World, build_world, draw_workload

NAMES = ("cpu", "gpu", "memory", "disk")

#: Task types by number of resources: one exported network serves all worlds with the same.
TYPES = {1: 1, 2: 2, 3: 3, 4: 2}


def scenario_of(resources: int, minima: list[list[int]], capacities: list[list[int]], **changes: Any) -> Scenario:
    names = NAMES[:resources]

    def amounts(values: list[int]) -> dict[str, int]:
        return dict(zip(names, values, strict=True))

    spans, slots = changes.pop("spans", [3] * len(minima)), changes.pop("slots", [3] * len(minima))
    types = [
        {
            "name": f"t{i}",
            "minimum": amounts(minimum),
            "maximum": amounts([amount + spans[i] for amount in minimum]),
            "speed": {"kind": "constant", "slots": slots[i]},
        }
        for i, minimum in enumerate(minima)
    ]
    clusters = [{"name": f"c{i}", "capacity": amounts(c)} for i, c in enumerate(capacities)]
    data = {"name": "random", "mode": "multi", "tasks": 20, "arrivals": {"kind": "poisson", "rate": 2.0}, **changes}
    return parse_scenario({"resources": dict.fromkeys(names, 1), "clusters": clusters, "task_types": types, **data})


@st.composite
def worlds(draw: st.DrawFn, outages: bool = True) -> World:
    """1-8 clusters, some too small for some types, 1-4 resources, both modes, sometimes an outage."""
    resources = draw(st.integers(1, 4))
    amount = st.lists(st.integers(0, 4), min_size=resources, max_size=resources)
    minima = [draw(amount.filter(any)) for _ in range(TYPES[resources])]
    roomy = [max(column) + draw(st.integers(0, 6)) for column in zip(*minima, strict=True)]
    others = draw(st.lists(st.lists(st.integers(0, 9), min_size=resources, max_size=resources), min_size=0, max_size=7))
    eligibility = draw(st.sampled_from(["all", "subset", "bandwidth"]))
    if eligibility != "all":  # then any cluster may be a task's only one
        need = [max(column) for column in zip(*minima, strict=True)]
        others = [[max(pair) for pair in zip(capacity, need, strict=True)] for capacity in others]
    capacities = draw(st.permutations([roomy, *others]))
    away = []
    if outages and draw(st.booleans()):
        start = draw(st.integers(1, 20))
        cluster = draw(st.integers(0, len(capacities) - 1))
        away = [{"cluster": cluster, "start": start, "end": start + draw(st.integers(1, 10))}]
    return build_world(
        scenario_of(
            resources,
            minima,
            capacities,
            spans=[draw(st.integers(0, 5)) for _ in minima],
            slots=[draw(st.integers(1, 6)) for _ in minima],
            mode=draw(st.sampled_from(["single", "multi"])),
            arrivals={"kind": "poisson", "rate": draw(st.sampled_from([0.3, 2.0, 8.0]))},
            eligibility={"kind": eligibility},
            outages=away,
        )
    )


class FakeNetwork:
    """Scores from a function of (inputs, rng) that gives task logits (B, N, K+1) and amount logits (B, N, K, R, A)."""

    def __init__(self, world: World, say: Callable[[Inputs, np.random.Generator], tuple[Any, Any]], seed: int) -> None:
        config = {"pending": 10, "accelerator": world.resources.accelerator, "separate_actors": 0}
        card = make_card(world.scenario, name="fake")
        self.card = type(card)(**{**card.__dict__, "config": config})
        self._say = say
        self._rng = np.random.default_rng(seed)

    def run(self, inputs: Inputs) -> Scores:
        tasks, amounts = self._say(inputs, self._rng)
        none = np.zeros((*amounts.shape, 1))
        return Scores(tasks, amounts, none, none)


def amounts_of(inputs: Inputs, columns: int, favour: float) -> Any:
    """Scores that rise (or fall) with the amount."""
    return np.broadcast_to(favour * np.arange(columns), (*inputs.largest.shape, columns))


def random_scores(inputs: Inputs, rng: np.random.Generator) -> tuple[Any, Any]:
    """Anything, also for what may not start, sometimes infinite or no number; too few columns now and then."""
    tasks = rng.normal(scale=5.0, size=(*inputs.startable.shape[:2], inputs.startable.shape[2] + 1))
    amounts = rng.normal(scale=5.0, size=(*inputs.largest.shape, int(rng.integers(1, 12))))
    for scores in (tasks, amounts):
        if rng.random() < 0.1:
            scores[rng.random(scores.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    return tasks, amounts


def always_void(inputs: Inputs, _: np.random.Generator) -> tuple[Any, Any]:
    tasks = np.zeros((*inputs.startable.shape[:2], inputs.startable.shape[2] + 1))
    tasks[..., -1] = 100.0
    return tasks, amounts_of(inputs, 4, 0.0)


def newest_first(inputs: Inputs, _: np.random.Generator, favour: float = -1.0) -> tuple[Any, Any]:
    """The youngest that can start, as small as can be: clusters fill up with latecomers."""
    places = inputs.startable.shape[2]
    tasks = np.where(inputs.startable, np.arange(places), -np.inf)
    void = np.full((*tasks.shape[:2], 1), -100.0)
    return np.concatenate([tasks, void], axis=2), amounts_of(inputs, 12, favour)


def newest_and_largest(inputs: Inputs, rng: np.random.Generator) -> tuple[Any, Any]:
    return newest_first(inputs, rng, favour=1.0)


ADVERSARIES = {f.__name__: f for f in (random_scores, always_void, newest_first, newest_and_largest)}


def learned(world: World, say: Callable[..., Any], seed: int, **options: Any) -> TapFinger:
    """A scheduler whose network is the fake one."""
    network = FakeNetwork(world, say, seed)
    scheduler = TapFinger("fake", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_model", lambda _: network)
        scheduler.reset(world.context(seed))
    scheduler.reset = lambda _: None  # type: ignore[method-assign]
    return scheduler


def waiting_of(scheduler: TapFinger) -> Waiting:
    """The stage that bounds waiting."""
    return next(stage for stage in scheduler.stages if isinstance(stage, Waiting))


class Watched:
    """A scheduler whose promises are checked at every turn."""

    one_shot = False

    def __init__(self, inner: TapFinger, max_wait: float) -> None:
        self._waiting = waiting_of(inner)
        self._inner, self._max_wait = inner, max_wait

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        before = dict(self._waiting._reserved)
        planned = snapshot  # what the stages plan on: nothing is lent, and nobody waits once the slot is over
        for stage in self._inner.stages:
            planned = stage.observe(planned)
        decision = self._inner.decide(snapshot)
        started = {p.task for p in decision.placements}
        oldest = next((t for t in planned.queue if self._overdue(t, snapshot.slot)), None)
        if oldest is not None:
            open_to_it = [c for c in planned.clusters if before.get(c.index, oldest.id) == oldest.id]
            assert oldest.id in started or not any(can_start(oldest, c) for c in open_to_it)
        after = self._waiting._reserved
        assert len(set(after.values())) == len(after), "two clusters are reserved for one task"
        kept = {n for n, task in after.items() if before.get(n) == task}
        assert not kept & {p.cluster for p in decision.placements}, "a reserved cluster started another task"
        return decision

    def _overdue(self, task: TaskView, slot: int) -> bool:
        return slot - task.arrival >= self._max_wait * self._waiting.unit(task)


@settings(max_examples=50, deadline=None)
@given(
    worlds(),
    st.sampled_from(sorted(ADVERSARIES)),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0, 4.0]),
    st.booleans(),
)
def test_legal_and_never_stuck(world: World, adversary: str, seed: int, max_wait: float, lend: bool) -> None:
    scheduler = Watched(learned(world, ADVERSARIES[adversary], seed, max_wait=max_wait, lend=lend), max_wait)
    events: list[Event] = []
    # The session raises on an illegal decision.
    run_scheduler(world, scheduler, seed, [events.append], observe=lambda session: session.state.validate())
    assert len({e.task for e in events if isinstance(e, TaskFinished)}) == world.scenario.tasks


@settings(max_examples=50, deadline=None)
@given(
    worlds(outages=False),
    st.sampled_from(sorted(ADVERSARIES)),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0, 4.0]),
    st.booleans(),
)
def test_every_task_starts_within_the_stated_bound(
    world: World, adversary: str, seed: int, max_wait: float, lend: bool
) -> None:
    scheduler = learned(world, ADVERSARIES[adversary], seed, max_wait=max_wait, lend=lend)
    events: list[Event] = []
    run_scheduler(world, scheduler, seed, [events.append])
    tasks = {e.task.id: e.task for e in events if isinstance(e, TaskArrived)}
    start = {e.task: e.slot for e in events if isinstance(e, TaskStarted)}
    end = {e.task: e.slot for e in events if isinstance(e, TaskFinished)}
    longest = max(end[i] - start[i] + 1 for i in tasks)
    unit = waiting_of(scheduler).unit
    for i, task in tasks.items():
        due = task.arrival + int(np.ceil(max_wait * unit(task)))
        older = sum(k < i and start[k] >= due for k in tasks)
        assert start[i] <= due + (older + 2) * (longest + 1)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["random_scores", "always_void"])
def test_keeps_the_contract_with_any_network(adversary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for scenario in tiny_scenarios():
        world = build_world(scenario)
        monkeypatch.setattr(module, "load_model", lambda _, w=world: FakeNetwork(w, ADVERSARIES[adversary], 0))
        check_scheduler(lambda: TapFinger("fake", max_wait=2.0), [scenario])


@pytest.mark.parametrize(("max_wait", "latest"), [(2.0, 6 + 3 + 1), (1e6, None)])
def test_a_large_task_is_not_starved_by_small_ones(max_wait: float, latest: int | None) -> None:
    """One cluster of 4; small tasks of 3 slots keep it filled; the first task needs all of it."""
    busy = {"spans": [0, 0], "tasks": 120, "arrivals": {"kind": "poisson", "rate": 3.0}}
    world = build_world(scenario_of(1, [[4], [1]], [[4]], eligibility={"kind": "all"}, **busy))
    work = draw_workload(world, 0)
    work.type[:] = 1
    work.type[0] = 0
    work.slot[:] = [0, 0, 1, *(2 + np.arange(117) // 2)]  # out of step, so that it is never empty
    scheduler = learned(world, newest_first, 0, max_wait=max_wait)
    events: list[Event] = []
    run_scheduler(world, scheduler, 0, [events.append], work)
    start = {e.task: e.slot for e in events if isinstance(e, TaskStarted)}
    if latest is None:  # only the end of the stream saves it
        assert start[0] > 60
    else:
        assert 6 <= start[0] <= latest


@cache
def exported_for(resources: int) -> str:
    """A network with random weights for worlds of so many resources."""
    import tempfile

    from policy.models import small_network

    from tapfinger.policy.export import export

    minima = [[1] * resources] * TYPES[resources]
    scenario = scenario_of(resources, minima, [[8] * resources])
    folder = tempfile.mkdtemp()
    return str(export(*small_network(scenario, void=0.0, seed=resources), f"{folder}/{resources}.onnx"))


@pytest.mark.slow  # it exports four networks
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32))
def test_untrained_networks_in_random_worlds(world: World, seed: int) -> None:
    scheduler = TapFinger(exported_for(len(world.resources.names)), max_wait=3.0)
    totals = run_scheduler(world, scheduler, seed, observe=lambda session: session.state.validate())
    assert totals.tasks == world.scenario.tasks
    assert scheduler.counters["failed"] == scheduler.counters["fallbacks"] == 0
