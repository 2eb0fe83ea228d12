"""The overhead figure: what an exchange of reports and orders costs over real sockets, at several latencies.

The exchange itself is measured by ``benchmarks/measure_overhead.py``. Its values ship with the package as
``overhead.json``; a file of that name in the output directory takes precedence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from tapfinger.errors import DataError
from tapfinger.evaluation.stats import Estimate, estimate
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.figure_data import FigureCurve, FigureData

FILE = "overhead.json"


@dataclass(frozen=True)
class LatencyPhase:
    """Measurements at one latency."""

    mode: str
    padded: bool
    #: One way, in seconds.
    latency: float
    #: Per slot: the slowest agent's time from report to orders.
    seconds: list[float]
    #: Per slot: time of the decision in the coordinator.
    decision: list[float]
    #: Bytes including frames: per slot, of the mean report and of the mean order; then of the largest.
    state: list[float]
    action: list[float]
    largest_state: int
    largest_action: int


def measure_overhead(figure: Figure, folder: Path) -> FigureData:
    """The figure from the values in ``folder``, or from those that ship with the package."""
    own = folder / FILE
    source = own if own.is_file() else resources.files("tapfinger.reproduce") / FILE
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
        phases = [LatencyPhase(**phase) for phase in found["phases"]]
        made = ", ".join(f"{name} {found['made'][name]}" for name in ("date", "machine", "command"))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{source} holds no values of benchmarks/measure_overhead.py ({error!r}); remove it, or measure again"
        ) from None
    return summarise_phases(replace(figure, notes=(*figure.notes, f"Measured: {made}.")), phases)


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


def summarise_phases(figure: Figure, phases: Sequence[LatencyPhase]) -> FigureData:
    """Values used by claims (one for each latency and kind of message), curves over the latency, and the table."""
    values: dict[str, Estimate] = {}
    for phase in phases:
        case = f"{1e3 * phase.latency:g} ms, {_sizes(phase)}"
        values |= {f"{name}.{phase.mode} at {case}": value for name, value in _values(phase).items()}
        # Padding fills messages up to the paper's sizes: it says nothing about those of the live system.
        if not phase.padded:
            values |= {f"{name} at {phase.mode}-task, {1e3 * phase.latency:g} ms": v for name, v in _largest(phase)}
    lines: dict[str, list[LatencyPhase]] = {}
    for phase in phases:
        lines.setdefault(f"{phase.mode}-task, {_sizes(phase)}", []).append(phase)
    curves = {name: _curve(line) for name, line in lines.items()}
    return FigureData(figure, values=values, curves={"overhead": curves}, table=(_HEAD, tuple(map(_row, phases))))


def _values(phase: LatencyPhase) -> dict[str, Estimate]:
    line = [total - decided for total, decided in zip(phase.seconds, phase.decision, strict=True)]
    return {
        "share10": estimate([10.0 * seconds for seconds in phase.seconds]),  # percent of 10 s
        "seconds": estimate(phase.seconds),
        "inference": estimate([100.0 * own / other for own, other in zip(phase.decision, line, strict=True)]),
    }


def _largest(phase: LatencyPhase) -> list[tuple[str, Estimate]]:
    """The largest message of each kind, which has no interval."""
    return [("state", Estimate(phase.largest_state, None)), ("action", Estimate(phase.largest_action, None))]


def _sizes(phase: LatencyPhase) -> str:
    return "sizes of the paper" if phase.padded else "own messages"


def _curve(line: Sequence[LatencyPhase]) -> FigureCurve:
    found = [estimate([1e3 * seconds for seconds in phase.seconds]) for phase in line]
    return FigureCurve(
        [1e3 * phase.latency for phase in line], [f.mean for f in found], [f.half_width or 0.0 for f in found]
    )


def _row(phase: LatencyPhase) -> tuple[str, ...]:
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
