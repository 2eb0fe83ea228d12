"""The overhead bench: coordinator, relay and agents as processes that exchange real messages at several latencies."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from overhead.parties import Exchange, parts, run_agent, run_coordinator, run_relay
from overhead.relay import SlowLine
from tapfinger.config import load_scenario
from tapfinger.errors import DataError
from tapfinger.reproduce.overhead import LatencyPhase
from tapfinger.workloads.world import build_world

#: Bytes per cluster and slot that the paper's messages take.
PAPER_STATE, PAPER_ACTION = 2000, 800
#: Slots played before the first exchange, so that clusters are busy.
SKIP = 20
#: Seconds that a process may take to answer.
PATIENCE = 120.0


@dataclass(frozen=True)
class Bench:
    """How much is measured."""

    #: One way, in seconds.
    latencies: tuple[float, ...] = (0.0, 0.01, 0.025, 0.05, 0.1)
    slots: int = 40
    #: The paper's line, in bits per second.
    bandwidth: float = 1e6
    scheduler: str = "tapfinger"
    seed: int = 1000
    #: Whether messages are also measured at the paper's sizes.
    padded: bool = True
    #: Mode -> scenario; those of the figure have six clusters.
    scenarios: dict[str, str] = field(default_factory=lambda: {"single": "synthetic-6", "multi": "hetero-6"})


QUICK = Bench(latencies=(0.0, 0.025, 0.05, 0.1), slots=12)


def measure(bench: Bench, on_phase: Callable[[LatencyPhase], None] = lambda _: None) -> list[LatencyPhase]:
    """Measure all modes and latencies, one after the other."""
    found = []
    for mode, scenario in bench.scenarios.items():
        for padded in (False, True) if bench.padded else (False,):
            found += _measure(bench, mode, scenario, padded, on_phase)
    return found


def _measure(
    bench: Bench, mode: str, scenario: str, padded: bool, on_phase: Callable[[LatencyPhase], None]
) -> list[LatencyPhase]:
    """One mode: fresh processes that go through all latencies."""
    world = build_world(load_scenario(scenario))
    sizes = (PAPER_STATE, PAPER_ACTION) if padded else (0, 0)
    phases = [
        Exchange(SlowLine(latency, bench.bandwidth), bench.slots, 0.15 + 4.0 * latency, *sizes)
        for latency in bench.latencies
    ]
    roles = parts(world, bench.scheduler, bench.seed, SKIP, bench.slots)
    with processes() as start:
        coordinator = start(run_coordinator, scenario, bench.scheduler, bench.seed, SKIP, phases)
        upstream = answer_of(coordinator)
        relay = start(run_relay, [phase.line for phase in phases], upstream)
        ports = answer_of(relay)
        agents = [start(run_agent, part, list(zip(ports, phases, strict=True))) for part in roles]
        found = []
        for phase in phases:
            for agent in agents:
                answer_of(agent)
            begin = time.monotonic() + 0.2
            for agent in agents:
                agent.send(begin)
            reports = [answer_of(agent) for agent in agents]
            found.append(_phase(mode, padded, phase.line.latency, answer_of(coordinator), reports))
            on_phase(found[-1])
        relay.send(None)
    return found


def _phase(mode: str, padded: bool, latency: float, decided: Any, reports: Sequence[Any]) -> LatencyPhase:
    orders = [sizes for _, sizes in decided]
    slots = list(zip(*reports, strict=True))  # (slots, agents) of (seconds, bytes)
    return LatencyPhase(
        mode,
        padded,
        latency,
        seconds=[max(seconds for seconds, _ in slot) for slot in slots],
        decision=[seconds for seconds, _ in decided],
        state=[statistics.mean(size for _, size in slot) for slot in slots],
        action=[statistics.mean(sizes) for sizes in orders],
        largest_state=max(size for slot in slots for _, size in slot),
        largest_action=max(max(sizes) for sizes in orders),
    )


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., Connection]]:
    """Start processes that are ended with us, whatever happens; each gets one end of a pipe."""
    context = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = []

    def start(target: Callable[..., None], *arguments: Any) -> Connection:
        mine, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        started.append(process)
        return mine

    try:
        yield start
    finally:
        for process in started:
            process.join(timeout=1.0)
            if process.is_alive():
                process.kill()
                process.join()


def answer_of(pipe: Connection) -> Any:
    """What a process says next."""
    try:
        if pipe.poll(PATIENCE):
            return pipe.recv()
    except EOFError:
        raise DataError("overhead: a process of the bench has died; its message is above") from None
    raise DataError(f"overhead: a process of the bench has said nothing for {PATIENCE:g} s; is the machine overloaded?")
