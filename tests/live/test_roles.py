"""Who sees what: arguments, environments, output and what may quote them are for owners and operators."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG

from tapfinger.live.config import build_site, load_site
from tapfinger.live.http.app import make_app
from tapfinger.live.http.client import TaskInfo, make_spec
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.wire import LogChunk, LogSize, decode, encode
from tapfinger.live.service.service import Service
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient

MARK = "xyzzy"
#: Everything of a task that could be private.
TASK = {
    "argv": ["train", f"--key={MARK}"],
    "type": "demo",
    "env": {"WANDB_API_KEY": MARK},
    "cwd": f"/home/{MARK}",
    "key": MARK,
    "secrets": ["TOKEN"],
}


def bearer(http: TestClient, name: str, role: str, cluster: str | None = None) -> dict[str, str]:
    body = {"name": name, "role": role, "cluster": cluster}
    return {"Authorization": f"Bearer {http.post('/api/v1/tokens', json=body).json()['token']}"}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG)
    scenario, config = load_site(path)
    return Service(
        tmp_path / "state",
        build_site(scenario),
        config,
        create("scheduler", "fifo", {}),
        create("scheduler", "min", {}),
        {"greedy": create("scheduler", "greedy", {})},
    )


class Marked:
    """A site of which everything private holds the mark: tasks that failed, wait again, run and wait."""

    def __init__(self, http: TestClient) -> None:
        self.http = http
        self.ann = bearer(http, "ann", "submitter")
        headers = bearer(http, "agent", "agent", "left")
        body = {"tasks": [{**TASK, "key": f"{MARK}{n}", "clusters": ["left"], "retries": n} for n in range(6)]}
        body["secrets"] = {"TOKEN": MARK}  # type: ignore[assignment]
        assert http.post("/api/v1/tasks", json=body, headers=self.ann).status_code == 201
        with http.websocket_connect("/api/v1/agent", headers=headers) as socket:
            socket.send_text(encode(Report("left", "a", 1, 1, 0)))
            while not isinstance(orders := decode(socket.receive_text()), Orders) or not orders.starts:
                if isinstance(orders, Orders):
                    socket.send_text(encode(Report("left", "a", 1, orders.echo + 1, orders.epoch)))
            self.launch = next(one for one in orders.starts if one.id == (1, 1))
            socket.send_text(encode(LogChunk((1, 1), 0, MARK)))
            while not isinstance(decode(socket.receive_text()), LogSize):
                pass
            fault = RunReport((1, 1), Outcome("failed", 3, f"no {MARK}", 5), progress=0.5, faults=(f"what is {MARK}?",))
            # The first has failed for good, the second waits for another attempt, the third runs.
            again = RunReport((2, 1), Outcome("failed", 3, f"no {MARK}"), faults=(MARK,))
            runs = (fault, again, RunReport((3, 1), faults=(MARK,)))
            socket.send_text(encode(Report("left", "a", 1, 1000, orders.epoch, runs)))
            while not isinstance(answer := decode(socket.receive_text()), Orders) or not answer.forgets:
                pass

    def answers(self, headers: dict[str, str]) -> Iterator[tuple[str, Any]]:
        """The answer of every route that reads, as the interface describes itself."""
        for path, operations in self.http.get("/openapi.json").json()["paths"].items():
            if "get" in operations:
                for task in (1, 2, 3, 6):
                    filled = path.replace("{task}", str(task)).replace("{name}", "demo")
                    query = "?task=1&task=2&task=3&task=6" if path.endswith("/labels") else ""
                    yield filled, self.http.get(f"{filled}{query}", headers=headers)


@pytest.fixture
def marked(service: Service) -> Iterator[Marked]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as http:
        yield Marked(http)


@pytest.mark.parametrize("role", ["viewer", "submitter"])
def test_others_find_no_mark_in_any_answer(
    marked: Marked, role: str, caplog: pytest.LogCaptureFixture, service: Service
) -> None:
    other = bearer(marked.http, "bob", role)
    seen = 0
    with caplog.at_level(logging.DEBUG):
        for path, answer in marked.answers(other):
            refused = path.endswith("/logs") or "/files" in path or path in ("/api/v1/tokens", "/api/v1/audit")
            refused = refused or (path == "/api/v1/secrets" and role == "viewer")
            assert answer.status_code in ((403, 422) if refused else (200,)), path
            assert MARK not in answer.text, path
            seen += 1
    assert seen > 40
    assert marked.http.post("/api/v1/tasks/1/cancel", headers=other).status_code == 403
    assert MARK not in marked.http.post("/api/v1/tasks/1/cancel", headers=other).text
    assert MARK not in caplog.text
    assert not any(MARK in str(line) for line in service.kept.audit.latest(1000))


def test_owners_and_operators_see_everything_but_secrets(marked: Marked) -> None:
    operator = bearer(marked.http, "olga", "operator")
    for headers in (marked.ann, operator):
        task = marked.http.get("/api/v1/tasks/1", headers=headers).json()
        assert (task["redacted"], task["spec"]["argv"], task["spec"]["env"]) == (False, TASK["argv"], TASK["env"])
        assert (task["reason"], task["warnings"], task["spec"]["secrets"]) == (
            f"no {MARK}",
            [f"what is {MARK}?"],
            ["TOKEN"],
        )
        assert MARK in str(task["history"])
        assert marked.http.get("/api/v1/tasks/1/logs", headers=headers).text == MARK
        for path in ("events", "tasks", "overview", "labels?task=1", "tasks/1/explain"):
            assert MARK in marked.http.get(f"/api/v1/{path}", headers=headers).text, path
    assert marked.launch.secrets == {"TOKEN": MARK}, "the agent alone is told"
    assert MARK not in repr(marked.launch).replace(repr(marked.launch.argv), "").replace(
        repr(marked.launch.env), ""
    ).replace(repr(marked.launch.cwd), "")


def test_what_others_see_of_a_task(marked: Marked) -> None:
    viewer = bearer(marked.http, "bob", "viewer")
    task = marked.http.get("/api/v1/tasks/1", headers=viewer).json()
    assert (task["redacted"], task["owner"], task["code"], task["progress"]) == (True, "ann", 3, 0.5)
    assert (task["spec"]["argv"], task["spec"]["env"], task["reason"]) == (["train"], {}, "")
    refused = marked.http.get("/api/v1/tasks/1/logs", headers=viewer)
    assert refused.json()["detail"] == "the output of task 1 is for ann, who owns it, and for operators"
    (run, *_) = marked.http.get("/api/v1/overview", headers=viewer).json()["runs"]
    assert run["label"] == "train"


def test_a_token_for_metrics_reads_metrics_and_nothing_else(marked: Marked) -> None:
    prometheus = bearer(marked.http, "prometheus", "metrics")
    own = ("/metrics", "/api/v1/health", "/api/v1/me")
    for path, answer in marked.answers(prometheus):
        assert answer.status_code == (200 if path in own else 403), path
    assert "tapfinger_tasks" in marked.http.get("/metrics", headers=prometheus).text
    assert marked.http.post("/api/v1/tasks", json={"tasks": [TASK]}, headers=prometheus).status_code == 403


def test_no_event_has_text_that_is_not_known_to_quote_tasks() -> None:
    """Whoever adds an event with words of an agent must name the field as those that are left out for others."""
    from dataclasses import fields

    from tapfinger.live.http.task_view import QUOTES
    from tapfinger.live.protocol.events import TYPES

    of_the_site = {
        "at",
        "task",
        "attempt",
        "cluster",
        "type",
        "result",
        "note",
        "agent",
        "name",
        "sign",
        "short",
        "resource",
    }
    texts = {f.name for kind in TYPES.values() for f in fields(kind) if str(f.type).startswith("str")}
    assert issubclass(next(iter(TYPES.values())), LiveEvent)
    assert texts - of_the_site <= set(QUOTES)


# ------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    "field",
    [
        {"name": "n" * 201},
        {"type": "n" * 201},
        {"key": "n" * 201},
        {"cwd": "/" + "n" * 4096},
        {"argv": ["x"] * 10_001},
        {"argv": ["x" * (128 * 1024 + 1)]},
        {"argv": ["x" * 100_000] * 3},
        {"env": {"N" * 201: ""}},
        {"env": {f"N{n}": "" for n in range(1001)}},
        {"env": {"N": "x" * (128 * 1024 + 1)}},
        {"clusters": ["left"] * 1001},
        {"clusters": ["l" * 201]},
        {"minimum": {f"r{n}": 1.0 for n in range(101)}},
        {"maximum": {"r" * 201: 1.0}},
        {"secrets": [f"S{n}" for n in range(17)]},
        {"secrets": ["S" * 201]},
        {"f" * 100_000: 1},
    ],
    ids=lambda field: next(iter(field))[:20],
)
def test_everything_that_a_submitter_sets_is_bounded(marked: Marked, field: dict[str, Any]) -> None:
    body = {"tasks": [{"argv": ["x"], "type": "demo", **field}]}
    answer = marked.http.post("/api/v1/tasks", json=body, headers=marked.ann)
    assert answer.status_code == 422
    assert len(answer.content) < 3000, "nor is the answer long"


def test_a_long_list_of_wrong_tasks_makes_no_long_list_of_faults(marked: Marked) -> None:
    wrong = {"argv": [1] * 9_999, "type": "demo"}
    for tasks in ([wrong] * 50, [{}] * 10_001, [{"nothing": 1}] * 10_001):
        answer = marked.http.post("/api/v1/tasks", json={"tasks": tasks}, headers=marked.ann)
        assert answer.status_code == 422
        assert len(answer.json()["detail"]) <= 2, "those of the first task"


# ------------------------------------------------------------------------------- sizes


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[TestClient]:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG.replace("maximum = {cpu = 4}", "maximum = {cpu = 40}").replace("cpu = 4,", "cpu = 40,"))
    scenario, config = load_site(path)
    schedulers = create("scheduler", "fifo", {}), create("scheduler", "min", {})
    service = Service(tmp_path / "state", build_site(scenario), config, *schedulers)
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as http:
        http.app.state.service = service  # type: ignore[attr-defined]
        yield http


SIZES = [{"minimum": {"cpu": a}, "maximum": {"cpu": b}} for a in range(1, 41) for b in range(a, 41)]


def submit_sizes(http: TestClient, sizes: list[dict[str, Any]], headers: dict[str, str]) -> Any:
    tasks = [{"argv": ["x"], "type": "demo", **size} for size in sizes]
    return http.post("/api/v1/tasks", json={"tasks": tasks}, headers=headers)


def test_sizes_count_while_tasks_have_them(wide: TestClient) -> None:
    ann, bob = bearer(wide, "ann", "submitter"), bearer(wide, "bob", "submitter")
    site = wide.app.state.service.site  # type: ignore[attr-defined]
    refused = submit_sizes(wide, SIZES[:400], ann)
    assert refused.status_code == 422
    assert "tasks of ann may have 150 different sizes of their own now" in refused.json()["detail"]
    for first in range(0, 800, 100):  # refused for another reason, after their sizes were looked at
        wrong = [*SIZES[first : first + 100], {"clusters": ["nowhere"]}]
        assert submit_sizes(wide, wrong, ann).status_code == 422
    assert len(site.task_types) == 1, "what was refused leaves nothing behind"
    assert submit_sizes(wide, SIZES[:150], ann).status_code == 201
    assert submit_sizes(wide, SIZES[150:151], ann).status_code == 422
    assert submit_sizes(wide, SIZES[:150], ann).status_code == 201, "sizes in use cost nothing"
    assert submit_sizes(wide, SIZES[150:225], bob).status_code == 201, "another has half of what is left"
    assert submit_sizes(wide, SIZES[225:226], bob).status_code == 422
    for task in range(1, 301):
        wide.post(f"/api/v1/tasks/{task}/cancel", headers=ann)
    assert submit_sizes(wide, SIZES[300:400], ann).status_code == 201, "ended tasks have none"
    assert len(site.task_types) <= 1 + 75 + 100 + 21, "and schedulers know few that no task has"


def test_explaining_an_ended_task_adds_no_size(wide: TestClient) -> None:
    site = wide.app.state.service.site  # type: ignore[attr-defined]
    site.task(7, make_spec(argv=["x"], type="demo", maximum={"cpu": 3}), 0)
    assert len(site.task_types) == 1


def test_a_client_knows_what_was_left_out(marked: Marked) -> None:
    from pydantic import TypeAdapter

    viewer = bearer(marked.http, "bob", "viewer")
    info = TypeAdapter(TaskInfo).validate_python(marked.http.get("/api/v1/tasks/1", headers=viewer).json())
    assert info.redacted
