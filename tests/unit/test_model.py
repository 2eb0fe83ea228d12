import math
from itertools import pairwise

import pytest
from helpers import R, constant_type, make_task
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.feasibility import check_eligible
from tapfinger.core.model import (
    Cluster,
    Noise,
    Resources,
    ResourceTypes,
    SpeedProfile,
    TaskType,
    unit_uniform,
)
from tapfinger.errors import ConfigError
from tapfinger.workloads.world import build_world

# ------------------------------------------------------------------ resources


def test_resources_add_and_subtract_amount_by_amount() -> None:
    assert R([5, 3]) + R([1, 2]) == (6, 5)
    assert R([5, 3]) - R([1, 4]) == (4, -1)
    assert isinstance(R([5, 3]) + R([1, 2]), Resources)
    assert isinstance(R([5, 3]) - R([1, 2]), Resources)


def test_resources_of_different_length_do_not_mix() -> None:
    for operation in (R([1, 2]).__add__, R([1, 2]).__sub__, R([1, 2]).at_most, R([1, 2]).copies_of):
        with pytest.raises(ValueError, match="zip"):
            operation(R([1]))


def test_roles_are_found_by_name_or_else_by_place() -> None:
    roles = [
        (ResourceTypes(names, (1.0,) * len(names)).accelerator, ResourceTypes(names, (1.0,) * len(names)).processor)
        for names in (("cpu", "gpu"), ("gpu", "cpu"), ("cpu", "gpu", "memory"), ("core", "npu"), ("unit",))
    ]
    assert roles == [(1, 0), (0, 1), (1, 0), (1, 0), (0, 0)]


def test_fits_needs_every_amount() -> None:
    assert R([2, 1]).fits((2, 1))
    assert not R([2, 2]).fits((16, 1))
    assert not R([3, 1]).fits((2, 16))


def test_at_most_none_and_copies() -> None:
    assert R([4, 9]).at_most((6, 3)) == (4, 3)
    assert R([0, 0]).none
    assert not R([0, 1]).none
    assert R([16, 5]).copies_of((2, 1)) == 5
    assert R([3, 5]).copies_of((2, 1)) == 1
    assert R([3, 5]).copies_of((0, 2)) == 2
    assert R([3, 5]).copies_of((0, 0)) == 0


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=4))
def test_subtracting_what_was_added_gives_the_same(pairs: list[tuple[int, int]]) -> None:
    a, b = R([p[0] for p in pairs]), R([p[1] for p in pairs])
    assert a + b - b == a
    assert a.fits(a + b)
    assert a.at_most(b).fits(a)


# ---------------------------------------------------------------------- units


def test_units_turn_natural_quantities_into_counts_and_back() -> None:
    kinds = ResourceTypes(("cpu", "gpu", "memory"), (1.0, 1.0, 4.0))
    amounts = kinds.parse({"memory": 24, "cpu": 3, "gpu": 1}, "here")
    assert amounts == (3, 1, 6)
    assert kinds.natural(amounts) == {"cpu": 3, "gpu": 1, "memory": 24}
    assert kinds.describe(amounts) == "3 cpu, 1 gpu, 24 memory"


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        ({"cpu": 1}, ["missing: gpu"]),
        ({"cpu": 1, "gpu": 1, "tpu": 1}, ["unknown: tpu"]),
        ({"cpu": 1.5, "gpu": 1}, ["cpu = 1.5", "smallest unit 1"]),
        ({"cpu": -1, "gpu": 1}, ["cpu = -1"]),
        ({"cpu": math.nan, "gpu": 1}, ["cpu = nan"]),
        ({"cpu": math.inf, "gpu": 1}, ["cpu = inf"]),
    ],
)
def test_bad_amounts_name_place_resource_and_value(amounts: dict[str, float], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ResourceTypes().parse(amounts, "clusters.edge.capacity")
    for word in ["clusters.edge.capacity", *words]:
        assert word in str(caught.value)


def test_a_tenth_of_a_unit_is_a_unit_of_its_own_despite_floating_point() -> None:
    assert ResourceTypes(("cpu",), (0.1,)).parse({"cpu": 0.3}, "here") == (3,)


# -------------------------------------------------------------- speed profiles


def sensitive() -> TaskType:
    return build_world(load_scenario("multi-3")).task_types[1]


def test_sensitive_tasks_take_the_slots_of_the_paper() -> None:
    kind = sensitive()
    expected = [21, 10, 7, 5, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2]
    assert [kind.profile.slots((2, gpu)) for gpu in range(1, 17)] == expected


def test_sensitive_speed_does_not_depend_on_cpu() -> None:
    kind = sensitive()
    assert {kind.profile.slots((cpu, 4)) for cpu in range(2, 17)} == {5}


def test_gain_follows_the_formula() -> None:
    assert sensitive().profile.gain((2, 8), 0.5) == pytest.approx(math.tanh(0.5) * math.sqrt(0.7))


def test_ten_gains_of_a_tenth_take_exactly_ten_slots() -> None:
    profile = constant_type(slots=10).profile
    assert profile.rate((2, 1)) == 0.1
    assert profile.slots((2, 1)) == 10
    assert profile.slots((2, 1), progress=0.9) == 1


@pytest.mark.parametrize("slots", [1, 3, 7, 9, 10, 11, 49, 1000])
def test_a_constant_task_takes_its_whole_number_of_slots(slots: int) -> None:
    assert constant_type(slots=slots).profile.slots((2, 1)) == slots


@given(st.integers(1, 21), st.floats(0.0, 0.999))
def test_slots_agree_with_summing_gains(gpu: int, progress: float) -> None:
    profile, size = sensitive().profile, (2, min(gpu, 16))
    count, at = 0, progress
    while at < 1 - 1e-9:
        at += profile.gain(size, at)
        count += 1
    assert profile.slots(size, progress) == count


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=4), st.data())
def test_index_and_allocations_are_inverse(box: list[tuple[int, int]], data: st.DataObject) -> None:
    low = R([a for a, _ in box])
    high = R([a + extra for a, extra in box])
    cells = math.prod(extra + 1 for _, extra in box)
    profile = SpeedProfile(low, high, tuple(1.0 / (i + 1) for i in range(cells)))
    listed = list(profile.allocations())
    assert len(listed) == cells
    position = data.draw(st.integers(0, cells - 1))
    assert profile.index(listed[position]) == position
    assert profile.rate(listed[position]) == 1.0 / (position + 1)


