"""Speed configuration -> rates over a box of allocations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from tapfinger.config import AmdahlSpeed, ConstantSpeed, Scenario, TableSpeed, TanhSpeed, TaskTypeConfig
from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.profiles.table import load_profile
from tapfinger.profiles.testbed import testbed_seconds


def build_rates(
    scenario: Scenario, config: TaskTypeConfig, resources: ResourceTypes, minimum: Resources, maximum: Resources
) -> tuple[tuple[float, ...], float | None]:
    """Rates per slot over minimum..maximum (last resource fastest), and the shape offset if any."""
    speed, where = config.speed, f"task_types.{config.name}.speed"
    box = [range(lo, hi + 1) for lo, hi in zip(minimum, maximum, strict=True)]

    def natural() -> Iterator[dict[str, float]]:
        for cell in product(*box):
            yield {n: a * u for n, u, a in zip(resources.names, resources.units, cell, strict=True)}

    def position(name: str) -> str:
        if name not in resources.names:
            raise ConfigError(f"{where}: there is no resource {name!r}; resources are {', '.join(resources.names)}")
        return name

    offset: float | None = None
    seconds: Callable[[dict[str, float]], float]
    if isinstance(speed, ConstantSpeed):
        duration = speed.seconds if speed.seconds is not None else (speed.slots or 0.0) * scenario.slot_seconds
        return (scenario.slot_seconds / duration,) * math.prod(map(len, box)), None
    if isinstance(speed, TanhSpeed):
        name = position(speed.resource)
        return tuple(math.tanh(cell[name] / speed.scale) for cell in natural()), speed.shape_offset
    if isinstance(speed, AmdahlSpeed):
        if sum(speed.parallel.values()) > 1 + 1e-9:
            raise ConfigError(
                f"{where}.parallel: shares sum to {sum(speed.parallel.values()):g}, at most 1 is possible"
            )
        least = {position(n): resources.natural(minimum)[n] for n in speed.parallel}
        if not all(least.values()):
            raise ConfigError(f"{where}.parallel: the minimum of each named resource must be above 0")
        serial = 1.0 - sum(speed.parallel.values())
        base, shares = speed.seconds, speed.parallel

        def seconds(cell: dict[str, float]) -> float:
            return base * (serial + sum(share * least[n] / cell[n] for n, share in shares.items()))

    elif isinstance(speed, TableSpeed):
        profile = load_profile(Path(scenario.directory) / speed.file, speed.type or config.name)
        seconds = profile.seconds
    else:
        seconds = testbed_seconds(speed.type or config.name)
    return tuple(scenario.slot_seconds / seconds(cell) for cell in natural()), offset
