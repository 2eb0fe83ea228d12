"""Options of the learned scheduler: giving one its default changes nothing, and all rules can be switched off."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pytest
from helpers import log_of

from tapfinger.config import load_scenario
from tapfinger.evaluation.specs import parse_spec
from tapfinger.reproduce.styles import SCHEDULERS
from tapfinger.schedulers.tapfinger import VERY_LONG_QUEUE, TapFinger
from tapfinger.workloads.world import World, build_world

DEFAULTS = {name: p.default for name, p in inspect.signature(TapFinger).parameters.items()}

#: Options that choose a network or limit its time; all others are settings of rules.
NO_RULE = {"model", "budget_ms"}

#: (model, scenario): a model of one scenario, and the one for any site in multi-task and in single-task mode.
CASES = [("multi-3", "multi-3"), ("universal", "multi-3"), ("universal", "synthetic-3")]


@cache
def world(scenario: str) -> World:
    """Busy enough for most rules to come into play."""
    return build_world(load_scenario(scenario, ["tasks=120", "arrivals.rate=5"]))


@cache
def untold(model: str, scenario: str) -> tuple[TapFinger, list[Any]]:
    """The scheduler with all options left out, and its event log."""
    scheduler = TapFinger(model)
    return scheduler, log_of(world(scenario), scheduler, seed=51)[0]


def meaning(option: str, scheduler: TapFinger) -> Any:
    """What the documentation of the option says that leaving it out means."""
    for_any_site = scheduler.card.name == "universal"
    decided_by_model = {
        "calm_wait": scheduler.card.max_wait,
        "max_stretch": scheduler.card.max_stretch,
        "lend": for_any_site,
        "share": scheduler.shares,
        "crowd": VERY_LONG_QUEUE if for_any_site and not scheduler.shares else 0.0,
        "again": for_any_site,
        "move": for_any_site,
        "late_first": for_any_site,
    }
    assert {name for name, default in DEFAULTS.items() if default is None} == decided_by_model.keys()
    return decided_by_model.get(option, DEFAULTS[option])


@pytest.mark.parametrize("option", sorted(DEFAULTS.keys() - {"model"}))
@pytest.mark.parametrize(("model", "scenario"), CASES)
def test_giving_an_option_its_default_changes_nothing(model: str, scenario: str, option: str) -> None:
    scheduler, events = untold(model, scenario)
    told = TapFinger(model, **{option: meaning(option, scheduler)})
    assert log_of(world(scenario), told, seed=51)[0] == events
    assert told.counters == scheduler.counters


def test_options_do_change_something() -> None:
    """Otherwise the test above would prove nothing."""
    _, events = untold("universal", "multi-3")
    for option, value in {"max_wait": 1.0, "late_first": False, "lend": False, "move": False}.items():
        assert log_of(world("multi-3"), TapFinger("universal", **{option: value}), seed=51)[0] != events, option


def test_without_guards_every_rule_is_off() -> None:
    spec = parse_spec(SCHEDULERS["without guards"])
    options = dict(spec.options)
    assert spec.name == "tapfinger"
    assert options.keys() == DEFAULTS.keys() - NO_RULE
    for model, scenario in CASES:
        scheduler = TapFinger(model, **options)
        log_of(world(scenario), scheduler, seed=51)
        assert not any(scheduler.counters.values()), scheduler.counters
        assert not scheduler.shares
