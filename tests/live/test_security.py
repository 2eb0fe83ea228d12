"""Tokens that end, requests that are too many, who did what, places and variables that are out of bounds, TLS."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from live.sites import CONFIG, RealSite, opened, python
from live.test_backends import end_of
from starlette.websockets import WebSocketDisconnect
from waiting import PATIENCE
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tapfinger.errors import ConfigError, CoordinatorError, LaunchFailed
from tapfinger.live.agent.leases import boot_clock, replace_file, write_lease
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.process import Process
from tapfinger.live.config import build_site, load_site
from tapfinger.live.http.app import make_app
from tapfinger.live.http.client import Client
from tapfinger.live.http.limits import Buckets
from tapfinger.live.http.server import check_address
from tapfinger.live.http.tls import AGENT_PROTOCOL, certificate, travels_openly, trust
from tapfinger.live.logging_setup import JsonLines, set_up_logging
from tapfinger.live.protocol.messages import Launch, Report
from tapfinger.live.protocol.wire import Refusal, decode, encode
from tapfinger.live.service.service import Service
from tapfinger.live.store import audit as audit_module
from tapfinger.live.store.audit import Audit
from tapfinger.registry import create

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient


def make_service(directory: Path, more: str = "") -> Service:
    path = directory / "site.toml"
    path.write_text(CONFIG + more)
    scenario, config = load_site(path)
    fifo, least = create("scheduler", "fifo", {}), create("scheduler", "min", {})
    return Service(directory / "state", build_site(scenario), config, fifo, least)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make_service(tmp_path, 'max_requests = 20\nenv_names = ["MY_*", "SEED"]\n')


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


def bearer(http: TestClient, role: str, cluster: str | None = None, **more: Any) -> dict[str, str]:
    body = {"name": f"a {role}", "role": role, "cluster": cluster, **more}
    return {"Authorization": f"Bearer {http.post('/api/v1/tokens', json=body).json()['token']}"}


def submission(**more: Any) -> dict[str, Any]:
    return {"tasks": [{"argv": ["x"], "type": "demo", **more}]}


# -------------------------------------------------------------------------- tokens


def test_a_token_works_until_it_expires(http: TestClient, service: Service) -> None:
    viewer = bearer(http, "viewer", lasts=100)
    assert http.get("/api/v1/tasks", headers=viewer).status_code == 200
    service._offset += 101
    assert http.get("/api/v1/tasks", headers=viewer).status_code == 401
    listed = http.get("/api/v1/tokens").json()["tokens"]
    assert [(t["name"], t["expired"]) for t in listed] == [("a viewer", True), ("first", False)]
    assert not any("hash" in token for token in listed)
    assert http.post("/api/v1/tokens", json={"name": "x", "role": "viewer", "lasts": -1}).status_code == 422


def test_a_revoked_token_works_no_more_not_even_on_an_open_line(http: TestClient) -> None:
    agent = bearer(http, "agent", "left")
    with http.websocket_connect("/api/v1/agent", headers=agent) as socket:
        socket.send_text(encode(Report("left", "a", 1, 1, 0)))
        decode(socket.receive_text())
        assert http.delete("/api/v1/tokens/a agent").json() == {"revoked": "a agent"}
        socket.send_text(encode(Report("left", "a", 1, 2, 1)))
        while not isinstance(said := decode(socket.receive_text()), Refusal):
            pass
        assert said == Refusal("the token has expired, or was revoked")
    with pytest.raises(WebSocketDisconnect), http.websocket_connect("/api/v1/agent", headers=agent):
        pass
    http.post("/api/v1/tokens", json={"name": "odd/name?", "role": "viewer"})
    assert http.delete("/api/v1/tokens/odd%2Fname%3F").json() == {"revoked": "odd/name?"}
    gone = http.delete("/api/v1/tokens/a agent")
    assert (gone.status_code, gone.json()["detail"]) == (404, "there is no token of the name 'a agent'")


def test_who_gets_a_revoked_name_does_not_get_what_is_left_of_it(http: TestClient, service: Service) -> None:
    first = bearer(http, "submitter")
    http.post("/api/v1/tasks", json=submission(argv=["x", "private"]), headers=first)
    renewed = bearer(http, "submitter")
    assert http.get("/api/v1/tasks/1", headers=renewed).json()["spec"]["argv"] == ["x", "private"], "the same person"
    http.delete("/api/v1/tokens/a submitter")
    for role in ("submitter", "viewer", "metrics"):
        refused = http.post("/api/v1/tokens", json={"name": "a submitter", "role": role})
        assert refused.status_code == 422
        assert "the name 'a submitter' was revoked, and tasks of it are left" in refused.json()["detail"]
        assert "--inherit" in refused.json()["detail"]
    assert [token["name"] for token in http.get("/api/v1/tokens").json()["tokens"]] == ["first"]
    back = bearer(http, "submitter", inherit=True)
    assert http.get("/api/v1/tasks/1", headers=back).json()["spec"]["argv"] == ["x", "private"]
    details = [line["detail"] for line in http.get("/api/v1/audit").json()["lines"]]
    assert "'a submitter', submitter, inherits what is left of that name" in details


def test_only_operators_see_tokens_and_the_audit_log(http: TestClient) -> None:
    for role in ("viewer", "submitter"):
        headers = bearer(http, role)
        for method, path in (("GET", "tokens"), ("DELETE", "tokens/first"), ("GET", "audit")):
            assert http.request(method, f"/api/v1/{path}", headers=headers).status_code == 403


# --------------------------------------------------------------------------- limits


def test_buckets_fill_up_again() -> None:
    now = [0.0]
    buckets = Buckets(2.0, 3.0, lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b") == 0.0, "another's bucket is another"
    now[0] = 0.5
    assert [buckets.take("a"), buckets.take("a")] == [0.0, 0.5]


def test_whoever_asks_too_often_is_told_when_to_come_again(http: TestClient, service: Service) -> None:
    submitter = bearer(http, "submitter")
    got = [http.get("/api/v1/tasks", headers=submitter) for _ in range(80)]
    refused = [answer for answer in got if answer.status_code == 429]
    assert refused
    assert {answer.status_code for answer in got} == {200, 429}
    assert refused[0].headers["Retry-After"] == "1"
    assert http.get("/api/v1/tasks").status_code == 200, "others are not kept waiting"
    service._offset += 10
    assert http.get("/api/v1/tasks", headers=submitter).status_code == 200


def test_guessing_is_slow_and_does_not_fill_the_audit_log(http: TestClient, service: Service) -> None:
    codes = [http.get("/api/v1/tasks", headers={"Authorization": f"Bearer {n}"}).status_code for n in range(30)]
    assert (codes[0], codes[-1]) == (401, 429)
    assert sum(line["detail"] == "no valid token" for line in service.kept.audit.latest(1000)) < 20


def test_an_address_of_ipv6_is_one_with_those_that_begin_alike(service: Service) -> None:
    app = make_app(service, runs_service=False)

    async def ask(address: str) -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", b"Bearer guessed")]
        scope = {"type": "http", "method": "GET", "path": "/api/v1/tasks", "headers": headers, "query_string": b""}
        await app({**scope, "client": (address, 1)}, receive, send)  # type: ignore[arg-type]
        status: int = sent[0]["status"]
        return status

    async def play() -> None:
        assert {await ask(f"2001:db8::{n:x}") for n in range(100)} == {401, 429}
        assert await ask("2001:db8::1:0:0:1") == 429
        assert await ask("2001:db8:0:1::1") == 401

    asyncio.run(play())
    service.close()


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_request_could_revoke_are_refused(http: TestClient, name: str) -> None:
    refused = http.post("/api/v1/tokens", json={"name": name, "role": "viewer"})
    assert (refused.status_code, refused.json()["detail"][:28]) == (422, "a token cannot have the name")


def test_garbage_on_an_agents_line(http: TestClient) -> None:
    agent = bearer(http, "agent", "left")
    for send in (lambda s: s.send_bytes(b"\x00\xff"), lambda s: s.send_text("[" * 100_000)):
        with http.websocket_connect("/api/v1/agent", headers=agent) as socket:
            send(socket)
            assert isinstance(decode(socket.receive_text()), Refusal)


# ---------------------------------------------------------------------------- audit


def test_who_did_what_is_written_down(http: TestClient, service: Service, tmp_path: Path) -> None:
    submitter = bearer(http, "submitter")
    http.post("/api/v1/tasks", json=submission(), headers=submitter)
    http.post("/api/v1/tasks/1/cancel", headers=submitter)
    http.get("/api/v1/tasks", headers=submitter)
    http.post("/api/v1/clusters/left/drain", headers=submitter)
    http.post("/api/v1/clusters/left/drain")
    http.get("/api/v1/tasks", headers={"Authorization": "Bearer guessed"})
    with pytest.raises(WebSocketDisconnect), http.websocket_connect("/api/v1/agent", headers=submitter):
        pass
    lines = http.get("/api/v1/audit").json()["lines"]
    assert [(line["who"], line["what"], line["status"], line["detail"]) for line in lines] == [
        ("first", "POST /api/v1/tokens", 201, "'a submitter', submitter"),
        ("a submitter", "POST /api/v1/tasks", 201, "1 tasks, from 1 to 1"),
        ("a submitter", "POST /api/v1/tasks/1/cancel", 200, ""),
        ("a submitter", "POST /api/v1/clusters/left/drain", 403, ""),
        ("first", "POST /api/v1/clusters/left/drain", 200, ""),
        (None, "GET /api/v1/tasks", 401, "no valid token"),
        ("a submitter", "agent", 401, "no valid token of an agent"),
    ]
    assert {line["from"] for line in lines} == {"testclient"}
    path = tmp_path / "state" / "audit.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "guessed" not in path.read_text()
    assert len(http.get("/api/v1/audit?limit=2").json()["lines"]) == 2


def test_old_audit_files_are_turned_over(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl", most=200)
    for n in range(100):
        log.note(float(n), "me", "here", "test", 200, "x" * 50)
    log.close()
    assert len(list(tmp_path.iterdir())) == audit_module.OLDER + 1
    log = Audit(tmp_path / "audit.jsonl", most=200)
    assert [line["at"] for line in log.latest(3)] == [97.0, 98.0, 99.0]
    log.close()


# --------------------------------------------------------------- places, variables


def test_only_variables_that_the_site_allows_may_be_set(http: TestClient) -> None:
    assert http.post("/api/v1/tasks", json=submission(env={"MY_X": "1", "SEED": "2"})).status_code == 201
    refused = http.post("/api/v1/tasks", json=submission(env={"SEED": "1", "LD_PRELOAD": "/x.so"}))
    assert refused.status_code == 422
    assert refused.json()["detail"] == "variable 'LD_PRELOAD' may not be set; this site allows MY_*, SEED"


def run_in(directory: Path, cwd: Path, code: str = "pass", **more: Any) -> Run:
    write_lease(directory / "lease", boot_clock() + 60.0)
    launch = Launch((1, 1), (sys.executable, "-c", code), {"cpu": 1.0}, {}, cwd=str(cwd), **more)
    run = Run(launch, directory / "run", {}, directory / "lease")
    run.directory.mkdir()
    return run


@pytest.mark.parametrize("inside", [True, False])
def test_a_link_out_of_a_root_leads_nowhere(tmp_path: Path, inside: bool) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (root / "link").symlink_to(root / "real" if inside else outside)
    run = run_in(tmp_path, root / "link", "open('ran', 'w')")
    backend = opened(Process(), roots=(str(root),))
    if inside:
        backend.start(run)
        assert end_of(run).result == "finished"
        assert (root / "real" / "ran").exists()
    else:
        with pytest.raises(LaunchFailed, match="outside is not within"):
            backend.start(run)


def test_a_link_that_is_bent_after_it_was_checked_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "place").mkdir(parents=True)
    outside.mkdir()

    def bend(path: Path, data: object, sync: bool = False) -> None:
        if path.name == "run.json":
            (root / "place").rmdir()
            (root / "place").symlink_to(outside)
        replace_file(path, data, sync)

    monkeypatch.setattr("tapfinger.live.backends.supervision.replace_file", bend)
    run = run_in(tmp_path, root / "place", "open('ran', 'w')")
    opened(Process(), roots=(str(root),)).start(run)
    end = end_of(run)
    assert (end.result, end.code) == ("failed", 127)
    assert f"{outside} is not within {root}" in end.reason
    assert not (outside / "ran").exists()


# ------------------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, as in the documentation."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=tapfinger", "-addext", names]
    words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.slow
def test_a_site_with_tls(tmp_path: Path, cert: tuple[Path, Path]) -> None:
    site = RealSite(tmp_path)
    site.ca = str(cert[0])
    try:
        client = site.serve("--tls-cert", str(cert[0]), "--tls-key", str(cert[1]), "--log-format", "json")
        assert site.url.startswith("https://")
        site.agent("left", "--tls-ca", str(cert[0]), "--log-format", "json")
        (task,) = client.submit(python("print('encrypted')"))
        assert client.wait(task, PATIENCE).code == 0
        assert b"".join(client.logs(task, follow=True)) == b"encrypted\n"
        with Client(site.url, "x") as stranger, pytest.raises(CoordinatorError, match="certificate verify failed"):
            stranger.counts()
        with httpx.Client() as plain, pytest.raises(httpx.HTTPError):
            plain.get(site.url.replace("https", "http")).raise_for_status()
        environment = {**os.environ, "TAPFINGER_STATE": str(site.state)}
        command = [sys.executable, "-m", "tapfinger", "list"]
        listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "1 finished" in listed.stdout, "a command beside the coordinator believes what that shows"
        token = client.new_token("big", "agent", "right")
        address = site.url.replace("http", "ws") + "/api/v1/agent"
        headers = {"Authorization": f"Bearer {token}"}
        trusting = trust(site.ca)
        with pytest.raises(InvalidStatus), connect(address, additional_headers=headers, ssl=trusting, proxy=None):
            pass  # who does not greet as an agent comes in with people
        trusting.set_alpn_protocols([AGENT_PROTOCOL])
        with connect(address, additional_headers=headers, ssl=trusting, proxy=None) as socket:
            # Its head is enough; those who send it all may find the connection reset before they read why.
            # The thread that reads may be told of the end while this one is still at sending.
            with suppress(ssl.SSLZeroReturnError):
                socket.socket.sendall(b"\x81\xff" + (9 << 20).to_bytes(8, "big") + bytes(4))
            with pytest.raises(ConnectionClosed, match="1009"):
                socket.recv(10)
        events = [json.loads(line) for line in (site.state / "coordinator.log").read_text().splitlines()]
        assert {"event": "finished", "task": task}.items() <= next(
            e for e in events if e.get("event") == "finished"
        ).items()
        for line in (site.state / "left.log").read_text().splitlines():
            assert json.loads(line)["level"] in ("info", "warning")
    finally:
        site.close()


def test_certificates_are_checked_at_the_start(tmp_path: Path, cert: tuple[Path, Path]) -> None:
    assert certificate(None, None) is None
    with pytest.raises(ConfigError, match="are needed together"):
        certificate(cert[0], None)
    with pytest.raises(ConfigError, match="cannot be used"):
        certificate(cert[1], cert[1])
    with pytest.raises(ConfigError, match="cannot be read as a file of certificates"):
        trust(tmp_path / "missing")


def test_nobody_listens_to_the_world_by_accident() -> None:
    with pytest.raises(ConfigError, match="give --tls-cert and --tls-key"):
        check_address("0.0.0.0", allow_remote=False, encrypted=False)
    check_address("0.0.0.0", allow_remote=False, encrypted=True)
    check_address("0.0.0.0", allow_remote=True, encrypted=False)
    check_address("::1", allow_remote=False, encrypted=False)
    assert travels_openly("http://lab.example:7410")
    assert not travels_openly("https://lab.example:7410")
    assert not travels_openly("http://127.0.0.1:7410")


# ----------------------------------------------------------------------- log format


def test_lines_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("task %d\nwent", 7, extra={"event": "finished", "task": 7})
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("x").exception("bad")
    first, second = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert (first["message"], first["event"], first["task"], first["level"]) == ("task 7\nwent", "finished", 7, "info")
    assert "ValueError: why" in second["exception"]
    with pytest.raises(Exception, match="there is no log format 'xml'"):
        set_up_logging(False, "xml")


def test_tokens_at_the_command_line(
    http: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Untimed:
        """The test's client does not want to be told how long to wait."""

        def request(self, method: str, path: str, timeout: float, **more: Any) -> httpx.Response:
            return http.request(method, path, **more)

    class Beside(Client):
        def __init__(self) -> None:
            super().__init__("http://testserver", "unused")
            self._lines = {"http://testserver": Untimed()}  # type: ignore[dict-item]
            http.base_url = httpx.URL("http://testserver/api/v1/")

        def close(self) -> None:
            pass

    monkeypatch.setattr("tapfinger.commands.access.open_client", lambda *_: Beside())

    def call(*words: str) -> list[str]:
        from tapfinger.cli import main

        monkeypatch.setattr(sys, "argv", ["tapfinger", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None)
        return capsys.readouterr().out.splitlines()

    (secret,) = call("token", "ann", "--role", "viewer", "--days", "2")
    assert secret.startswith("tf_")
    assert call("token", "new", "bob", "--role", "agent", "--cluster", "left")[0].startswith("tf_")
    listed = call("token", "list")
    assert listed[0].startswith("ann: viewer, until 20")
    assert listed[1:] == ["bob: agent of left, no end", "first: operator, no end"]
    assert call("token", "revoke", "ann") == []
    assert len(call("token", "list")) == 2
    assert call("token", "ann", "--role", "viewer", "--inherit")[0].startswith("tf_")
    assert call("token", "revoke", "ann") == []
    assert call("audit")[-1].endswith("first from testclient: DELETE /api/v1/tokens/ann -> 200")
