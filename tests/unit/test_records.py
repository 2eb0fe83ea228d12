import gzip
import json

import numpy as np
import pytest
from helpers import STEADY, R, make_task

from tapfinger.core.events import (
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskRequeued,
    TaskResized,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.model import Cluster
from tapfinger.errors import DataError
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.records import EventLog, LogHeader, RunRecord, read_events, read_header

HEADER = LogHeader("toy", "min@pending=5", 7, ("cpu", "gpu"), (Cluster("c0", R((4, 4))), Cluster("c1", R((8, 2)))))
EVENTS = [
    TaskArrived(0, make_task(0, eligible=(0, 1))),
    TaskStarted(0, 0, 1, R((2, 1))),
    TaskResized(1, 0, 1, R((0, 0))),
    ClusterLost(2, 0),
    ClusterJoined(3, 0),
    TaskResized(3, 0, 1, R((4, 2))),
    TaskFinished(4, 0, 1),
    TaskFailed(5, 9, 0, 'said "no"'),
    ClusterClosed(6, 1),
    TaskWithdrawn(6, 3),
    TaskRequeued(6, 4, 1),
]


def write(path, events=EVENTS):
    with EventLog(path, HEADER) as log:
        for event in events:
            log(event)
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    path = write(tmp_path / "new" / name)
    assert read_header(path) == HEADER
    assert list(read_events(path, {"steady": STEADY})) == EVENTS


def test_a_line_is_plain_and_stable(tmp_path):
    lines = write(tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["seed"] == 7
    assert lines[1] == '{"event":"arrived","slot":0,"task":0,"type":"steady","arrival":0,"eligible":[0,1]}'
    assert lines[2] == '{"event":"started","slot":0,"task":0,"cluster":1,"allocation":[2,1]}'


def test_the_same_events_give_the_same_bytes(tmp_path, monkeypatch):
    first = write(tmp_path / "a.jsonl.gz").read_bytes()
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert write(tmp_path / "other name.jsonl.gz").read_bytes() == first
    assert gzip.decompress(first) == write(tmp_path / "a.jsonl").read_bytes()


def test_a_run_that_breaks_off_leaves_no_log(tmp_path):
    def breaks_off():
        with EventLog(tmp_path / "log.jsonl", HEADER) as log:
            log(EVENTS[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks_off()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", ["line 2", "not JSON"]),
        ("[1]", ["line 2", "expected an object"]),
        ('{"event":"exploded","slot":1}', ["line 2", "exploded"]),
        ('{"event":"started","slot":1,"task":1}', ["line 2", "cluster"]),
        ('{"event":"arrived","slot":1,"task":1,"type":"unheard","arrival":1,"eligible":[0]}', ["line 2", "unheard"]),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    path = write(tmp_path / "log.jsonl", [])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError) as caught:
        list(read_events(path, {"steady": STEADY}))
    assert all(word in str(caught.value) for word in [str(path), *words])


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "empty"), ('{"event":"lost","slot":1,"cluster":0}\n', "header"), ('{"format":99}\n', "header")],
)
def test_a_file_without_header_is_refused(tmp_path, text, word):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=word):
        list(read_events(path, {}))


def test_another_format_is_refused(tmp_path):
    path = write(tmp_path / "log.jsonl", [])
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(DataError, match="format 2"):
        read_header(path)


def test_a_record_survives_the_disk(tmp_path):
    collector = MetricsCollector(HEADER.resources, HEADER.clusters, [STEADY])
    for event in EVENTS[:7]:
        collector(event)
    record = collector.record("toy", "min", 7, conflicts=3, decision_seconds=[0.1, 0.3])
    record.save(tmp_path / "record.npz")
    again = RunRecord.load(tmp_path / "record.npz")
    for name, value in vars(record).items():
        other = getattr(again, name)
        assert np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other, name
