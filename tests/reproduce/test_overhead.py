"""The relay delays and throttles as it says, and the bench measures an exchange that really takes place."""

from __future__ import annotations

import asyncio
import time

import pytest

from tapfinger.reproduce import overhead
from tapfinger.reproduce.paper import OVERHEAD
from tapfinger.reproduce.relay import Line, relay
from tapfinger.reproduce.verdicts import judge_all


async def through(line: Line, size: int) -> tuple[float, float]:
    """Seconds until the first and the last of so many bytes have come through."""
    times: list[float] = []
    done = asyncio.Event()

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = 0
        while got < size:
            got += len(await reader.read(65536))
            times.append(time.monotonic())
        writer.close()
        done.set()

    end = await asyncio.start_server(far, "127.0.0.1", 0)
    middle = await relay(line, 0, end.sockets[0].getsockname()[1])
    _, writer = await asyncio.open_connection("127.0.0.1", middle.sockets[0].getsockname()[1])
    begin = time.monotonic()
    writer.write(b"x" * size)
    await writer.drain()
    await done.wait()
    writer.close()
    await writer.wait_closed()
    for server in (middle, end):
        server.close()
        await server.wait_closed()
    await asyncio.sleep(0.05 + 3 * line.latency)  # the end of the connection is on the line, too
    return times[0] - begin, times[-1] - begin


@pytest.mark.parametrize("latency", [0.0, 0.1])
def test_the_relay_honours_latency_and_bandwidth(latency):
    first, last = asyncio.run(through(Line(latency, 1e6), 25_000))
    assert (
        latency + 0.2 <= last < latency + 0.6
    )  # 25,000 bytes take 0.2 s at 1 Mbps; the upper end allows for a busy machine
    assert latency + 0.012 <= first < last  # a packet of 1500 bytes takes 12 ms


def test_a_small_message_costs_the_latency():
    _, last = asyncio.run(through(Line(0.05, 1e6), 100))
    assert 0.05 <= last < 0.35


@pytest.mark.slow
def test_coordinator_and_agents_exchange_real_messages(monkeypatch, tmp_path):
    monkeypatch.setattr(overhead, "SCENARIOS", {"single": "synthetic-3", "multi": "multi-3"})
    bench = overhead.Bench(latencies=(0.04,), slots=4, scheduler="greedy", padded=False)
    phases: list[int] = []
    kept = tmp_path / "overhead.json"
    found, reused = overhead.measure_overhead(OVERHEAD, bench, kept, lambda: phases.append(1))
    assert (reused, len(phases)) == (False, 2)
    for mode in ("single", "multi"):
        assert 0.08 <= found.values[f"seconds.{mode}"].mean < 1.0
        assert 80 < found.values[f"state.{mode}"].mean < 2000
        assert 80 < found.values[f"action.{mode}"].mean < 2000
    assert [row[:3] for row in found.table[1]] == [("single-task", "own", "40"), ("multi-task", "own", "40")]
    assert len(judge_all(found)) == len(OVERHEAD.claims)
    again, reused = overhead.measure_overhead(OVERHEAD, bench, kept, lambda: phases.append(1))
    assert (reused, len(phases)) == (True, 2)
    assert again.values == found.values