def test_the_last_resource_changes_fastest() -> None:
    profile = SpeedProfile(R([2, 1]), R([3, 3]), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    assert [profile.rate(x) for x in ((2, 1), (2, 3), (3, 1), (3, 3))] == [0.1, 0.3, 0.4, 0.6]


@pytest.mark.parametrize(
    ("rates", "offset", "words"),
    [
        ((0.1,), None, "6 cells, got 1"),
        ((0.1,) * 5 + (0.0,), None, "the smallest is 0"),
        ((0.1,) * 5 + (-1.0,), None, "the smallest is -1"),
        ((0.1,) * 5 + (math.inf,), None, "finite"),
        ((math.nan,) + (0.1,) * 5, None, "finite"),
        ((0.1, math.nan) + (0.1,) * 4, None, "finite"),
        ((0.1,) * 5 + (math.nan,), None, "finite"),
        ((0.1,) * 6, 1.0, "shape offset 1.0 must be above 1"),
    ],
)
def test_profiles_that_cannot_be_used_are_refused(rates: tuple[float, ...], offset: float | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SpeedProfile(R([2, 1]), R([3, 3]), rates, offset)


def test_task_types_with_a_bad_box_are_refused() -> None:
    profile = constant_type().profile
    with pytest.raises(ConfigError, match="exceeds maximum"):
        TaskType("t", R([3, 1]), R([2, 1]), profile)
    with pytest.raises(ConfigError, match="must ask for something"):
        TaskType("t", R([0, 0]), R([2, 1]), profile)
    with pytest.raises(ConfigError, match="cover exactly"):
        TaskType("t", R([1, 1]), R([2, 1]), profile)


# ---------------------------------------------------------------------- noise

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS, st.integers(0, 10_000))
def test_noise_is_pure_and_bounded(key: int, counter: int) -> None:
    u = unit_uniform(key, counter)
    assert 0.0 <= u < 1.0
    assert u == unit_uniform(key, counter)
    additive, relative = Noise("additive", 0.1), Noise("relative", 0.1)
    assert -0.1 <= additive.apply(0.5, key, counter) - 0.5 <= 0.1
    assert 0.45 <= relative.apply(0.5, key, counter) <= 0.55
    assert additive.apply(0.05, key, counter) >= 0.0
    assert Noise().apply(0.5, key, counter) == 0.5


def test_noise_is_uniform_and_uncorrelated_along_a_task_and_across_tasks() -> None:
    for draws in ([unit_uniform(77, i) for i in range(4000)], [unit_uniform(i, 0) for i in range(4000)]):
        mean = sum(draws) / len(draws)
        assert abs(mean - 0.5) < 4 * math.sqrt(1 / 12 / len(draws))
        assert abs(sum(d * d for d in draws) / len(draws) - 1 / 3) < 0.02
        lag = sum((a - mean) * (b - mean) for a, b in pairwise(draws)) / len(draws)
        assert abs(lag) < 4 / 12 / math.sqrt(len(draws))


def test_noise_numbers_are_frozen() -> None:
    # The first outputs of splitmix64 seeded with 1234567, as published with the generator.
    assert [int(unit_uniform(1234567, i) * 2**53) for i in range(3)] == [
        6457827717110365317 >> 11,
        3203168211198807973 >> 11,
        9817491932198370423 >> 11,
    ]


# ---------------------------------------------------------------- eligibility


@pytest.mark.parametrize(
    ("eligible", "words"),
    [((), "no eligible cluster"), ((2,), "there is no cluster 2"), ((-1,), "there is no cluster -1")],
)
def test_impossible_eligible_clusters_are_refused(eligible: tuple[int, ...], words: str) -> None:
    clusters = [Cluster("big", R([16, 16])), Cluster("tiny", R([1, 1]))]
    with pytest.raises(ConfigError, match=f"task 7.*{words}"):
        check_eligible(make_task(7, eligible=eligible), clusters)


def test_a_minimum_that_fits_no_eligible_cluster_is_refused_with_ids_and_numbers() -> None:
    clusters = [Cluster("big", R([16, 16])), Cluster("tiny", R([1, 1]))]
    with pytest.raises(
        ConfigError, match=r"task 7 \(steady\): minimum \(2, 1\) fits none .*clusters: tiny with \(1, 1\)"
    ):
        check_eligible(make_task(7, eligible=(1,)), clusters)
    with pytest.raises(ConfigError, match=r"w\.csv:9 \(steady\): minimum 2 cpu, 1 gpu .*tiny with 1 cpu, 1 gpu; lower"):
        check_eligible(make_task(7, eligible=(1,)), clusters, "w.csv:9", ResourceTypes().describe)
    check_eligible(make_task(7, eligible=(0, 1)), clusters)
