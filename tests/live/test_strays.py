"""Runs that a starting agent finds no note of: their tasks have removed it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from live.sites import opened
from live.test_resize import make_host
from waiting import wait_for

from tapfinger.live.agent import strays
from tapfinger.live.agent.kept import find_runs
from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.agent.starts import save_run
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import LAUNCH, Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.supervision import supervisor_of
from tapfinger.live.protocol.messages import Launch


def started(directory: Path, backend: Process, number: int) -> tuple[Run, list[int]]:
    """A run, and its supervisor's process id and those of its task."""
    write_lease(directory / "lease", boot_clock() + 600.0)
    runs = directory / "runs"
    runs.mkdir(exist_ok=True)
    launch = Launch((number, 1), ("sh", "-c", "sleep 600 & wait"), {"cpu": 1.0}, {})
    run = Run(launch, runs / f"{number}.1", {}, directory / "lease")
    run.make_directories()
    save_run(run, 0, None)
    backend.start(run)
    supervisor = wait_for(lambda: supervisor_of(run))
    return run, [supervisor, *wait_for(lambda: below if len(below := supervise.descendants(supervisor)) == 2 else None)]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid, _ in supervise.parents() if pid in pids]


def test_a_run_without_a_note_has_ended_before_anything_is_reported(tmp_path: Path) -> None:
    backend = opened(Process(), tmp_path)
    spoilt, lost = started(tmp_path, backend, 1)
    moved, gone = started(tmp_path, backend, 2)
    whole, kept = started(tmp_path, backend, 3)
    (spoilt.directory / LAUNCH).unlink()
    moved.directory.rename(tmp_path / "elsewhere")
    os.kill(lost[0], signal.SIGSTOP)
    host, _ = make_host(tmp_path, Fake())
    try:
        assert [run.id for run in host.report().runs] == [whole.id]
        assert alive([*lost, *gone, *kept]) == sorted(kept)
        wait_for(lambda: not spoilt.directory.exists())
    finally:
        host.close()
        for run in (spoilt, moved, whole):
            backend.stop(run, at_once=True)
            wait_for(partial(backend.poll, run))


def test_what_cannot_be_ended_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(strays, "supervisors", lambda _: iter([(1, "4.1"), (2, "5.1")]))
    monkeypatch.setattr(strays, "_kill", lambda _: None)
    strays.end_strays(tmp_path, ["4.1"], patience=0.0)
    assert "cannot be ended: 5.1" in caplog.text
    assert "4.1" not in caplog.text


def test_a_note_of_another_run_counts_for_none(tmp_path: Path) -> None:
    run = Run(Launch((4, 1), ("x",), {}, {}), tmp_path / "runs" / "5.1")
    run.directory.mkdir(parents=True)
    save_run(run, 0, None)
    assert find_runs(tmp_path, tmp_path / "lease") == ([], [run.directory])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "[" * 100_000,
        lambda noted: json.dumps(noted | {"size": float("inf")}),
        lambda noted: json.dumps(noted | {"size": 2**60}),
        lambda noted: json.dumps(noted | {"devices": {"gpu": [[0]]}}),
        lambda noted: json.dumps(noted | {"launch": noted["launch"] | {"allocation": {"cpu": float("inf")}}}),
    ],
    ids=["deep", "endless", "too large", "devices", "amounts"],
)
def test_no_note_of_a_run_keeps_an_agent_from_starting_or_reporting(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], str]
) -> None:
    run = Run(Launch((4, 1), ("x",), {}, {}), tmp_path / "runs" / "4.1")
    run.directory.mkdir(parents=True)
    save_run(run, 0, None)
    assert [kept.run.id for kept in find_runs(tmp_path, tmp_path / "lease")[0]] == [(4, 1)]
    noted = run.directory / LAUNCH
    noted.write_text(spoil(json.loads(noted.read_text())))
    assert find_runs(tmp_path, tmp_path / "lease") == ([], [run.directory])
