"""The same measurements of simulated runs and of live sites, each from its events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live.protocol import World as ProtocolWorld
from live.protocol import make_site, play
from typer.testing import CliRunner

from tapfinger.cli import app
from tapfinger.config import load_scenario
from tapfinger.core.contract import Phase
from tapfinger.errors import DataError
from tapfinger.evaluation import event_logs
from tapfinger.evaluation.cells import run_once
from tapfinger.evaluation.event_logs import SHORTEST, MeasuredRun, Replay, find_logs, measure_live, measure_log
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import parse_spec
from tapfinger.live.config import load_site
from tapfinger.live.protocol import events, words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.workloads.world import build_world

SITE = """
[[clusters]]
name = "lab"
capacity = {cpu = 4, gpu = 0}
[[task_types]]
name = "steady"
minimum = {cpu = 2, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "constant", seconds = 10}
"""
TWO, FOUR = {"cpu": 2.0, "gpu": 0.0}, {"cpu": 4.0, "gpu": 0.0}


def run(*words: Any) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# --------------------------------------------------------------------------- runs


def test_a_log_is_measured_as_its_run_was(tmp_path: Path) -> None:
    world = build_world(load_scenario("multi-3", ["tasks=60", "outages=[{cluster=0,start=5,end=15}]"]))
    log = tmp_path / "run.jsonl.gz"
    record = run_once(world, parse_spec("tiresias"), 3, log)
    measured = measure_log(log)
    assert measured.slot_seconds == world.scenario.slot_seconds
    for name, value in vars(record).items():
        if name not in ("decision", "conflicts"):  # what events do not tell
            assert np.array_equal(value, getattr(measured.record, name)), name
    numbers = measured.numbers()
    assert numbers["mean"] == pytest.approx(record.completion.mean() * world.scenario.slot_seconds)
    assert (numbers["finished"], numbers["tasks"]) == (60, 60)
    told = run("metrics", log, "--json", tmp_path / "m.json")
    assert f"{numbers['p95']:.2f}" in told
    assert json.loads((tmp_path / "m.json").read_text())["schedulers"]["tiresias"] == pytest.approx(numbers)


def test_a_comparison_has_a_column_for_each_scheduler(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run("compare", "multi-3", "--schedulers", "min,greedy", "--seeds", "1:3", "--set", "tasks=20", "--out", folder)
    told = run("metrics", folder, "--json", tmp_path / "m.json")
    assert "2 seeds, slots of 10 s" in told
    found = json.loads((tmp_path / "m.json").read_text())["schedulers"]
    expected = json.loads((folder / "results.json").read_text())["schedulers"]
    assert set(found) == {"min", "greedy"}
    for name, numbers in found.items():
        assert numbers["mean"] == pytest.approx(10.0 * expected[name]["mean"])


def test_what_holds_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no event logs"):
        find_logs(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        find_logs(tmp_path / "nothing")
    result = CliRunner().invoke(app, ["metrics"])
    assert result.exit_code != 0


def test_an_older_log_does_not_say_enough(tmp_path: Path) -> None:
    log = tmp_path / "old.jsonl"
    header = {"scenario": "s", "scheduler": "min", "seed": 0, "resources": ["cpu"], "version": "0.1.0", "format": 1}
    log.write_text(json.dumps({**header, "clusters": [{"name": "a", "capacity": [4]}]}) + "\n")
    with pytest.raises(DataError, match="run it again"):
        measure_log(log)


# --------------------------------------------------------------------------- live


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return {"scenario": load_site(path)[0].model_dump(mode="json"), "scheduler": "fifo"}


def shown(*history: LiveEvent) -> list[dict[str, Any]]:
    """As the HTTP interface tells it."""
    lines: list[dict[str, Any]] = json.loads(json.dumps([words.shown(line) for line in history]))
    return [{"seq": n, **line} for n, line in enumerate(lines, 1)]


HISTORY = shown(
    events.AgentJoined(100.0, cluster="lab", agent="a"),
    events.Submitted(101.0, 1, type="steady"),
    events.Submitted(101.0, 2, type="steady", minimum={"cpu": 4}),
    events.Submitted(101.0, 3, type="steady"),
    events.Submitted(101.0, 4, type="gone"),
    events.Granted(101.5, 1, 1, "lab", TWO),
    events.AttemptStarted(102.0, 1, 1, "lab"),
    events.AttemptResized(104.0, 1, 1, "lab", FOUR),
    events.ClosedCancelled(105.0, 3),
    events.AttemptEnded(108.0, 1, 1, "lab", "finished", 0),
    events.ClosedFinished(108.0, 1, 1, "lab"),
    events.Granted(108.0, 2, 1, "lab", FOUR),
    events.AttemptEnded(109.0, 2, 1, "lab", "lost"),
    events.Requeued(109.0, 2, 1),
    events.Granted(110.0, 2, 2, "lab", FOUR),
    # Ended so soon that its agent never said that it runs.
    events.AttemptEnded(111.0, 2, 2, "lab", "finished", 0),
    events.AttemptStarted(111.0, 2, 2, "lab"),
    events.ClosedFinished(111.0, 2, 2, "lab"),
    events.Submitted(111.0, 5, type="steady"),
    events.Granted(111.0, 5, 1, "lab", TWO),
    events.AttemptEnded(112.0, 5, 1, "lab", "failed", None, "no such program"),
    events.ClosedFailed(112.0, 5, 1, "lab"),
    events.ClusterDrained(112.0, cluster="lab"),
)


def test_a_live_history_is_measured_by_hand(told: dict[str, Any]) -> None:
    measured = measure_live(told, HISTORY)
    assert measured.slot_seconds == SHORTEST
    assert sum(measured.left_out.values()) == 1
    found = measured.numbers()
    assert (found["tasks"], found["finished"], found["failed"]) == (4, 2, 1)
    assert found["mean"] == pytest.approx((7.0 + 10.0) / 2, abs=0.01)
    assert found["running"] == pytest.approx((6.0 + 0.0) / 2, abs=0.01)
    assert found["waiting_max"] == pytest.approx(10.0, abs=0.01)
    assert found["seconds"] == pytest.approx(12.0, abs=0.01)
    assert found["utilisation.cpu"] == pytest.approx((2 * 2 + 4 * 4) / (4 * 12.0), rel=0.01)


class FakeClient:
    """As ``Client``, for what is asked here."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def site(self) -> dict[str, Any]:
        return self._told

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        return HISTORY[after : after + min(limit, 5)]


