"""Texts that no message can carry, and too many of them: neither cuts an agent off from its coordinator."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from live.sites import RealSite, python
from live.test_machines import SPEC
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.core.model import ResourceTypes
from tapfinger.live.agent import files
from tapfinger.live.agent.machine import Agent, Found, Said
from tapfinger.live.coordinator.site import MAX_SPEC
from tapfinger.live.http import fetching
from tapfinger.live.protocol.messages import Launch, Orders, Outcome
from tapfinger.live.protocol.records import MAX_SECRETS, MAX_VALUE, TaskRecord, launches
from tapfinger.live.protocol.wire import (
    MAX_MESSAGE,
    MAX_REPORT,
    FileAnswer,
    FileRequest,
    decode,
    encode,
)
from tapfinger.progress import LONGEST_NAME, MOST_METRICS, ProgressReader

#: A character that takes the most bytes in a message.
WIDE = "\x01"
#: The same of printable ones, such as in names of metrics.
WIDEST = "\U00010000"
SILENT = Said(None)


def agent_with(count: int, reason: str, said: Said = SILENT) -> Agent:
    found = [Found((n, 1), "stop", Outcome("failed", 127, reason), said=said) for n in range(1, count + 1)]
    return Agent("left", "a", 1, 0.0, 1.0, found)


def test_a_text_that_is_no_unicode_goes_into_a_message() -> None:
    said = Said(0.5, {"\udc80loss": 1.0}, 2.0)
    report = agent_with(2, "working directory /tmp/\udcff does not exist", said).report(1.0)
    heard = decode(encode(report))
    assert [run.outcome.reason for run in heard.runs] == ["working directory /tmp/? does not exist"] * 2
    assert heard.runs[0].metrics == {"?loss": 1.0}
    assert encode(heard) == encode(decode(encode(heard)))


def test_names_of_metrics_are_printable(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_text('{"t": 1, "progress": 0.5, "metrics": {"\\ud800": 1, "\\u001b[2J": 2, "a\\nb": 3, "loss ä": 4}}\n')
    (report,) = ProgressReader(path).read()
    assert report.metrics == {"loss ä": 4.0}


@pytest.mark.parametrize("count", [1, 60, 600, 5000])
def test_reasons_of_many_attempts_fit_into_a_report(count: int) -> None:
    report = agent_with(count, WIDE * 200_000).report(1.0)
    assert len(encode(report).encode()) < MAX_REPORT
    assert all(run.outcome is not None and len(run.outcome.reason) >= 50 for run in report.runs)


@pytest.mark.parametrize("count", [1, 600, 5000, 20_000])
def test_metrics_and_faults_of_many_attempts_fit_into_a_report(count: int) -> None:
    metrics = {f"{n}{WIDEST * (LONGEST_NAME - 1)}": 0.12345678901234567 + n for n in range(MOST_METRICS)}
    faults = tuple(f"it reported a progress of {n}.23457, which is odd; it is not used" + "." * 60 for n in range(6))
    found = [Found((n, 1), "stop", None, said=Said(0.12345678901234567, metrics, 2.0, faults)) for n in range(count)]
    report = Agent("left", "a", 1, 0.0, 1.0, found).report(1.0)
    assert len(encode(report).encode()) < MAX_REPORT
    if count <= 600:
        assert report.runs[-1].metrics == metrics
        assert report.runs[-1].faults == faults


def test_orders_to_start_many_long_tasks_fit_into_a_message() -> None:
    secrets = tuple(f"S{n}" for n in range(MAX_SECRETS))
    spec = SPEC.__class__(argv=("x", WIDE * (MAX_SPEC - 1)), type="demo", secrets=secrets)
    records = [TaskRecord(n, spec, "ann", 0.0, allocation=(1, 0)) for n in range(1, 100)]
    first = launches(records, ResourceTypes())
    assert 1 <= len(first) < len(records)
    filled = tuple(
        Launch(x.id, x.argv, x.allocation, x.env, secrets=dict.fromkeys(secrets, WIDE * MAX_VALUE)) for x in first
    )
    orders = Orders("left", "a", 1, 1, 1, 1, 15.0, filled)
    assert len(encode(orders).encode()) < MAX_MESSAGE / 2
    spec = SPEC.__class__(argv=("x",), type="demo", cwd=f"/{WIDE * 4095}")
    records = [TaskRecord(n, spec, "ann", 0.0, allocation=(1, 0)) for n in range(1, 3001)]
    orders = Orders("left", "a", 1, 1, 1, 1, 15.0, launches(records, ResourceTypes()))
    assert len(encode(orders).encode()) < MAX_MESSAGE / 2
    short = [TaskRecord(n, SPEC, "ann", 0.0, allocation=(1, 0)) for n in range(1, 1001)]
    assert [one.id[0] for one in launches(short, ResourceTypes())] == list(range(1, 1001)), "usual ones all at once"


def test_files_of_any_size_and_age_can_be_told(tmp_path: Path) -> None:
    status = os.stat_result((0o100600, 1, 1, 1, 0, 0, 2**63 - 1, 0, -(10**14), 0))
    for when in (-(10**14), 10**14):
        status = os.stat_result((0o100600, 1, 1, 1, 0, 0, 2**63 - 1, 0, when, 0))
        handle = os.open(tmp_path, os.O_RDONLY)
        try:
            told = files._listing(FileRequest(1, (1, 1), "x", listed=True), handle, status)
        finally:
            os.close(handle)
        assert decode(encode(told)) == told
        assert decode(encode(FileAnswer(1, size=files._size(status), modified=files._modified(status))))


def test_a_list_of_names_that_are_no_text_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAGE", 3)
    for n in range(10):
        (tmp_path / os.fsdecode(b"\xff%d" % n)).touch()
    (tmp_path / "z").touch()
    (tmp_path / os.fsdecode(b"\xff" * 255)).touch()

    def ask(_path: str, params: dict[str, str]) -> object:
        answer = decode(encode(files.answer(FileRequest(1, (1, 1), listed=True, after=params["after"]), tmp_path)))
        entries = [{"name": e.name, "kind": e.kind, "size": e.size, "modified": e.modified} for e in answer.entries]
        return type("Answer", (), {"json": lambda _: {"files": entries, "more": answer.more}})()

    found = [one.path for one in itertools.islice(fetching.listed(ask, 1, "", None), 100)]  # type: ignore[arg-type]
    assert sorted(found) == sorted([*(f"\\xff{n}" for n in range(10)), "\\xff" * 255, "z"])


def test_odd_texts_of_a_task_do_not_cut_its_cluster_off(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        link = tmp_path / "link"
        link.symlink_to(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
        (other,) = client.submit(python("import time; time.sleep(600)", clusters=["left"]))
        wait_for(lambda: client.show(other).phase is Phase.RUNNING)
        says = """
