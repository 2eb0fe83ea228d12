from __future__ import annotations

import inspect

import numpy as np
import pytest
from helpers import make_scenario
from strategies import stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.contract import Phase, Snapshot, TaskView
from tapfinger.core.events import Event, TaskFinished, TaskStaging
from tapfinger.errors import ConfigError
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.arrival_model import ArrivalModel
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


@pytest.mark.parametrize("name", ["multi-3", "stocked-single", "stocked-multi"])
def test_with_one_plan_it_is_a_greedy(name: str) -> None:
    world = stocked_world(name.split("-")[1]) if name.startswith("stocked") else build_world(load_scenario(name))
    # Nothing is left to choose.
    logs: list[list[Event]] = [[], []]
    known = inspect.signature(Greedy).parameters
    greedy = Greedy(**{name: value for name, value in BASE._asdict().items() if name in known})
    run_scheduler(world, greedy, 9, [logs[0].append])
    run_scheduler(world, Lookahead(plans=1), 9, [logs[1].append])
    assert logs[0] == logs[1]
    assert BASE.jitter == BASE.hold == 0


def test_plays_with_data_sets_and_unknown_memory() -> None:
    world = stocked_world("multi")
    for lend in (False, True):
        log: list[Event] = []
        run_scheduler(world, Lookahead(budget_ms=2, lend=lend), 3, [log.append])
        assert sum(isinstance(event, TaskFinished) for event in log) == 40
        assert any(isinstance(event, TaskStaging) for event in log)


def test_tasks_to_come_have_the_type_that_their_family_has_reached() -> None:
    world = stocked_world("multi")
    context = world.context(0)
    model, kinds = ArrivalModel(SiteTables(context)), [t.name for t in context.task_types]
    assert set(model.draw(50, 20, np.random.default_rng(0)).type.ravel()) == {0, 1, 2}, "nobody ran out of memory yet"
    higher = next(t for t in context.task_types if t.base == "small")
    task = TaskView(0, higher, 3, (0,), Phase.QUEUED)
    model.update(Snapshot(5, 0, (), (task,)))
    drawn = model.draw(50, 20, np.random.default_rng(0))
    shown = {t for row, count in zip(drawn.type, drawn.tasks, strict=True) for t in row[:count].tolist()}
    assert shown == {1, 2, kinds.index(higher.name)}


def test_tasks_longer_than_the_horizon_are_not_starved() -> None:
    long = {"name": "long", "minimum": {"cpu": 2, "gpu": 1}, "speed": {"kind": "constant", "slots": 200}}
    world = build_world(make_scenario(task_types=[long], tasks=12, arrivals={"kind": "poisson", "rate": 1}))
    totals = run_scheduler(world, Lookahead(budget_ms=2), 0)
    # Eight fit side by side, so the last four wait for one generation.
    assert totals.slots < 2 * 200 + 40


def test_a_rare_long_task_is_not_held_back_for_ever() -> None:
    # Starting it makes many short ones wait, but so does starting it later: what counts must lie within the horizon.
    def kind(name: str, slots: int, weight: float) -> dict[str, object]:
        speed = {"kind": "constant", "slots": slots}
        return {"name": name, "weight": weight, "minimum": {"cpu": 1, "gpu": 1}, "speed": speed}

    world = build_world(
        make_scenario(
            clusters=[{"name": "c", "capacity": {"cpu": 1, "gpu": 1}}],
            task_types=[kind("short", 1, 0.99), kind("long", 40, 0.01)],
            arrivals={"kind": "poisson", "rate": 0.5},
            tasks=150,
        )
    )
    for seed in (0, 1):
        assert total(world, Lookahead(budget_ms=2), seed) <= 1.03 * total(world, Greedy(), seed)


def test_works_without_progress_reports() -> None:
    worlds = [build_world(load_scenario("multi-3", ["tasks=60", f"reports_progress={b}"])) for b in ("true", "false")]
    with_reports, without = (total(world, Lookahead(budget_ms=2), 0) for world in worlds)
    assert without <= 1.15 * with_reports


@pytest.mark.parametrize(
    "options",
    [
        {"budget_ms": 0},
        {"budget_ms": float("nan")},
        {"plans": 0},
        {"futures": 1},
        {"futures": 8.5},
        {"horizon": 0},
        {"horizon": -3},
    ],
)
def test_bad_options(options: dict[str, int]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ConfigError, match=f"lookahead: {name} = {value} must be a"):
        Lookahead(**options)
