from __future__ import annotations

import pytest
from helpers import make_scenario

from tapfinger.config import load_scenario
from tapfinger.core.events import Event
from tapfinger.errors import ConfigError
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.lookahead import BASE, Lookahead
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world


def total(world, scheduler, seed: int) -> int:
    return run_scheduler(world, scheduler, seed).total_completion_time


def test_beats_the_greedy_it_starts_from() -> None:
    world = build_world(load_scenario("multi-3"))
    seeds = range(500, 506)
    gains = [total(world, Greedy(), s) - total(world, Lookahead(budget_ms=4), s) for s in seeds]
    assert sum(gains) > 0
    assert sum(g >= 0 for g in gains) >= 4


def test_same_seed_same_log() -> None:
    world = build_world(load_scenario("synthetic-3", ["tasks=60"]))

    def log() -> list[Event]:
        events: list[Event] = []
        run_scheduler(world, Lookahead(budget_ms=2), 3, [events.append])
        return events

    assert log() == log()


def test_base_is_greedy_with_its_defaults() -> None:
    # With one plan nothing is left to choose, and Lookahead is Greedy.
    world = build_world(load_scenario("multi-3"))
    logs: list[list[Event]] = [[], []]
    run_scheduler(world, Greedy(), 9, [logs[0].append])
    run_scheduler(world, Lookahead(plans=1), 9, [logs[1].append])
    assert logs[0] == logs[1]
    assert BASE.jitter == BASE.hold == 0


def test_tasks_longer_than_the_horizon_are_not_starved() -> None:
    long = {"name": "long", "minimum": {"cpu": 2, "gpu": 1}, "speed": {"kind": "constant", "slots": 200}}
    world = build_world(make_scenario(task_types=[long], tasks=12, arrivals={"kind": "poisson", "rate": 1}))
    totals = run_scheduler(world, Lookahead(budget_ms=2), 0)
    # Eight fit side by side, so the last four wait for one generation.
    assert totals.slots < 2 * 200 + 40


def test_works_without_progress_reports() -> None:
    world = build_world(load_scenario("multi-3", ["tasks=40", "reports_progress=false"]))
    run_scheduler(world, Lookahead(budget_ms=2), 0)


@pytest.mark.parametrize("options", [{"budget_ms": 0}, {"plans": 0}, {"futures": -1}])
def test_bad_options(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"must be above 0"):
        Lookahead(**options)
