"""The holder of one cluster's token cannot keep the coordinator from hearing the agents of others."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from live.services import services
from live.sites import RealSite
from starlette.websockets import WebSocketDisconnect
from waiting import PATIENCE
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tapfinger.errors import AgentRefused, CoordinatorError
from tapfinger.live.agent import machine
from tapfinger.live.http import agents
from tapfinger.live.http.agents import EACH, NOT_VALID, AgentEndpoint
from tapfinger.live.http.auth import lookup
from tapfinger.live.protocol.messages import (
    MOST_FAULTS,
    MOST_METRICS,
    MOST_RESOURCES,
    MOST_RUNS,
    AttemptId,
    Launch,
    Orders,
    Outcome,
    Report,
    RunReport,
)
from tapfinger.live.protocol.wire import LogSize, Message, Refusal, decode, encode
from tapfinger.live.service.service import Service


def test_a_token_has_few_connections_and_the_oldest_go(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.serve()
        token = client.new_token("l", "agent", "left")
        address = site.url.replace("http", "ws") + "/api/v1/agent"
        with ExitStack() as stack:
            made = [
                stack.enter_context(
                    connect(address, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None)
                )
                for _ in range(EACH + 3)
            ]
            for old in made[:3]:
                with pytest.raises(ConnectionClosed, match="4409"):
                    old.recv(PATIENCE)
            for n, young in enumerate(made[3:], 1):
                young.send(encode(Report("left", "a", 1, n, 0)))
                assert isinstance(decode(young.recv(PATIENCE)), Orders)
        with connect(address, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as last:
            last.send(encode(Report("left", "a", 1, 99, 0)))
            assert isinstance(decode(last.recv(PATIENCE)), Orders)
    finally:
        site.close()


def report(seq: int = 1, **more: Any) -> Report:
    return Report("left", "a", 1, seq, 0, **more)


def test_everything_about_a_message_is_work_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(agents.time, "thread_time", lambda: float(next(clock)))
    spent: list[tuple[str, float]] = []

    async def run(endpoint: AgentEndpoint) -> None:
        monkeypatch.setattr(endpoint._work, "spend", lambda name, amount: spent.append((name, amount)))
        await endpoint._handle(encode(report()), "l", "left", lambda _: None)
        assert spent == [("l", 3.0)] * 2, "reading it, and what is done with it"
        with pytest.raises(CoordinatorError):
            await endpoint._handle("[" * 100, "l", "left", lambda _: None)
        assert spent == [("l", 3.0)] * 3, "also what is no message"
        with pytest.raises(AgentRefused):
            await endpoint._handle(encode(report()), "l", "right", lambda _: None)
        assert spent == [("l", 3.0)] * 5, "also what is refused"
        socket: Any = AsyncMock()
        socket.send_text.side_effect = WebSocketDisconnect
        outbox: asyncio.Queue[Message] = asyncio.Queue()
        outbox.put_nowait(LogSize((1, 1), 0))
        await endpoint._write(socket, outbox, "", "l")
        assert spent == [("l", 3.0)] * 6, "also the answer"

    with services(tmp_path) as make:
        asyncio.run(run(AgentEndpoint(make())))


def test_one_message_of_a_token_is_in_work_at_a_time(tmp_path: Path) -> None:
    async def run(endpoint: AgentEndpoint) -> None:
        few = endpoint._one_of_few
        async with few("l") as first, few("l") as second, few("m") as other:
            assert first is second is not other
        assert endpoint._open == {}

    with services(tmp_path) as make:
        asyncio.run(run(AgentEndpoint(make())))


@pytest.mark.parametrize(
    "wrong",
    [
        report(runs=tuple(RunReport((n, 1)) for n in range(1, MOST_RUNS + 2))),
        report(runs=(RunReport((1, 1), faults=("x",) * (MOST_FAULTS + 1)),)),
        report(runs=(RunReport((1, 1), metrics={str(n): 0.0 for n in range(MOST_METRICS + 1)}),)),
        report(runs=(RunReport((1, 1), allocation={str(n): 0.0 for n in range(MOST_RESOURCES + 1)}),)),
    ],
    ids=["runs", "faults", "metrics", "resources"],
)
def test_what_an_agent_may_report_has_bounds(wrong: Report) -> None:
    with pytest.raises(CoordinatorError, match="1 faults in Report"):
        decode(encode(wrong))


def test_a_full_report_is_taken() -> None:
    full = report(runs=tuple(RunReport((n, 1)) for n in range(1, MOST_RUNS + 1)))
    assert decode(encode(full)) == full


def test_a_list_of_faults_is_not_told_one_by_one() -> None:
    began = time.thread_time()
    with pytest.raises(CoordinatorError, match="not a message"):
        decode('{"FileAnswer":{"number":1,"entries":[' + ",".join(["{}"] * 100_000) + "]}}")
    assert time.thread_time() - began < 0.5
    with pytest.raises(CoordinatorError, match="3 faults in Report"):
        decode('{"Report":{"cluster":"left","agent":"a"}}')


def test_an_agent_has_no_more_attempts_than_fit_in_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MOST_RUNS", 2)
    agent = machine.Agent("left", "a", 1, 0.0, 1.0)

    def told(seq: int, stops: tuple[AttemptId, ...] = (), **more: Any) -> list[AttemptId]:
        starts = tuple(Launch((n, 1), ("x",), {}, {}) for n in (1, 2, 3)) if seq == 1 else ()
        orders = Orders("left", "a", 1, 1, seq, agent.report(0.0).seq, 10.0, starts, stops, **more)
        agent.handle(orders, 0.0)
        return [run.id for run in agent.report(0.0).runs]

    assert told(1) == [(1, 1), (2, 1)]
    assert told(2, stops=((9, 1),)) == [(1, 1), (2, 1)], "it comes again"
    room = machine.Condition(100.0)
    assert not any(isinstance(done, Report) for done in agent.handle(room, 0.0)), "there is none"
    agent.handle(machine.Observed({(1, 1): Outcome("finished", 0)}), 0.0)
    assert told(3, forgets=((1, 1),)) == [(2, 1)]
    assert any(isinstance(done, Report) for done in agent.handle(room, 0.0)), "what was passed over is asked for"
    assert told(4, stops=((9, 1),)) == [(2, 1), (9, 1)]


# ------------------------------------------------------------------- tokens that end


class Line:
    """An agent's WebSocket, on which the agent says nothing."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.code = 0

    async def receive(self) -> None:
        await asyncio.Event().wait()

    async def send_text(self, text: str) -> None:
        self.said.append(decode(text))

    async def close(self, code: int, _reason: str = "") -> None:
        self.code = code


