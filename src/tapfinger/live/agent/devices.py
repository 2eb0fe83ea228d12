"""Cores and accelerators of tasks: devices leased by id, whole or in parts."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError, LaunchFailed
from tapfinger.live.backends.base import BackendContext

Leased = dict[str, tuple[int, ...]]

#: Highest id of a device or core that can be named; a bound on what a list such as ``0-9`` may stand for.
MAX_ID = 65_535


class NoRoom(LaunchFailed):
    """More was asked for than is free: the bookkeeping of coordinator and agent differs."""


class Devices:
    """The free devices of each resource, or their free parts where devices are shared.

    A lease names the id of a device once for each part: ``(0, 0, 1)`` means two parts of device 0 and one of device 1.
    """

    def __init__(self, ids: Mapping[str, Sequence[int]], parts: Mapping[str, int] | None = None) -> None:
        """``ids``: devices by resource; other resources are not limited. ``parts``: per device, 1 by default."""
        self._parts = {name: (parts or {}).get(name, 1) for name in ids}
        self._ids = {name: frozenset(ids[name]) for name in ids}
        self._free = {name: Counter({i: self._parts[name] for i in sorted(ids[name])}) for name in ids}

    def lease(self, amounts: Mapping[str, float]) -> Leased:
        """Lease free devices, lowest ids first. An amount smaller than a part takes a whole part."""
        wanted = self._wanted(amounts)
        for name, count in wanted.items():
            free, parts = self._free[name].total(), self._parts[name]
            if count > free:
                raise NoRoom(f"{count / parts:g} {name} were asked for, {free / parts:g} are free")
        return {name: self._take(name, self._choose(name, count)) for name, count in wanted.items()}

    def _wanted(self, amounts: Mapping[str, float]) -> dict[str, int]:
        """Number of parts by resource, for resources with devices."""
        known = {name: amount for name, amount in amounts.items() if name in self._free}
        return {name: math.ceil(round(amount * self._parts[name], 6)) for name, amount in known.items()}

    def _choose(self, name: str, count: int) -> Iterator[int]:
        """Choose one device after the other: the fullest with room for the rest, or else the emptiest."""
        free = {device: room for device, room in self._free[name].items() if room}
        while count:
            fitting = [device for device, room in free.items() if room >= min(count, self._parts[name])]
            device = min(fitting, key=lambda d: (free[d], d)) if fitting else max(free, key=lambda d: (free[d], -d))
            taken = min(count, free.pop(device))
            count -= taken
            yield from [device] * taken

    def change(self, held: Mapping[str, Sequence[int]], amounts: Mapping[str, float]) -> Leased:
        """The lease for new amounts. Additional devices are leased at once; surplus ones are not released yet."""
        wanted = self._wanted(amounts)
        have = {name: tuple(held.get(name, ())) for name in wanted}
        more = {name: max(0, count - len(have[name])) / self._parts[name] for name, count in wanted.items()}
        leased = self.lease(more)
        return {name: have[name][:count] + leased[name] for name, count in wanted.items()}

    def _take(self, name: str, ids: Iterable[int]) -> tuple[int, ...]:
        taken = tuple(ids)
        self._free[name] -= Counter(taken)
        return taken

    def hold(self, leased: Mapping[str, Sequence[int]]) -> None:
        """Take exactly these devices, which a task from before this start of the agent holds."""
        for name, ids in leased.items():
            if name in self._free:
                self._take(name, ids)

    def release(self, leased: Mapping[str, Iterable[int]]) -> None:
        """Give devices back."""
        for name, ids in leased.items():
            if name in self._free:
                # A task from before may hold a device that is not this agent's any more.
                returned = self._free[name] + Counter(i for i in ids if i in self._ids[name])
                self._free[name] = Counter({i: min(room, self._parts[name]) for i, room in returned.items()})

    @property
    def free(self) -> dict[str, float]:
        """Free amount of each resource with devices."""
        return {name: devices.total() / self._parts[name] for name, devices in self._free.items()}


def without(leased: Mapping[str, Sequence[int]], kept: Mapping[str, Sequence[int]]) -> Leased:
    """The devices of one lease that are not in another."""
    left = {name: Counter(ids) - Counter(kept.get(name, ())) for name, ids in leased.items()}
    return {name: tuple(ids.elements()) for name, ids in left.items()}


def make_devices(context: BackendContext, chosen: Mapping[str, Sequence[int]] | None = None) -> Devices:
    """The devices of a cluster. Core ids are real if tasks are pinned, and otherwise only serve to count.

    ``chosen``: ids by resource (``--devices``); the devices of other resources are counted from 0.
    """
    types = context.resources
    ids: dict[str, list[int]] = {}
    parts: dict[str, int] = {}
    for name, unit, role in zip(types.names, types.units, types.roles, strict=True):
        count = math.ceil(context.capacity.get(name, 0))
        if role.lease == "divisible" or name not in context.capacity:
            continue
        ids[name] = sorted((chosen or {}).get(name, range(count)))
        parts[name] = round(1 / unit) if role.lease == "share" else 1
        if role.enforced == "cores" and context.pin:
            ids[name] = sorted(context.cores or os.sched_getaffinity(0))[:count]
    return Devices(ids, parts)


def cores_of(resources: ResourceTypes, capacity: Mapping[str, float]) -> int:
    """Number of cores in a cluster's capacity."""
    return math.ceil(capacity.get(resources.enforced_by("cores"), 0))


