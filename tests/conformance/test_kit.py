"""Every registered scheduler and workload keeps its contract, and the kit catches those that do not."""

from __future__ import annotations

import random  # noqa: TID251 - to see that its use is caught
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tapfinger.core.contract import VOID, Decision, Placement, Resize, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.registry import create, names
from tapfinger.testing import CheckFailed, check_scheduler, check_workload, tiny_scenarios
from tapfinger.workloads.base import Arrivals, WorkloadContext

#: Options that keep a check short.
QUICK: dict[str, dict[str, Any]] = {"lookahead": {"budget_ms": 1.0}, "tapfinger+lookahead": {"budget_ms": 1.0}}

#: What a process needs to be made; a trace needs a file and is tested with the traces.
WORKLOADS: dict[str, dict[str, Any]] = {"poisson": {"rate": 2.0}, "bursty": {"rate": 2.0}, "day-night": {"rate": 2.0}}


@pytest.mark.parametrize("name", sorted(names("scheduler")))
def test_every_scheduler_keeps_the_contract(name: str) -> None:
    check_scheduler(lambda: create("scheduler", name, QUICK.get(name, {})))


@pytest.mark.parametrize("name", sorted(set(names("arrivals")) - {"trace"}))
def test_every_workload_keeps_the_contract(name: str) -> None:
    check_workload(create("arrivals", name, WORKLOADS[name]))


class Good:
    """Oldest task first, at its minimum; the base of all the bad ones."""

    one_shot = False

    def reset(self, context: SchedulerContext) -> None:
        self.context = context

    def decide(self, snapshot: Snapshot) -> Decision:
        for task in snapshot.queue:
            for cluster in snapshot.clusters:
                if can_start(task, cluster):
                    return Decision((Placement(task.id, cluster.index, task.type.minimum),))
        return VOID


def test_a_class_an_instance_and_a_factory_can_be_checked() -> None:
    for given in (Good, Good(), lambda: Good()):
        check_scheduler(given, scenarios=tiny_scenarios()[:2])
    check_scheduler(Good, scenarios=["multi-3"])


