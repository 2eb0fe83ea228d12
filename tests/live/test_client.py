"""A client that knows several coordinators: whom it asks, what it repeats, and what it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import TypeAdapter

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.http import client as client_module
from tapfinger.live.http.client import Client, TaskInfo, make_spec

PLAIN = make_spec(argv=["x"], type="demo")
KEYED = make_spec(argv=["x"], type="demo", key="k")


class Fake:
    """A coordinator that is there to be asked."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None], port: int = 0) -> None:
        self.asked = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                fake.asked += 1
                answer(self)

            do_GET = do_POST  # noqa: N815 - names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def leads(request: BaseHTTPRequestHandler) -> None:
    request.send_response(201)
    request.end_headers()
    request.wfile.write(b'{"ids": [7]}')


def counts(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(b'{"tasks": [], "counts": {"running": 1}}')


def shows(task: TaskInfo) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(TypeAdapter(TaskInfo).dump_json(task))

    return answer


def dies(request: BaseHTTPRequestHandler) -> None:
    """Has read the request, and is gone: nobody knows what it did with it."""
    request.connection.close()


def stands_by(leader: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(503)
        request.send_header("X-Leader", leader)
        request.end_headers()
        request.wfile.write(b'{"detail": "stands by"}')

    return answer


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(answer: Callable[[BaseHTTPRequestHandler], None], port: int = 0) -> Fake:
        made.append(Fake(answer, port))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_whoever_stands_by_names_the_leader_which_is_asked_from_then_on(fake: Callable[..., Fake]) -> None:
    leader = fake(leads)
    standby = fake(stands_by(leader.url))
    with Client(standby.url, "token") as client:
        assert client.submit(PLAIN) == client.submit(PLAIN) == [7]
    assert (standby.asked, leader.asked) == (1, 2)


def test_a_task_from_a_time_with_other_limits_is_shown(fake: Callable[..., Fake]) -> None:
    spec = replace(PLAIN, env={"V" * 250: "1"}, clusters=("left",) * 2000)
    waits = TaskInfo(7, spec, "ann", 1.0, Phase.QUEUED, 0, None, None, None, None, 0, 0, False, None, "", 0)
    with Client(fake(shows(waits)).url, "token") as client:
        assert client.show(7) == waits


def test_a_coordinator_that_cannot_be_reached_is_passed_over(fake: Callable[..., Fake]) -> None:
    with Client(f"http://127.0.0.1:1, {fake(leads).url}/", "token") as client:
        assert client.submit(PLAIN) == [7]


def test_what_may_have_been_done_is_repeated_only_where_that_does_no_harm(fake: Callable[..., Fake]) -> None:
    first, leader = fake(dies), fake(leads)
    with Client(f"{first.url},{leader.url}", "token") as client:
        with pytest.raises(CoordinatorError, match="Whether it took the tasks is not known"):
            client.submit(PLAIN, KEYED)
        assert leader.asked == 0
        assert client.submit(KEYED) == [7]


def test_where_nobody_leads_for_long_that_is_an_error(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ELECTION", 0.5)
    first, second = fake(stands_by("")), fake(stands_by(""))
    with (
        Client(f"{first.url},{second.url}", "token") as client,
        pytest.raises(CoordinatorError, match=f"no coordinator leads: {first.url}, {second.url} stand by"),
    ):
        client.submit(PLAIN)
    assert first.asked + second.asked >= 3


def test_who_waits_for_a_task_outlasts_the_only_coordinator(fake: Callable[..., Fake]) -> None:
    gone = Fake(leads)
    gone.close()
    with Client(gone.url, "token") as client:
        with pytest.raises(CoordinatorError, match="no answer from the coordinator"):
            client.counts()
        client.patience = 0.5
        with pytest.raises(CoordinatorError, match="no answer from the coordinator"):
            client.counts()
        client.patience = 30.0
        with pytest.raises(CoordinatorError, match="no answer from the coordinator"):
            client.submit(PLAIN)  # not waited for: nobody has heard of it yet
        port = int(gone.url.rpartition(":")[2])
        back = threading.Timer(0.5, lambda: fake(counts, port))
        back.start()
        assert client.counts() == {"running": 1}
        back.join()


@pytest.mark.parametrize(
    ("types", "chosen"), [(["a", "demo"], "demo"), (["training"], "training"), (["a", "b"], ConfigError)]
)
def test_a_task_that_names_no_type_gets_the_sites(
    types: list[str], chosen: str | type[ConfigError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client("http://127.0.0.1:1", "token") as client:
        monkeypatch.setattr(client, "site", lambda: {"scenario": {"task_types": [{"name": name} for name in types]}})
        if isinstance(chosen, str):
            assert client.default_type() == chosen
        else:
            with pytest.raises(chosen, match="several task types: a, b; say which with --type"):
                client.default_type()


@pytest.mark.parametrize("address", ["http://[::1", "http://a\nb", "http://\udcff"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(CoordinatorError, match="is no address of a coordinator"):
        Client(address, "t")


def test_words_that_are_no_text_are_told() -> None:
    """As a shell hands over what is not UTF-8."""
    odd = "a\udcff"
    with Client("http://127.0.0.1:1", "t") as client:
        for call in (
            lambda: client.drain(odd),
            lambda: client.new_token(odd, "viewer"),
            lambda: client.revoke(odd),
            lambda: client.remove_secret(odd),
            lambda: list(client.files(1, odd)),
        ):
            with pytest.raises(ConfigError, match="is no text that could be sent"):
                call()
