"""Every declaration can be carried out: scenarios, schedulers, models, drawings and claims exist."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from reproduce.constructed import record

from tapfinger.core.model import NO_NOISE
from tapfinger.drawing import look
from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.evaluation.stats import measures
from tapfinger.profiles.durations import mean_slots
from tapfinger.reproduce import sentences
from tapfinger.reproduce.beyond import BEYOND
from tapfinger.reproduce.catalog import FIGURES, choose
from tapfinger.reproduce.check import check_figure
from tapfinger.reproduce.declare import PAPER_METHOD, Bound, Figure, Less, Setting, Unjudged
from tapfinger.reproduce.drawings import CAPTIONS, PICTURES
from tapfinger.reproduce.networks import training_of
from tapfinger.reproduce.paper import PAPER
from tapfinger.reproduce.plan import RunPlan, run_seconds
from tapfinger.reproduce.premise import SENSITIVE_SLOTS
from tapfinger.reproduce.profiles import measure_profiles
from tapfinger.reproduce.styles import PLACES, SCHEDULERS, places_of, regime_of, scheduler_of
from tapfinger.workloads.world import build_world, draw_workload

#: What the paper shows, and what was asked for beyond it.
WANTED = {
    "motivation", "synthetic-3", "synthetic-6", "arrival-rates", "vanilla", "testbed-3", "testbed-6", "growing",
    "gpu-long", "overhead", "multi-3", "hetero-6", "single-multi", "no-han", "no-pointer", "unknown-speeds", "transfer",
    "loss-curves", "training", "unknown-testbed", "load", "scaling", "noise", "bursts", "outage", "fairness",
    "additions", "resizing", "learning-parts", "optimus", "deviations",
}  # fmt: skip


def test_all_figures_are_there():
    assert set(FIGURES) == WANTED
    assert len(PAPER) + len(BEYOND) == len(FIGURES)
    assert all(figure.paper for figure in PAPER)
    assert not any(figure.paper for figure in BEYOND)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", FIGURES)
def test_scenarios_and_models_exist(name, quick):
    plan = RunPlan((FIGURES[name],), quick, most_tasks=20)
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
    check_figure(figure)
    assert set(figure.schedulers) <= set(SCHEDULERS) | set(figure.labels)
    assert figure.measure in sentences._FIRST
    known = measures(record("any", 0, 3.0))
    assert all(claim.measure in known for claim in figure.claims if not isinstance(claim, Bound | Unjudged))


SWEEP = Figure(
    "mine",
    "My sweep",
    "",
    "Nothing.",
    (Setting("one", "multi-3", x=1.0), Setting("two", "multi-3", ("tasks=20",), x=2.0)),
    ("greedy", "min"),
    ("sweep",),
    (Less("Greedy is better", ("min",), one="greedy"),),
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pictures": ("swep",)}, "there is no drawing 'swep'. Did you mean 'sweep'?"),
        ({"measure": "p98"}, "there is no measure 'p98'"),
        ({"measure": "use.gpu"}, "there is no measure 'use'"),
        ({"settings": ()}, "at least one setting"),
        ({"settings": (Setting("one", "multi-3"),)}, "setting 'one': give x"),
        ({"settings": SWEEP.settings[:1] * 2}, "the same key"),
        ({"schedulers": ("greedy",)}, "claim 'Greedy is better': there is no scheduler 'min'"),
        ({"claims": (Less("A", ("min",), one="greedy", settings=("three",)),)}, "there is no setting 'three'"),
        ({"claims": (Bound("B", "seconds"),)}, "a Bound is of measured values"),
    ],
)
def test_a_figure_that_cannot_be_made_is_refused_with_the_reason(change, said):
    check_figure(SWEEP)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_figure(replace(SWEEP, **change))


def test_labels_of_a_figure_alone_take_looks_that_the_others_leave():
    figure = replace(SWEEP, schedulers=("greedy", "mine", "fifo@x=1"), labels={"mine": "min@pending=5"})
    assert [scheduler_of(figure, label) for label in figure.schedulers] == ["greedy", "min@pending=5", "fifo@x=1"]
    assert places_of(figure) == {"greedy": 1, "mine": 0, "fifo@x=1": 2}


OPTIONAL = replace(
    SWEEP, schedulers=("greedy", "min", PAPER_METHOD), labels={PAPER_METHOD: "tapfinger@model=ours@pipeline=paper"},
    optional={PAPER_METHOD: "tapfinger train"},
)  # fmt: skip


def test_a_model_that_does_not_ship_leaves_its_scheduler_out_and_a_sentence_in(monkeypatch):
    plan = RunPlan((OPTIONAL,), quick=True)
    assert plan.absent(OPTIONAL) == {PAPER_METHOD: "No model ours ships yet; `tapfinger train` trains it"}
    assert all(list(planned.specs) == ["greedy", "min"] for planned in plan.of(OPTIONAL))
    monkeypatch.setattr("tapfinger.reproduce.plan.shipped_models", lambda: {"ours": None})
    there = RunPlan((OPTIONAL,), quick=True)
    assert there.absent(OPTIONAL) == {}
    assert there.of(OPTIONAL)[0].specs[PAPER_METHOD].text == "tapfinger@model=ours@pipeline=paper"


def test_a_scheduler_that_is_not_there_is_left_out_if_it_is_optional():
    figure = replace(
        SWEEP, schedulers=("greedy", "min", "ghost"), labels={"ghost": "ghost@x=1"}, optional={"ghost": ""}
    )
    assert RunPlan((figure,), quick=True).absent(figure) == {"ghost": "There is no scheduler ghost"}
    there = replace(figure, labels={"ghost": "greedy@lend=true"})
    assert RunPlan((there,), quick=True).absent(there) == {}


@pytest.mark.parametrize(
    ("schedulers", "said"),
    [
        (("tapfinger", "greedy"), "Regime: fixed. Every task keeps the size it was started with."),
        (("tapfinger", "optimus-central", "optimus-static", "tiresias"), "except with optimus-central, tiresias:"),
        (("lending", "greedy, lending", "optimus-published"), "Regime: elastic. All schedulers here may resize"),
    ],
)
def test_a_figure_names_its_regime_and_who_resizes(schedulers, said):
    assert said in regime_of(replace(SWEEP, schedulers=schedulers))


def test_the_training_of_compared_networks_is_told():
    figure = replace(SWEEP, schedulers=("tapfinger", "no-han", "greedy"))
    assert training_of(figure, ()).endswith("group, 60 + 40: tapfinger, no-han. All are matched.")
    unlike = replace(SWEEP, schedulers=("tapfinger", "hints only"))
    assert "group, 60 + 40: tapfinger; group, 60 + 0: hints only. Networks that" in training_of(unlike, ())
    assert "hints only" not in training_of(unlike, ("hints only",))


def test_measured_durations_take_the_place_of_a_formula_that_is_far_off():
    found = measure_profiles(FIGURES["motivation"])
    row = next(row for row in found.table[1] if row[0] == "image-classification")
    assert row[-1] == "151 s"
    assert found.values["rebound.image-classification"].mean == pytest.approx(151.0 / 58.7, abs=0.01)


@pytest.mark.parametrize("quick", [False, True])
def test_enough_seeds_for_every_claim_of_the_paper(quick):
    for figure in PAPER:
        for planned in RunPlan(PAPER, quick).of(figure):
            assert len(planned.seeds) >= (30 if (planned.scenario.tasks or 0) < 2000 else 10)


def test_schedulers_have_looks_of_their_own():
    looks = [tuple(map(str, look(place).values())) for place in PLACES.values()]
    assert len(set(looks)) == len(looks)
    for text in SCHEDULERS.values():
        parse_spec(text).create()


def test_quick_is_planned_to_fit_into_its_time():
    assert RunPlan(tuple(FIGURES.values()), quick=True).expected_seconds / 2 < 13 * 60  # the rest: drawing and messages


def test_the_estimate_grows_with_the_work():
    plan = RunPlan((FIGURES["growing"],), quick=True)
    short, *_, long = plan.of(FIGURES["growing"])
    assert run_seconds("tapfinger", long.scenario) == pytest.approx(16 * run_seconds("tapfinger", short.scenario))


def test_every_drawing_has_a_caption():
    assert set(PICTURES) == set(CAPTIONS)


def test_choosing():
    assert [figure.name for figure in choose(["multi-3", "motivation", "multi-3"])] == ["motivation", "multi-3"]
    assert len(choose(["all"])) == len(FIGURES)


def test_even_progress_takes_as_long_as_progress_shaped_by_losses():
    shaped, even = (
        next(t for t in build_world(planned.scenario).context(0).task_types if t.name == "sensitive")
        for planned in RunPlan((FIGURES["loss-curves"],), quick=True).of(FIGURES["loss-curves"])
    )
    for task_type in (shaped, even):
        found = mean_slots(task_type.profile, NO_NOISE)  # by cpu from 2 to 16, then by gpu from 1 to 16
        assert found.reshape(-1, 16).tolist() == [list(SENSITIVE_SLOTS)] * 15
