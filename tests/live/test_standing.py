"""A token that is revoked while its request is under way does nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live.services import services

from tapfinger.live.http import auth, standing, submissions
from tapfinger.live.http.app import make_app
from tapfinger.live.http.standing import NO_LONGER
from tapfinger.live.protocol.wire import FileAnswer
from tapfinger.live.service.service import Service


class Slow:
    """A request whose body comes in two pieces, with something in between."""

    def __init__(self, service: Service, token: str, method: str, path: str, body: object = None) -> None:
        self._app = make_app(service, runs_service=False)
        self._body = b"" if body is None else json.dumps(body).encode()
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
        if self._body:
            headers.append((b"content-length", str(len(self._body)).encode()))
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http", "method": method, "path": path, "headers": headers, "query_string": query.encode()
        }  # fmt: skip
        self.sent: list[Any] = []

    async def run(self, between: Callable[[], Awaitable[None] | None]) -> tuple[int, Any]:
        """Status and answer; ``between`` is called before the last piece, or before the client waits."""
        pieces = [{"type": "http.request", "body": self._body[:-1], "more_body": True}] if self._body else []

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop()
            if (waits := between()) is not None:
                await waits
            if self._body:
                return {"type": "http.request", "body": self._body[-1:], "more_body": False}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await self._app({**self._scope, "client": ("127.0.0.1", 1)}, receive, send)  # type: ignore[arg-type]
        content = b"".join(message.get("body", b"") for message in self.sent[1:])
        return self.sent[0]["status"], json.loads(content)

    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "RECENT", 0.0)


REQUESTS: list[tuple[str, str, str, object]] = [
    ("operator", "POST", "/api/v1/tokens", {"name": "door at the back", "role": "operator"}),
    ("submitter", "POST", "/api/v1/tasks", {"tasks": [{"argv": ["x"], "type": "demo"}]}),
    ("submitter", "POST", "/api/v1/tasks", {"tasks": [{"argv": ["x" * 70_000], "type": "demo"}]}),
    ("submitter", "PUT", "/api/v1/secrets/A", {"value": "planted"}),
]


@pytest.mark.parametrize(("role", "method", "path", "body"), REQUESTS)
@pytest.mark.parametrize("how", ["revoked", "replaced", "expired"])
def test_a_token_that_ends_before_its_body_has_come_does_nothing(
    tmp_path: Path, role: str, method: str, path: str, body: object, how: str
) -> None:
    with services(tmp_path) as make:
        service = make()
        request = Slow(service, service.issue("eve", role, None, 100.0), method, path, body)

        def end() -> None:
            if how == "revoked":
                service.revoke("eve")
            elif how == "replaced":
                service.issue("eve", role, None)
            else:
                service._offset += 101

        assert asyncio.run(request.run(end)) == (401, {"detail": NO_LONGER})
        assert request.headers()[b"connection"] == b"close"
        assert {token.name for token in service.store.tokens()} <= {"first", "eve"}
        assert not list(service.store.tasks((), 10))
        assert not service.store.secrets.kept("eve")
        assert service.kept.audit.latest(1)[0]["status"] == 401
        service.issue("eve", role, None)  # nothing is left that would keep the name from others


def test_a_token_that_ends_while_a_long_body_is_parsed_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services(tmp_path) as make:
        service = make()
        _, method, path, body = REQUESTS[2]
        request = Slow(service, service.issue("eve", "submitter", None), method, path, body)
        parse = submissions.checked

        def checked(body: bytes) -> Any:
            service.revoke("eve")
            return parse(body)

        monkeypatch.setattr(submissions, "checked", checked)
        assert asyncio.run(request.run(lambda: None)) == (401, {"detail": NO_LONGER})
        assert not list(service.store.tasks((), 10))


def test_news_is_not_for_a_token_that_was_revoked_meanwhile(tmp_path: Path) -> None:
    with services(tmp_path) as make:
        service = make()
        request = Slow(
            service,
            service.issue("eve", "viewer", None),
            "GET",
            f"/api/v1/events?after={service.store.last_line()}&wait=30",
        )

        def end() -> None:
            service.revoke("eve")
            service.changes.announce()

        assert asyncio.run(request.run(end)) == (401, {"detail": NO_LONGER})


def test_files_are_not_for_a_token_that_was_revoked_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with services(tmp_path) as make:
        service = make()

        async def files_of(*_: object, **__: object) -> FileAnswer:
            service.revoke("eve")
            return FileAnswer(1, data="x")

        monkeypatch.setattr(service, "place_of_files", lambda *_: (1, "left"))
        monkeypatch.setattr(service, "files_of", files_of)
        token = service.issue("eve", "operator", None)
        record = SimpleNamespace(owner="eve")
        monkeypatch.setattr(service, "task", lambda _: record)
        for path in ("/api/v1/tasks/1/files", "/api/v1/tasks/1/files/content?path=x"):
            request = Slow(service, token, "GET", path)
            assert asyncio.run(request.run(lambda: None)) == (401, {"detail": NO_LONGER})
            token = service.issue("eve", "operator", None)


def test_a_request_that_comes_at_once_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "RECENT", 1000.0)
    asked: list[str] = []
    lookup = auth.lookup

    async def counted(service: Service, given: str) -> Any:
        asked.append(given)
        return await lookup(service, given)

    monkeypatch.setattr(auth, "lookup", counted)
    with services(tmp_path) as make:
        service = make()
        _, method, path, body = REQUESTS[3]
        request = Slow(service, service.issue("ann", "submitter", None), method, path, body)
        assert asyncio.run(request.run(lambda: None))[0] in (200, 201, 204)
    assert len(asked) == 1
