"""What the audit log keeps, and how it is read."""

from __future__ import annotations

import io
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from live.test_door import http as http  # fixtures
from live.test_door import service as service
from waiting import PATIENCE

from tapfinger.live.service.service import Service
from tapfinger.live.store import audit as audit_module
from tapfinger.live.store.audit import DONE_SINGLY, SINGLY, Audit

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient


def test_refusals_cannot_push_out_what_was_done(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl", most=2000)
    log.note(0.0, "ann", "here", "POST /api/v1/tasks", 201)
    for n in range(5000):
        log.note(1.0 + n / 100, None, "there", f"GET /{n}", 401)
    log.note(70.0, None, "there", "GET /", 401)
    lines = log.latest(50)
    assert (lines[0]["who"], lines[0]["status"]) == ("ann", 201)
    assert f"{5000 - SINGLY} more refusals in that minute" in [line["detail"] for line in lines]
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_changes_cannot_push_out_what_was_done(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    for n in range(DONE_SINGLY + 50):
        log.note(60.0 + n / 100, "ann", f"10.0.0.{n}", f"PUT /api/v1/secrets/A{n}", 200)
        log.note(60.0 + n / 100, "root", "here", f"POST /api/v1/tokens/{n}", 201, whole=True)
    log.note(70.0, "bob", "here", "POST /api/v1/tasks", 201)
    log.note(120.0, "ann", "here", "POST /api/v1/tasks", 201)
    lines = log.latest(1000)
    log.close()
    by = {who: [line for line in lines if line["who"] == who] for who in ("ann", "bob", "root")}
    assert (len(by["root"]), len(by["bob"]), len(by["ann"])) == (DONE_SINGLY + 50, 1, DONE_SINGLY + 2)
    assert [line["detail"] for line in by["ann"][-2:]] == ["50 more changes in that minute", ""]
    assert (by["ann"][-2]["what"], by["ann"][-2]["status"]) == ("done", 200)


@pytest.mark.parametrize("later", ["note", "look"])
def test_changes_are_summed_up_when_their_minute_is_over_whoever_comes_next(tmp_path: Path, later: str) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    for n in range(DONE_SINGLY + 50):
        log.note(60.0 + n / 100, "ann", "here", "POST /api/v1/tasks/1/cancel", 200)
        log.note(60.0 + n / 100, None, "there", "GET /", 401)
    if later == "note":
        log.note(120.0, "root", "here", "POST /api/v1/clusters/left/drain", 200, whole=True)
        lines = log.latest(1000)
    else:
        lines = log.latest(1000, 120.0)
    log.close()
    summed = {line["detail"] for line in lines if "more" in line["detail"]}
    assert summed == {"50 more changes in that minute", f"{DONE_SINGLY + 50 - SINGLY} more refusals in that minute"}


def test_a_disk_that_was_full_leaves_no_half_lines_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [10_000]

    class Filling(io.FileIO):
        def write(self, data: Any) -> int:
            fits = data[: room[0]]
            room[0] -= len(fits)
            return super().write(fits)

    def fdopen(handle: int, mode: str, buffering: int) -> Filling:
        assert buffering == 0
        return Filling(handle, mode.replace("b", ""))

    monkeypatch.setattr(audit_module.os, "fdopen", fdopen)
    log = Audit(tmp_path / "audit.jsonl")
    log.note(1.0, "ann", "here", "POST /a", 200)
    room[0] = 20
    log.note(2.0, "ann", "here", "POST /b", 200)
    assert "the audit log cannot be written (No space left on device)" in caplog.text
    room[0] = 10_000
    log.note(3.0, "ann", "here", "POST /c", 200)
    assert [line["what"] for line in log.latest(10)] == ["POST /a", "POST /c"]
    log.close()


def test_lines_that_are_not_of_the_audit_log_are_told_as_text(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = Audit(path)
    log.note(1.0, "ann", "here", "POST /a", 200)
    log.close()
    with path.open("ab") as file:
        file.write(b'[]\n{"at": "x"}\n\xff\n{"at": 5.0, "who": "a')  # the last one is half a line
    log = Audit(path)
    log.note(6.0, "ann", "here", "POST /b", 200)
    lines = log.latest(10)
    log.close()
    assert [line["what"] for line in lines] == ["POST /a", *["unreadable"] * 4, "POST /b"]
    assert [line["at"] for line in lines] == [1.0] * 5 + [6.0]
    assert [line["detail"] for line in lines[1:3]] == ["[]", '{"at": "x"}']


@pytest.mark.parametrize(
    "strange",
    [
        {"at": float("inf")},
        {"at": float("nan")},
        {"at": -1.0},
        {"at": 1e12},
        {"at": 10**400},
        {"at": "1.0"},
        {"who": "\ud800"},
        {"status": float("inf")},
    ],
)
def test_lines_that_could_not_be_shown_are_told_as_text(
    http: TestClient, tmp_path: Path, strange: dict[str, Any]
) -> None:
    line = {"at": 1.0, "who": "ann", "from": "here", "what": "POST /a", "status": 200, "detail": ""}
    with (tmp_path / "state" / "audit.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n" + json.dumps({**line, **strange}) + "\n")
    lines = http.get("/api/v1/audit").raise_for_status().json()["lines"]
    assert [line["what"] for line in lines[:2]] == ["POST /a", "unreadable"]
    assert lines[1]["at"] == 1.0


def test_the_audit_log_is_written_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Audit(tmp_path / "audit.jsonl", most=200)
    log.note(1.0, "ann", "here", "POST /a", 200)
    real = audit_module._told

    def slow(lines: Any) -> Any:
        writer = threading.Thread(target=lambda: [log.note(2.0, "bob", "here", "x" * 200, 200) for _ in range(9)])
        writer.start()
        writer.join(PATIENCE)
        assert not writer.is_alive()
        return real(lines)

    monkeypatch.setattr(audit_module, "_told", slow)
    assert [line["what"] for line in log.latest(10)] == ["POST /a"], "though its file was dropped meanwhile"
    log.close()


def test_what_operators_do_is_noted_however_much_it_is(service: Service, http: TestClient) -> None:
    token = service.issue("sue", "submitter", None)
    for _ in range(DONE_SINGLY + 5):
        http.post("/api/v1/clusters/left/drain").raise_for_status()
        kept = {"Authorization": f"Bearer {token}"}
        http.put("/api/v1/secrets/A", json={"value": "x"}, headers=kept).raise_for_status()
    lines = service.kept.audit.latest(10_000)
    assert sum("drain" in line["what"] for line in lines) == DONE_SINGLY + 5
    # The minute may have changed in between.
    assert DONE_SINGLY <= sum(line["who"] == "sue" for line in lines) <= DONE_SINGLY + 5
