"""The HTTP interface: who may do what, and what it does with nonsense."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG
from starlette.websockets import WebSocketDisconnect
from waiting import PATIENCE, wait_for

from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.config import build_site, load_site
from tapfinger.live.http import profile_routes
from tapfinger.live.http.app import make_app
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.messages import Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.wire import LogChunk, LogSize, Message, Refusal, decode, encode
from tapfinger.live.service.service import Service
from tapfinger.live.store.tokens import hashed
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient


@pytest.fixture
def service(tmp_path: Path) -> Service:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG + "max_waiting = 3\nmax_body = 20000\nmax_log = 10\n")
    scenario, config = load_site(path)
    site = build_site(scenario)
    return Service(tmp_path / "state", site, config, create("scheduler", "fifo", {}), create("scheduler", "min", {}))


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


def submission(*argv: str, **more: object) -> dict[str, object]:
    return {"tasks": [{"argv": argv or ["x"], "type": "demo", **more}]}


def as_role(http: TestClient, role: str, cluster: str | None = None) -> dict[str, str]:
    body = {"name": f"a {role} {cluster}", "role": role, "cluster": cluster}
    return {"Authorization": f"Bearer {http.post('/api/v1/tokens', json=body).json()['token']}"}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("metrics", {"see metrics"}),
        ("viewer", {"see metrics", "read"}),
        ("submitter", {"see metrics", "read", "submit"}),
        ("operator", {"see metrics", "read", "submit", "operate"}),
        ("agent", set()),
    ],
)
def test_roles(http: TestClient, role: str, allowed: set[str]) -> None:
    headers = as_role(http, role, "left" if role == "agent" else None)
    tried = {
        "see metrics": http.get("/metrics", headers=headers),
        "read": http.get("/api/v1/tasks", headers=headers),
        "submit": http.post("/api/v1/tasks", json=submission(), headers=headers),
        "operate": http.post("/api/v1/clusters/left/drain", headers=headers),
    }
    assert {what for what, answer in tried.items() if answer.is_success} == allowed
    assert {answer.status_code for what, answer in tried.items() if what not in allowed} <= {403}


def test_a_coordinator_that_is_ended_as_something_happens_ends(service: Service) -> None:
    """Not even a cancellation that comes together with what is waited for is lost."""

    async def end() -> None:
        loop = asyncio.create_task(service.run())
        await asyncio.sleep(0.1)
        service._wanted.set()
        await asyncio.sleep(0)
        loop.cancel()
        ended, _ = await asyncio.wait({loop}, timeout=PATIENCE)
        assert ended

    asyncio.run(end())
    service.close()


def test_submitters_cancel_only_what_is_theirs(http: TestClient) -> None:
    ann, operator = as_role(http, "submitter"), http.headers
    theirs = http.post("/api/v1/tasks", json=submission(), headers=ann).json()["ids"][0]
    others = http.post("/api/v1/tasks", json=submission()).json()["ids"][0]
    refused = http.post(f"/api/v1/tasks/{others}/cancel", headers=ann)
    assert (refused.status_code, refused.json()["detail"][:17]) == (403, f"task {others} is first's")
    assert http.post(f"/api/v1/tasks/{theirs}/cancel", headers=ann).json()["phase"] == "cancelled"
    assert http.post(f"/api/v1/tasks/{others}/cancel", headers=operator).json()["phase"] == "cancelled"
    assert http.post("/api/v1/tasks/9/cancel", headers=ann).status_code == 404


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "Basic abc", "nonsense"])
def test_nobody_gets_in_without_a_valid_token(http: TestClient, given: str | None) -> None:
    http.headers.pop("Authorization")
    headers = {} if given is None else {"Authorization": given}
    for path in ("tasks", "tasks/1", "tasks/1/logs", "clusters", "events"):
        assert http.get(f"/api/v1/{path}", headers=headers).status_code == 401
    for path in ("tasks", "tasks/1/cancel", "clusters/left/drain", "clusters/left/give-up", "tokens"):
        assert http.post(f"/api/v1/{path}", json={}, headers=headers).status_code in (401, 422)
    assert http.get("/api/v1/health").json()["status"] == "ok"


def test_tokens_are_kept_as_hashes_and_replaced_by_name(http: TestClient, service: Service, tmp_path: Path) -> None:
    first, second = as_role(http, "viewer"), as_role(http, "viewer")
    assert http.get("/api/v1/tasks", headers=first).status_code == 401
    assert http.get("/api/v1/tasks", headers=second).status_code == 200
    secret = second["Authorization"].removeprefix("Bearer ")
    assert hashed(secret) in {token.hash for token in service.store.tokens()}
    files = [path for path in (tmp_path / "state").iterdir() if path.is_file() and path.name != "token"]
    assert not any(
        secret.encode() in path.read_bytes() or service.token.encode() in path.read_bytes() for path in files
    )
    assert (tmp_path / "state" / "token").stat().st_mode & 0o777 == 0o600


def test_the_latest_events_can_be_asked_for(http: TestClient) -> None:
    for _ in range(3):
        http.post("/api/v1/tasks", json=submission())
    every = http.get("/api/v1/events").json()["events"]
    assert http.get("/api/v1/events", params={"last": 2}).json()["events"] == every[-2:]
    assert http.get("/api/v1/events", params={"last": 2, "after": every[-1]["seq"]}).json()["events"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tasks": []},
        {"tasks": [{"argv": [], "type": "demo"}]},
        {"tasks": [{"argv": "ls -l", "type": "demo"}]},
        {"tasks": [{"argv": ["a\0b"], "type": "demo"}]},
        submission(env={"A=B": "c"}),
        submission(cwd="relative"),
        submission(key="a\0b"),
        submission(time_limit=-1),
        submission(minimum={"cpu": "NaN"}),
        submission(on_disconnect="maybe"),
        submission(type="nothing"),
        submission(retrys=1),
        {**submission(), "extra": 1},
    ],
)
def test_bad_submissions_are_refused_with_a_reason(http: TestClient, body: dict[str, object]) -> None:
    answer = http.post("/api/v1/tasks", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert http.get("/api/v1/tasks").json()["tasks"] == []


def test_a_misspelt_field_is_named(http: TestClient) -> None:
    tasks = [{"argv": ["x"], "type": "demo"}, {"argv": ["x"], "type": "demo", "time_limt": 60}]
    (fault,) = http.post("/api/v1/tasks", json={"tasks": tasks}).json()["detail"]
    assert fault["msg"] == "1: a task has no field 'time_limt'; did you mean 'time_limit'?"
    with pytest.raises(ConfigError, match="a task has no field 'gpus'; it has argv, type,"):
        make_spec(argv=["x"], type="demo", gpus=2)
    schema = http.get("/openapi.json").json()["components"]["schemas"]["TaskSpec"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize(
    "field", ['"time_limit": {}', '"minimum": {{"cpu": {}}}', '"maximum": {{"cpu": {}}}', '"x": {}']
)
def test_numbers_that_json_does_not_have_are_refused(http: TestClient, field: str, number: str) -> None:
    """Python reads them. Once taken, no list that has them could be sent any more."""
    body = f'{{"tasks": [{{"argv": ["x"], "type": "demo", {field.format(number)}}}]}}'
    answer = http.post("/api/v1/tasks", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    (fault,) = answer.json()["detail"]
    assert fault.keys() == {"type", "loc", "msg"}
    assert http.get("/api/v1/tasks").json()["tasks"] == []


def test_the_faults_of_the_first_wrong_task_are_named(http: TestClient) -> None:
    answer = http.post("/api/v1/tasks", json={"tasks": [{"argv": ["xyzzy"], "retries": -1}] * 150})
    assert answer.status_code == 422
    assert [fault["loc"] for fault in answer.json()["detail"]] == [
        ["body", "tasks", 0, "type"],
        ["body", "tasks", 0, "retries"],
    ]
    assert b"xyzzy" not in answer.content, "what was given is not sent back"


def test_too_much_is_refused(http: TestClient) -> None:
    assert http.post("/api/v1/tasks", json={"tasks": submission()["tasks"] * 3}).status_code == 201  # type: ignore[operator]
    full = http.post("/api/v1/tasks", json=submission())
    assert (full.status_code, full.json()["detail"]) == (
        429,
        "1 tasks are more than the 0 that may still wait; try again later",
    )
    assert http.post("/api/v1/tasks", content=b"x" * 20_001).status_code == 413
    pieces = http.post("/api/v1/tasks", content=iter([b"x" * 30_000]))
    assert pieces.status_code == 411
    both = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    assert http.post("/api/v1/tasks", content=b"x" * 5, headers=both).status_code == 411
    assert http.get("/api/v1/tasks/99999999999999999999999").status_code == 422


def test_nobodys_body_is_read(service: Service) -> None:
    app, sent = make_app(service), []

    async def receive() -> dict[str, Any]:
        raise AssertionError("a body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    for token in ("", "Bearer wrong"):
        headers = [(b"authorization", token.encode()), (b"content-length", b"19999")]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/tasks", "headers": headers, "query_string": b""}
        asyncio.run(app({**scope, "client": ("127.0.0.1", 1)}, receive, send))  # type: ignore[arg-type]
    assert [message["status"] for message in sent if "status" in message] == [401, 401]
    service.close()


def test_a_key_gives_the_same_task_again_but_no_other(http: TestClient) -> None:
    first = http.post("/api/v1/tasks", json=submission("a", key="k")).json()["ids"]
    assert http.post("/api/v1/tasks", json=submission("a", key="k")).json()["ids"] == first
    other = http.post("/api/v1/tasks", json=submission("b", key="k"))
    assert (other.status_code, "another task" in other.json()["detail"]) == (422, True)
    batch = {"tasks": [{"argv": ["c"], "type": "demo", "key": key} for key in (None, "n", "n")]}
    assert http.post("/api/v1/tasks", json=batch).json()["ids"] == [2, 3, 3]


# ------------------------------------------------------------------------- agents


def test_an_agent_speaks_only_for_its_own_cluster(http: TestClient) -> None:
    headers = as_role(http, "agent", "left")
    with http.websocket_connect("/api/v1/agent", headers=headers) as socket:
        socket.send_text(encode(Report("right", "a", 1, 1, 0)))
        assert decode(socket.receive_text()) == Refusal("this token speaks for cluster 'left', not for 'right'")
    for wrong in (as_role(http, "operator"), {"Authorization": "Bearer x"}):
        with pytest.raises(WebSocketDisconnect), http.websocket_connect("/api/v1/agent", headers=wrong):
            pass


def test_a_second_agent_that_is_refused_does_not_silence_the_first(http: TestClient) -> None:
    headers = as_role(http, "agent", "left")
    with http.websocket_connect("/api/v1/agent", headers=headers) as first:
        first.send_text(encode(Report("left", "a", 1, 1, 0)))
        orders = decode(first.receive_text())
        assert isinstance(orders, Orders)
        first.send_text(encode(Report("left", "a", 1, 2, orders.epoch)))
        assert isinstance(decode(first.receive_text()), Orders)
        with http.websocket_connect("/api/v1/agent", headers=headers) as second:
            second.send_text(encode(Report("left", "b", 1, 1, orders.epoch)))
            refusal = decode(second.receive_text())
            assert isinstance(refusal, Refusal)
            assert "cluster 'left' has another agent, a" in refusal.reason
            http.post("/api/v1/tasks", json=submission())
            orders = decode(first.receive_text())  # without asking for it
            assert isinstance(orders, Orders)
            assert [launch.id for launch in orders.starts] == [(1, 1)]


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", '{"Report": 1}', '{"Nothing": {}}', '{"a":1,"b":2}', '{"Orders": {}}']
)
def test_garbage_from_an_agent_ends_its_connection_and_nothing_else(http: TestClient, garbage: str) -> None:
    headers = as_role(http, "agent", "left")
    with http.websocket_connect("/api/v1/agent", headers=headers) as socket:
        socket.send_text(garbage)
        assert isinstance(decode(socket.receive_text()), Refusal)
    assert http.get("/api/v1/clusters").json()["clusters"][0]["connected"] is False


HUGE = 10**30


@pytest.mark.parametrize(
    "said",
    [
        {"Report": {"runs": [{"id": [1, 1], "outcome": {"result": "failed", "code": HUGE}}]}},
        {"Report": {"runs": [{"id": [1, 1], "outcome": {"result": "failed", "output": HUGE}}]}},
        {"Report": {"runs": [{"id": [HUGE, 1]}]}},
        {"Report": {"runs": [{"id": [1, HUGE]}]}},
        {"Report": {"runs": [], "agent": "a\0"}},
        {"Report": {"runs": [], "incarnation": HUGE}},
        {"LogChunk": {"id": [1, 1], "offset": 0, "data": "no byte: \u20ac"}},
        {"LogChunk": {"id": [1, 1], "offset": HUGE, "skipped": HUGE, "data": "x"}},
    ],
)
def test_what_no_store_could_keep_is_not_taken_from_an_agent(http: TestClient, said: dict[str, dict[str, Any]]) -> None:
    http.post("/api/v1/tasks", json=submission(clusters=["left"]))
    headers = as_role(http, "agent", "left")
    with http.websocket_connect("/api/v1/agent", headers=headers) as socket:
        socket.send_text(encode(Report("left", "a", 1, 1, 0)))
        while not isinstance(orders := decode(socket.receive_text()), Orders) or not orders.starts:
            if isinstance(orders, Orders):
                socket.send_text(encode(Report("left", "a", 1, orders.echo + 1, orders.epoch)))
        ((kind, body),) = said.items()
        usual: dict[str, object] = {"cluster": "left", "agent": "a", "incarnation": 1, "seq": orders.echo + 1}
        usual["epoch"] = orders.epoch
        socket.send_text(json.dumps({kind: {**(usual if kind == "Report" else {}), **body}}))
        while not isinstance(refusal := decode(socket.receive_text()), Refusal):
            pass
        assert "not a message TapFinger knows" in refusal.reason
    assert http.post("/api/v1/tasks", json=submission()).status_code == 201, "it can still save"


def test_long_and_odd_words_of_an_agent_are_cut_to_what_can_be_kept() -> None:
    outcome = Outcome("failed", 1, "a\0b" + "x" * 10_000)
    message = decode(encode(Report("left", "a", 1, 1, 0, (RunReport((1, 1), outcome, faults=("c\0",)),))))
    assert isinstance(message, Report)
    (run,) = message.runs
    assert run.outcome is not None
    assert (run.outcome.reason[:3], len(run.outcome.reason), run.faults) == ("abx", 4000, ("c",))


def test_a_task_over_the_wire_with_output_in_pieces(http: TestClient) -> None:
    def orders() -> Orders:
        while not isinstance(message := decode(socket.receive_text()), Orders) or not (
            message.starts or message.forgets
        ):
            if isinstance(message, Orders):
                socket.send_text(encode(Report("left", "a", 1, message.echo + 1, message.epoch)))
        return message

    with http.websocket_connect("/api/v1/agent", headers=as_role(http, "agent", "left")) as socket:
        socket.send_text(encode(Report("left", "a", 1, 1, 0)))
        assert http.post("/api/v1/tasks", json=submission()).json() == {"ids": [1]}
        got = orders()
        assert got.starts[0].id == (1, 1)
        for chunk, size in (
            (LogChunk((1, 1), 0), LogSize((1, 1), 0)),
            (LogChunk((1, 1), 3, "late"), LogSize((1, 1), 0)),
            (LogChunk((1, 1), 0, "one\xff"), LogSize((1, 1), 4)),
            (LogChunk((1, 1), 2, "e\xfftwo"), LogSize((1, 1), 7)),
            (LogChunk((1, 1), 7, "and more"), LogSize((1, 1), 15)),
            (LogChunk((1, 1), 115, "at last", skipped=100), LogSize((1, 1), 122)),
            (LogChunk((1, 2), 0, "no such attempt"), LogSize((1, 2), 0, full=True)),
        ):
            socket.send_text(encode(chunk))
            while not isinstance(answer := decode(socket.receive_text()), LogSize):
                pass
            assert answer == size
        end = RunReport((1, 1), Outcome("finished", 0, output=122))
        socket.send_text(encode(Report("left", "a", 1, 1000, got.epoch, (end,))))
        assert orders().forgets == ((1, 1),)
    names = ("X-Start", "X-Offset", "X-Complete")
    answer = http.get("/api/v1/tasks/1/logs?offset=2")
    assert (answer.content, *(answer.headers[name] for name in names)) == (b"e\xfft", "2", "5", "0")
    answer = http.get("/api/v1/tasks/1/logs?offset=5")
    assert (answer.content, *(answer.headers[name] for name in names)) == (b"as", "119", "121", "0")
    assert http.get("/api/v1/tasks/1").json()["phase"] == "finished"


def test_messages_survive_the_wire() -> None:
    messages: list[Message] = [
        Report("c", "a", 1, 2, 3, (RunReport((1, 2), Outcome("failed", -9, "why", 7)), RunReport((3, 4)))),
        Orders("c", "a", 1, 2, 3, 4, 5.0, (), ((1, 2),), ((3, 4),)),
        LogChunk((1, 2), 3, "\x00\xff"),
    ]
    assert [decode(encode(message)) for message in messages] == messages
    with pytest.raises(CoordinatorError, match="not a message"):
        decode(json.dumps({"Report": {"cluster": "c"}}))


# --------------------------------------------------------------------------- sites


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[live]\nlease = 3", "live.lease: Extra inputs"),
        ("[live]\nlease_seconds = 0", "live.lease_seconds"),
        ("[live]\nstop_seconds = 20", r"live\.stop_seconds = 20 must be below live\.grace_seconds = 10"),
        ("[live]\nbeat_seconds = 40", r"live\.beat_seconds = 40 must be at most half"),
        ("not toml", "is not valid TOML"),
        ("clusters = []", "clusters is empty"),
    ],
)
def test_a_bad_site_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_site(path)


def test_two_coordinators_cannot_share_a_state(service: Service, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in use by another coordinator"):
        Service(
            tmp_path / "state",
            service.site,
            service.config,
            create("scheduler", "fifo", {}),
            create("scheduler", "min", {}),
        )
    service.close()


def test_a_coordinator_that_cannot_save_tells_nobody_and_goes_no_further(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    stopped: list[bool] = []
    with TestClient(
        make_app(service, on_failure=lambda: stopped.append(True)),
        headers={"Authorization": f"Bearer {service.token}"},
        raise_server_exceptions=False,
    ) as http:
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "save", fail)
            assert http.post("/api/v1/tasks", json=submission()).status_code == 500
        assert http.post("/api/v1/tasks", json=submission()).status_code == 500, "what it believes is not on disk"
        assert http.get("/api/v1/tasks").json()["tasks"] == []
        assert wait_for(lambda: stopped) == [True]


def test_what_waits_for_the_disk_or_reads_much_is_done_on_no_loop(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submitter may ask for it two hundred times at once, and the leases are on the loop."""
    loops: list[bool] = []

    def watch(what: object, name: str) -> None:
        work = getattr(what, name)

        def watched(*given: object) -> object:
            loops.append(asyncio._get_running_loop() is not None)
            return work(*given)

        monkeypatch.setattr(what, name, watched)

    watch(service.store.secrets, "keep")
    watch(service.store, "history")
    assert http.put("/api/v1/secrets/KEY", json={"value": "x"}).status_code == 200
    (task,) = http.post("/api/v1/tasks", json=submission()).json()["ids"]
    answer = http.get(f"/api/v1/tasks/{task}/files?attempt=7")
    assert (answer.status_code, answer.json()["detail"]) == (404, f"task {task} has no attempt 7")
    assert loops == [False, False]


def test_sizes_count_once_for_every_kind_of_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_routes, "MOST_CELLS", 7)
    path = tmp_path / "site.toml"
    kinds = CONFIG.replace('"left"', '"left"\nkind = "new"').replace('"right"', '"right"\nkind = "old"')
    path.write_text(kinds.replace("speed = {", "on = {new = 2, old = 1}\nspeed = {"))
    scenario, config = load_site(path)
    schedulers = create("scheduler", "fifo", {}), create("scheduler", "min", {})
    service = Service(tmp_path / "state", build_site(scenario), config, *schedulers)
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as http:
        refused = http.get("/api/v1/profiles/demo?all=true")
        assert (refused.status_code, "demo has 8 sizes" in refused.text) == (422, True)
        monkeypatch.setattr(profile_routes, "MOST_CELLS", 8)
        assert len(http.get("/api/v1/profiles/demo?all=true").json()["cells"]) == 8
