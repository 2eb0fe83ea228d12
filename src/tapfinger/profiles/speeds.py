"""Speed configuration -> rates over a box of allocations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from tapfinger.config import AmdahlSpeed, ConstantSpeed, Scenario, TableSpeed, TanhSpeed, TaskTypeConfig
from tapfinger.core.model import MAX_SLOTS, Resources, ResourceTypes
from tapfinger.errors import ConfigError, DataError
from tapfinger.profiles.table import Profile, load_profile, read_rows
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
        sized = [n for n, lo, hi in zip(resources.names, minimum, maximum, strict=True) if lo < hi]
        for name in speed.insensitive:
            position(name)
        seconds = _table(scenario, speed, speed.type or config.name, sized).seconds
    else:
        seconds = testbed_seconds(speed.type or config.name)
    return tuple(scenario.slot_seconds / seconds(cell) for cell in natural()), offset


def _table(scenario: Scenario, speed: TableSpeed, task_type: str, sized: Sequence[str]) -> Profile:
    """The profile of a task type; ``sized``: resources that it may have more or less of."""
    path = Path(scenario.directory) / speed.file
    profile = load_profile(path, task_type)
    doubled = [name for name in speed.insensitive if name in profile.resources]
    if doubled:
        raise DataError(
            f"{path} ({task_type}): {doubled[0]!r} is said to be insensitive, but the file has amounts of it; "
            "take it off the list, or remove the column"
        )
    missing = [name for name in sized if name not in (*profile.resources, *speed.insensitive)]
    if missing:
        raise DataError(
            f"{path} ({task_type}): there is no column {missing[0]!r} with amounts, so its speed under more or less "
            f'{missing[0]} is not known; measure it, or say that it does not matter: insensitive = ["{missing[0]}"] '
            "in speed, or a maximum equal to the minimum"
        )
    line, slowest = max(((n, r) for n, r in read_rows(path) if r.task_type == task_type), key=lambda x: x[1].seconds)
    slots = slowest.seconds / scenario.slot_seconds
    if slots >= MAX_SLOTS:
        amounts = ", ".join(f"{amount:g} {name}" for name, amount in slowest.amounts.items())
        raise DataError(
            f"{path}:{line}: seconds = {slowest.seconds:g} with {amounts} is {slots:g} slots, at most {MAX_SLOTS:,} "
            "are possible; correct the value, leave out the row or use a larger slot_seconds"
        )
    return profile