def test_the_command_prints_the_same_table_for_a_site_and_for_its_log(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def opened(*_: object) -> Iterator[FakeClient]:
        yield FakeClient(told)

    monkeypatch.setattr("tapfinger.commands.metrics.open_client", opened)
    log = tmp_path / "live.jsonl.gz"
    live = run("metrics", "--live", "--log", log).splitlines()
    again = run("metrics", log).splitlines()
    rows = [line for line in again if line.strip()][1:]
    assert rows == [line for line in live if line.strip()][1 : 1 + len(rows)]
    assert "1 tasks left out" in "\n".join(live)


def measure_world(world: ProtocolWorld) -> MeasuredRun:
    """The history of a made-up site with all kinds of trouble."""
    history = world.disk.history
    site = make_site()
    replay = Replay(site, history[0].at, SHORTEST)
    found = list(replay.events(history))
    collector = MetricsCollector(site.resources.names, site.clusters, [*site.task_types.values()])
    for event in found:
        collector(event)
    return MeasuredRun(collector.record("made up", "any", 0), SHORTEST, replay.left_out)


@pytest.mark.parametrize("seed", range(6))
def test_histories_of_the_protocol_are_measured_as_their_tasks_say(seed: int) -> None:
    world = play(seed)
    measured = measure_world(world)
    records = list(world.disk.records.values())
    finished = [r for r in records if r.phase is Phase.FINISHED]
    assert measured.record.tasks == len(records)
    assert sorted(measured.record.task) == sorted(r.id for r in finished)
    assert measured.record.failed >= sum(r.phase in (Phase.FAILED, Phase.LOST) for r in records)
    expected = np.array([(r.ended or 0.0) - r.submitted for r in sorted(finished, key=lambda r: r.id)])
    assert measured.record.completion * SHORTEST == pytest.approx(expected, abs=0.01)
    assert (measured.record.used >= 0).all()
    assert (measured.record.used <= measured.record.capacity).all()
    assert event_logs.measures(measured.record)["waiting"] >= 0.0
