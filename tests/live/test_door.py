"""The door and what is behind it: who is let in, what is counted, what each may use, what the log keeps."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import select
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from live.sites import RealSite, python
from live.test_security import make_service
from waiting import PATIENCE, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, StoreUnavailable
from tapfinger.live.http import answer_threads, auth, bodies, connections, door, known_addresses, pages
from tapfinger.live.http.app import make_app
from tapfinger.live.http.crowd import Crowd
from tapfinger.live.http.door import Door, kind_of, rooms
from tapfinger.live.http.guests import GRACE, Guest, GuestBook, GuestRoom
from tapfinger.live.http.known_addresses import KnownAddresses, origin_of
from tapfinger.live.http.limits import Buckets, Reserve
from tapfinger.live.http.server import check_proxy
from tapfinger.live.http.tls import AGENT_PROTOCOL
from tapfinger.live.logging_setup import SAME, Sparing
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.wire import Refusal, decode, encode
from tapfinger.live.service.loop_bridge import Announcer, LoopBridge
from tapfinger.live.service.loop_lag import WINDOW, LoopLag
from tapfinger.live.service.service import Service
from tapfinger.live.store import tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its test client would rather have another HTTP library than ours
    from fastapi.testclient import TestClient


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make_service(tmp_path)


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), headers={"Authorization": f"Bearer {service.token}"}) as client:
        yield client


def submission(count: int = 1, **more: Any) -> dict[str, Any]:
    return {"tasks": [{"argv": ["x"], "type": "demo", **more}] * count}


# ---------------------------------------------------------------------------- first bytes


def greeting(host: str, *protocols: str) -> bytes:
    """The first record of TLS of somebody who looks for this host."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    if protocols:
        context.set_alpn_protocols(protocols)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=host).do_handshake()
    return sent.read()


HELLO = greeting("x", AGENT_PROTOCOL, "http/1.1")


@pytest.mark.parametrize(
    ("data", "encrypted", "kind"),
    [
        (b"", False, None),
        (b"GET /api/v1/agent HTTP/1.1\r\n", False, None),
        (b"GET /api/v1/agent HTTP/1.1\r\n\r\n", False, "strangers"),
        (b"GET /api/v1/agents HTTP/1.1\r\n\r\n", False, "people"),
        (b"POST /api/v1/agent HTTP/1.1\r\n\r\n", False, "people"),
        (b"x" * door.LOOKED_AT, False, "people"),
        (HELLO, True, "strangers"),
        (HELLO[:-1], True, None),
        (greeting("x", "http/1.1", AGENT_PROTOCOL), True, "strangers"),
        (greeting("x", "http/1.1"), True, "people"),
        (greeting("x", f"{AGENT_PROTOCOL}s"), True, "people"),
        (greeting(AGENT_PROTOCOL, "http/1.1"), True, "people"),
        (greeting(f"tapfinger-agents.{AGENT_PROTOCOL}"), True, "people"),
        (b"\x16\x03\x01\x00\x20" + bytes(32), True, "people"),
        (b"\x16\x03\x01\xff\xff" + bytes(door.LOOKED_AT), True, "people"),
        (b"\x16\x03\x01\xff\xff" + b"\xff" * door.LOOKED_AT, True, "people"),
        (b"\x16\x03\x01\x00\x00", True, "people"),
        (b"GET / HTTP/1.1\r\n\r\n", True, None),
    ],
)
def test_the_first_bytes_tell_agents_from_people(data: bytes, encrypted: bool, kind: str | None) -> None:
    assert kind_of(data, encrypted) == kind


