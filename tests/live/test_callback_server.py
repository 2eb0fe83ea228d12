"""The desk where tasks that run elsewhere ask for their lease, without any of those."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from waiting import wait_for

from tapfinger.errors import ConfigError
from tapfinger.live.backends.callback_server import MOST, CallbackServer, NotYet, Refused, decode_word, reported
from tapfinger.live.backends.ray_driver import last_line


def answer(attempt: str, question: str, said: bytes) -> bytes:
    if attempt == "1.1":
        return f"{question} {said.decode()}".encode()
    if attempt == "2.1":
        raise NotYet
    if attempt == "3.1":
        decode_word(said)
    raise Refused


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[CallbackServer]:
    made = CallbackServer(tmp_path / "desk.json", "127.0.0.1", answer)
    yield made
    made.close()


def post(url: str, said: bytes = b"") -> tuple[int, str]:
    got = httpx.post(url, content=said, trust_env=False)
    return got.status_code, got.text


def test_questions_and_answers(desk: CallbackServer, tmp_path: Path) -> None:
    assert post(f"{desk.url('1.1')}/begin", b"hello") == (200, "begin hello")
    assert post(f"{desk.url('2.1')}/begin") == (503, "")
    assert post(f"{desk.url('9.9')}/begin") == (410, "")
    assert post(f"{desk.url('3.1')}/beat", b"garbage") == (400, "")
    secret = json.loads((tmp_path / "desk.json").read_text())["secret"]
    assert secret not in desk.url("1.1")
    key = desk.url("1.1").split("/")[-2]
    for guess in ("guessed", secret, desk.url("2.1").split("/")[-2]):  # also what another task knows
        assert post(f"{desk.url('1.1')}/begin".replace(key, guess)) == (404, "")
    assert httpx.get(f"{desk.url('1.1')}/begin", trust_env=False).status_code == 501


def test_a_task_that_opens_many_connections_keeps_nobody_out(desk: CallbackServer) -> None:
    parts = urlsplit(desk.url("1.1"))
    before = len(os.listdir("/proc/self/fd"))
    silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(MOST + 50)]
    try:
        assert post(f"{desk.url('1.1')}/begin", b"hello") == (200, "begin hello")
        # Two for each that is open: its own end, and the desk's.
        wait_for(lambda: len(os.listdir("/proc/self/fd")) - before <= len(silent) + MOST + 10)
    finally:
        for one in silent:
            one.close()


def test_a_desk_is_at_the_same_address_after_a_restart_and_has_it_for_itself(
    desk: CallbackServer, tmp_path: Path
) -> None:
    before = desk.url("1.1")
    with pytest.raises(
        ConfigError, match=r"cannot listen on 127\.0\.0\.1, port \d+, where tasks on the Ray cluster ask"
    ):
        CallbackServer(tmp_path / "desk.json", "127.0.0.1", answer)
    desk.close()
    again = CallbackServer(tmp_path / "desk.json", "127.0.0.1", answer)
    assert again.url("1.1") == before
    assert post(f"{again.url('1.1')}/begin") == (200, "begin ")
    again.close()


WORD: dict[str, Any] = {"offset": 7, "skipped": 2, "data": base64.b64encode(b"\x00\xff").decode(), "end": None}
END = {"result": "failed", "code": -9, "reason": "why", "output": 9}


def test_what_a_task_reports_comes_with_its_words(tmp_path: Path) -> None:
    assert reported(json.dumps(WORD).encode()) == "", "a driver of an earlier version"
    assert reported(json.dumps({**WORD, "report": "{}"}).encode()) == "{}"
    for wrong in (3, None, "x" * 5000, "a\nb"):
        with pytest.raises(ValueError, match="report"):
            reported(json.dumps({**WORD, "report": wrong}).encode())
    path = tmp_path / "reports"
    assert last_line(str(path)) == ""
    path.write_text("half")
    assert last_line(str(path)) == ""
    path.write_text("first\nsecond\nhalf")
    assert last_line(str(path)) == "second"
    path.write_text("x" * 10_000 + "\nlast\n")
    assert last_line(str(path)) == "last"


def test_words_of_a_task() -> None:
    assert decode_word(json.dumps(WORD).encode()) == (7, 2, b"\x00\xff", None)
    assert decode_word(json.dumps({**WORD, "end": END}).encode()) == (7, 2, b"\x00\xff", END)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": -1},
        {"offset": 2**53 + 1},
        {"offset": float("inf")},
        {"end": {**END, "code": 2**31}},
        {"end": {**END, "output": -1}},
        {"end": {**END, "output": 2**53 + 1}},
        {"skipped": 8},
        {"data": "?"},
        {"data": None},
        {"end": {**END, "result": "lost"}},
        {"end": {**END, "code": "0"}},
        {"end": {**END, "output": None}},
        {"end": {}},
    ],
)
def test_nonsense_of_a_task_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_word(json.dumps({**WORD, **wrong}).encode())
