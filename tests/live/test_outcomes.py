"""Ends of runs and positions in outputs that no coordinator would take."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from waiting import wait_for

from tapfinger.live.agent.outcomes import sound
from tapfinger.live.agent.output import Shipping
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.ray import PULSE, Ray
from tapfinger.live.backends.ray_driver import MARKER
from tapfinger.live.backends.ray_jobs import MAX_LOG, RayJobs, RayUnreachable
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import Launch, Outcome, Report, RunReport
from tapfinger.live.protocol.wire import LogSize, decode, encode


@pytest.mark.parametrize(
    "said",
    [
        {"code": 2**40},
        {"code": "nine"},
        {"output": -1},
        {"output": 2**60},
        {"result": "splendid"},
        {"reason": 3},
        {"results_until": float("nan")},
    ],
)
def test_an_end_that_makes_no_sense_cuts_no_cluster_off(said: dict[str, Any]) -> None:
    outcome = sound(Outcome(**{"result": "finished", "code": 0, **said}))
    assert outcome.result == "failed"
    assert "makes no sense" in outcome.reason
    decode(encode(Report("a", "b", 1, 1, 1, runs=(RunReport((1, 1), outcome),))))


@pytest.mark.parametrize(
    "outcome", [Outcome("finished", 0, output=7), Outcome("lost", reason="why"), Outcome("failed", -9, "x" * 4000)]
)
def test_an_end_that_makes_sense_stays_as_it_is(outcome: Outcome) -> None:
    assert sound(outcome) == outcome


def test_a_reason_that_is_no_unicode_is_told_with_question_marks() -> None:
    assert sound(Outcome("failed", 127, "no \udcff")) == Outcome("failed", 127, "no ?")


def test_output_at_a_position_that_no_message_can_say_is_not_sent(tmp_path: Path) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path, {}, tmp_path / "lease")
    Spool(run.output).append(b"first")
    shipping = Shipping()
    shipping.arrived(LogSize(run.id, 5))
    Spool(run.output).append(b"x", 2**60)
    assert shipping.piece(run, 0.0, 1) is None
    assert shipping.complete(run), "nothing is waited for"


@pytest.mark.parametrize(
    "forged",
    [
        '{"end": {"result": "finished", "code": 1099511627776, "reason": "", "output": 0}}',
        '{"end": {"result": "finished", "code": 0, "reason": "", "output": 0}, "offset": 1e999, "data": ""}',
        '{"end": ' + "[" * 100_000,
        "[]",
    ],
)
def test_an_end_that_a_task_has_put_into_rays_log_is_judged(tmp_path: Path, forged: str) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path, {}, tmp_path / "lease")
    (tmp_path / "begun").write_text("{}")
    backend = Ray()
    try:
        watch = SimpleNamespace(run=run, report="")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend._jobs, "log", lambda _: f"{MARKER}{forged}\n")
            backend._conclude(watch, "job")  # type: ignore[arg-type]
        assert backend.poll(run) == Outcome("lost", reason="its job on Ray ended before it did")
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("logs", "status", "shown"), [("short\n", 200, "short\n"), ("x" * MAX_LOG, 200, ""), ("", 404, "")]
)
def test_a_log_that_a_task_has_filled_is_not_held(logs: str, status: int, shown: str) -> None:
    with closing(RayJobs("http://127.0.0.1:1")) as jobs:
        answers = httpx.MockTransport(lambda _: httpx.Response(status, json={"logs": logs}))
        jobs._http = httpx.Client(base_url="http://127.0.0.1:1", transport=answers)
        assert jobs.log("job") == shown


def test_a_log_of_a_ray_that_wants_a_token_is_not_taken_for_an_empty_one() -> None:
    with closing(RayJobs("http://127.0.0.1:1")) as jobs:
        answers = httpx.MockTransport(lambda _: httpx.Response(401, text="no"))
        jobs._http = httpx.Client(base_url="http://127.0.0.1:1", transport=answers)
        with pytest.raises(RayUnreachable, match="wants a token"):
            jobs.log("job")


def test_a_run_on_ray_is_followed_on_after_a_failure_and_without_haste(tmp_path: Path) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path / "run", {}, tmp_path / "lease")
    run.directory.mkdir()
    for name, text in (("payload.json", "{}"), ("begun", "{}"), ("word.json", '{"result": "finished", "code": 0}')):
        (run.directory / name).write_text(text)
    backend = Ray(callback_address="127.0.0.1")
    asked = list[float]()

    def gone(_: str) -> bool:
        asked.append(time.monotonic())
        if len(asked) == 1:
            raise OSError("no space left")
        return len(asked) > 3

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend._jobs, "gone", gone)
            assert backend.poll(run) is None
            backend._watches["1.1"].news.set()
            assert wait_for(lambda: backend.poll(run)) == Outcome("finished", 0)
        assert asked[3] - asked[2] >= 0.5 * PULSE
        assert not backend._watches
    finally:
        backend.close()


def test_a_run_on_ray_for_which_there_was_no_thread_is_followed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(Launch((1, 1), ("true",), {}, {}), tmp_path / "run", {}, tmp_path / "lease")
    followed = threading.Event()
    refused, start = list[str](), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "run-1.1" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(Ray, "follow", lambda *_: followed.set())
    backend = Ray(callback_address="127.0.0.1")
    try:
        backend.start(run)
        assert backend.poll(run) is None
        assert (len(refused), followed.is_set()) == (2, False)
        assert backend.poll(run) is None
        wait_for(followed.is_set)
    finally:
        backend.close()
