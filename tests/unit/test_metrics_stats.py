import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]

from tapfinger.config import load_scenario
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import run_once
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import parse_spec
from tapfinger.evaluation.stats import Estimate, estimate, measures, paired, summarise, t_quantile
from tapfinger.workloads.world import build_world


@pytest.fixture(scope="module")
def records():
    world = build_world(load_scenario("multi-3", ["tasks=40"]))
    return {text: [run_once(world, parse_spec(text), seed) for seed in (4, 5, 6)] for text in ("min", "random")}


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 9, 29, 59, 200])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_quantiles_of_students_t(freedom, confidence):
    expected = scipy_stats.t.ppf(0.5 + confidence / 2, freedom)
    assert t_quantile(freedom, confidence) == pytest.approx(expected, rel=1e-9)


def test_interval_of_a_mean_by_hand():
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.30265 / np.sqrt(3), rel=1e-5)
    assert found.text() == "2.00 ± 2.48"
    assert estimate([5.0]) == Estimate(5.0, None)
    assert estimate([5.0]).interval is None
    assert estimate([5.0]).text(sign=True) == "+5.00"


def test_a_difference_to_nothing_has_no_percentage():
    found = paired([1.0, 3.0], [0.0, 0.0])
    assert found.mean.mean == 2.0
    assert np.isnan(found.percent)


def test_pairing_removes_what_seeds_share():
    baseline = [10.0, 20.0, 30.0]
    gap = paired([9.0, 19.0, 29.0], baseline)
    assert (gap.mean.mean, gap.better) == (-1.0, 3)
    assert gap.mean.half_width == pytest.approx(0.0, abs=1e-12)
    assert gap.percent == pytest.approx(-5.0)


def test_measures_of_a_run(records):
    run = records["min"][0]
    found = measures(run)
    assert found["mean"] == pytest.approx(run.completion.mean())
    assert found["mean"] == pytest.approx(found["waiting"] + found["running"])
    assert found["p95"] == pytest.approx(np.percentile(run.completion, 95))
    assert 0 < found["utilisation.gpu"] < found["utilisation.cpu"] <= 1
    assert found["idle.gpu"] >= found["stranded.gpu"] + found["held_back.gpu"] - 1e-12


def test_summaries_are_sorted_and_paired(records):
    summaries = summarise(records, "min")
    means = [summary["mean"] for summary in summaries.values()]
    assert means == sorted(means)
    plain = summaries["random"].plain("min")
    per_seed = [run.completion.mean() for run in records["random"]]
    assert plain["per_seed"] == pytest.approx(per_seed)
    assert plain["mean"] == pytest.approx(np.mean(per_seed))
    assert plain["max"] == max(int(run.completion.max()) for run in records["random"])
    against = np.array(per_seed) - [run.completion.mean() for run in records["min"]]
    assert plain["difference"]["mean"] == pytest.approx(against.mean())
    assert plain["difference"]["better_seeds"] == (against < 0).sum()
    assert summaries["min"].plain("min")["difference"]["ci95"] == [0.0, 0.0]
    assert set(plain["utilisation_per_cluster"]) == {"edge-0", "edge-1", "edge-2"}
    assert plain["tasks_in_system_max"] == max(run.in_system_max for run in records["random"])
    json.dumps(plain, allow_nan=False)
    documented = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text().partition("### results.json")[2]
    assert [key for key in plain if f"`{key}`" not in documented] == []


def test_a_run_without_finished_tasks_is_an_error():
    world = build_world(load_scenario("multi-3"))
    empty = MetricsCollector(world.resources.names, world.clusters, world.task_types).record("multi-3", "min", 3)
    with pytest.raises(TapfingerError, match="seed 3: no task ended"):
        measures(empty)
