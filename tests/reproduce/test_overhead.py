"""The relay delays and throttles as it says, the bench measures a real exchange, and the figure reads its values."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measure_overhead import write
from overhead.bench import Bench, measure
from overhead.relay import SlowLine, relay

from tapfinger.errors import DataError
from tapfinger.reproduce.overhead import FILE, LatencyPhase, measure_overhead, summarise_phases
from tapfinger.reproduce.paper import OVERHEAD
from tapfinger.reproduce.verdicts import judge_all


async def through(line: SlowLine, size: int) -> tuple[float, float]:
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
    first, last = asyncio.run(through(SlowLine(latency, 1e6), 25_000))
    # 25,000 bytes take 0.2 s at 1 Mbps; the upper end allows for a busy machine.
    assert latency + 0.2 <= last < latency + 5.0
    assert latency + 0.012 <= first < last  # a packet of 1500 bytes takes 12 ms


def test_a_small_message_costs_the_latency():
    _, last = asyncio.run(through(SlowLine(0.05, 1e6), 100))
    assert 0.05 <= last < 5.0


@pytest.mark.slow
def test_coordinator_and_agents_exchange_real_messages(tmp_path):
    scenarios = {"single": "synthetic-3", "multi": "multi-3"}
    bench = Bench(latencies=(0.04,), slots=4, scheduler="greedy", padded=False, scenarios=scenarios)
    told: list[str] = []
    write(tmp_path / FILE, measure(bench, lambda phase: told.append(phase.mode)), "by hand")
    assert told == ["single", "multi"]
    found = measure_overhead(OVERHEAD, tmp_path)
    for mode in ("single", "multi"):
        assert found.values[f"seconds.{mode} at 40 ms, own messages"].mean >= 0.08
        assert 80 < found.values[f"state at {mode}-task, 40 ms"].mean < 2000
        assert 80 < found.values[f"action at {mode}-task, 40 ms"].mean < 2000
    assert [row[:3] for row in found.table[1]] == [("single-task", "own", "40"), ("multi-task", "own", "40")]
    assert len(judge_all(found)) == len(OVERHEAD.claims)
    assert found.figure.notes[-1].endswith("command by hand.")


def test_the_shipped_values_say_where_they_are_from(tmp_path):
    found = measure_overhead(OVERHEAD, tmp_path)
    assert len(found.curves["overhead"]) == 4
    assert "python benchmarks/measure_overhead.py" in found.figure.notes[-1]
    assert len(judge_all(found)) == len(OVERHEAD.claims)


def test_times_are_judged_at_every_latency_and_sizes_by_the_largest_message():
    phase = LatencyPhase("multi", False, 0.01, [0.1, 0.1], [0.001, 0.001], [400, 500], [300, 400], 1365, 908)
    slow = replace(phase, latency=0.1, seconds=[0.4, 0.4])
    padded = replace(slow, padded=True, largest_state=2004)
    found = summarise_phases(OVERHEAD, [phase, slow, padded])
    shares = {name: value.mean for name, value in found.values.items() if name.startswith("share10.multi at ")}
    assert shares == {
        "share10.multi at 10 ms, own messages": pytest.approx(1.0),
        "share10.multi at 100 ms, own messages": pytest.approx(4.0),
        "share10.multi at 100 ms, sizes of the paper": pytest.approx(4.0),
    }
    sizes = {name: value.mean for name, value in found.values.items() if name.startswith(("state", "action"))}
    assert sizes == {
        "state at multi-task, 10 ms": 1365, "state at multi-task, 100 ms": 1365,
        "action at multi-task, 10 ms": 908, "action at multi-task, 100 ms": 908,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"made": {}, "phases": [{"mode": "single"}]})])
def test_a_file_that_holds_no_values_is_said(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DataError, match=r"holds no values of benchmarks/measure_overhead.py"):
        measure_overhead(OVERHEAD, tmp_path)


def test_agents_that_infer_decide_as_the_coordinator_does():
    import inference

    (found,) = inference.compare(inference.Case("multi-3", "multi-3"), Bench((0.0,), slots=4, padded=False))
    assert (found.same, found.slots) == (4, 4)
    assert found.most_turns >= 1
    assert found.agents_bytes[0] > found.central_bytes[0]
    assert found.agents_bytes[1] > found.central_bytes[1]