@pytest.mark.parametrize("how", ["revoked", "replaced", "expired"])
def test_the_connections_of_a_token_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "expired":
        monkeypatch.setattr(agents, "GRACE", 0.0)

    async def run(service: Service) -> None:
        endpoint = AgentEndpoint(service)
        given = f"Bearer {service.issue('l', 'agent', 'left', 100.0)}"
        token = await lookup(service, given)
        assert token is not None
        lines: list[Any] = [Line() for _ in range(EACH)]
        if how == "expired":
            service._offset += 101
        talks = [asyncio.create_task(endpoint._talk(line, given, token, "left")) for line in lines]
        if how != "expired":
            while "l" not in endpoint._open or len(endpoint._open["l"][0]) < EACH:
                await asyncio.sleep(0)
        if how == "revoked":
            await asyncio.to_thread(service.revoke, "l")
        elif how == "replaced":
            await asyncio.to_thread(service.issue, "l", "agent", "left")
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*talks)
        assert [(line.said, line.code) for line in lines] == [([Refusal(NOT_VALID)], 4400)] * EACH
        assert endpoint._open == {}

    with services(tmp_path) as make:
        asyncio.run(run(make()))


def test_no_task_is_sent_to_a_token_that_another_coordinator_has_revoked(tmp_path: Path) -> None:
    launch = Launch((1, 1), ("x",), {}, {}, secrets={"A": "hidden"})
    orders = Orders("left", "a", 1, 1, 1, 1, 10.0, (launch,))

    async def run(service: Service) -> None:
        endpoint = AgentEndpoint(service)
        token = service.issue("l", "agent", "left")
        outbox: asyncio.Queue[Message] = asyncio.Queue()
        line: Any = Line()
        writer = asyncio.create_task(endpoint._write(line, outbox, f"Bearer {token}", "l"))
        outbox.put_nowait(orders)
        while not line.said:
            await asyncio.sleep(0)
        service.store.remove_token("l")
        outbox.put_nowait(LogSize((1, 1), 0))
        outbox.put_nowait(orders)
        async with asyncio.timeout(PATIENCE):
            await writer
        assert line.said == [orders, LogSize((1, 1), 0), Refusal(NOT_VALID)]
        assert line.code == 4400

    with services(tmp_path) as make:
        asyncio.run(run(make()))
