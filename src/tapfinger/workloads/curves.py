"""Random speed curves for drawn task types: one family for each way in which speed depends on the allocation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

#: Real seconds in one slot of a drawn site.
SLOT_SECONDS = 10.0

#: Maximum slots under the slowest allocation: a task that crawls only makes runs long.
SLOWEST = 400.0

Bounds = Mapping[str, int]


class DrawnCurve:
    """One drawn curve of relative durations over a box, which is scaled to an ideal duration."""

    def __init__(self, seconds: Callable[[float, float], float], low: Bounds, high: Bounds) -> None:
        """``seconds``: duration by cpu and gpu, in any unit."""
        self.seconds = seconds
        corners = [seconds(c, g) for c, g in product(_amounts(low, high, "cpu"), _amounts(low, high, "gpu"))]
        self.fastest, self.slowest = min(corners), max(corners)

    def scale(self, ideal: float) -> float:
        """Seconds per unit, so that the fastest allocation takes ``ideal`` slots and the slowest not too many."""
        return min(ideal / self.fastest, SLOWEST / self.slowest) * SLOT_SECONDS


def draw_speed(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    """A speed table of a scenario for a type from ``low`` to ``high`` that takes ``ideal`` slots at its fastest."""
    # Tasks that need no gpu gain nothing from one either, so the families that divide by gpus are not for them.
    families = FAMILIES if low["gpu"] else FAMILIES_WITHOUT_GPU
    family = str(rng.choice(list(families)))
    return families[family](rng, low, high, ideal)


def _constant(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:  # noqa: ARG001
    return {"kind": "constant", "slots": tidy(ideal)}


def _power(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    main = "gpu" if low["gpu"] else "cpu"
    exponent = {main: tidy(rng.uniform(0.3, 1.0))}
    if main == "gpu" and rng.random() < 0.5:
        exponent["cpu"] = tidy(rng.uniform(0.05, 0.4))

    def seconds(cpu: float, gpu: float) -> float:
        amount = {"cpu": cpu, "gpu": gpu}
        return float(math.prod((low[n] / amount[n]) ** e for n, e in exponent.items()))

    return {"kind": "power", "seconds": tidy(DrawnCurve(seconds, low, high).scale(ideal)), "exponent": exponent}


def _saturating(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    name = "gpu" if low["gpu"] and rng.random() < 0.8 else "cpu"
    scale = tidy(high[name] * rng.uniform(0.2, 1.2))
    offset = tidy(rng.uniform(1.05, 1.6)) if rng.random() < 0.5 else None
    # The time from progress 0 to 1 at full speed: the integral of 1 / sqrt(offset - p).
    whole = 2.0 * (math.sqrt(offset) - math.sqrt(offset - 1.0)) if offset else 1.0
    curve = DrawnCurve(lambda cpu, gpu: whole / math.tanh((gpu if name == "gpu" else cpu) / scale), low, high)
    speed = {"kind": "tanh", "resource": name, "scale": scale, "slots": tidy(curve.scale(ideal) / SLOT_SECONDS)}
    return {**speed, "shape_offset": offset} if offset else speed


def _amdahl(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    main = "gpu" if low["gpu"] else "cpu"
    parallel = {main: tidy(rng.uniform(0.4, 0.98))}
    if main == "gpu" and rng.random() < 0.5:
        parallel["cpu"] = tidy((1.0 - parallel[main]) * rng.uniform(0.2, 0.9))
    serial = 1.0 - sum(parallel.values())

    def seconds(cpu: float, gpu: float) -> float:
        amount = {"cpu": cpu, "gpu": gpu}
        return serial + sum(share * low[n] / amount[n] for n, share in parallel.items())

    return {"kind": "amdahl", "seconds": tidy(DrawnCurve(seconds, low, high).scale(ideal)), "parallel": parallel}


def _fed(rng: np.random.Generator, high: Bounds) -> tuple[float, float, float]:
    """Fixed, computing and feeding time: with all cpus, gpus help up to a share of the maximum, then hurt."""
    best = max(1.0, high["gpu"] * rng.uniform(0.3, 0.9))
    return rng.uniform(0.02, 0.3), 1.0, high["cpu"] / best**2


def _rebound(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    fixed, compute, feeding = _fed(rng, high)
    scale = DrawnCurve(lambda cpu, gpu: fixed + compute / gpu + feeding * gpu / cpu, low, high).scale(ideal)
    terms = {"fixed": fixed, "compute": compute, "feeding": feeding}
    return {"kind": "rebound", **{key: tidy(value * scale) for key, value in terms.items()}}


def _measured(rng: np.random.Generator, low: Bounds, high: Bounds, ideal: float) -> dict[str, Any]:
    """A smooth curve, measured at some amounts with an error of a few percent, so that it has bumps."""
    fixed, compute, feeding = _fed(rng, high)
    feeding *= rng.choice([0.0, 0.3, 1.0])
    if not low["gpu"]:  # the cpus compute, and need no feeding
        axes = {"cpu": _amounts(low, high, "cpu")}
        smooth = np.array([fixed + compute / c for c in axes["cpu"]])
    else:
        axes = {name: _amounts(low, high, name) for name in ("cpu", "gpu")}
        smooth = np.array([fixed + compute / g + feeding * g / c for c, g in product(*axes.values())])
    measured = smooth * np.exp(rng.normal(0.0, rng.uniform(0.02, 0.12), len(smooth)))
    seconds = measured * min(ideal / measured.min(), SLOWEST / measured.max()) * SLOT_SECONDS
    return {"kind": "grid", "amounts": axes, "seconds": [tidy(s) for s in seconds]}


def _amounts(low: Bounds, high: Bounds, name: str) -> list[int]:
    """Both ends and the powers of two between them."""
    inner = [2**i for i in range(high[name].bit_length()) if low[name] < 2**i < high[name]]
    return sorted({low[name], *inner, high[name]})


def tidy(value: float) -> float:
    """Round to four digits, so that people can read a drawn scenario."""
    return float(f"{value:.4g}")


Family = Callable[[np.random.Generator, Bounds, Bounds, float], dict[str, Any]]

#: How speed depends on the allocation, by name.
FAMILIES: dict[str, Family] = {
    "constant": _constant,
    "power": _power,
    "saturating": _saturating,
    "amdahl": _amdahl,
    "rebound": _rebound,
    "measured": _measured,
}

FAMILIES_WITHOUT_GPU = {name: draw for name, draw in FAMILIES.items() if name != "rebound"}
