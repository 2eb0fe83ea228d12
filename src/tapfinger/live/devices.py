"""Which cores and accelerators each task has: whole devices, leased by id."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from tapfinger.errors import ConfigError, LaunchFailed

Leased = dict[str, tuple[int, ...]]


class NoRoom(LaunchFailed):
    """More was asked for than is free: the coordinator's book-keeping and ours differ."""


class Devices:
    """The ids of each resource that nobody holds."""

    def __init__(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Resources that are not named here have no devices: any amount of them is given."""
        self._free = {name: sorted(set(pool)) for name, pool in ids.items()}

    def lease(self, amounts: Mapping[str, float]) -> Leased:
        """The lowest free ids; a part of a device takes a whole one."""
        wanted = {name: math.ceil(amount) for name, amount in amounts.items() if name in self._free}
        for name, count in wanted.items():
            if count > len(self._free[name]):
                raise NoRoom(f"{count} {name} were asked for, {len(self._free[name])} are free")
        return {name: self._take(name, self._free[name][:count]) for name, count in wanted.items()}

    def change(self, held: Mapping[str, Sequence[int]], amounts: Mapping[str, float]) -> Leased:
        """Other amounts for one who has some: more is leased at once, what is too much is not yet released."""
        wanted = {name: math.ceil(amount) for name, amount in amounts.items() if name in self._free}
        have = {name: tuple(held.get(name, ())) for name in wanted}
        more = self.lease({name: max(0, count - len(have[name])) for name, count in wanted.items()})
        return {name: have[name][:count] + more[name] for name, count in wanted.items()}

    def _take(self, name: str, ids: Sequence[int]) -> tuple[int, ...]:
        taken = tuple(ids)
        self._free[name] = [i for i in self._free[name] if i not in taken]
        return taken

    def hold(self, leased: Mapping[str, Sequence[int]]) -> None:
        """Take exactly these: a task that runs since before holds them."""
        for name, ids in leased.items():
            if name in self._free:
                self._take(name, ids)

    def release(self, leased: Mapping[str, Iterable[int]]) -> None:
        """Give them back."""
        for name, ids in leased.items():
            if name in self._free:
                self._free[name] = sorted({*self._free[name], *ids})

    @property
    def free(self) -> dict[str, int]:
        """How many of each nobody holds."""
        return {name: len(ids) for name, ids in self._free.items()}


def device_ids(capacity: Mapping[str, float], pin: bool, cores: Sequence[int] = ()) -> dict[str, list[int]]:
    """Ids for a cluster's capacity: real cores if tasks are pinned, otherwise mere numbers to count with.

    ``cores``: those to pin to; none means the first ones of this machine.
    """
    ids = {name: list(range(math.ceil(amount))) for name, amount in capacity.items() if name in ("cpu", "gpu")}
    if pin and "cpu" in ids:
        ids["cpu"] = sorted(cores or os.sched_getaffinity(0))[: len(ids["cpu"])]
    return ids


def can_pin(capacity: Mapping[str, float], cores: Sequence[int] = ()) -> bool:
    """Whether there is a core for every cpu that the cluster promises; ``cores``: as for ``device_ids``."""
    return math.ceil(capacity.get("cpu", 0)) <= len(cores or os.sched_getaffinity(0))


def parse_cores(text: str) -> tuple[int, ...]:
    """``0,1`` or ``4-7``: cores of this machine that this process may use."""
    try:
        parts = [part.partition("-") for part in text.split(",")]
        found = {n for low, _, high in parts for n in range(int(low), int(high or low) + 1)}
    except ValueError:
        found = set()
    here = os.sched_getaffinity(0)
    if not found or not found <= here:
        raise ConfigError(f"--cores {text} must name cores of this machine ({_listed(here)}), such as 0,1 or 0-3")
    return tuple(sorted(found))


def _listed(cores: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cores)))


def split_cores(capacities: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Cores of this machine for each of several clusters on it, none twice; nothing if there are too few."""
    wanted = {name: math.ceil(capacity.get("cpu", 0)) for name, capacity in capacities.items()}
    cores = sorted(os.sched_getaffinity(0))
    if sum(wanted.values()) > len(cores) or not all(wanted.values()):
        return {}
    ends = list(accumulate(wanted.values()))
    return {name: _listed(cores[end - wanted[name] : end]) for name, end in zip(wanted, ends, strict=True)}
