"""Other people's use of clusters: drawn from a seed like everything else of a workload, or read from a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tapfinger.config import BurstyOthers, DayNightOthers, OthersConfig, Scenario, TraceOthers
from tapfinger.core.model import Cluster, Resources, ResourceTypes
from tapfinger.errors import ConfigError, DataError, TapfingerError, UnknownNameError
from tapfinger.profiles.table import csv_rows
from tapfinger.workloads.base import Others

#: Slots after which drawn phases begin again.
REPEAT = 20_000

#: Most changes of one cluster: a longer list is taken for a typing error.
MOST_CHANGES = 200_000


def draw_others(
    scenario: Scenario, clusters: Sequence[Cluster], resources: ResourceTypes, rng: np.random.Generator
) -> tuple[Others, ...]:
    """What others use of each cluster, in the order of the clusters."""
    found: dict[int, Others] = {}
    for position, config in enumerate(scenario.others):
        where = f"others.{position}"
        for n, others in _drawn(config, where, scenario, clusters, resources, rng).items():
            if n in found:
                raise ConfigError(f"{where}: cluster {clusters[n].name} has an entry already; name each cluster once")
            found[n] = others
    return tuple(found[n] for n in sorted(found))


def _drawn(
    config: OthersConfig,
    where: str,
    scenario: Scenario,
    clusters: Sequence[Cluster],
    resources: ResourceTypes,
    rng: np.random.Generator,
) -> dict[int, Others]:
    if isinstance(config, TraceOthers):
        return _read(config, where, scenario, clusters, resources)
    names = config.clusters or tuple(dict.fromkeys(cluster.whole for cluster in clusters))
    found = {}
    for name in names:
        for n in _named(name, clusters, f"{where}.clusters"):
            slot, share = _bursty(config, rng) if isinstance(config, BurstyOthers) else _day_night(config)
            amounts = np.floor(share[:, None] * np.array(clusters[n].capacity) + 1e-9).astype(np.int64)
            period = REPEAT if isinstance(config, BurstyOthers) else config.period
            found[n] = _changes(n, period, slot, amounts)
    return found


def _named(name: str, clusters: Sequence[Cluster], where: str) -> list[int]:
    """A node by its name, or all nodes of a cluster; spans have no resources of their own."""
    found = [n for n, cluster in enumerate(clusters) if name in (cluster.name, cluster.whole) and not cluster.nodes]
    if not found:
        known = dict.fromkeys(name for c in clusters for name in (c.whole, c.name) if not c.nodes)
        raise ConfigError(f"{where}: {UnknownNameError('cluster', name, known)}")
    return found


def _bursty(config: BurstyOthers, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Calm and busy phases of random length; each node has its own."""
    whole = config.calm_slots + config.busy_slots
    busy = bool(rng.random() < config.busy_slots / whole)
    slot, share = [0], [config.busy if busy else config.calm]
    while slot[-1] < REPEAT:
        length = rng.exponential(config.busy_slots if busy else config.calm_slots)
        busy = not busy
        slot.append(slot[-1] + max(1, round(length)))
        share.append(config.busy if busy else config.calm)
    return np.array(slot[:-1], dtype=np.int64), np.array(share[:-1])


def _day_night(config: DayNightOthers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    slot = np.arange(config.period)
    share = config.mean + config.swing * np.sin(2.0 * np.pi * slot / config.period)
    return slot, share.clip(0.0, 1.0)


def _changes(cluster: int, period: int, slot: npt.NDArray[np.int64], amounts: npt.NDArray[np.int64]) -> Others:
    """Without slots in which nothing changes; the first slot always counts."""
    changed = np.append(True, (np.diff(amounts, axis=0) != 0).any(axis=1))
    return Others(cluster, period, slot[changed], amounts[changed])


def _read(
    config: TraceOthers, where: str, scenario: Scenario, clusters: Sequence[Cluster], resources: ResourceTypes
) -> dict[int, Others]:
    path = Path(scenario.directory) / config.file
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where}.file: {path} cannot be read: {error}") from None
    lines = csv_rows(text, str(path))
    _, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    wanted = ["seconds", "cluster", *resources.names]
    if sorted(names) != sorted(wanted):
        raise DataError(f"{path}: the columns are {', '.join(names) or 'none'}; they must be {', '.join(wanted)}")
    rows: dict[int, dict[int, Resources]] = {}
    for line, cells in lines:
        at, n, amounts = _row(f"{path}:{line}", dict(zip(names, cells, strict=False)), scenario, clusters, resources)
        rows.setdefault(n, {})[at] = amounts
    if not rows:
        raise DataError(f"{path} has no rows below its header; add some, or remove this entry of others")
    return {n: _of_rows(n, changes, config, scenario, path, clusters[n]) for n, changes in rows.items()}


def _row(
    where: str, row: dict[str, str], scenario: Scenario, clusters: Sequence[Cluster], resources: ResourceTypes
) -> tuple[int, int, Resources]:
    """Slot, cluster and amounts of a row."""
    try:
        seconds = float(row["seconds"])
        amounts = {name: float(row[name]) for name in resources.names}
    except (KeyError, ValueError):
        raise DataError(f"{where}: seconds and amounts must be numbers; complete or correct the row") from None
    if not 0.0 <= seconds / scenario.slot_seconds < REPEAT * 1000:
        raise DataError(f"{where}: seconds = {seconds:g} must be 0 or more, and not for ever; correct the row")
    name = row["cluster"].strip()
    try:
        found = _named(name, clusters, where)
        used = resources.parse(amounts, where)
    except TapfingerError as error:
        raise DataError(str(error)) from None
    if len(found) > 1:
        raise DataError(f"{where}: cluster {name} has {len(found)} nodes; name one of them, such as {name}:0")
    capacity = clusters[found[0]].capacity
    if not used.fits(capacity):
        raise DataError(
            f"{where}: others use {resources.describe(used)} of {name}, which has {resources.describe(capacity)}; "
            "correct the row"
        )
    return math.floor(seconds / scenario.slot_seconds), found[0], used


def _of_rows(
    n: int, changes: dict[int, Resources], config: TraceOthers, scenario: Scenario, path: Path, cluster: Cluster
) -> Others:
    slots = sorted(changes)
    period = slots[-1] + 1 if config.repeat is None else math.ceil(config.repeat / scenario.slot_seconds)
    if slots[-1] >= period:
        last = slots[-1] * scenario.slot_seconds
        raise DataError(f"{path}: {cluster.name} has a row at {last:g} s; repeat = {config.repeat:g} must be later")
    if len(slots) > MOST_CHANGES:
        raise DataError(f"{path}: {len(slots):,} changes of {cluster.name}, at most {MOST_CHANGES:,} are possible")
    amounts = [changes[slot] for slot in slots]
    if slots[0] > 0:  # until the first row nobody is there
        slots, amounts = [0, *slots], [Resources([0] * len(cluster.capacity)), *amounts]
    return _changes(n, period, np.array(slots, dtype=np.int64), np.array(amounts, dtype=np.int64))
