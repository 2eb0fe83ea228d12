"""The overhead figure: what an exchange of state and actions costs over real sockets, at several latencies."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tapfinger.config import load_scenario
from tapfinger.digests import tree_digest
from tapfinger.errors import DataError
from tapfinger.evaluation.stats import Estimate, estimate
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.measured import Curve, Measured
from tapfinger.reproduce.parties import Exchange, parts, run_agent, run_coordinator, run_relay
from tapfinger.reproduce.relay import Line
from tapfinger.workloads.world import build_world

#: The paper's line, and what its messages take per cluster and slot.
BANDWIDTH = 1e6
PAPER_STATE, PAPER_ACTION = 2000, 800
#: Mode -> scenario with six clusters.
SCENARIOS = {"single": "synthetic-6", "multi": "hetero-6"}
#: Slots played before the first exchange, so that clusters are busy.
SKIP = 20
#: Longest that a process may take to answer.
PATIENCE = 120.0


@dataclass(frozen=True)
class Bench:
    """How much is measured."""

    #: One way, in seconds.
    latencies: tuple[float, ...] = (0.0, 0.01, 0.025, 0.05, 0.1)
    slots: int = 40
    bandwidth: float = BANDWIDTH
    scheduler: str = "tapfinger"
    seed: int = 1000
    #: Whether messages are measured at the paper's sizes, too.
    padded: bool = True


QUICK = Bench(latencies=(0.0, 0.025, 0.05, 0.1), slots=12)


@dataclass(frozen=True)
class Phase:
    """What was measured at one latency."""

    mode: str
    padded: bool
    latency: float
    #: Of each slot: the slowest agent's time from report to orders.
    seconds: list[float]
    #: Of each slot: time of the decision in the coordinator.
    decision: list[float]
    #: Of each slot: bytes of the mean report and of the mean order, frames included; and of the largest.
    state: list[float]
    action: list[float]
    largest_state: int
    largest_action: int


def measure(bench: Bench, on_phase: Callable[[], None] = lambda: None) -> list[Phase]:
    """All modes and latencies, one after the other."""
    found = []
    for mode, scenario in SCENARIOS.items():
        for padded in (False, True) if bench.padded else (False,):
            found += _measure(bench, mode, scenario, padded, on_phase)
    return found


def _measure(bench: Bench, mode: str, scenario: str, padded: bool, on_phase: Callable[[], None]) -> list[Phase]:
    """One mode: fresh processes that go through all latencies."""
    world = build_world(load_scenario(scenario))
    sizes = (PAPER_STATE, PAPER_ACTION) if padded else (0, 0)
    phases = [
        Exchange(Line(latency, bench.bandwidth), bench.slots, 0.15 + 4.0 * latency, *sizes)
        for latency in bench.latencies
    ]
    roles = parts(world, bench.scheduler, bench.seed, SKIP, bench.slots)
    with _processes() as start:
        coordinator = start(run_coordinator, scenario, bench.scheduler, bench.seed, SKIP, phases)
        upstream = _answer(coordinator)
        relay = start(run_relay, [phase.line for phase in phases], upstream)
        ports = _answer(relay)
        agents = [start(run_agent, part, list(zip(ports, phases, strict=True))) for part in roles]
        found = []
        for phase in phases:
            for agent in agents:
                _answer(agent)
            begin = time.monotonic() + 0.2
            for agent in agents:
                agent.send(begin)
            reports = [_answer(agent) for agent in agents]
            found.append(_phase(mode, padded, phase.line.latency, _answer(coordinator), reports))
            on_phase()
        relay.send(None)
    return found


def _phase(mode: str, padded: bool, latency: float, decided: Any, reports: Sequence[Any]) -> Phase:
    orders = [sizes for _, sizes in decided]
    slots = list(zip(*reports, strict=True))  # (slots, agents) of (seconds, bytes)
    return Phase(
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
def _processes() -> Iterator[Callable[..., Connection]]:
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


def _answer(pipe: Connection) -> Any:
    try:
        if pipe.poll(PATIENCE):
            return pipe.recv()
    except EOFError:
        raise DataError("overhead: a process of the bench has died; its message is above") from None
    raise DataError(f"overhead: a process of the bench has said nothing for {PATIENCE:g} s; is the machine overloaded?")


# ------------------------------------------------------------------- results


def measure_overhead(figure: Figure, bench: Bench, kept: Path, on_phase: Callable[[], None]) -> tuple[Measured, bool]:
    """The figure, and whether its numbers were found in ``kept``: measured by the same code with the same settings."""
    identity = {"bench": json.loads(json.dumps(asdict(bench))), "source": tree_digest(Path(__file__).parents[1])}
    phases = _load(kept, identity)
    reused = phases is not None
    if phases is None:
        phases = measure(bench, on_phase)
        kept.write_text(json.dumps({**identity, "phases": [asdict(phase) for phase in phases]}), encoding="utf-8")
    return summarise_phases(figure, phases), reused


def _load(kept: Path, identity: dict[str, Any]) -> list[Phase] | None:
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        phases = [Phase(**phase) for phase in found.pop("phases")]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return phases if found == identity else None


_HEAD = (
    "mode",
    "messages",
    "latency, one way [ms]",
    "overhead [ms]",
    "deciding [ms]",
    "of a 10 s slot",
    "of a 1 s slot",
    "state [bytes]",
    "largest state",
    "actions [bytes]",
    "largest actions",
)


def summarise_phases(figure: Figure, phases: Sequence[Phase]) -> Measured:
    """Values that claims look at (at the greatest latency), curves over the latency, and the table."""
    most = max(phase.latency for phase in phases)
    values: dict[str, Estimate] = {}
    for phase in phases:
        if phase.latency == most and not phase.padded:
            values |= {f"{name}.{phase.mode}": value for name, value in _values(phase).items()}
    lines: dict[str, list[Phase]] = {}
    for phase in phases:
        sizes = "sizes of the paper" if phase.padded else "own messages"
        lines.setdefault(f"{phase.mode}-task, {sizes}", []).append(phase)
    curves = {name: _curve(line) for name, line in lines.items()}
    return Measured(figure, values=values, curves={"overhead": curves}, table=(_HEAD, tuple(map(_row, phases))))


def _values(phase: Phase) -> dict[str, Estimate]:
    line = [total - decided for total, decided in zip(phase.seconds, phase.decision, strict=True)]
    return {
        "share10": estimate([10.0 * seconds for seconds in phase.seconds]),  # percent of 10 s
        "seconds": estimate(phase.seconds),
        "inference": estimate([100.0 * own / other for own, other in zip(phase.decision, line, strict=True)]),
        "state": estimate(phase.state),
        "action": estimate(phase.action),
    }


def _curve(line: Sequence[Phase]) -> Curve:
    found = [estimate([1e3 * seconds for seconds in phase.seconds]) for phase in line]
    return Curve([1e3 * phase.latency for phase in line], [f.mean for f in found], [f.half_width or 0.0 for f in found])


def _row(phase: Phase) -> tuple[str, ...]:
    overhead = estimate([1e3 * seconds for seconds in phase.seconds])
    return (
        f"{phase.mode}-task",
        "sizes of the paper" if phase.padded else "own",
        f"{1e3 * phase.latency:g}",
        overhead.text(1),
        estimate([1e3 * seconds for seconds in phase.decision]).text(2),
        f"{overhead.mean / 100:.2f} %",
        f"{overhead.mean / 10:.1f} %",
        estimate(phase.state).text(0),
        f"{phase.largest_state}",
        estimate(phase.action).text(0),
        f"{phase.largest_action}",
    )
