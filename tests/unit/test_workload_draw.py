"""Drawing workloads: the same seed gives the same draw, every part from its own stream."""

from typing import Any

import numpy as np
import pytest
from helpers import StartAll, log_of, make_scenario, make_world

from tapfinger.config import load_scenario
from tapfinger.errors import ConfigError
from tapfinger.registry import create
from tapfinger.workloads.arrivals import CHUNK
from tapfinger.workloads.base import Arrivals, Workload, WorkloadContext
from tapfinger.workloads.world import build_world, draw_workload

PARTS = ("slot", "type", "eligible", "noise_key")


def same(a: Workload, b: Workload) -> dict[str, bool]:
    return {part: bool(np.array_equal(getattr(a, part), getattr(b, part))) for part in PARTS}


def draw(seed: int = 0, name: str = "synthetic-3", *overrides: str) -> Workload:
    return draw_workload(build_world(load_scenario(name, overrides)), seed)


def test_the_same_seed_gives_the_same_draw_and_another_seed_another() -> None:
    assert all(same(draw(3), draw(3)).values())
    assert not any(same(draw(3), draw(4)).values())


@pytest.mark.parametrize(
    "override",
    ["noise.amplitude=0.3", "noise.kind=relative", "switching_cost=0", "clusters.edge.capacity.gpu=8", "mode=multi"],
)
def test_what_does_not_concern_arrivals_does_not_change_them(override: str) -> None:
    assert all(same(draw(3), draw(3, "synthetic-3", override)).values())


def test_parts_are_independent_of_each_other() -> None:
    faster = same(draw(3), draw(3, "synthetic-3", "arrivals.rate=5"))
    assert faster == {"slot": False, "type": True, "eligible": True, "noise_key": True}
    weighted = same(draw(3), draw(3, "synthetic-3", "task_types.sensitive.weight=9"))
    assert weighted == {"slot": True, "type": False, "eligible": True, "noise_key": True}
    linked = same(draw(3), draw(3, "synthetic-3", "eligibility.kind=bandwidth"))
    assert linked == {"slot": True, "type": True, "eligible": False, "noise_key": True}


def test_running_a_scheduler_leaves_the_draw_alone() -> None:
    world = build_world(load_scenario("synthetic-3"))
    before = draw_workload(world, 3)
    log_of(world, StartAll(), seed=3)
    assert all(same(before, draw_workload(world, 3)).values())


def test_the_schedulers_own_seed_differs_from_run_to_run_and_repeats() -> None:
    world = make_world()
    assert world.context(3).seed == world.context(3).seed != world.context(4).seed


def test_a_shorter_workload_is_the_beginning_of_a_longer_one() -> None:
    long, short = draw(3), draw(3, "synthetic-3", "tasks=50")
    assert np.array_equal(long.slot[:50], short.slot)


def test_shapes_and_order() -> None:
    work = draw()
    assert len(work) == 192
    assert work.eligible.shape == (192, 3)
    assert (np.diff(work.slot) >= 0).all()
    assert work.slot.min() >= 0


# --------------------------------------------------------------------- types


def test_types_follow_their_weights() -> None:
    types = draw(0, "multi-3", "tasks=8000", "task_types.sensitive.weight=3").type
    assert abs((types == 1).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 8000)
    assert (draw(0, "multi-3", "task_types.sensitive.weight=0").type == 0).all()
    with pytest.raises(ConfigError, match="at least one weight must be above 0"):
        draw(0, "multi-3", "task_types.sensitive.weight=0", "task_types.insensitive.weight=0")


# --------------------------------------------------------------- eligibility


def test_subset_eligibility_has_a_uniform_count_and_no_favourite() -> None:
    eligible = draw(0, "synthetic-6", "tasks=9000").eligible
    counts = np.bincount(eligible.sum(axis=1), minlength=7)
    assert counts[0] == 0
    assert np.abs(counts[1:] / 9000 - 1 / 6).max() < 4 * np.sqrt(5 / 36 / 9000)
    # Mean share of a cluster: (1 + ... + 6) / 6 / 6 = 3.5 / 6.
    assert np.abs(eligible.mean(axis=0) - 3.5 / 6).max() < 4 * np.sqrt(0.25 / 9000)


def test_bandwidth_eligibility_is_a_coin_per_link_given_at_least_one() -> None:
    eligible = draw(0, "synthetic-3", "tasks=9000", "eligibility.kind=bandwidth").eligible
    assert eligible.any(axis=1).all()
    # Given that not all three links fail: (1/2) / (1 - 1/8) = 4/7 each.
    assert np.abs(eligible.mean(axis=0) - 4 / 7).max() < 4 * np.sqrt(0.25 / 9000)
    strict = draw(0, "synthetic-3", "tasks=9000", "eligibility.kind=bandwidth", "eligibility.minimum_mbps=8").eligible
    assert np.abs(strict.mean(axis=0) - 0.2 / (1 - 0.8**3)).max() < 4 * np.sqrt(0.25 / 9000)


