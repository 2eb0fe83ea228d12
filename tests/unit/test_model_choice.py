"""Which shipped model a site gets: mode, noise and clusters decide; load does not."""

from __future__ import annotations

import pytest

from tapfinger.config import load_scenario
from tapfinger.schedulers.model_choice import UNIVERSAL, choose_model
from tapfinger.workloads.world import build_world


def chosen(scenario: str, *overrides: str) -> str:
    """The model for a shipped scenario with changes."""
    return choose_model(build_world(load_scenario(scenario, overrides)).context(0))


@pytest.mark.parametrize("scenario", ["synthetic-3", "synthetic-6", "multi-3", "hetero-6", "testbed-3"])
def test_a_shipped_scenario_gets_its_own_model(scenario):
    assert chosen(scenario) == scenario


@pytest.mark.parametrize(
    ("scenario", "override"),
    [
        ("multi-3", "noise={kind='additive',amplitude=0.1}"),
        ("synthetic-3", "noise.amplitude=0.0"),
        ("synthetic-3", "noise.amplitude=0.2"),
        ("testbed-3", "noise={kind='additive',amplitude=0.1}"),
    ],
)
def test_with_other_noise_than_in_training_a_site_gets_the_universal_model(scenario, override):
    assert chosen(scenario, override) == UNIVERSAL


def test_the_other_mode_does_not_get_a_model_that_knows_no_noise():
    # Types and clusters are those of multi-3, which has no noise.
    assert chosen("synthetic-3", "mode='multi'") == UNIVERSAL
    assert chosen("synthetic-3", "mode='multi'", "noise={kind='none',amplitude=0}") == "multi-3"


def test_load_does_not_decide_since_no_scheduler_is_told_the_rate():
    assert {chosen("multi-3", f"arrivals.rate={rate}") for rate in (1.5, 3, 6)} == {"multi-3"}
