"""The benchmark of fresh sites: who is compared, what is refused, what the table says."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tapfinger.errors import ConfigError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.registry import names


@pytest.fixture(autouse=True)
def at_benchmarks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scripts import each other by their plain names, and keep runs in a folder of this test."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "cells"))


@pytest.fixture
def fresh() -> ModuleType:
    return import_module("fresh_sites")


@pytest.fixture
def stages() -> ModuleType:
    return import_module("stages")


def site(seed: int, **times: tuple[int, ...]):
    """A site with one run per scheduler; no times: the run failed."""
    runs = import_module("site_runs")
    scenario = runs.draw_sized(300_003, "wide")
    made = {
        name: (runs.SiteRun(name, 0, completion, error="" if completion else "stuck"),)
        for name, completion in times.items()
    }
    return runs.SiteRuns(seed, scenario, 3, made)


KINDS = {"mine": "ours", "none": "control", "one": "rival", "two": "rival"}


def test_shares_and_the_best_single_rival(fresh: ModuleType) -> None:
    found = [
        site(1, mine=(8, 8), none=(8, 8), one=(10, 10), two=(16, 16)),
        site(2, mine=(8, 8), none=(4, 4), one=(10, 10), two=(9, 9)),
    ]
    answer = fresh.compare(KINDS, found, [])
    by_name = {entry.scheduler: entry for entry in answer.entries}
    assert answer.best == "one"
    assert by_name["one"].mean.mean == pytest.approx(0.8)
    assert by_name["none"].mean.mean == pytest.approx(2**0.5)
    assert by_name["mine"].mean is None
    assert answer.best_per_site.mean == pytest.approx((0.8 * 8 / 9) ** 0.5)
    assert answer.best_per_site.better == 1.0


def test_a_rival_that_failed_is_not_the_best_and_is_named(fresh: ModuleType) -> None:
    found = [site(1, mine=(8,), one=(10,), two=(9,)), site(2, mine=(8,), one=(10,), two=())]
    answer = fresh.compare({"mine": "ours", "one": "rival", "two": "rival"}, found, [])
    assert answer.best == "one"
    assert answer.notes == ["two failed on 1 of 2 sites, which do not count."]
    text = "\n".join(fresh.section(fresh.Question(), answer))
    assert "| failed |" in text
    assert "| one | best rival | 0.800" in text


def test_resizing_is_refused_in_the_fixed_regime(fresh: ModuleType) -> None:
    question = fresh.Question("fixed", "300003:300004", "choosing", "0:1", ours="greedy", rivals=("optimus-central",))
    with pytest.raises(ConfigError, match=r"optimus-central has resized running tasks \d+ times on site 300003"):
        fresh.ask(question)


def test_sites_for_another_purpose_are_refused(fresh: ModuleType) -> None:
    with pytest.raises(ConfigError, match="site 300003 is for choosing, and this is reporting"):
        fresh.ask(fresh.Question(sites="300003:300004"))


def test_finished_runs_are_kept(fresh: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    question = fresh.Question(
        "fixed", "300003:300004", "choosing", "0:1", ours="greedy", control="greedy", rivals=("fifo",)
    )
    first = fresh.section(question, fresh.ask(question))
    monkeypatch.setattr(import_module("site_runs"), "_play", lambda job: pytest.fail("played again"))
    assert fresh.section(question, fresh.ask(question)) == first
    assert first[2] == f"`{question.command}`"


def test_the_usual_schedulers_exist(fresh: ModuleType) -> None:
    for rivals in fresh.RIVALS.values():
        for name in rivals:
            if parse_spec(name).name in names("scheduler"):
                parse_spec(name).create()
    for name in (*fresh.OURS.values(), *fresh.LOOKAHEADS.values()):
        parse_spec(name).create()


def test_the_command_that_a_section_names_asks_the_same(fresh: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fresh.Question("elastic", "300000:300002", "choosing", "0:2", ours="greedy", rivals=("fifo", "min"))
    monkeypatch.setattr(sys, "argv", asked.command.split()[1:])
    given = fresh._arguments()
    assert (given.regime, given.sites, given.purpose, given.seeds) == ("elastic", "300000:300002", "choosing", "0:2")
    assert (given.ours, given.rivals, given.lookahead) == ("greedy", "fifo,min", "")


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ((103, 102, 104), "stays: mean"),
        ((100, 100, 100), "goes"),
        ((97, 98, 96), "harms: goes"),
        ((120, 90, 100), "goes"),  # 2.6 % on average, and not clear of zero
    ],
)
def test_a_stage_stays_if_it_earns_enough(stages: ModuleType, times: tuple[int, ...], verdict: str) -> None:
    found = [site(at, base=(100,), **{"base@without=rule": (time,)}) for at, time in enumerate(times)]
    (worth,) = stages.judge("base", ["rule"], found)
    assert worth.verdict == verdict
    assert f"| {verdict} |" in stages.table("base", [worth], "sites", "seeds")[-1]


def test_a_stage_without_which_nothing_ends_is_not_judged(stages: ModuleType) -> None:
    found = [site(1, base=(100,), **{"base@without=rule": ()})]
    assert stages.judge("base", ["rule"], found) == []


def test_stages_are_asked_of_the_module_of_the_scheduler(stages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tapfinger.schedulers.greedy"), "STAGES", {"one": 1, "two": 2}, raising=False)
    assert stages.stages_of("greedy@lend=true") == ["one", "two"]


def test_a_scheduler_without_stages_is_told_what_to_do(stages: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"greedy names no stages: .* --stages"):
        stages.stages_of("greedy")