def test_all_clusters_can_be_eligible() -> None:
    assert draw(0, "hetero-6", "eligibility.kind=all").eligible.all()


@pytest.mark.parametrize("kind", ["subset", "bandwidth", "all"])
def test_some_eligible_cluster_always_holds_the_minimum(kind: str) -> None:
    # Only the two large clusters of six hold (20, 20).
    overrides = [f"task_types.{t}.{end}={{cpu=20, gpu=20}}" for t in ("sensitive",) for end in ("minimum", "maximum")]
    world = build_world(load_scenario("hetero-6", [*overrides, "tasks=2000", f"eligibility.kind={kind}"]))
    work = draw_workload(world, 0)
    holds = np.array([[t.minimum.fits(c.capacity) for c in world.clusters] for t in world.task_types])
    assert holds.sum(axis=1).tolist() == [6, 2]
    assert (work.eligible & holds[work.type]).any(axis=1).all()


def test_minimum_that_fits_no_cluster_is_refused_with_numbers() -> None:
    world = make_world(clusters=[{"name": "c0", "capacity": {"cpu": 1, "gpu": 1}}])
    with pytest.raises(
        ConfigError, match=r"'steady': minimum 2 cpu, 1 gpu fits no cluster: c0 with 1 cpu, 1 gpu; lower"
    ):
        draw_workload(world, 0)


def test_a_type_that_fits_nowhere_is_no_fault_if_it_is_never_drawn() -> None:
    huge = ["task_types.sensitive.minimum={cpu=99, gpu=99}", "task_types.sensitive.maximum={cpu=99, gpu=99}"]
    for kind in ("subset", "bandwidth", "all"):
        chosen = [*huge, f"eligibility.kind={kind}"]
        assert draw(0, "multi-3", *chosen, "task_types.sensitive.weight=0").eligible.any(axis=1).all()
        with pytest.raises(ConfigError, match=r"'sensitive': minimum .* fits no cluster"):
            draw(0, "multi-3", *chosen, "task_types.sensitive.weight=1e-9")


def test_bandwidth_that_no_link_reaches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"after 1000 draws .*minimum_mbps 20 of 10"):
        draw(0, "synthetic-3", "eligibility.kind=bandwidth", "eligibility.minimum_mbps=20")


# ------------------------------------------------------------------- arrivals


def arrivals(kind: str, tasks: int = 40_000, seed: int = 0, **options: Any) -> np.ndarray[Any, Any]:
    context = WorkloadContext(tasks, ("a",), ("c",), 10.0, ".")
    slots = create("arrivals", kind, options).arrivals(context, np.random.default_rng(seed)).slot
    assert len(slots) == tasks
    return np.asarray(slots)


@pytest.mark.parametrize("rate", [0.05, 1.5, 6.0])
def test_poisson_has_its_mean_and_variance(rate: float) -> None:
    slots = arrivals("poisson", rate=rate)
    per_slot = np.bincount(slots)[:-1]
    error = np.sqrt(rate / len(per_slot))
    assert abs(per_slot.mean() - rate) < 4 * error
    assert abs(per_slot.var() / rate - 1) < 0.1


def test_bursty_keeps_the_mean_rate_but_varies_more() -> None:
    rates = [40_000 / arrivals("bursty", seed=seed, rate=2.0)[-1] for seed in range(5)]
    assert np.mean(rates) == pytest.approx(2.0, rel=0.05)
    per_slot = np.bincount(arrivals("bursty", rate=2.0))
    assert per_slot.var() > 1.5 * per_slot.mean()


def test_bursts_have_their_share_and_length() -> None:
    per_slot = np.bincount(
        arrivals("bursty", rate=50.0, burst_factor=20.0, burst_share=0.3, burst_slots=15.0, tasks=400_000)
    )
    burst = per_slot > 80  # calm 7.5, burst 149 a slot
    assert burst.mean() == pytest.approx(0.3, abs=0.05)
    begins = int((np.diff(burst.astype(int)) == 1).sum())
    assert burst.sum() / begins == pytest.approx(15.0, rel=0.2)
    assert begins > 100


def test_a_burst_goes_on_over_the_end_of_a_chunk() -> None:
    # Phases of 500 slots on average: one that begins anew at a seam would differ in half of the cases.
    options = {"rate": 5.0, "burst_factor": 1000.0, "burst_share": 0.5, "burst_slots": 500.0}
    changes = seams = 0
    for seed in range(30):
        burst = np.bincount(arrivals("bursty", seed=seed, **options)) > 2  # calm 0.01, burst 10 a slot
        at = np.arange(CHUNK, len(burst) - 5, CHUNK)
        changes += sum(burst[s - 5 : s].any() != burst[s : s + 5].any() for s in at)
        seams += len(at)
    assert seams >= 30
    assert changes / seams < 0.15  # 1 % in truth


