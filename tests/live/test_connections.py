"""Connections after the door: how answers are sent, and how much is read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import h11
import pytest
from live.serving import request, serving
from live.test_security import cert as cert  # a fixture
from live.test_security import make_service
from waiting import wait_for

from tapfinger.live.http.app import make_app
from tapfinger.live.http.connections import JoinedAnswers
from tapfinger.live.http.tls import trust

MIB = 1 << 20


def served() -> JoinedAnswers:
    """A connection that has read a request."""
    made = JoinedAnswers(h11.SERVER)
    made.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while made.next_event() is not h11.PAUSED and made.their_state is not h11.DONE:
        pass
    return made


def test_an_answer_that_is_there_is_sent_in_one_go() -> None:
    connection = served()
    assert connection.send(h11.Response(status_code=200, headers=[("Content-Length", "2")])) == b""
    sent = connection.send(h11.Data(data=b"ok"))
    assert sent.startswith(b"HTTP/1.1 200")
    assert sent.endswith(b"\r\n\r\nok")
    assert connection.send(h11.EndOfMessage()) == b""


def test_an_empty_answer_is_sent() -> None:
    connection = served()
    connection.send(h11.Response(status_code=204, headers=[("Content-Length", "0")]))
    sent = [connection.send(h11.Data(data=b"")), connection.send(h11.EndOfMessage())]
    assert b"".join(sent).startswith(b"HTTP/1.1 204")


def test_the_head_of_a_stream_does_not_wait_for_what_comes_later() -> None:
    connection = served()
    assert connection.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_comes_behind_a_request_is_not_read_before_its_answer(cert: tuple[Path, Path], encrypted: bool) -> None:
    """However often that request begins to wait for its client's end; the others are answered after it."""
    held: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        if scope["path"] == "/wait":
            for _ in range(300):
                waits = asyncio.ensure_future(_gone(receive))
                for _ in range(10):
                    await asyncio.sleep(0)
                waits.cancel()
                held.extend(len(one.conn.trailing_data[0]) for one in server.server_state.connections)
        else:
            more = True
            while more:
                message = await receive()
                size, more = size + len(message["body"]), message["more_body"]
        said = f"{scope['path']} {size};".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
        await send({"type": "http.response.body", "body": said})

    following = request("POST", "/long", f"Content-Length: {16 * MIB}") + b"x" * 16 * MIB
    following += b"".join(request("GET", f"/{n}") for n in range(3)) + request("GET", "/last", "Connection: close")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if encrypted else None
    if context is not None:
        context.load_cert_chain(*cert)
    with serving(app, context) as (server, come):
        answers = asyncio.run(_talk(come(), request("GET", "/wait") + following, cert[0] if encrypted else None))
    said = [text.rpartition("\n")[2] for text in answers.decode().split(";")]
    assert said == ["/wait 0", f"/long {16 * MIB}", "/0 0", "/1 0", "/2 0", "/last 0", ""]
    assert max(held) < MIB


async def _talk(client: socket.socket, said: bytes, ca: Path | None) -> bytes:
    """Say all of it, and read answers meanwhile until the connection ends."""
    more = {} if ca is None else {"ssl": trust(ca), "server_hostname": "localhost"}
    reader, writer = await asyncio.open_connection(sock=client, **more)
    writer.write(said)
    answers = await reader.read()
    writer.close()
    return answers


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "FOO"])
def test_what_is_no_http_within_a_request_leaves_no_traceback(caplog: pytest.LogCaptureFixture, method: str) -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await _gone(receive)

    with serving(app) as (_, come):
        client = come()
        client.sendall(request(method, "/", "Transfer-Encoding: chunked") + b"zz\r\n")
        said = b""
        while part := client.recv(65536):
            said += part
        client.close()
    assert said.startswith(b"HTTP/1.1 400")
    assert not [line for line in caplog.records if line.exc_info or line.levelname == "ERROR"]


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_no_http_within_a_request_ends_it(caplog: pytest.LogCaptureFixture, begun: bool) -> None:
    ended: list[str] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await _gone(receive)
        await send({"type": "http.response.start", "status": 411, "headers": []})
        await send({"type": "http.response.body", "body": b"last"})
        ended.append("app")

    with serving(app) as (_, come):
        client = come()
        client.sendall(request("POST", "/", "Transfer-Encoding: chunked"))
        if begun:
            assert client.recv(MIB).startswith(b"HTTP/1.1 200")
        client.sendall(b"zz\r\n")
        answer = b""
        while piece := client.recv(MIB):
            answer += piece
        wait_for(lambda: ended)
    assert b"411" not in answer
    assert answer.startswith(b"HTTP/1.1 400") is not begun
    assert [one.getMessage() for one in caplog.records if one.levelname != "WARNING"] == []


@pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/v1/tokens"])
def test_a_client_that_hangs_up_in_the_middle_of_a_body_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    service = make_service(tmp_path)
    with serving(make_app(service), lifespan=True) as (_, come):
        client = come()
        lines = (f"Authorization: Bearer {service.token}", "Content-Type: application/json", "Content-Length: 50")
        client.sendall(request("POST", path, *lines) + b"[")
        client.close()
        wait_for(lambda: service.kept.audit.latest(1))
        (line,) = service.kept.audit.latest(1)
    assert (line["what"], line["status"] // 100) == (f"POST {path}", 4)
    assert "Exception in ASGI application" not in caplog.text


def test_a_stranger_whose_chunks_are_none_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(make_app(make_service(tmp_path)), lifespan=True) as (_, come):
        client = come()
        client.sendall(request("POST", "/api/v1/tasks", "Transfer-Encoding: chunked") + b"zz\r\n")
        answer = b""
        while piece := client.recv(MIB):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert "Exception in ASGI application" not in caplog.text