def test_there_is_room_for_agents_however_few_files_there_are() -> None:
    for handles in (64, 256, 1024, 20_000):
        waiting, found = rooms(handles)
        assert waiting + sum(room.most for room in found.values()) <= max(8, handles - door.SPARE)
    assert rooms(1 << 20)[1]["people"] == GuestRoom(door.PEOPLE, door.PEOPLE // 4)


def guest() -> Guest:
    return Guest(socket.AF_INET, socket.SOCK_STREAM)


def test_guests_are_counted_until_they_leave_and_agents_apart() -> None:
    book = GuestBook({"people": GuestRoom(3, 2), "strangers": GuestRoom(1, 1)}, proxy="9.9.9.9")
    ann, bob, cid, dan = guest(), guest(), guest(), guest()
    assert book.enter(ann, "people", ("1.1.1.1", 1))
    assert book.enter(bob, "people", ("1.1.1.1", 2))
    assert not book.enter(cid, "people", ("1.1.1.1", 3)), "too many from there"
    assert book.enter(cid, "strangers", ("1.1.1.1", 3)), "agents are counted apart"
    assert not book.enter(dan, "strangers", ("2.2.2.2", 4)), "the other has just come"
    book.prove(("1.1.1.1", 3))
    assert (book.count("strangers"), book.count("agents")) == (0, 1)
    assert book.enter(dan, "strangers", ("2.2.2.2", 4))
    for one in (ann, ann, cid, dan, bob):
        one.close()
    assert [book.count(kind) for kind in ("people", "strangers", "agents")] == [0, 0, 0]
    many = [guest() for _ in range(4)]
    assert [book.enter(one, "people", ("9.9.9.9", n)) for n, one in enumerate(many)] == [True, True, True, False]
    for one in many:
        one.close()


AGENT = "10.0.0.1"


class Visitor:
    """A guest without a connection."""

    def __init__(self) -> None:
        self.gone = False

    def watch(self, left: Callable[[], None]) -> None:
        self.close = left

    def hang_up(self) -> None:
        self.gone = True


@pytest.mark.parametrize("count", [2, 20, 400])
def test_agents_come_back_whatever_strangers_from_some_addresses_do(count: int) -> None:
    """They take every place as fast as they can, and never leave by themselves."""
    now = [0.0]
    known = KnownAddresses()
    book = GuestBook({"strangers": GuestRoom(256, 128)}, known=known, clock=lambda: now[0])
    port = itertools.count(1)
    inside: list[Visitor] = []

    def come(address: str) -> tuple[bool, tuple[str, int]]:
        peer, visitor = (address, next(port)), Visitor()
        if entered := book.enter(visitor, "strangers", peer):  # type: ignore[arg-type]
            inside.append(visitor)
        return entered, peer

    known.note(AGENT)
    floods = [f"10.1.{n // 250}.{n % 250}" for n in range(count)]
    for turn in range(2000):
        come(floods[turn % count])
    assert book.count("strangers") == 256
    for _ in range(30):
        entered, peer = come(AGENT)
        assert entered, "at once, without waiting for a place"
        for _ in range(300):
            come(floods[next(port) % count])
            now[0] += 0.01
        book.prove(peer)
    assert book.count("agents") == 30, "none of them was sent away before it had shown its token"
    now[0] += GRACE
    entered, peer = come("10.2.2.2")
    assert entered, "nor are newcomers shut out"
    if count < 256:
        for _ in range(300):
            come(floods[next(port) % count])
            now[0] += 0.01
        book.prove(peer)
        assert book.count("agents") == 31
    for one in inside:
        one.close()
    assert (book.count("strangers"), book.count("agents")) == (0, 0)


def test_strangers_from_an_agents_own_address_leave_it_time_to_show_its_token() -> None:
    now = [0.0]
    book = GuestBook({"strangers": GuestRoom(256, 4)}, clock=lambda: now[0])
    inside = [guest() for _ in range(7)]
    entered = [book.enter(one, "strangers", (AGENT, n)) for n, one in enumerate(inside[:5])]
    assert entered == [True] * 4 + [False], "who has just come stays"
    now[0] += GRACE
    assert book.enter(inside[5], "strangers", (AGENT, 5)), "the oldest leaves"
    assert not book.enter(inside[6], "strangers", (AGENT, 6)) or book.count("strangers") == 4
    for one in inside:
        one.close()
    assert book.count("strangers") == 0


def test_who_makes_room() -> None:
    crowd: Crowd[object] = Crowd()
    a, b, c, d = ([name] for name in "abcd")
    for origin, item in (("many", a), ("few", b), ("many", c), ("agent", d)):
        crowd.add(origin, item)
    assert (len(crowd), crowd.count("many")) == (4, 2)

    def known(origin: str) -> bool:
        return origin == "agent"

    assert crowd.makes_room("new", known) is a, "the oldest of the address with the most"
    crowd.remove("many", a)
    assert not crowd.remove("many", a)
    assert crowd.makes_room("many", known) is c, "who would have the most is counted as they would"
    assert crowd.makes_room("new", known) is c, "of equals, the address that has been there for longest"
    crowd.remove("many", c)
    assert crowd.makes_room("new", known) is b
    crowd.remove("few", b)
    assert crowd.makes_room("new", known) is None, "nobody makes an agent go"
    assert crowd.makes_room("agent", known) is d, "but itself"


def test_addresses_of_agents_are_remembered_for_days_and_by_the_next_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    path = tmp_path / "agent-addresses.json"
    known = KnownAddresses(path, lambda: now[0])
    known.note("1.1.1.1")
    known.note("2.2.2.2")
    again = KnownAddresses(path, lambda: now[0])
    assert ["1.1.1.1" in again, "2.2.2.2" in again, "3.3.3.3" in again] == [True, True, False]
    now[0] += known_addresses.LASTS - 1
    again.note("2.2.2.2")
    now[0] += 2
    last = KnownAddresses(path, lambda: now[0])
    assert ["1.1.1.1" in last, "2.2.2.2" in last] == [False, True]
    monkeypatch.setattr(known_addresses, "MOST", 3)
    for n in range(10):
        last.note(f"4.4.4.{n}")
    assert ["2.2.2.2" in last, "4.4.4.9" in last, len(json.loads(path.read_text()))] == [False, True, 3]
    for text in ("", "[1]", '{"a": "x"}', '{"a": null}'):
        path.write_text(text)
        assert "a" not in KnownAddresses(path)
    KnownAddresses(tmp_path / "nowhere" / "x").note("1.1.1.1")  # a disk that cannot be written


def test_an_address_of_version_6_stands_for_its_network() -> None:
    assert origin_of("2001:db8:1:2::7") == origin_of("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert origin_of("fe80::1%eth0") == "fe80::/64"
    assert origin_of("::ffff:1.2.3.4") == origin_of("1.2.3.4") == "1.2.3.4"
    assert origin_of("testclient") == "testclient"


class Hall:
    """A door on this machine, and who came through it."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.people: list[Guest] = []
        self.agents: list[Guest] = []
        self.door = Door(listener, False, self.people.append, self.agents.append)

    def close(self) -> None:
        self.door.close()
        for one in (*self.people, *self.agents):
            one.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.close()


def test_who_says_nothing_makes_room_for_who_does(hall: Hall) -> None:
    hall.door._most = 3
    hall.door.open()
    silent = [socket.create_connection(hall.address) for _ in range(5)]
    with socket.create_connection(hall.address) as speaker:
        speaker.sendall(b"GET / HTTP/1.1\r\nHo")
        speaker.sendall(b"st: x\r\n\r\n")
        wait_for(lambda: hall.people)
    silent[0].settimeout(PATIENCE)
    assert silent[0].recv(1) == b"", "the one that came first was sent away"
    for one in silent:
        one.close()


KNOCK = b"GET /api/v1/agent HTTP/1.1\r\nHost: x\r\n\r\n"


def test_an_agent_gets_through_a_door_that_strangers_crowd(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who say nothing, those who say they are agents, and those who knock too often."""
    hall.door._most = 8
    hall.door.book._rooms["strangers"] = GuestRoom(6, 3)
    hall.door._unknown = Buckets(0.001, 8.0, time.monotonic)
    hall.door.book.known.note("127.0.0.1")
    hall.door.open()
    with ExitStack() as stack:

        def come(number: int, said: bytes) -> socket.socket:
            made = socket.create_connection(hall.address, PATIENCE, source_address=(f"127.0.1.{number}", 0))
            stack.enter_context(made)
            made.sendall(said)
            return made

        first = [come(n % 3 + 1, KNOCK) for n in range(8)]
        wait_for(lambda: hall.door.book.count("strangers") == 6 and not hall.door._waiting)
        assert len(hall.agents) == 6, "in a crowd of equals who has just come stays"
        silent = [come(n % 2 + 1, b"GET /") for n in range(20)]
        agents = [socket.create_connection(hall.address, PATIENCE) for _ in range(2)]
        for one in agents:
            stack.enter_context(one)
        silent += [come(n % 2 + 1, b"GET /") for n in range(20)]
        for one in agents:
            one.sendall(KNOCK)
        wait_for(lambda: len(hall.agents) == 8)
        assert hall.door.book._from["strangers", "127.0.0.1"] == 2
        assert hall.door.book.count("strangers") == 6
        # Two were not let in, and two had to go.
        wait_for(lambda: len(select.select(first, [], [], 0.0)[0]) == 4)
        late = come(9, KNOCK)
        wait_for(lambda: select.select([late], [], [], 0.0)[0])
        assert len(hall.agents) == 8, "no more knocks from those who are not known"
    del silent


def test_a_guest_that_is_closed_is_not_hung_up_on() -> None:
    ours, theirs = socket.socketpair()
    one = Guest(fileno=ours.detach())
    one.hang_up()
    assert theirs.recv(1) == b""
    one.close()
    one.hang_up()
    theirs.close()


def test_nobody_waits_at_the_door_for_ever(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "FIRST_BYTES", 0.2)
    hall.door.open()
    with socket.create_connection(hall.address, PATIENCE) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        with suppress(ConnectionResetError):  # what it has said was never read
            assert slow.recv(1) == b""
    assert not hall.people


def test_a_door_without_file_handles_pauses_and_says_so_once(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "PAUSE", 0.05)
    real, failures = hall.door._listener, 5

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def accept(self) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(24, "Too many open files")
            return real.accept()

    hall.door._listener = Full()  # type: ignore[assignment]
    hall.door.open()
    with socket.create_connection(hall.address) as speaker:
        speaker.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_for(lambda: hall.people)
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted for now: Too many open files"
    ]


# ------------------------------------------------------------------------------- bridges


def test_work_for_the_service_runs_on_its_loop() -> None:
    bridge, ready, ended = LoopBridge(), threading.Event(), threading.Event()

    async def serve() -> None:
        bridge.bind()
        ready.set()
        while not ended.is_set():
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()

    async def where() -> str:
        return threading.current_thread().name

    async def play() -> None:
        assert await bridge.run(where) == thread.name
        assert await bridge.ask(lambda: threading.current_thread().name) == thread.name
        with pytest.raises(ZeroDivisionError):
            await bridge.ask(lambda: 1 // 0)

    asyncio.run(play())
    ended.set()
    thread.join()


def test_no_change_is_missed_between_a_look_and_the_wait() -> None:
    news = Announcer()

    async def play() -> None:
        seen = news.count
        news.announce()
        async with asyncio.timeout(PATIENCE):
            await news.wait(2 * PATIENCE, seen)  # returns at once
        waiter = asyncio.create_task(news.wait(2 * PATIENCE, news.count))
        await asyncio.sleep(0)
        await asyncio.to_thread(news.announce)
        async with asyncio.timeout(PATIENCE):
            await waiter
        await news.wait(0.01, news.count)

    asyncio.run(play())


def test_the_longest_lateness_is_remembered_for_a_minute() -> None:
    seen: list[float] = []
    lateness, now = LoopLag(seen.append), time.monotonic()
    lateness.note(now - WINDOW - 5.0, 9.0)
    for late in (0.1, 0.5, 0.2):
        lateness.note(now, late)
    assert lateness.longest() == 0.5
    assert seen == [9.0, 0.1, 0.5, 0.2]


# -------------------------------------------------------------------------------- limits


def test_what_is_held_is_bounded_in_all_and_for_each() -> None:
    reserve = Reserve(100, 60)
    assert reserve.take("a", 50)
    assert not reserve.take("a", 20), "more than its share"
    assert reserve.take("b", 50)
    assert not reserve.take("c", 1)
    reserve.give_back("a", 50)
    assert reserve.take("c", 1)


def test_a_bucket_can_be_overdrawn_by_what_was_used() -> None:
    now = [0.0]
    work = Buckets(0.5, 2.0, lambda: now[0])
    assert work.take("a", 0.0) == 0.0
    work.spend("a", 2.5)
    assert work.take("a", 0.0) == 1.0
    now[0] = 1.0
    assert work.take("a", 0.0) == 0.0


def test_a_token_has_a_budget_of_work(http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = {"Authorization": f"Bearer {tokens.issue(service.store, 'v', 'viewer', None, service.now())}"}
    monkeypatch.setattr(answer_threads, "_timed", lambda work: (work(), 3.0))  # seconds each, it seems
    codes = [http.get("/api/v1/tasks", headers=viewer).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    assert http.get("/api/v1/tasks").status_code == 200, "others are not kept waiting"
    service._offset += 2 * auth.WORK_SAVED / auth.WORK
    assert http.get("/api/v1/tasks", headers=viewer).status_code == 200


@pytest.mark.parametrize("path", ["metrics", "api/v1/clusters", "api/v1/overview", "api/v1/shadow", "api/v1/profiles"])
def test_work_on_the_loop_with_the_leases_is_charged(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """With 100,000 waiting tasks, each reading of the metrics takes it some hundredths of a second."""
    reader = {"Authorization": f"Bearer {tokens.issue(service.store, 'r', 'viewer', None, service.now())}"}
    clock = itertools.count(0.0, 3.0)
    ask = service.bridge.ask

    async def slow(question: Callable[[], Any]) -> Any:
        with monkeypatch.context() as there:
            there.setattr(time, "thread_time", lambda: next(clock))
            found = question()  # three seconds, it seems
        return await ask(lambda: found)

    monkeypatch.setattr(service.bridge, "ask", slow)
    codes = [http.get(f"/{path}", headers=reader).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    assert http.get("/api/v1/me").status_code == 200, "others are not kept waiting"


def test_long_bodies_are_admitted_only_while_there_is_room(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = bodies.BodyLimits(1000)
    monkeypatch.setattr(bodies, "SMALL", 10)
    long, short = httpx.Headers({"Content-Length": "900"}), httpx.Headers({"Content-Length": "9"})
    limits._held = Reserve(1000, 1000)
    assert limits.admit("a", "POST", long, 1000) == (None, 900)  # type: ignore[arg-type]
    refusal, _ = limits.admit("b", "POST", long, 1000)  # type: ignore[arg-type]
    assert refusal is not None
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "1")
    assert limits.admit("b", "POST", short, 1000) == (None, 0)  # type: ignore[arg-type]
    limits.done("a", 900)
    assert limits.admit("b", "POST", long, 1000) == (None, 900)  # type: ignore[arg-type]
    assert http.request("GET", "/api/v1/tasks", content=b"x").status_code == 413
    del service


def test_a_body_that_does_not_come_is_not_waited_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "STALLED", 0.05)
    app, sent = make_app(service), []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(PATIENCE)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {service.token}".encode()), (b"content-length", b"19")]
    headers += [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/tasks", "headers": headers, "query_string": b""}
    asyncio.run(app({**scope, "client": ("127.0.0.1", 1)}, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 408
    service.close()


def test_long_answers_are_handed_over_in_pieces() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    body = bytes(range(256)) * 1000
    asyncio.run(_sent(bodies.in_pieces(send), {"type": "http.response.body", "body": body}))
    assert len(sent) > 2
    assert b"".join(message["body"] for message in sent) == body
    assert [message["more_body"] for message in sent] == [True] * (len(sent) - 1) + [False]


async def _sent(send: Any, message: Any) -> None:
    await send(message)


def test_answers_that_nobody_reads_do_not_pile_up(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_threads.Reserve, "take", lambda *_: False)
    refused = http.get("/api/v1/tasks")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")


def test_pages_end_when_they_are_long(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    http.post("/api/v1/tasks", json=submission(120, env={"A": "x" * 100}))
    assert http.get("/api/v1/tasks?limit=1001").status_code == 422
    whole = http.get("/api/v1/tasks?limit=1000").json()
    assert (len(whole["tasks"]), whole["next"], whole["counts"]) == (120, None, {"queued": 120})
    monkeypatch.setattr(pages, "LONG", 20_000)
    found, before, count = [], None, 0
    while True:
        page = http.get("/api/v1/tasks", params={"limit": 1000, **({"before": before} if before else {})}).json()
        found += [task["id"] for task in page["tasks"]]
        before, count = page["next"], count + 1
        if before is None:
            break
    assert found == list(range(120, 0, -1))
    assert count > 2


@pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/v1/history"])
def test_a_phase_asked_for_again_and_again_is_read_once(http: TestClient, service: Service, path: str) -> None:
    http.post("/api/v1/tasks", json=submission(30))
    read: list[int] = []
    real = service.store._db.query

    def query(statement: str, values: Any = ()) -> Any:
        rows = real(statement, values)
        read.append(len(rows) if "spec" in statement else 0)
        return rows

    service.store._db.query = query  # type: ignore[method-assign]
    found = http.get(f"{path}?limit=1000&{'&'.join(['phase=queued'] * len(Phase))}").json()
    assert (len(found["tasks"]), sum(read)) == (30, 30)
    assert http.get(f"{path}?{'&'.join(['phase=queued'] * (len(Phase) + 1))}").status_code == 422


def test_a_page_ends_by_what_is_read_not_only_by_what_is_shown(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LONG", 20_000)
    http.post("/api/v1/tasks", json=submission(60, env={"A": "x" * 2_000}))
    viewer = {"Authorization": f"Bearer {service.issue('vic', 'viewer', None)}"}
    for path in ("/api/v1/tasks?limit=60", "/api/v1/history?limit=60&phase=queued"):
        page = http.get(path, headers=viewer).json()
        assert "x" * 2_000 not in str(page)
        assert (len(page["tasks"]), page["next"]) == (10, 51), "the rest is read only if it is asked for"


def test_long_submissions_are_read_in_a_thread_and_faults_are_told_as_ever(http: TestClient) -> None:
    body = submission(1000, env={"A": "x" * 100})
    assert len(http.post("/api/v1/tasks", json=body).json()["ids"]) == 1000
    body["tasks"] = [*body["tasks"][:-1], {"argv": ["x"], "type": "demo", "time_limt": 1}]
    refused = http.post("/api/v1/tasks", json=body)
    assert refused.status_code == 422
    assert "999: " in refused.json()["detail"][0]["msg"]
    body["tasks"][500] = {"argv": [], "type": "demo"}
    faults = http.post("/api/v1/tasks", json=body).json()["detail"]
    assert [fault["loc"][:3] for fault in faults] == [["body", "tasks", 500]]
    assert http.post("/api/v1/tasks", content=b"[" * 100_000).status_code == 422


def test_no_submission_takes_long_to_refuse(http: TestClient, service: Service) -> None:
    numbers = b'{"tasks":[{"argv":[' + b"1," * 900_000 + b'1],"type":"demo"}]}'
    refused = http.post("/api/v1/tasks", content=numbers)
    assert (refused.status_code, "this one has 900,001" in refused.json()["detail"][0]["msg"]) == (422, True)
    fewer = b'{"tasks":[{"argv":[' + b"1," * 90_000 + b'1],"type":"demo"}]}'
    assert len(http.post("/api/v1/tasks", content=fewer).json()["detail"]) <= 100, (
        "the first fault of the list is enough"
    )
    refused = http.post("/api/v1/tasks", content=b'{"tasks":[' + b"[]," * 2_000_000 + b"[]]}")
    assert (refused.status_code, "fewer at a time" in refused.json()["detail"][0]["msg"]) == (422, True)
    viewer = {"Authorization": f"Bearer {tokens.issue(service.store, 'v', 'viewer', None, service.now())}"}
    assert http.post("/api/v1/tasks", content=numbers, headers=viewer).status_code == 413, "not even read"
    assert http.post("/api/v1/tokens", content=numbers).status_code == 413, "only submissions are long"


# ----------------------------------------------------------------------- health and docs


def test_health_says_what_is_wrong(http: TestClient, service: Service) -> None:
    http.headers.pop("Authorization")
    service.faults["scheduler"] = "greedy has not answered for 60 s"
    told = http.get("/api/v1/health")
    assert (told.status_code, told.json()["status"]) == (200, "degraded")
    assert told.json()["faults"] == ["scheduler"], "what is wrong in detail is not for everyone"
    service.faults = {"store": "the database cannot be reached"}
    told = http.get("/api/v1/health")
    assert (told.status_code, told.headers["Retry-After"]) == (503, "1")


def test_a_store_that_is_away_is_a_reason_to_come_again(
    http: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the database cannot be reached: gone")

    monkeypatch.setattr(service.store, "token", away)
    for told in (http.get("/api/v1/tasks"), http.post("/api/v1/tasks", json=submission())):
        assert (told.status_code, told.headers["Retry-After"]) == (503, "1")
        assert told.json()["detail"] == "the database cannot be reached: gone"
    assert http.get("/api/v1/health").status_code == 200


def test_the_description_is_a_page_without_scripts(http: TestClient) -> None:
    http.headers.pop("Authorization")
    page = http.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    for path in ("/api/v1/tasks", "/api/v1/tasks/{task}/logs", "/metrics"):
        assert path in page.text
    assert http.get("/redoc").status_code == 404
    assert http.get("/dashboard/reference.css").status_code == 200


# ------------------------------------------------------------------------------------ log


def test_masses_of_warnings_are_left_out_and_counted() -> None:
    now = [0.0]
    sparing = Sparing(lambda: now[0])

    def passes(level: int, text: str) -> bool:
        record = logging.LogRecord("uvicorn.error", level, "", 0, text, (), None)
        passed = sparing.filter(record)
        texts.append(record.getMessage())
        return passed

    texts: list[str] = []
    assert sum(passes(logging.WARNING, "Invalid HTTP request received.") for _ in range(1000)) == SAME
    assert passes(logging.WARNING, "another")
    assert all(passes(logging.INFO, "an event") for _ in range(1000))
    now[0] = 61.0
    assert passes(logging.WARNING, "another")
    assert texts[-1] == f"[{1000 - SAME} warnings before this were left out] another"


# ----------------------------------------------------------------------- a real process


@pytest.mark.slow
def test_a_real_coordinator_ends_who_takes_too_long_and_goes_on(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.serve("--trust-proxy", "127.0.0.1")
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", site.port), PATIENCE) as slow:
            # The first request is whole, the second never is.
            slow.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in slow.recv(4096)
            slow.sendall(b"GET /api/v1/health HTTP/1.1\r\nX: ")
            while slow.recv(4096):
                pass
        assert time.monotonic() - begun < connections.HEAD + PATIENCE
        address = site.url.replace("http", "ws") + "/api/v1/agent"
        with pytest.raises(Exception, match="403"), connect(address, proxy=None) as stranger:
            stranger.recv(PATIENCE)
        knocker = client.new_token("k", "agent", "right")
        with connect(address, additional_headers={"Authorization": f"Bearer {knocker}"}, proxy=None):
            wait_for((site.state / "agent-addresses.json").exists)
        assert list(json.loads((site.state / "agent-addresses.json").read_text())) == ["127.0.0.1"]
        with httpx.Client(base_url=site.url) as plain:
            assert plain.get("/api/v1/agent").status_code == 404
        # A way in that the door cannot tell for an agent's, as behind a proxy: it comes to the loop for people.
        token = client.new_token("l", "agent", "left")
        hidden = address.replace("/api", "/%61pi")
        with connect(hidden, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as agent:
            agent.send(encode(Report("left", "a", 1, 1, 0)))
            first = decode(agent.recv(PATIENCE))
            assert isinstance(first, Orders)
            agent.send(encode(Report("left", "a", 1, 2, first.epoch)))
            (task,) = client.submit(python("pass", clusters=["left"]))
            wait_for(lambda: client.show(task).phase is not Phase.QUEUED)
            while not (isinstance(orders := decode(agent.recv(PATIENCE)), Orders) and orders.starts):
                pass
            client.revoke("l")  # ends the connection, whoever speaks first
            while not isinstance(said := decode(agent.recv(PATIENCE)), Refusal):
                pass
            assert "revoked" in said.reason
            with pytest.raises(ConnectionClosed):
                agent.recv(PATIENCE)
        text = httpx.get(f"{site.url}/metrics", headers=client._headers).text
        assert "tapfinger_loop_lag_seconds_count" in text
    finally:
        site.close()


@pytest.mark.slow
def test_only_a_named_proxy_is_believed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trust-proxy 'nginx' must be an address"):
        check_proxy("nginx")
    check_proxy(None)
    site = RealSite(tmp_path)
    try:
        client = site.serve("--trust-proxy", "127.0.0.1")
        headers = {"X-Forwarded-For": "10.9.8.7", "Authorization": "Bearer guessed"}
        assert httpx.get(f"{site.url}/api/v1/tasks", headers=headers).status_code == 401
        assert client.audit()[-1]["from"] == "10.9.8.7"
    finally:
        site.close()
