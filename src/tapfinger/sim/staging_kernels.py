"""Compiled data sets, for the batched simulator: what is where, and from when on a task has its data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapfinger.sim.compiled import compiled

Record = Any


@compiled
def reset_staging(b: int, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.staging.Staging.begin`."""
    layout = draws.layout[b]
    for place in range(worlds.ready.shape[1]):
        for s in range(worlds.ready.shape[2]):
            worlds.ready[b, place, s] = 0.0 if draws.data_lies[layout, place, s] else math.inf
        for n in range(worlds.busy.shape[2]):
            worlds.busy[b, place, n] = 0.0
    for n in range(worlds.used.shape[1]):
        for s in range(worlds.used.shape[2]):
            worlds.used[b, n, s] = -1
            worlds.users[b, n, s] = 0


@compiled
def _brought(d: int, b: int, kind: int, place: int, ask: bool, tables: Record, draws: Record, worlds: Record) -> float:
    """Mirror of `tapfinger.core.staging.Staging._brought`: when all data sets of a type would be at a place.

    ``ask``: the data sets are asked for, so that ``ready`` and ``busy`` change.
    """
    layout, slot = draws.layout[d], float(worlds.slot[b])
    until, linked = slot, False
    for i in range(tables.data_first[kind], tables.data_first[kind + 1]):
        s = tables.data[i]
        if worlds.ready[b, place, s] < math.inf:
            until = max(until, worlds.ready[b, place, s])
            continue
        if not linked:
            linked = True
            for source in range(worlds.link.shape[1]):
                worlds.link[b, source] = worlds.busy[b, source, place]
        best, soonest = -1, math.inf
        for source in range(worlds.link.shape[1]):
            if source != place and worlds.ready[b, source, s] <= slot:
                free = max(slot, worlds.link[b, source])
                at = free + draws.data_gb[layout, s] * draws.data_slots[layout, source, place]
                if at < soonest:
                    best, soonest = source, at
        worlds.link[b, best] = soonest
        if ask:
            worlds.ready[b, place, s] = soonest
            worlds.busy[b, best, place] = soonest
        until = max(until, soonest)
    return until


@compiled
def begins(until: float) -> float:
    """Mirror of `tapfinger.core.staging.begins`, as a float: what takes for ever may not fit an integer."""
    return float(np.ceil(until - 1e-9))


@compiled
def wait_for_data(d: int, b: int, kind: int, n: int, tables: Record, draws: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.core.staging.Staging.wait`, for a task of this type on cluster n."""
    if tables.data_first[kind] == tables.data_first[kind + 1]:
        return 0.0
    place = draws.data_place[draws.layout[d], n]
    return begins(_brought(d, b, kind, place, False, tables, draws, worlds)) - worlds.slot[b]


@compiled
def ask_for_data(d: int, b: int, j: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.staging.Staging.ask`, for task j on its cluster."""
    kind = worlds.kind[b, j]
    worlds.runs_from[b, j] = float(worlds.slot[b])
    if tables.data_first[kind] == tables.data_first[kind + 1]:
        return
    place = draws.data_place[draws.layout[d], worlds.cluster[b, j]]
    until = _brought(d, b, kind, place, True, tables, draws, worlds)
    for i in range(tables.data_first[kind], tables.data_first[kind + 1]):
        worlds.used[b, place, tables.data[i]] = worlds.slot[b]
        worlds.users[b, place, tables.data[i]] += 1
    _trim(d, b, place, draws, worlds)
    worlds.runs_from[b, j] = begins(until)


@compiled
def release_data(d: int, b: int, j: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.staging.Staging.release`, for task j on its cluster."""
    kind = worlds.kind[b, j]
    if tables.data_first[kind] == tables.data_first[kind + 1]:
        return
    place = draws.data_place[draws.layout[d], worlds.cluster[b, j]]
    for i in range(tables.data_first[kind], tables.data_first[kind + 1]):
        worlds.used[b, place, tables.data[i]] = worlds.slot[b]
        worlds.users[b, place, tables.data[i]] -= 1
    _trim(d, b, place, draws, worlds)


@compiled
def _trim(d: int, b: int, place: int, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.staging.Staging._trimmed`."""
    layout, sets, over = draws.layout[d], worlds.ready.shape[2], 0.0
    for s in range(sets):
        if worlds.ready[b, place, s] < math.inf and not draws.data_lies[layout, place, s]:
            over += draws.data_gb[layout, s]
    over -= draws.data_cache[layout, place]
    while over > 0.0:
        oldest = -1
        for s in range(sets):
            idle = worlds.ready[b, place, s] < math.inf and worlds.users[b, place, s] == 0
            sooner = oldest < 0 or worlds.used[b, place, s] < worlds.used[b, place, oldest]
            if idle and sooner and not draws.data_lies[layout, place, s]:
                oldest = s
        if oldest < 0:
            break
        worlds.ready[b, place, oldest] = math.inf
        over -= draws.data_gb[layout, oldest]
