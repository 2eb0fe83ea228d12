"""What a scheduler counts is declared once, and whoever shows it (Prometheus) shows all of it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tapfinger.config import load_scenario
from tapfinger.live.coordinator.decisions import Decider
from tapfinger.registry import BUILT_IN, create
from tapfinger.schedulers.tapfinger import STAGES, TapFinger
from tapfinger.workloads.world import build_world


def numbers(value: object) -> set[str]:
    """Public counts of an object: whole numbers that it holds, and properties that are said to be some."""
    held = {name for name, number in [*vars(type(value)).items(), *vars(value).items()] if type(number) is int}
    made = {
        name
        for name, member in inspect.getmembers(type(value), lambda member: isinstance(member, property))
        if member.fget.__annotations__.get("return") in (int, "int")
    }
    return {name for name in held | made if not name.startswith("_")}


@pytest.mark.parametrize("name", BUILT_IN["scheduler"])
def test_every_public_count_of_a_scheduler_is_declared(name: str) -> None:
    scheduler: Any = create("scheduler", name, {})
    scheduler.reset(build_world(load_scenario("multi-3")).context(1))
    assert numbers(scheduler) <= set(getattr(scheduler, "counters", {}))
    assert Decider(scheduler).counters == getattr(scheduler, "counters", {}), "live shows all of them"


@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-3"])
def test_stages_of_the_learned_scheduler_count_only_what_it_declares(scenario: str) -> None:
    scheduler = TapFinger(model="universal", lend=True)
    assert scheduler.counters.keys() == TapFinger.COUNTERS.keys() > STAGES.keys()
    assert all(sentence.endswith(".") for sentence in TapFinger.COUNTERS.values())
    scheduler.reset(build_world(load_scenario(scenario)).context(1))
    assert len(scheduler.stages) == (5 if scenario == "synthetic-3" else 4)
    assert all(stage.counters is scheduler.counters for stage in scheduler.stages)
    with pytest.raises(KeyError, match="undeclared"):
        scheduler.counters["undeclared"] += 1


def test_every_stage_says_what_a_start_is_that_it_led_to() -> None:
    meanings = [stage.meaning for stage in STAGES.values()]
    assert all(meaning.startswith("Starts") for meaning in meanings)
    assert len(set(meanings)) == len(STAGES)
    assert all(TapFinger.COUNTERS[name] == stage.meaning for name, stage in STAGES.items())