class OverCapacity(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        return Decision(tuple(Placement(p.task, p.cluster, Resources([99] * 2)) for p in decision.placements))


class Mutating(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        for placement in decision.placements:
            cluster = snapshot.clusters[placement.cluster]
            object.__setattr__(cluster, "free", cluster.free - placement.allocation)
        return decision


class MutatingTask(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        for task in snapshot.queue:
            object.__setattr__(task, "arrival", 0)
        return super().decide(snapshot)


class MutatingContext(Good):
    def reset(self, context: SchedulerContext) -> None:
        object.__setattr__(context, "seed", 1)


class Unseeded(Good):
    def reset(self, context: SchedulerContext) -> None:
        self._rng = np.random.default_rng()

    def decide(self, snapshot: Snapshot) -> Decision:
        return VOID if self._rng.random() < 0.5 else super().decide(snapshot)


class GlobalRandom(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        random.random()
        return super().decide(snapshot)


class GlobalNumpy(Good):
    def reset(self, context: SchedulerContext) -> None:
        np.random.seed(0)  # noqa: NPY002


class Forgetful(Good):
    """Its reset forgets to forget."""

    calls = 0

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        self.calls += 1
        return VOID if self.calls % 3 == 0 else super().decide(snapshot)


class Refusing(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        return VOID if decision.placements and decision.placements[0].task == 3 else decision


class Restless(Good):
    """Never becomes void in a round."""

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        running = [t for c in snapshot.clusters for t in c.running if t.elapsed]
        return (
            decision
            if decision.placements or not running
            else Decision((), (Resize(running[0].id, running[0].allocation),))
        )


class Pausing(Good):
    """Pauses what runs and never goes on with it."""

    one_shot = True

    def decide(self, snapshot: Snapshot) -> Decision:
        running = [t for c in snapshot.clusters for t in c.running]
        if running:
            return Decision((), tuple(Resize(t.id, Resources([0] * len(t.type.minimum))) for t in running))
        return super().decide(snapshot)


class NeedsTasks(Good):
    def decide(self, snapshot: Snapshot) -> Decision:
        min(t.arrival for t in snapshot.queue)
        return super().decide(snapshot)


class NoDecision(Good):
    def decide(self, snapshot: Snapshot) -> Any:
        decision = super().decide(snapshot)
        return None if decision.void else decision


class Undeclared:
    reset, decide = Good.reset, Good.decide


class NoReset:
    one_shot = True
    decide = Good.decide


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (OverCapacity, r"OverCapacity in world 'one cluster.*slot 0: illegal decision: .*above its maximum"),
        (Mutating, r"slot \d+: decide\(\) changed the snapshot"),
        (MutatingTask, r"decide\(\) changed the snapshot"),
        (MutatingContext, r"reset\(\) changed the context"),
        (Unseeded, r"two new instances differ with the same seed, first in event \d+.*context\.seed"),
        (GlobalRandom, r"used the global random state"),
        (GlobalNumpy, r"used the global random state"),
        (Forgetful, r"a new instance and a used one differ.*must forget everything"),
        (Refusing, r"task 3 \(.*\) has waited 300 slots although its minimum .* fits cluster 0, which is empty"),
        (Restless, r"not void after 1000 turns"),
        (Pausing, r"\d+ tasks have not ended"),
        (NeedsTasks, r"decide\(\) raised ValueError: min\(\).*\(0 tasks waiting"),
        (NoDecision, r"must return a Decision, got None"),
        (Undeclared, r"Undeclared must declare one_shot"),
        (NoReset, r"no method reset"),
        ("greedy", r"'greedy' is neither a scheduler nor a callable"),
    ],
)
def test_bad_schedulers_are_caught(bad: Any, message: str) -> None:
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with pytest.raises(CheckFailed, match=message):
            check_scheduler(bad)
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


Draw = Callable[[WorkloadContext, np.random.Generator], Any]


class Process:
    """An arrival process from a function."""

    def __init__(self, draw: Draw) -> None:
        self.arrivals = draw


def with_types(kind: int) -> Draw:
    return lambda context, _: Arrivals(np.arange(context.tasks), type=np.full(context.tasks, kind))


def with_eligible(row: list[bool]) -> Draw:
    return lambda c, _: Arrivals(np.arange(c.tasks), eligible=np.tile((row * 3)[: len(c.cluster_names)], (c.tasks, 1)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda c, rng: Arrivals(rng.integers(0, 50, c.tasks)), r"slot\[\d+\] = \d+; .*sort them"),
        (lambda c, _: Arrivals(np.arange(c.tasks) - 1), r"slot\[0\] = -1"),
        (lambda c, _: Arrivals(np.arange(c.tasks) / 2), r"integers, got .* float64"),
        (lambda c, _: Arrivals(np.arange(c.tasks + 1)), r"25 tasks, 24 were asked for"),
        (lambda c, _: Arrivals(np.arange(0)), r"0 tasks"),
        (
            lambda c, _: Arrivals(np.sort(np.random.default_rng().integers(0, 9**9, c.tasks))),
            r"other arrivals the second time",
        ),
        (lambda c, _: Arrivals(np.sort(np.random.randint(0, 99, c.tasks))), r"global random state"),  # noqa: NPY002
        (lambda c, _: c.tasks, r"must return Arrivals, got int"),
        (lambda c, _: c.nothing, r"arrivals\(\) raised AttributeError"),
        (with_types(5), r"type\[0\] = 5; there are types 0..0"),
        (with_eligible([False]), r"no eligible cluster"),
        (with_eligible([True]), None),
        (with_types(0), None),
    ],
)
def test_bad_workloads_are_caught(draw: Draw, message: str | None) -> None:
    if message is None:
        check_workload(Process(draw))
        return
    legacy = np.random.get_state()  # noqa: NPY002
    try:
        with pytest.raises(CheckFailed, match=message):
            check_workload(Process(draw))
    finally:
        np.random.set_state(legacy)  # noqa: NPY002


def test_a_task_that_fits_no_eligible_cluster_is_caught() -> None:
    with pytest.raises(CheckFailed, match="fits none of its eligible clusters"):
        # The last of the three clusters holds no task at all.
        check_workload(Process(with_eligible([False, False, True])), scenarios=tiny_scenarios()[1:2])
