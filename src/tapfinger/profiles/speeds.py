"""Speed configuration -> rates over a box of allocations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from tapfinger.config import (
    AmdahlSpeed,
    ConstantSpeed,
    FactorSpeed,
    GridSpeed,
    PowerSpeed,
    ReboundSpeed,
    Scenario,
    SpeedConfig,
    TableSpeed,
    TanhSpeed,
    TaskTypeConfig,
    UnknownSpeed,
)
from tapfinger.core.model import MAX_SLOTS, Resources, ResourceTypes
from tapfinger.errors import ConfigError, DataError
from tapfinger.profiles.beliefs import least_rate
from tapfinger.profiles.table import Profile, load_profile, read_rows, rows_of
from tapfinger.profiles.testbed import testbed_seconds

#: Natural quantities by name -> seconds.
Seconds = Callable[[Mapping[str, float]], float]


#: Rates per slot over minimum..maximum (last resource fastest), and the shape offset if any.
Rates = tuple[tuple[float, ...], float | None]


def build_rates(
    scenario: Scenario,
    config: TaskTypeConfig,
    resources: ResourceTypes,
    minimum: Resources,
    maximum: Resources,
    hardware: str = "",
) -> Rates:
    """The rates of a task type on a kind of hardware."""

    def built(kind: str, asked: tuple[str, ...]) -> Rates:
        where = f"task_types.{config.name}.{f'on.{kind}' if kind else 'speed'}"
        speed = config.on.get(kind) if kind else config.speed
        if speed is None and isinstance(config.speed, TableSpeed):
            path = Path(scenario.directory) / config.speed.file
            if kind in {row.hardware for _, row in read_rows(path)}:
                speed = config.speed
        if speed is None:
            raise ConfigError(
                f"{where}: there is no speed on this kind of hardware, which "
                f"{f'on.{asked[-1]} refers to' if asked else 'clusters have'}; add one, such as on.{kind} = 2 for "
                "twice as fast as speed says"
            )
        if not isinstance(speed, FactorSpeed):
            return _rates(scenario, config, speed, where, kind, resources, minimum, maximum)
        if speed.of == kind or speed.of in asked:
            raise ConfigError(
                f"{where}: of = {speed.of!r} goes in a circle; give one of these kinds a speed of its own"
            )
        rates, offset = built(speed.of, (*asked, kind))
        return tuple(rate * speed.factor for rate in rates), offset

    return built(hardware, ())


def _rates(
    scenario: Scenario,
    config: TaskTypeConfig,
    speed: SpeedConfig,
    where: str,
    hardware: str,
    resources: ResourceTypes,
    minimum: Resources,
    maximum: Resources,
) -> Rates:
    box = [range(lo, hi + 1) for lo, hi in zip(minimum, maximum, strict=True)]

    def natural() -> Iterator[dict[str, float]]:
        for cell in product(*box):
            yield {n: a * u for n, u, a in zip(resources.names, resources.units, cell, strict=True)}

    if isinstance(speed, UnknownSpeed):
        raise ConfigError(
            f"{where} is not known, and only live sites learn it; say how fast tasks are (docs/profiles.md). To keep "
            "it from schedulers, set knowledge.kind to 'missing'"
        )
    if isinstance(speed, ConstantSpeed):
        duration = speed.seconds if speed.seconds is not None else (speed.slots or 0.0) * scenario.slot_seconds
        return (scenario.slot_seconds / duration,) * math.prod(map(len, box)), None
    if isinstance(speed, TanhSpeed):
        _known((speed.resource,), resources, where)
        name, slots = speed.resource, speed.slots
        return tuple(math.tanh(cell[name] / speed.scale) / slots for cell in natural()), speed.shape_offset
    least = resources.natural(minimum)
    if isinstance(speed, AmdahlSpeed):
        seconds = _amdahl(speed, _divided(speed.parallel, least, resources, f"{where}.parallel"), where)
    elif isinstance(speed, PowerSpeed):
        seconds = _power(speed, _divided(speed.exponent, least, resources, f"{where}.exponent"))
    elif isinstance(speed, ReboundSpeed):
        _divided((speed.resource, speed.feeder), least, resources, where)
        seconds = _rebound(speed)
    elif isinstance(speed, GridSpeed):
        _known(speed.amounts, resources, f"{where}.amounts")
        seconds = Profile(tuple(speed.amounts), _cells(speed), where).seconds
    elif isinstance(speed, TableSpeed):
        sized = [n for n, lo, hi in zip(resources.names, minimum, maximum, strict=True) if lo < hi]
        _known(speed.insensitive, resources, where)
        seconds = _table(scenario, speed, speed.type or config.name, hardware, sized).seconds
        if (offset := speed.shape_offset) is not None:
            times = (max(1.0, seconds(cell) / scenario.slot_seconds) for cell in natural())
            return tuple(least_rate(slots, offset) for slots in times), offset
    else:
        seconds = testbed_seconds(speed.type or config.name)
    return tuple(scenario.slot_seconds / seconds(cell) for cell in natural()), None


def _known(names: Iterable[str], resources: ResourceTypes, where: str) -> None:
    """Refuse names of resources that the scenario does not have."""
    for name in names:
        if name not in resources.names:
            raise ConfigError(f"{where}: there is no resource {name!r}; resources are {', '.join(resources.names)}")


def _divided(
    names: Iterable[str], least: Mapping[str, float], resources: ResourceTypes, where: str
) -> dict[str, float]:
    """The least amount of each named resource; the time is divided by amounts, so none may be 0."""
    _known(names, resources, where)
    found = {name: least[name] for name in names}
    if not all(found.values()):
        raise ConfigError(f"{where}: the minimum of each named resource must be above 0")
    return found


def _amdahl(speed: AmdahlSpeed, least: Mapping[str, float], where: str) -> Seconds:
    parallel = sum(speed.parallel.values())
    if parallel > 1 + 1e-9:
        raise ConfigError(f"{where}.parallel: shares sum to {parallel:g}, at most 1 is possible")
    serial, base, shares = 1.0 - parallel, speed.seconds, speed.parallel
    return lambda cell: base * (serial + sum(share * least[n] / cell[n] for n, share in shares.items()))


def _power(speed: PowerSpeed, least: Mapping[str, float]) -> Seconds:
    base, exponents = speed.seconds, speed.exponent
    return lambda cell: base * math.prod((least[n] / cell[n]) ** e for n, e in exponents.items())


def _rebound(speed: ReboundSpeed) -> Seconds:
    fixed, compute, feeding, resource, feeder = speed.fixed, speed.compute, speed.feeding, speed.resource, speed.feeder
    return lambda cell: fixed + compute / cell[resource] + feeding * cell[resource] / cell[feeder]


def _cells(speed: GridSpeed) -> dict[tuple[float, ...], float]:
    """Amounts -> seconds of an inline grid."""
    return dict(zip(product(*speed.amounts.values()), speed.seconds, strict=True))


def _table(scenario: Scenario, speed: TableSpeed, task_type: str, hardware: str, sized: Sequence[str]) -> Profile:
    """The profile of a task type; ``sized``: resources of which the type may get more or less."""
    path = Path(scenario.directory) / speed.file
    profile = load_profile(path, task_type, hardware)
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
    line, slowest = max(rows_of(path, task_type, hardware), key=lambda numbered: numbered[1].seconds)
    slots = slowest.seconds / scenario.slot_seconds
    if slots >= MAX_SLOTS:
        amounts = ", ".join(f"{amount:g} {name}" for name, amount in slowest.amounts.items())
        raise DataError(
            f"{path}:{line}: seconds = {slowest.seconds:g} with {amounts} is {slots:g} slots, at most {MAX_SLOTS:,} "
            "are possible; correct the value, leave out the row or use a larger slot_seconds"
        )
    return profile
