"""The built-in profiles keep the paper's table and its rebounds."""

from itertools import pairwise

import pytest

from tapfinger.config import load_scenario
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.profiles.testbed import TESTBED_TYPES, testbed_seconds
from tapfinger.workloads.world import build_world


def seconds(task_type, cpu, gpu):
    return testbed_seconds(task_type)({"cpu": cpu, "gpu": gpu})


def table(task_type, cpus=range(2, 17), gpus=range(1, 9)):
    return {(cpu, gpu): seconds(task_type, cpu, gpu) for cpu in cpus for gpu in gpus}


@pytest.mark.parametrize(
    ("task_type", "fastest", "slowest"),
    [("image-classification", 34, 262), ("language-modeling", 75, 264), ("speech-recognition", 17, 18)],
)
def test_durations_span_the_papers_table(task_type, fastest, slowest):
    durations = table(task_type).values()
    assert min(durations) == pytest.approx(fastest, abs=0.5)
    assert max(durations) == pytest.approx(slowest, abs=0.5)


def test_image_classification_rebounds_with_few_cpus():
    one_cpu = [seconds("image-classification", 1, gpu) for gpu in range(1, 9)]
    assert one_cpu == sorted(one_cpu)
    assert one_cpu[0] == pytest.approx(78, rel=0.1)
    assert one_cpu[-1] == pytest.approx(271, rel=0.1)
    two_cpus = [seconds("image-classification", 2, gpu) for gpu in range(1, 9)]
    assert min(range(8), key=two_cpus.__getitem__) + 1 == 2
    assert two_cpus[2] > 1.2 * two_cpus[1]


def test_image_classification_is_best_in_the_middle_even_with_many_cpus():
    cells = table("image-classification")
    assert min(cells, key=cells.__getitem__) == (16, 6)
    assert cells[16, 8] > cells[16, 6] + 3


def test_more_cpus_help_where_gpus_starve():
    assert seconds("language-modeling", 1, 8) > 2 * seconds("language-modeling", 16, 8)
    assert seconds("language-modeling", 1, 8) > seconds("language-modeling", 1, 6)


def test_speech_recognition_is_flat():
    durations = table("speech-recognition").values()
    assert max(durations) / min(durations) < 1.06


# A few measured cells (seconds, mean of two runs), enough to notice a wrong sign or unit.
@pytest.mark.parametrize(
    ("task_type", "cpu", "gpu", "measured"),
    [
        ("image-classification", 2, 7, 132),
        ("image-classification", 4, 4, 42),
        ("image-classification", 16, 1, 70),
        ("language-modeling", 2, 8, 118),
        ("language-modeling", 8, 2, 215),
        ("language-modeling", 16, 8, 75),
    ],
)
def test_formulas_stay_near_measurements(task_type, cpu, gpu, measured):
    assert seconds(task_type, cpu, gpu) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize("name", ["testbed-3", "testbed-6"])
def test_shipped_scenarios_run_on_them(name):
    world = build_world(load_scenario(name))
    assert tuple(t.name for t in world.task_types) == TESTBED_TYPES
    image = world.task_types[0].profile
    durations = [image.slots((2, gpu)) for gpu in range(1, 9)]
    assert any(a < b for a, b in pairwise(durations))
    assert any(a > b for a, b in pairwise(durations))
    assert max(durations) == 27


def test_unknown_type_and_missing_resource():
    with pytest.raises(UnknownNameError, match="Did you mean 'language-modeling'"):
        testbed_seconds("language-modelling")
    with pytest.raises(ConfigError, match="depends on gpu"):
        testbed_seconds("language-modeling")({"cpu": 1, "npu": 2})
    with pytest.raises(ConfigError, match="above 0"):
        testbed_seconds("language-modeling")({"cpu": 1, "gpu": 0})
