"""The holder of one cluster's token cannot keep the coordinator from hearing the agents of others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from live.services import services
from live.sites import RealSite
from waiting import PATIENCE
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tapfinger.errors import CoordinatorError
from tapfinger.live.http import agents
from tapfinger.live.http.agents import EACH, AgentEndpoint
from tapfinger.live.protocol.messages import Orders, Report
from tapfinger.live.protocol.wire import decode, encode


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


def test_reading_messages_is_work_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(agents.time, "thread_time", lambda: float(next(clock)))
    with services(tmp_path) as make:
        endpoint = AgentEndpoint(make())
        assert endpoint._decoded(encode(Report("left", "a", 1, 1, 0)), "l") == Report("left", "a", 1, 1, 0)
        assert endpoint._work.take("l", 0.0) > 0.0
        with pytest.raises(CoordinatorError):
            endpoint._decoded("[" * 100, "m")
        assert endpoint._work.take("m", 0.0) > 0.0, "also what is no message"
        assert endpoint._work.take("n", 0.0) == 0.0