def can_pin(wanted: int, cores: Sequence[int] = ()) -> bool:
    """Whether there are enough cores, among ``cores`` or on this machine."""
    return wanted <= len(cores or os.sched_getaffinity(0))


def parse_cores(text: str) -> tuple[int, ...]:
    """``0,1`` or ``4-7``: cores of this machine that this process may use."""
    found, here = set(_ids(text)), os.sched_getaffinity(0)
    if not found or not found <= here:
        raise ConfigError(f"--cores {text} must name cores of this machine ({_listed(here)}), such as 0,1 or 0-3")
    return tuple(sorted(found))


def _ids(text: str) -> list[int]:
    """The numbers in a text such as ``0,1`` or ``4-7``; none if it is no such text."""
    try:
        bounds = [(int(low), int(high or low)) for low, _, high in (part.partition("-") for part in text.split(","))]
    except ValueError:
        return []
    fine = all(0 <= low <= high <= MAX_ID for low, high in bounds)
    return [n for low, high in bounds for n in range(low, high + 1)] if fine else []


def parse_devices(
    given: Mapping[str, str], resources: ResourceTypes, capacity: Mapping[str, float], cluster: str
) -> dict[str, tuple[int, ...]]:
    """Ids of ``--devices``, by resource, after a check that they are as many as the cluster has."""
    shown = visible_names(resources)
    found: dict[str, tuple[int, ...]] = {}
    for name, text in given.items():
        if name not in shown:
            raise ConfigError(
                f"--devices {name}={text}: {name} has no devices that tasks are shown; those that have are "
                f"{', '.join(shown) or 'none'}" + ("; use --cores" if name == resources.enforced_by("cores") else "")
            )
        ids, count = _ids(text), math.ceil(capacity.get(name, 0))
        if len(set(ids)) != len(ids) or len(ids) != count:
            raise ConfigError(
                f"--devices {name}={text} must name {count} different ids, such as {name}=0 or {name}=2,4-7: cluster "
                f"{cluster} has {capacity.get(name, 0):g} {name}"
            )
        found[name] = tuple(sorted(ids))
    return found


def visible_names(resources: ResourceTypes) -> list[str]:
    """Names of the resources whose leased ids are told to tasks."""
    return [n for n, role in zip(resources.names, resources.roles, strict=True) if role.enforced == "visible"]


def split_devices(resources: ResourceTypes, capacities: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, str]]:
    """Divide the devices that tasks are shown among clusters on one machine, none twice: by cluster, then by resource.

    Ids are counted from 0, in the order of the clusters. Texts are as ``--devices`` takes them.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in capacities}
    for resource in visible_names(resources):
        first = 0
        for name, capacity in capacities.items():
            if count := math.ceil(capacity.get(resource, 0)):
                found[name][resource] = _listed(range(first, first + count))
            first += count
    return found


def _listed(cores: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cores)))


def split_cores(wanted: Mapping[str, int]) -> dict[str, str]:
    """Divide the cores of this machine among several clusters, none twice; empty if there are too few.

    ``wanted``: number of cores in each cluster's capacity.
    """
    cores = sorted(os.sched_getaffinity(0))
    if sum(wanted.values()) > len(cores) or not all(wanted.values()):
        return {}
    ends = list(accumulate(wanted.values()))
    return {name: _listed(cores[end - wanted[name] : end]) for name, end in zip(wanted, ends, strict=True)}
