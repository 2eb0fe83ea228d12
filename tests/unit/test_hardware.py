"""Kinds of hardware: who asks how long a task takes asks it for a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapfinger.config import parse_scenario
from tapfinger.core.events import TaskStarted
from tapfinger.core.model import NO_NOISE, Resources, TaskType
from tapfinger.errors import ConfigError, DataError, TapfingerError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.profiles.belief_wrapper import Believing
from tapfinger.profiles.beliefs import ACROSS, Belief
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.profiles.table import ProfileRow, load_profile, write_profile
from tapfinger.sim.layout import make_tables
from tapfinger.sim.run import new_session, run_scheduler
from tapfinger.workloads.world import World, build_world, draw_workload

R = Resources
AMDAHL = {"kind": "amdahl", "seconds": 400, "parallel": {"gpu": 0.8}}
ONE = {"name": "one", "minimum": {"cpu": 1, "gpu": 1}, "maximum": {"cpu": 1, "gpu": 4}, "speed": AMDAHL}


def scenario(on: dict[str, Any], kinds: tuple[str, ...] = ("slow", "fast"), **more: Any) -> dict[str, Any]:
    clusters = [{"name": f"c{i}", "capacity": {"cpu": 8, "gpu": 8}, "kind": kind} for i, kind in enumerate(kinds)]
    arrivals = {"kind": "poisson", "rate": 0.2}
    base = {"name": "x", "mode": "multi", "tasks": 30, "clusters": clusters, "arrivals": arrivals}
    return base | {"task_types": [{**ONE, "on": on}], "eligibility": {"kind": "all"}} | more


def world(on: dict[str, Any], kinds: tuple[str, ...] = ("slow", "fast"), **more: Any) -> World:
    return build_world(parse_scenario(scenario(on, kinds, **more)))


def test_factors_speeds_and_factors_on_others() -> None:
    made = world(
        {"slow": 1, "fast": {"factor": 3, "of": "mid"}, "mid": 2, "own": {"kind": "constant", "slots": 4}},
        ("fast", "own", "slow"),
    )
    (one,) = made.task_types
    size = R([1, 2])
    slow = one.on("slow").profile.rate(size)
    assert one.on("fast").profile.rate(size) == pytest.approx(6 * slow)
    assert one.on("own").profile.rate(size) == 0.25
    assert one.on("fast").on("slow").profile.rate(size) == slow
    assert {one.on(kind).name for kind in ("slow", "fast", "own")} == {"one"}


def test_the_usual_hardware_is_that_of_most_clusters() -> None:
    assert world({"slow": 1, "fast": 2}, ("fast", "slow", "slow")).task_types[0].hardware == "slow"
    assert world({"slow": 1, "fast": 2}, ("fast", "slow")).task_types[0].hardware == "fast"
    assert world({}, ("", "")).task_types[0].profiles == ()


def test_narrowed_types_are_narrow_on_all_hardware() -> None:
    (one,) = world({"slow": 1, "fast": 2}).task_types
    narrow = one.narrowed(R([1, 2]), R([1, 3]))
    assert narrow.on("fast").profile.rate(R([1, 2])) == one.on("fast").profile.rate(R([1, 2]))
    assert narrow.on("fast").maximum == R([1, 3])


def test_tasks_run_at_the_speed_of_their_cluster() -> None:
    constant = {"speed": {"kind": "constant", "slots": 8}, "on": {"slow": 1, "fast": 4}}
    made = world({}, task_types=[{**ONE, **constant}], arrivals={"kind": "poisson", "rate": 3})
    starts: dict[int, tuple[int, int]] = {}
    seen: list[Any] = []
    run_scheduler(made, parse_spec("fifo").create(), 0, [seen.append])
    for event in seen:
        if isinstance(event, TaskStarted):
            starts[event.task] = event.slot, event.cluster
    ran = {(starts[e.task][1], e.slot - starts[e.task][0] + 1) for e in seen if type(e).__name__ == "TaskFinished"}
    assert ran == {(0, 8), (1, 2)}


@pytest.mark.parametrize("scheduler", ["greedy", "lookahead", "optimus-central", "tiresias", "greedy@lend=true"])
def test_schedulers_prefer_the_faster_cluster(scheduler: str) -> None:
    made = world({"slow": 1, "fast": 10}, arrivals={"kind": "poisson", "rate": 0.05})
    seen: list[Any] = []
    run_scheduler(made, parse_spec(scheduler).create(), 0, [seen.append])
    first = {e.task: e.cluster for e in reversed(seen) if isinstance(e, TaskStarted)}
    assert sum(first.values()) > 0.9 * len(first)


def test_efficient_sizes_are_by_hardware() -> None:
    made = world({"slow": 1, "fast": {"kind": "constant", "slots": 2}})
    sizes = EfficientSizes(made.context(0))
    assert len(sizes.at["slow"]["one"]) > 1
    assert [o.allocation for o in sizes.at["fast"]["one"]] == [R([1, 1])]
    assert sizes.ideal_on("one", 1) == 2
    assert sizes.ideal("one", (0, 1)) == 2


def test_tables_have_a_speed_for_every_type_and_kind() -> None:
    made = world({"slow": 1, "fast": 2}, ("slow", "fast", "slow"))
    tables = make_tables(made.clusters, made.task_types, made.noise, made.mode)
    assert tables.speed.tolist() == [[0, 1, 0]]
    assert (tables.rates[4:] == 2 * tables.rates[:4]).all()


@pytest.mark.parametrize(
    ("on", "fault"),
    [
        ({"slow": 1}, r"task_types.one.on.fast: there is no speed on this kind of hardware, which clusters have"),
        ({"slow": 1, "fast": {"factor": 2, "of": "none"}}, r"on.none: there is no speed .* which on.fast refers to"),
        ({"slow": {"factor": 2, "of": "fast"}, "fast": {"factor": 2, "of": "slow"}}, "goes in a circle"),
        ({"slow": 1, "fast": {"factor": 2, "of": "fast"}}, "goes in a circle"),
        ({"slow": 1, "fast": 0}, "greater than or equal to 0.0001"),
        ({"slow": 1, "fast": True}, "on.fast"),
        ({"slow": 1, "fast": {"kind": "amdahl", "seconds": 1e12, "parallel": {}}}, "on.fast: with .* it takes"),
    ],
)
def test_bad_speeds_are_refused(on: dict[str, Any], fault: str) -> None:
    with pytest.raises(TapfingerError, match=fault):
        world(on)


def rows(*kinds: str) -> list[ProfileRow]:
    return [ProfileRow("one", {"gpu": float(g)}, 100.0 / g / (n + 1), k) for n, k in enumerate(kinds) for g in (1, 4)]


def test_a_profile_file_may_have_a_column_for_hardware(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    write_profile(path, rows("slow", "fast"))
    assert path.read_text().splitlines()[0] == "task_type,kind,gpu,seconds"
    assert load_profile(path, "one", "fast").seconds({"gpu": 1}) == pytest.approx(50)
    with pytest.raises(DataError, match="no measurement of one on kind 'other', only on fast, slow"):
        load_profile(path, "one", "other")
    table = {"kind": "table", "file": str(path), "insensitive": ["cpu"]}
    (one,) = world({}, task_types=[{**ONE, "speed": table}]).task_types
    assert one.on("fast").profile.rate(R([1, 1])) == pytest.approx(2 * one.on("slow").profile.rate(R([1, 1])))
    with pytest.raises(ConfigError, match=r"on.other: there is no speed on this kind"):
        world({}, ("slow", "other"), task_types=[{**ONE, "speed": table}])


def test_a_file_that_says_nothing_of_hardware_needs_factors(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    write_profile(path, rows(""))
    assert path.read_text().splitlines()[0] == "task_type,gpu,seconds"
    table = {"kind": "table", "file": str(path), "insensitive": ["cpu"]}
    with pytest.raises(ConfigError, match=r"on.slow: there is no speed on this kind"):
        world({}, task_types=[{**ONE, "speed": table}])
    (one,) = world(
        {"slow": 1, "fast": table}, task_types=[{**ONE, "speed": table, "on": {"slow": 1, "fast": table}}]
    ).task_types
    assert one.on("fast").profile == one.on("slow").profile


def doubtful() -> TaskType:
    (one,) = world({"slow": 1, "fast": 4}).task_types
    return one.with_profiles(lambda told: replace(told, doubt=(1.0,) * len(told.rates)))


def test_what_is_learned_on_one_kind_is_half_believed_of_the_other() -> None:
    told, size = doubtful(), R([1, 2])
    belief = Belief(told, NO_NOISE)
    for _ in range(5):  # twice as slow as told
        slots = 2.0 / told.on("slow").profile.rate(size)
        belief.see_run(size, slots, hardware="slow")
    now = belief.believed()
    change = {kind: now.on(kind).profile.rate(size) / told.on(kind).profile.rate(size) for kind in ("slow", "fast")}
    assert change["slow"] == pytest.approx(0.5, rel=0.03)
    assert change["fast"] == pytest.approx(0.5**ACROSS, rel=0.05)
    doubts = {kind: (now.on(kind).profile.doubt or ())[1] for kind in ("slow", "fast")}
    assert doubts["slow"] < 0.1
    assert 0.7 < doubts["fast"] < 0.95
    for _ in range(5):  # as told, once it is seen
        belief.see_run(size, 1.0 / told.on("fast").profile.rate(size), hardware="fast")
    now = belief.believed()
    assert now.on("fast").profile.rate(size) == pytest.approx(told.on("fast").profile.rate(size), rel=0.05)
    assert now.on("slow").profile.rate(size) == pytest.approx(0.5 * told.on("slow").profile.rate(size), rel=0.05)
    assert now.hardware == told.hardware
    assert now.profile == now.on(told.hardware).profile


def test_beliefs_of_a_run_are_by_hardware() -> None:
    on = {"slow": 1, "fast": 4}
    wrong = {"kind": "noisy", "amount": 1.0}
    made = world(on, ("slow", "fast"), knowledge=wrong, tasks=60, arrivals={"kind": "poisson", "rate": 1.0})
    (told,), (true,) = made.context(3).task_types, made.task_types
    shift = {k: math.log(told.on(k).profile.rates[0] / true.on(k).profile.rates[0]) for k in on}
    assert abs(shift["slow"] - shift["fast"]) > 0.01, "each kind is misjudged in its own way"
    believing = Believing(parse_spec("greedy").create())
    session = new_session(made, draw_workload(made, 3))
    believing.reset(made.context(3))
    while not session.done:
        session.play_round(believing)
        session.end_slot()
    seen = believing._types["one"]  # type: ignore[attr-defined]
    for kind in on:
        doubts = seen.on(kind).profile.doubt or ()
        best = min(range(len(doubts)), key=doubts.__getitem__)
        assert seen.on(kind).profile.rates[best] == pytest.approx(true.on(kind).profile.rates[best], rel=0.05)
