"""Secrets reach the task, and nothing else: no answer, no file, no log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.services import services
from live.sites import RealSite, python
from waiting import PATIENCE, wait_for

from tapfinger.errors import ConfigError, NotFound, TooMany
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.ray import Ray
from tapfinger.live.http.app import make_app
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.protocol.messages import Launch, Orders
from tapfinger.live.protocol.records import MAX_VALUE
from tapfinger.live.service import given_secrets
from tapfinger.live.service.secret_orders import with_secrets
from tapfinger.live.service.service import Service
from tapfinger.live.store.secrets import MAX_GIVEN, MAX_GIVEN_TEXT, MAX_KEPT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient

VALUE = "plugh-54321"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with services(tmp_path) as make:
        yield make()


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


def bearer(http: TestClient, name: str, role: str = "submitter", inherit: bool = False) -> dict[str, str]:
    body = {"name": name, "role": role, "inherit": inherit}
    token = http.post("/api/v1/tokens", json=body).json()["token"]
    return {"Authorization": f"Bearer {token}"}


def submit(http: TestClient, headers: dict[str, str], *names: str, **more: Any) -> Any:
    given = more.pop("given", {})
    task = {"argv": ["x"], "type": "demo", "secrets": names, **more}
    return http.post("/api/v1/tasks", json={"tasks": [task], "secrets": given}, headers=headers)


def keep(http: TestClient, headers: dict[str, str], name: str, value: str = VALUE) -> Any:
    return http.put(f"/api/v1/secrets/{name}", json={"value": value}, headers=headers)


def sent(service: Service, task: int) -> dict[str, str | None]:
    """The secrets that an agent would be sent with this task."""
    orders = Orders("left", "a", 1, 1, 1, 1, 1.0, (Launch((task, 1), ("x",), {}, {}),))
    tasks = {task: service.task(task)}
    return with_secrets(orders, tasks, service.store.secrets).starts[0].secrets


def test_secrets_are_each_owners_own_and_never_shown(http: TestClient, service: Service) -> None:
    ann, bob = bearer(http, "ann"), bearer(http, "bob")
    assert keep(http, ann, "KEY").json() == {"kept": "KEY"}
    listed = http.get("/api/v1/secrets", headers=ann)
    assert [one["name"] for one in listed.json()["secrets"]] == ["KEY"]
    assert VALUE not in listed.text
    assert http.get("/api/v1/secrets", headers=bob).json() == {"secrets": []}
    assert http.get("/api/v1/secrets").json() == {"secrets": []}, "nor are they an operator's"
    refused = submit(http, bob, "KEY")
    assert refused.status_code == 422
    assert "bob keeps no secret 'KEY'; keep it with 'tapfinger secret set KEY'" in refused.json()["detail"]
    assert http.delete("/api/v1/secrets/KEY", headers=bob).status_code == 404
    assert submit(http, ann, "KEY").status_code == 201
    assert sent(service, 1) == {"KEY": VALUE}
    assert keep(http, ann, "KEY", "newer").status_code == 200
    assert sent(service, 1) == {"KEY": "newer"}, "a new value is for tasks that wait as well"
    assert http.delete("/api/v1/secrets/KEY", headers=ann).json() == {"removed": "KEY"}
    assert sent(service, 1) == {"KEY": None}
    viewer = bearer(http, "eve", "viewer")
    assert keep(http, viewer, "KEY").status_code == 403


def test_a_name_that_goes_to_someone_else_brings_no_secrets(http: TestClient, service: Service) -> None:
    ann = bearer(http, "ann")
    keep(http, ann, "KEY")
    submit(http, ann, "KEY")
    renewed = bearer(http, "ann")
    assert [one["name"] for one in http.get("/api/v1/secrets", headers=renewed).json()["secrets"]] == ["KEY"]
    http.delete("/api/v1/tokens/ann")
    another = bearer(http, "ann", inherit=True)
    assert http.get("/api/v1/secrets", headers=another).json() == {"secrets": []}
    assert submit(http, another, "KEY").status_code == 422
    keep(http, another, "KEY", "another's")
    assert sent(service, 1) == {"KEY": None}, "nor do the earlier one's tasks get the later one's"
    submit(http, another, "KEY")
    assert sent(service, 2) == {"KEY": "another's"}


def test_a_value_given_with_a_task_is_kept_until_it_ends(http: TestClient, service: Service) -> None:
    ann = bearer(http, "ann")
    keep(http, ann, "KEY", "kept")
    assert submit(http, ann, "KEY", "OTHER", given={"KEY": VALUE, "OTHER": "o"}).status_code == 201
    assert submit(http, ann, "KEY").status_code == 201
    assert (sent(service, 1), sent(service, 2)) == ({"KEY": VALUE, "OTHER": "o"}, {"KEY": "kept"})
    assert service.store.secrets.given("ann") == (2, len(VALUE) + 1)
    orders = Orders("left", "a", 1, 1, 1, 1, 1.0, (Launch((1, 1), ("x",), {}, {}),))
    assert with_secrets(orders, {}, service.store.secrets).starts == (), "an ended task does not run without them"
    http.post("/api/v1/tasks/1/cancel", headers=ann)
    assert service.store.secrets.given("ann") == (0, 0)
    assert sent(service, 2) == {"KEY": "kept"}


def test_a_task_that_is_submitted_again_needs_its_secrets_no_more(http: TestClient, service: Service) -> None:
    ann = bearer(http, "ann")
    keep(http, ann, "KEY")
    for _ in range(2):
        answer = submit(http, ann, "KEY", "OWN", key="once", given={"OWN": VALUE})
        assert answer.json() == {"ids": [1]}
        http.delete("/api/v1/secrets/KEY", headers=ann)
    assert service.store.secrets.given("ann") == (1, len(VALUE))


def test_what_cannot_be_a_secret_is_refused(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = bearer(http, "ann")
    keep(http, ann, "KEY")
    for names, more in (
        (("KEY", "KEY"), {}),
        (("KEY",), {"env": {"KEY": "x"}}),
        (("TAPFINGER_CPUS",), {"given": {"TAPFINGER_CPUS": "9"}}),
        (("KEY",), {"given": {"UNUSED": VALUE}}),
        (("KEY",), {"given": {"KEY": VALUE * 5000}}),
        (("KEY",), {"given": {"KEY": f"{VALUE}\0"}}),
        (("KEY",), {"given": {"KEY": ""}}),
        (("a-b",), {}),
    ):
        answer = submit(http, ann, *names, **more)
        assert answer.status_code == 422, (names, more)
        assert VALUE not in answer.text
    for name, value in (("a-b", "x"), ("K", ""), ("K", "x" * (MAX_VALUE + 1)), ("K" * 201, "x"), ("K", "a\0")):
        assert keep(http, ann, name, value).status_code == 422
    monkeypatch.setattr("tapfinger.live.store.secrets.MAX_KEPT", 2)
    assert keep(http, ann, "SECOND").status_code == 200
    third = keep(http, ann, "THIRD")
    assert (third.status_code, third.json()["detail"]) == (
        422,
        "ann has 2 secrets, which is the most; remove one first",
    )
    assert keep(http, ann, "SECOND", "again").status_code == 200
    monkeypatch.setattr("tapfinger.live.service.given_secrets.MAX_GIVEN", 1)
    assert submit(http, ann, "G", given={"G": "1"}).status_code == 201
    assert submit(http, ann, "G", given={"G": "1"}).status_code == 429
    assert (MAX_KEPT, MAX_GIVEN) == (64, 1000)


def many(names: int, tasks: int, length: int) -> dict[str, Any]:
    """Tasks that each bring long secrets of their own, in a short body."""
    given = {f"K{n}": "x" * length for n in range(names)}
    specs = [make_spec(argv=["x"], type="demo", secrets=list(given)) for _ in range(tasks)]
    return {"specs": specs, "owner": "ann", "secrets": given}


def test_long_values_are_given_with_few_tasks(service: Service) -> None:
    service.config = service.config.model_copy(update={"max_waiting": 10_000})

    async def submit_long() -> None:
        with pytest.raises(TooMany, match=r"may have 4,194,304 characters together, and with these .* 4,210,688"):
            await service.submit(**many(1, 257, MAX_VALUE))
        await service.submit(**many(1, 256, MAX_VALUE))
        with pytest.raises(TooMany, match="characters together"):
            await service.submit(**many(1, 1, 1))

    asyncio.run(submit_long())
    assert service.store.secrets.given("ann") == (256, MAX_GIVEN_TEXT)


def test_refused_values_do_not_have_the_store_read_each_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.config = service.config.model_copy(update={"max_waiting": 10_000})
    clock, reads = [0.0], list[str]()
    given = service.store.secrets.given

    def read(owner: str) -> tuple[int, int]:
        reads.append(owner)
        return given(owner)

    monkeypatch.setattr(service.store.secrets, "given", read)
    monkeypatch.setattr(given_secrets.time, "monotonic", lambda: clock[0])

    async def submit_again_and_again() -> None:
        clock[0] = 1.0
        await service.submit(**many(1, 256, MAX_VALUE))
        reads.clear()
        for _ in range(20):
            with pytest.raises(TooMany):
                await service.submit(**many(1, 1, MAX_VALUE))
        assert reads == ["ann"]
        for ident in range(1, 3):
            await service.cancel(ident)
        clock[0] += 2 * given_secrets.FRESH
        await service.submit(**many(1, 1, MAX_VALUE))
        await service.submit(**many(1, 1, MAX_VALUE))

    asyncio.run(submit_again_and_again())


@pytest.mark.parametrize(("tasks", "length", "fit"), [(60, 1, 16), (16, MAX_VALUE, 16)])
def test_values_count_before_they_are_saved(service: Service, tasks: int, length: int, fit: int) -> None:
    service.config = service.config.model_copy(update={"max_waiting": 10_000})

    async def all_at_once() -> list[object]:
        ones = (service.submit(**many(1, tasks, length)) for _ in range(40))
        return await asyncio.gather(*ones, return_exceptions=True)

    found = asyncio.run(all_at_once())
    assert [type(one) for one in found] == [list] * fit + [TooMany] * (40 - fit)
    count, text = service.store.secrets.given("ann")
    assert count <= MAX_GIVEN
    assert text <= MAX_GIVEN_TEXT


def test_names_that_a_site_does_not_allow(http: TestClient, service: Service) -> None:
    service.config = service.config.model_copy(update={"env_names": ("MY_*",)})
    assert keep(http, {}, "KEY").status_code == 422
    assert keep(http, {}, "MY_KEY").status_code == 200
    assert submit(http, {}, "KEY", given={"KEY": "1"}).status_code == 422


# ------------------------------------------------------------------------------- agents


def test_an_agent_writes_no_secret_to_its_notes(tmp_path: Path) -> None:
    context = BackendContext(tmp_path, "left", {"cpu": 4.0})
    host = Host(context, Fake(), Devices({}), 1.0)
    try:
        report = host.report()
        env = {"FAKE_SECONDS": "100"}
        launch = Launch((1, 1), ("x",), {"cpu": 1.0}, env, secrets={"KEY": VALUE})
        gone = Launch((2, 1), ("x",), {"cpu": 1.0}, env, secrets={"KEY": None})
        orders = Orders("left", report.agent, report.incarnation, 1, 1, report.seq, 60.0, (launch, gone))
        (answer,) = host.step(orders)
        started, refused = sorted(answer.runs, key=lambda run: run.id)
        assert started.outcome is None
        assert refused.outcome is not None
        assert (refused.outcome.result, refused.outcome.code) == ("failed", 127)
        assert refused.outcome.reason.startswith("secret 'KEY' was removed before the task could start")
        noted = json.loads((tmp_path / "runs" / "1.1" / "launch.json").read_text())
        assert noted["launch"]["secrets"] == {}
        assert not any(VALUE.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert VALUE not in str(vars(host))
        assert boot_clock() < host.machine.lease_until
    finally:
        host.close()


def test_what_was_handed_to_ray_is_not_kept(tmp_path: Path) -> None:
    write_lease(tmp_path / "lease", boot_clock() + 1000.0)
    run = Run(Launch((1, 1), ("x",), {}, {}), tmp_path, lease=tmp_path / "lease")
    (tmp_path / "payload.json").write_text(VALUE)
    backend = Ray()
    try:
        assert backend._begin(run) == VALUE.encode()
        assert VALUE not in (tmp_path / "payload.json").read_text()
    finally:
        backend.close()


@pytest.mark.slow
def test_a_real_task_gets_its_secrets(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        environment = {**os.environ, "TAPFINGER_STATE": str(site.state)}

        def call(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "tapfinger", *words]
            return subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)

        assert call("secret", "set", "KEY", given=f"{VALUE}\n").returncode == 0
        assert call("secret", "list").stdout.startswith("KEY: set 20")
        shows = "import os; print(len(os.environ['KEY']), len(os.environ['ONCE']))"
        (tmp_path / "once").write_text("123\n")
        words = ("run", "--secret", "KEY", "--secret", f"ONCE={tmp_path / 'once'}", "--", sys.executable, "-c", shows)
        done = call(*words)
        assert (done.stdout, done.returncode) == (f"{len(VALUE)} 3\n", 0), done.stderr
        missing = call("submit", "--secret", "NONE", "--", "x")
        assert missing.returncode == 2
        assert "keeps no secret 'NONE'" in missing.stderr
        # One that waits when it is removed: the other cluster is full, and this one drained.
        client.drain("left")
        client.drain("right")
        (task,) = client.submit(python("pass", secrets=["KEY"]))
        assert call("secret", "remove", "KEY").returncode == 0
        client.drain("left", undo=True)
        info = client.wait(task, PATIENCE)
        assert (info.phase.value, info.code) == ("failed", 127)
        assert "secret 'KEY' was removed" in info.reason
        with pytest.raises(NotFound):
            client.remove_secret("KEY")
        for log in site.state.rglob("*.log"):
            assert VALUE not in log.read_text()
        assert VALUE not in (site.state / "audit.jsonl").read_text()
        assert call("history", "export", str(tmp_path / "out.csv")).returncode == 0
        assert VALUE not in (tmp_path / "out.csv").read_text()
        wait_for(lambda: not list((site.state / "agents").glob("*/runs/*/launch.json")))
    finally:
        site.close()


def test_a_client_that_gives_secrets(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, Any]] = []

    class Answer:
        def json(self) -> dict[str, Any]:
            return {"ids": [1], "secrets": []}

    def call(_self: Client, method: str, path: str, again: bool = True, **more: Any) -> Answer:
        asked.append((method, path, more.get("json")))
        return Answer()

    monkeypatch.setattr(Client, "_call", call)
    with Client("http://127.0.0.1:1", "t") as client:
        client.submit(make_spec(argv=["x"], type="demo", secrets=["K"]), secrets={"K": VALUE})
        client.keep_secret("K", VALUE)
        client.secrets()
        client.remove_secret("K")
    assert [one[:2] for one in asked] == [
        ("POST", "tasks"),
        ("PUT", "secrets/K"),
        ("GET", "secrets"),
        ("DELETE", "secrets/K"),
    ]
    assert asked[0][2]["secrets"] == {"K": VALUE}
    assert asked[0][2]["tasks"][0]["secrets"] == ["K"]


def test_options_with_values_in_files(tmp_path: Path) -> None:
    from tapfinger.commands.secrets import given_secrets

    (tmp_path / "value").write_text("two\nlines\r\n")
    assert given_secrets("--secret", ["A", f"B={tmp_path / 'value'}"]) == {"A": None, "B": "two\nlines"}
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="/dev/zero has more than 1,000,000 characters"):
        given_secrets("--secret", ["A=/dev/zero"])
    for wrong in (["A", "A"], ["=x"], [f"A={tmp_path / 'missing'}"], [f"A={tmp_path / 'bytes'}"]):
        with pytest.raises(ConfigError, match="--secret"):
            given_secrets("--secret", wrong)
