"""Every declaration can be carried out: scenarios, schedulers, models, drawings and claims exist."""

from __future__ import annotations

import pytest
from reproduce.constructed import record

from tapfinger.evaluation.specs import parse_spec
from tapfinger.evaluation.stats import measures
from tapfinger.reproduce import sentences
from tapfinger.reproduce.beyond import BEYOND
from tapfinger.reproduce.catalog import FIGURES, choose
from tapfinger.reproduce.declare import Bound, Flat, Less
from tapfinger.reproduce.drawings import CAPTIONS, PICTURES
from tapfinger.reproduce.looks import SCHEDULERS, look_of
from tapfinger.reproduce.paper import PAPER
from tapfinger.reproduce.plan import Plan, run_seconds
from tapfinger.workloads.world import build_world, draw_workload

#: What the paper shows, and what was asked for beyond it.
WANTED = {
    "motivation", "synthetic-3", "synthetic-6", "arrival-rates", "vanilla", "testbed-3", "testbed-6", "growing",
    "gpu-long", "overhead", "multi-3", "hetero-6", "single-multi", "no-han", "no-pointer", "training",
    "load", "scaling", "noise", "bursts", "outage", "fairness", "additions", "learning-parts", "optimus", "deviations",
}  # fmt: skip


def test_all_figures_are_there():
    assert set(FIGURES) == WANTED
    assert len(PAPER) + len(BEYOND) == len(FIGURES)
    assert all(figure.paper for figure in PAPER)
    assert not any(figure.paper for figure in BEYOND)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", FIGURES)
def test_scenarios_and_models_exist(name, quick):
    plan = Plan((FIGURES[name],), quick, most_tasks=20)
    plan.check()
    for planned in plan.of(FIGURES[name]):
        draw_workload(build_world(planned.scenario), planned.seeds[0])
        for spec in planned.specs.values():
            spec.create()
    keys = [setting.key for setting in FIGURES[name].settings]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_and_claims_refer_to_what_is_there(name):
    figure = FIGURES[name]
    assert figure.pictures
    assert set(figure.pictures) <= set(PICTURES) & set(CAPTIONS)
    assert set(figure.schedulers) <= set(SCHEDULERS)
    keys = {setting.key for setting in figure.settings}
    known = measures(record("any", 0, 3.0))
    for claim in figure.claims:
        if isinstance(claim, Bound):
            assert figure.source != "runs"
            continue
        assert claim.measure in known
        assert figure.measure in sentences._FIRST
        assert claim.one in figure.schedulers
        assert set(claim.settings) <= keys
        if isinstance(claim, Less):
            assert {*claim.others, *claim.published} <= set(figure.schedulers)
            assert not claim.against or claim.against in keys
        else:
            assert isinstance(claim, Flat)
    for setting in figure.settings:
        assert set(setting.published) <= set(figure.schedulers)


@pytest.mark.parametrize("quick", [False, True])
def test_enough_seeds_for_every_claim_of_the_paper(quick):
    for figure in PAPER:
        for planned in Plan(PAPER, quick).of(figure):
            assert len(planned.seeds) >= (30 if (planned.scenario.tasks or 0) < 2000 else 10)


def test_schedulers_have_looks_of_their_own():
    looks = [tuple(map(str, look_of(label).values())) for label in SCHEDULERS]
    assert len(set(looks)) == len(looks)
    for text in SCHEDULERS.values():
        parse_spec(text).create()


def test_quick_is_planned_to_fit_into_its_time():
    assert Plan(tuple(FIGURES.values()), quick=True).expected_seconds / 2 < 12 * 60  # the rest: drawing and messages


def test_the_estimate_grows_with_the_work():
    plan = Plan((FIGURES["growing"],), quick=True)
    short, *_, long = plan.of(FIGURES["growing"])
    assert run_seconds("tapfinger", long.scenario) == pytest.approx(16 * run_seconds("tapfinger", short.scenario))


def test_choosing():
    assert [figure.name for figure in choose(["multi-3", "motivation", "multi-3"])] == ["motivation", "multi-3"]
    assert len(choose(["all"])) == len(FIGURES)