import os
with open(os.environ["TAPFINGER_REPORT"], "a") as file:
    file.write('{"t": 1, "progress": 0.5, "metrics": {"\\\\ud800": 1, "loss": 2}}\\n')
"""
        odd = client.submit(
            python(says, clusters=["left"]),
            python("pass", clusters=["left"], cwd=str(link)),
            python("pass", clusters=["left"], argv=["/" + WIDE * 100_000]),
        )
        ends = [client.wait(task, PATIENCE) for task in odd]
        assert [end.phase for end in ends] == [Phase.FINISHED, Phase.FAILED, Phase.FAILED]
        assert ends[0].metrics == {"loss": 2.0}
        assert "??" in ends[1].reason
        assert "could not be started" in ends[2].reason
        kept = client.show(other)
        assert (kept.phase, kept.attempt) == (Phase.RUNNING, 1)
    finally:
        site.close()


def test_directories_are_listed_however_deep_they_are() -> None:
    depth = 2000

    def ask(_path: str, params: dict[str, str]) -> object:
        level = params["path"].count("a")
        entries = [{"name": name, "kind": "directory", "size": 0, "modified": 0.0} for name in ("a", "b")]
        found = entries if level < depth and not params["path"].endswith("b") else []
        return type("Answer", (), {"json": lambda _: {"files": found, "more": False}})()

    found = [one.path for one in fetching.listed(ask, 1, "", None)]  # type: ignore[arg-type]
    assert len(found) == 2 * depth
    assert found[:2] == ["a", "a/a"]
    assert found[-1] == "b"