def test_one_process_can_be_drawn_from_twice() -> None:
    process = create("arrivals", "bursty", {"rate": 2.0})
    context = WorkloadContext(20_000, ("a",), ("c",), 10.0, ".")
    first, again = (process.arrivals(context, np.random.default_rng(0)).slot for _ in range(2))
    assert np.array_equal(first, again)


def test_day_and_night_swing_around_the_mean() -> None:
    slots = arrivals("day-night", rate=4.0, swing=0.5, period=400.0)
    per_slot = np.bincount(slots)
    whole = per_slot[: len(per_slot) // 400 * 400].reshape(-1, 400)
    assert whole.mean() == pytest.approx(4.0, rel=0.03)
    assert whole[:, 50:150].mean() == pytest.approx(4.0 * (1 + 0.5 * 2 * np.sqrt(2) / np.pi), rel=0.03)
    assert whole[:, 250:350].mean() == pytest.approx(4.0 * (1 - 0.5 * 2 * np.sqrt(2) / np.pi), rel=0.06)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("poisson", {"rate": 0}, r"arrivals\.rate = 0"),
        ("poisson", {"rate": -1.0}, r"arrivals\.rate = -1\.0"),
        ("poisson", {"rate": float("nan")}, "nan"),
        ("poisson", {"rate": "fast"}, "'fast'"),
        ("poisson", {"rate": 1e300}, r"arrivals\.rate = 1e\+300 must be at most 1e\+09"),
        ("bursty", {"rate": 1, "burst_share": 1e-12, "burst_factor": 1e30}, r"burst_factor = 1e\+30 gives bursts of"),
        ("poisson", {"rate": 1e-6}, r"rate = 1e-06: 40,000 tasks would take about 40,000,000,000 slots"),
        ("bursty", {"rate": 1, "burst_share": 1.0}, r"burst_share = 1 must be below 1"),
        (
            "bursty",
            {"rate": 1, "burst_share": 0.9, "burst_slots": 2},
            "cannot be reached with bursts of burst_slots = 2",
        ),
        ("bursty", {"rate": 1, "burst_factor": -2}, r"burst_factor = -2"),
        ("day-night", {"rate": 1, "swing": 1.5}, r"swing = 1\.5 must be at most 1"),
        ("day-night", {"rate": 1, "period": 0}, r"period = 0"),
    ],
)
def test_bad_arrival_options_name_key_and_value(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        arrivals(kind, **options)


def test_generated_arrivals_need_the_number_of_tasks() -> None:
    world = build_world(make_scenario(tasks=None))
    with pytest.raises(ConfigError, match="set tasks in the scenario"):
        draw_workload(world, 0)


def test_unknown_arrival_options_are_explained() -> None:
    with pytest.raises(ConfigError, match="arrivals 'poisson' has no option 'rat'"):
        draw(0, "multi-3", "arrivals.rat=3")


def test_a_very_high_rate_fills_no_memory() -> None:
    assert (arrivals("poisson", tasks=1000, rate=1e9) == 0).all()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([0, 1], "must return Arrivals, got list"),
        (Arrivals(np.array([])), "there are no tasks"),
        (Arrivals(np.array([0.0, 1.5])), "slot must be an array of whole numbers .*got float64"),
        (Arrivals(np.array([[0, 1]])), r"slot must be .* of shape \(2,\), got int64 of shape \(1, 2\)"),
        (Arrivals(np.array([3, 1])), "slots must ascend from 0 on; task 1 has slot 1"),
        (Arrivals(np.array([-1, 1])), "task 0 has slot -1"),
        (Arrivals(np.array([0, 1]), np.array([0, 4])), r"task 1 has type 4; types are 0\.\.0"),
        (Arrivals(np.array([0, 1]), np.array([-1, 0])), "task 0 has type -1"),
        (Arrivals(np.array([0, 1]), np.array([0])), r"type must be .*of shape \(2,\), got int64 of shape \(1,\)"),
        (Arrivals(np.array([0, 1]), None, np.ones((2, 3), bool)), r"eligible must be an array of booleans of shape"),
        (Arrivals(np.array([0, 1]), None, np.ones((2, 1))), "eligible must be an array of booleans .*float64"),
        (Arrivals(np.array([0, 1]), None, np.zeros((2, 1), bool)), "task 0 .*no eligible cluster; name at least one"),
    ],
)
def test_what_no_simulator_could_play_is_refused(returned: Any, words: str) -> None:
    world = make_world(arrivals={"kind": "helpers:Odd", "returned": returned})
    with pytest.raises(ConfigError, match=words):
        draw_workload(world, 0)


def test_lists_pass_for_arrays_and_a_process_needs_its_method() -> None:
    lists = Arrivals([0, 1], [0, 0], [[True], [True]])  # type: ignore[arg-type]
    work = draw_workload(make_world(arrivals={"kind": "helpers:Odd", "returned": lists}), 0)
    assert work.eligible.dtype == np.bool_
    assert work.slot.tolist() == [0, 1]
    with pytest.raises(ConfigError, match=r"have no method arrivals\(\)"):
        draw_workload(make_world(arrivals={"kind": "builtins:dict"}), 0)
