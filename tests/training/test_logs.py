"""The run log: what TensorBoard reads, and that a resumed run logs no step twice."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tapfinger.errors import DataError
from tapfinger.training.logs import RunLog


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows; its reader checks every checksum."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_and_the_metrics_hold_what_was_logged(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.scalars(0, {"loss": 1.5, "a/long name of 日本 " + "x" * 200: -0.25})
    log.scalars(1_000_000, {"loss": -2.0})
    log.close()
    assert read(tmp_path) == {"loss": [(0, 1.5), (1_000_000, -2.0)], "a/long name of 日本 " + "x" * 200: [(0, -0.25)]}
    assert [(r["step"], r["loss"]) for r in metrics(tmp_path)] == [(0, 1.5), (1_000_000, -2.0)]
    assert metrics(tmp_path)[0]["time"] > 1e9


def test_what_is_logged_can_be_read_at_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.scalars(3, {"loss": 0.5})
    assert read(tmp_path) == {"loss": [(3, 0.5)]}
    assert len(metrics(tmp_path)) == 1
    log.close()


def test_a_resumed_run_logs_no_step_twice(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step in range(5):
        log.scalars(step, {"loss": float(step)})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "ti')  # killed while writing
    log = RunLog(tmp_path, resume_step=2)
    for step in range(3, 5):
        log.scalars(step, {"loss": 10.0 * step})
    log.close()
    expected = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert read(tmp_path) == {"loss": expected}
    assert [(r["step"], r["loss"]) for r in metrics(tmp_path)] == expected
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.scalars(0, {"loss": 1.0})
    log.close()
    RunLog(tmp_path).close()
    assert read(tmp_path) == {}
    assert metrics(tmp_path) == []


def test_what_is_not_finite_is_null_and_survives_a_resume(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.scalars(0, {"sampled": math.inf})
    log.close()
    assert metrics(tmp_path)[0]["sampled"] is None
    RunLog(tmp_path, resume_step=0).close()
    assert math.isnan(read(tmp_path)["sampled"][0][1])


def test_steps_never_fall(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.scalars(4, {"loss": 1.0})
    log.scalars(4, {"evaluation": 1.0})
    with pytest.raises(ValueError, match="step 3 after step 4"):
        log.scalars(3, {"loss": 1.0})
    log.close()
    log = RunLog(tmp_path, resume_step=4)
    with pytest.raises(ValueError, match="step 3 after step 4"):
        log.scalars(3, {"loss": 1.0})
    log.close()


@pytest.mark.parametrize("line", ['{"loss": 1.0}', '{"step": 2, "time": 1.0, "loss": "low"}', "[2]", '{"step": 2'])
def test_a_damaged_log_is_said(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n' + line + "\n")
    with pytest.raises(DataError, match=r"metrics.jsonl:2: .*remove the line"):
        RunLog(tmp_path, resume_step=3)
