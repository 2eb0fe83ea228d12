"""The dashboard's files and questions over HTTP, and its size."""

from __future__ import annotations

import re
import sys
import warnings
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.sites import CONFIG

from tapfinger.cli import main
from tapfinger.live.config import build_site, load_site
from tapfinger.live.http.app import make_app
from tapfinger.live.service.service import Service
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient

FILES = Path(__file__).parents[2] / "src" / "tapfinger" / "live" / "dashboard"


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG)
    scenario, config = load_site(path)
    fifo, least = create("scheduler", "fifo", {}), create("scheduler", "min", {})
    service = Service(tmp_path / "state", build_site(scenario), config, fifo, least)
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


def test_files_have_their_types_and_are_sent_only_when_they_changed(http: TestClient) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/dashboard/main.js", "text/javascript"),
        ("/dashboard/style.css", "text/css"),
        ("/dashboard/icon.svg", "image/svg+xml"),
    ):
        answer = http.get(path, headers={"Authorization": ""})
        assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tag = answer.headers["ETag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}'):
            same = http.get(path, headers={"If-None-Match": known})
            assert (same.status_code, same.content) == (304, b"")
            assert "default-src 'self'" in same.headers["Content-Security-Policy"]
        assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["nothing.js", "..%2fapi.py", "%2e%2e/api.py", "index.html/..", "..\\api.py"])
def test_no_other_file_can_be_had(http: TestClient, path: str) -> None:
    answer = http.get(f"/dashboard/{path}")
    assert answer.status_code == 404
    assert b"import" not in answer.content


def test_the_page_is_small_and_asks_nobody_else() -> None:
    contents = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir()}
    assert sum(len(text.encode()) for text in contents.values()) < 150_000
    assert max(text.count("\n") for text in contents.values()) < 500
    for name, text in contents.items():
        others = set(re.findall(r"https?://[^\"' )]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not others, f"{name} names {others}"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\bstyle=", contents["index.html"])
    for name in re.findall(r"/dashboard/([\w.]+)", contents["index.html"]):
        assert name in contents
    for name, text in contents.items():
        for imported in re.findall(r'from "\./([\w.]+)"', text):
            assert imported in contents, f"{name} imports {imported}"


def test_everyone_can_ask_who_they_are(http: TestClient) -> None:
    assert http.get("/api/v1/me").json() == {
        "name": "first",
        "role": "operator",
        "cluster": None,
        "may": ["operate", "read", "see metrics", "submit"],
    }
    body = {"name": "a", "role": "agent", "cluster": "left"}
    token = http.post("/api/v1/tokens", json=body).json()["token"]
    agent = {"Authorization": f"Bearer {token}"}
    assert http.get("/api/v1/me", headers=agent).json() == {**body, "may": ["agent"]}
    assert http.get("/api/v1/me", headers={"Authorization": "Bearer x"}).status_code == 401
    for path in ("task-types", "overview", "labels?task=1"):
        assert http.get(f"/api/v1/{path}", headers=agent).status_code == 403
        assert http.get(f"/api/v1/{path}", headers={"Authorization": "Bearer x"}).status_code == 401


def test_task_types_and_overview(http: TestClient) -> None:
    sizes = {"argv": ["x"], "type": "demo", "maximum": {"cpu": 2}}
    http.post("/api/v1/tasks", json={"tasks": [sizes] * 3})
    site = http.get("/api/v1/task-types").json()
    assert site["resources"] == [{"name": "cpu", "unit": 1.0}, {"name": "gpu", "unit": 1.0}]
    assert [t["name"] for t in site["task_types"]] == ["demo"], "sizes that tasks asked for are no types to choose"
    assert site["task_types"][0]["minimum"] == {"cpu": 1.0, "gpu": 0.0}
    assert site["clusters"] == ["left", "right"]
    asked = http.get("/api/v1/labels", params={"task": [2, 9]}).json()
    assert asked == {"labels": [{"task": 2, "label": "x", "type": "demo"}]}
    told = http.get("/api/v1/overview").json()
    assert told["counts"] == {"waiting": 3, "running": 0, "finished": 0, "failed": 0, "cancelled": 0, "lost": 0}
    assert [cluster["name"] for cluster in told["clusters"]] == ["left", "right"]
    assert http.get("/api/v1/overview", params={"after": told["seq"], "wait": 0.1}).json()["events"] == []
    http.post("/api/v1/tasks/2/cancel")
    news = http.get("/api/v1/overview", params={"after": told["seq"], "wait": 20}).json()
    assert (news["counts"]["waiting"], news["counts"]["cancelled"]) == (2, 1)
    assert [event["kind"] for event in news["events"]] == ["cancelling", "cancelled"]


@pytest.mark.parametrize("found", [True, False])
def test_the_link_that_signs_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda link: opened.append(link) or found)
    monkeypatch.setenv("TAPFINGER_URL", "http://127.0.0.1:7410/")
    monkeypatch.setenv("TAPFINGER_TOKEN", "tf_x")
    monkeypatch.setattr(sys, "argv", ["tapfinger", "dashboard", "--open"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert not end.value.code
    assert (said.out, opened) == ("http://127.0.0.1:7410/#token=tf_x\n", ["http://127.0.0.1:7410/#token=tf_x"])
    assert ("No browser was found" in said.err) is not found
