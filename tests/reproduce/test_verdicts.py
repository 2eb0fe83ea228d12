"""Verdicts on constructed data: each of them, and what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reproduce.constructed import measured

from tapfinger.evaluation.stats import Estimate
from tapfinger.reproduce.declare import PAPER_METHOD, Bound, Flat, Less, Unjudged
from tapfinger.reproduce.sentences import sentences
from tapfinger.reproduce.tables import claims_table, main_table, numbers
from tapfinger.reproduce.verdicts import ClaimVerdict, judge, judge_all

OURS = [4.0, 5.0, 6.0, 5.0]
#: A quarter and a half more on every seed, with a little scatter.
RIGHT = [5.0, 6.2, 7.6, 6.2]
PUBLISHED = [8.0, 9.8, 12.3, 10.1]
#: Better on some seeds, worse on others.
LEVEL = [4.5, 4.6, 6.6, 4.7]

DATA = {"tapfinger": OURS, "optimus-central": RIGHT, "optimus-published": PUBLISHED, "greedy": LEVEL}


def verdict(claim):
    return judge(claim, measured(DATA, claim))


def less(others=("optimus-central",), **given):
    return Less("a claim", tuple(others), **given)


def test_holds_where_every_interval_is_clear_and_the_size_is_reached():
    found = verdict(less(percent=15.0, published=("optimus-published",)))
    assert (found.verdict, found.why) == (ClaimVerdict.HOLDS, "")
    assert "-20.0 % against optimus-central: -1.25 (95 %:" in found.ours
    assert "optimus-published" in found.ours


def test_holds_only_against_the_published_baseline():
    found = verdict(less(percent=40.0, published=("optimus-published",), paper="-40 %"))
    assert found.verdict is ClaimVerdict.PUBLISHED_ONLY
    assert found.why == "the difference is clear, but smaller than claimed"
    assert found.paper == "-40 %"


@pytest.mark.parametrize(("percent", "wanted"), [(26.0, ClaimVerdict.HOLDS), (27.0, ClaimVerdict.DOES_NOT_HOLD)])
def test_a_claimed_size_holds_within_the_interval_or_below_it(percent, wanted):
    # 20 % in the mean: 1.25 of 6.25 slots, with an interval of 3.182 * 0.252 / 2 = 0.40 slots, that is up to 26.4 %.
    assert verdict(less(percent=percent)).verdict is wanted


def test_does_not_hold_where_the_size_is_reached_against_nobody():
    assert verdict(less(percent=90.0, published=("optimus-published",))).verdict is ClaimVerdict.DOES_NOT_HOLD


def test_a_size_that_is_not_reached_counts_without_a_published_form_of_the_rival():
    assert verdict(less(percent=40.0)).verdict is ClaimVerdict.DOES_NOT_HOLD


def test_an_interval_that_touches_zero_is_no_lead():
    found = verdict(less(["greedy"]))
    assert found.verdict is ClaimVerdict.DOES_NOT_HOLD
    assert "touches zero" in found.why


def test_the_other_way_round():
    found = verdict(less(["tapfinger"], one="optimus-central"))
    assert (found.verdict, found.why) == (ClaimVerdict.DOES_NOT_HOLD, "it is the other way round")


def test_of_several_rivals_the_strongest_decides():
    found = verdict(less(["optimus-central", "greedy"]))
    assert found.verdict is ClaimVerdict.DOES_NOT_HOLD
    assert found.ours.startswith("at worst ")
    assert "against greedy" in found.ours
    assert "clear in 1 of 2 comparisons" in found.ours


def test_one_seed_is_not_judged():
    claim = less()
    one = measured({name: row[:1] for name, row in DATA.items()}, claim)
    assert judge(claim, one).verdict is ClaimVerdict.NOT_JUDGED


def test_nothing_measured_is_not_judged():
    claim = less()
    nothing = replace(measured(DATA, claim), missing="no model")
    assert (judge(claim, nothing).verdict, judge(claim, nothing).ours) == (ClaimVerdict.NOT_JUDGED, "no model")


def test_a_result_outside_the_expected_range_is_said():
    assert verdict(less(expected=(15.0, 25.0))).surprise == ""
    assert verdict(less(expected=(1.0, 5.0))).surprise == "outside the expected 1 to 5 %"


def test_a_claim_across_settings_is_paired_by_seed():
    claim = less(["tapfinger"], settings=("fast",), against="slow")
    slow = measured({"tapfinger": [5.0, 7.0, 9.0]}, setting="slow").runs
    fast = measured({"tapfinger": [4.9, 6.88, 8.9]}, claim, setting="fast")
    found = judge(claim, replace(fast, runs={**fast.runs, **slow}))
    assert found.verdict is ClaimVerdict.HOLDS  # each seed is better, though the settings' intervals overlap widely


@pytest.mark.parametrize(("most", "wanted"), [(30.0, ClaimVerdict.HOLDS), (20.0, ClaimVerdict.DOES_NOT_HOLD)])
def test_flatness(most, wanted):
    claim = Flat("flat", most)
    short = measured({"tapfinger": [4.0, 4.0]}, claim, setting="short")
    long = measured({"tapfinger": [5.0, 5.0]}, claim, setting="long")
    found = judge(claim, replace(short, runs={**short.runs, **long.runs}))
    assert found.verdict is wanted
    assert "25.0 %" in found.ours


@pytest.mark.parametrize(
    ("times", "wanted"), [((4.0, 9.0, 4.2), ClaimVerdict.HOLDS), ((4.0, 3.0, 5.0), ClaimVerdict.DOES_NOT_HOLD)]
)
def test_growth_is_from_the_first_setting_to_the_last(times, wanted):
    claim = Flat("does not grow", 10.0, growth=True)
    parts = {f"{i}": measured({"tapfinger": [time, time]}, claim, setting=f"{i}") for i, time in enumerate(times)}
    found = judge(claim, replace(parts["0"], runs={key: part.runs[key] for key, part in parts.items()}))
    assert found.verdict is wanted
    assert f"{100 * (times[2] / times[0] - 1):+.1f} %" in found.ours


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Estimate(2.0, 0.5), ClaimVerdict.HOLDS),
        (Estimate(2.8, 0.5), ClaimVerdict.DOES_NOT_HOLD),  # its interval passes the bound
        (Estimate(4.0, None), ClaimVerdict.DOES_NOT_HOLD),
    ],
)
def test_bounds(value, wanted):
    claim = Bound("at most three", "share", at_most=3.0, unit="%")
    assert judge(claim, replace(measured(DATA, claim), values={"share": value})).verdict is wanted


def test_of_several_cases_the_worst_decides():
    claim = Bound("at most three", "share", at_most=3.0, unit="%")
    cases = {"share at 10 ms": Estimate(1.0, 0.1), "share at 0 ms": Estimate(3.4, 0.1), "shared": Estimate(9.0, None)}
    found = judge(claim, replace(measured(DATA, claim), values=cases))
    assert found.verdict is ClaimVerdict.DOES_NOT_HOLD
    assert found.ours == "at worst 3.40 ± 0.10 % (0 ms); within the bound in 1 of 2 cases"


def test_a_bound_without_a_value_and_a_claim_that_nothing_measures_say_why():
    bound = Bound("learns", "fall.nobody", otherwise="no log ships")
    for claim in (bound, Unjudged("penalties", "no log ships")):
        found = judge(claim, measured(DATA, claim))
        assert (found.verdict, found.ours) == (ClaimVerdict.NOT_JUDGED, "no log ships")


def test_a_claim_about_a_scheduler_that_is_left_out_is_not_judged():
    claim = less(["ghost"])
    found = judge(claim, replace(measured(DATA, claim), absent={"ghost": "no model ghost ships"}))
    assert (found.verdict, found.ours) == (ClaimVerdict.NOT_JUDGED, "no model ghost ships")


def test_claims_of_the_paper_are_judged_for_its_own_method_too():
    claims = less(paper="-20 %", percent=15.0), less()
    both = measured({**DATA, PAPER_METHOD: [6.0, 7.0, 8.0, 7.0]}, *claims)
    of_paper, of_ours = judge_all(both)
    assert of_paper.verdict is ClaimVerdict.HOLDS
    assert of_paper.by_paper_method is not None
    assert of_paper.by_paper_method.verdict is ClaimVerdict.DOES_NOT_HOLD
    assert of_ours.by_paper_method is None
    assert judge_all(measured(DATA, *claims))[0].by_paper_method is None


def test_sentences_and_tables_are_computed():
    claim = less(percent=15.0)
    made = measured(DATA, claim)
    first, second = sentences(made, judge_all(made))
    assert first.startswith("tapfinger has the shortest mean completion time, 5.00 ±")
    assert "the next, greedy, has 0.10" in first
    assert second == "The claim holds."
    assert main_table(made).rows[0][0] == "tapfinger"
    rows = numbers(made)
    best = dict(zip(rows.head, rows.rows[0], strict=True))
    assert (best["scheduler"], best["mean"], best["difference"], best["better_seeds"]) == ("tapfinger", "5", "0", "0")
    assert claims_table(judge_all(made)).rows[0][3] == "holds"


def test_the_published_policy_is_set_beside_a_correct_optimus():
    made = measured(DATA)
    runs = made.runs["here"]
    said = replace(made, runs={"here": replace(runs, setting=replace(runs.setting, published={"tapfinger": 6.42}))})
    assert "would stand behind a correct Optimus" in sentences(said, [])[1]
