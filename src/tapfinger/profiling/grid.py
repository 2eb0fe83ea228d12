"""The allocations to measure: amounts per resource, and the cells that they span."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tapfinger.errors import ConfigError

Cell = tuple[float, ...]

#: Most cells of a grid; nobody has the time for more.
MAX_CELLS = 4096

#: Without a grid: largest amount of a machine of which every amount is measured; larger machines use powers of two.
EVERY = 8

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Grid:
    """Amounts of each resource, ascending."""

    amounts: Mapping[str, tuple[float, ...]]

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the resources, in the order of a cell."""
        return tuple(self.amounts)

    def cells(self) -> list[Cell]:
        """All combinations; the last resource varies fastest."""
        return list(product(*self.amounts.values()))

    def corners(self) -> list[Cell]:
        """Combinations of smallest and largest amounts; the largest first, which usually takes the least time."""
        return sorted({*product(*((axis[0], axis[-1]) for axis in self.amounts.values()))}, reverse=True)

    def named(self, cell: Cell) -> dict[str, float]:
        """Amounts by resource."""
        return dict(zip(self.amounts, cell, strict=True))

    def describe(self, cell: Cell) -> str:
        """Text for people: ``2 cpu, 1 gpu``."""
        return ", ".join(f"{amount:g} {name}" for name, amount in self.named(cell).items())


def parse_grid(texts: Sequence[str]) -> Grid:
    """``cpu=1:8``, ``gpu=0:2``, ``cpu=2:16:2`` or ``cpu=1,2,4,8``; a text may hold several, separated by spaces."""
    amounts: dict[str, tuple[float, ...]] = {}
    for text in (word for given in texts for word in given.split()):
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
            raise ConfigError(f"--grid {text!r} must look like cpu=1:8, cpu=2:16:2 or cpu=1,2,4,8")
        if name in ("task_type", "seconds"):
            raise ConfigError(
                f"--grid {text!r}: {name} is a column of profiles already; give the resource another name"
            )
        if name in amounts:
            raise ConfigError(f"--grid names {name} twice; give all its amounts at once, such as {name}=1,2,4")
        amounts[name] = tuple(sorted({a for part in values.split(",") for a in _amounts(text, part)}))
    cells = math.prod(map(len, amounts.values()))
    if cells > MAX_CELLS:
        raise ConfigError(
            f"--grid spans {cells:,} allocations, at most {MAX_CELLS:,} are possible; give fewer amounts, "
            "for example cpu=1,2,4,8,16"
        )
    return Grid(amounts)


def _amounts(text: str, part: str) -> list[float]:
    try:
        numbers = [float(number) for number in part.split(":")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or any(not math.isfinite(n) or n < 0.0 for n in numbers):
        raise ConfigError(f"--grid {text!r}: {part!r} must be a number of 0 or more, or FROM:TO, or FROM:TO:STEP")
    if len(numbers) == 1:
        return numbers
    first, last, step = (*numbers, 1.0)[:3]
    if last < first or step <= 0.0:
        raise ConfigError(f"--grid {text!r}: {part!r} must go upwards, with a step above 0")
    count = math.floor((last - first) / step + 1e-9) + 1
    if count > MAX_CELLS:
        raise ConfigError(f"--grid {text!r} has {count:,} amounts, at most {MAX_CELLS:,} are possible")
    return [round(first + i * step, 9) for i in range(count)]


def machine_cpus() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_gpus() -> int:
    """Number of NVIDIA devices of this machine."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name[len("nvidia") :].isdigit())


def default_grid(cpus: int, gpus: int) -> Grid:
    """Every amount on a small machine, powers of two and the maximum on a large one; gpu only if there are any."""
    amounts = {"cpu": _spread(1, cpus)}
    if gpus:
        amounts["gpu"] = _spread(0, gpus)
    return Grid(amounts)


def _spread(least: int, most: int) -> tuple[float, ...]:
    if most <= EVERY:
        return tuple(float(a) for a in range(least, most + 1))
    powers = [2**i for i in range(most.bit_length()) if least <= 2**i < most]
    return tuple(float(a) for a in sorted({least, *powers, most}))


def check_grid(grid: Grid, cpus: float, gpus: float, where: str, declare: str) -> None:
    """Reject amounts that do not exist; ``where``: what has these amounts, ``declare``: how to declare more."""
    if not any(grid.amounts.values()):
        raise ConfigError("--grid is empty; give amounts, such as cpu=1:4")
    if "cpu" not in grid.amounts:
        raise ConfigError("--grid has no cpu, and every task runs on some; add it, such as cpu=1 or cpu=1:4")
    if grid.amounts["cpu"][0] <= 0.0:
        raise ConfigError("--grid: a task cannot run on 0 cpu; begin with cpu=1, or with a part such as cpu=0.5")
    for name, has in (("cpu", cpus), ("gpu", gpus)):
        most = max(grid.amounts.get(name, (0.0,)))
        if most > has:
            more = f"; {declare}" if name == "gpu" else ""
            raise ConfigError(
                f"--grid asks for up to {most:g} {name}, but {where} has {has:g}; give at most {name}={has:g}{more}"
            )


def parse_seconds(option: str, text: str) -> float:
    """``90``, ``90s``, ``30m``, ``2h``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([smhd]?)\s*", text)
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not seconds > 0.0 or not math.isfinite(seconds):
        raise ConfigError(f"{option} {text!r} must be a time above 0, such as 90s, 30m or 2h")
    return seconds
